"""What the compiler says about any function, one stage a file: its own text, and one table."""
