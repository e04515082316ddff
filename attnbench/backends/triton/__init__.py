"""`triton`: attnbench's own exact attention in Triton.

backend.py has the backend and attention.py the algorithm and the functions to call; docs/triton-kernel.md says which
file does what.
"""

from attnbench.backends.triton.backend import Triton

__all__ = ["Triton"]
