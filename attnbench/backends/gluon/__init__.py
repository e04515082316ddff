"""`gluon`: attnbench's own exact attention for Hopper in Gluon, the language below Triton of the same compiler.

backend.py has the backend, attention.py the function to call, forward.py and backward.py the kernels and their launch
(backward_wide.py that above 128 columns), pipeline.py and backward_shared.py what they share, dq_sum.py how dq is added
up, backward_tiles.py the sizes of the backward; docs/triton-kernel.md compares it with the plain Triton kernels.
"""

from attnbench.backends.gluon.backend import Gluon

__all__ = ["Gluon"]
