"""Parts of benchmarks/faults.py."""
