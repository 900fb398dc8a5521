"""The parts of benchmarks/other_evaluators.py that run in the environments of the other evaluators."""
