"""Tools for those who work on oplab itself: the golden programs and the score that they are held to."""
