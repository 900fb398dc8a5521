"""C++ and Triton kernels of decoding and training; see `build` for how the C++ functions are compiled."""
