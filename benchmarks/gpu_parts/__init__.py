"""Parts of the GPU kit: checks, the card's ceilings, steps of real shapes, and other programs on the same work."""
