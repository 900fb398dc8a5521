"""Parts of benchmarks/all.py: the rows of the table, how they are measured, and how they are shown."""
