"""Parts of benchmarks/guard.py: the workloads, the commits that they run on, and the verdict."""
