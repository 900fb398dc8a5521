"""Functions in C++ for what a decoding step does on a processor; see `build` for how they are compiled."""
