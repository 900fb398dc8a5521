"""How the rewards of other systems are called: one file per system, with what they share in `calling` and `golds`."""
