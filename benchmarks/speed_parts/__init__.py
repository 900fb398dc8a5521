"""The parts of the benchmarks of speed: workers that take turns, the model folder that both sides load, the figures."""
