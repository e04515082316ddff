"""attnbench's own Triton kernels."""
