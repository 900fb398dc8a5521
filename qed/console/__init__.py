"""Terminal output: the live progress line and tables."""
