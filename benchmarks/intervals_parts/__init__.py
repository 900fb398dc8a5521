"""The parts of the interval benchmark: simulated evaluations, what the intervals and tests do with them, the card."""
