"""Training loops: SFT, preference learning, RL, and the runs that are made of them."""
