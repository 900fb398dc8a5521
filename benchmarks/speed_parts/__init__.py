"""Parts of the speed benchmarks: workers that take turns, the model folder that both sides load, the figures."""
