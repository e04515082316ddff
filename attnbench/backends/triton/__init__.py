"""`triton`: attnbench's own exact attention in Triton. backend.py has the backend, the other files its kernels."""

from attnbench.backends.triton.backend import Triton

__all__ = ["Triton"]
