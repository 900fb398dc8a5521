"""Parts of benchmarks/laboratory.py."""
