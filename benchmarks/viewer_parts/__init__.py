"""What the benchmark of the viewer is made of."""
