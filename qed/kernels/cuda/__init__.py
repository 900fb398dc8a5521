"""Kernels in Triton for CUDA devices; a module is imported only where a tensor is on one."""
