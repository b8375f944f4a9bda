"""Pictures of what was found: pages, graphs and plots. They know tables and column names, not JAX."""
