"""Triton kernels for CUDA devices; a module is imported only if a tensor is on one."""
