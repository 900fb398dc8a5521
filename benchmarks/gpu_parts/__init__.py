"""The parts of the GPU kit: checks, ceilings of the card, steps of real shapes, and other programs on the same work."""
