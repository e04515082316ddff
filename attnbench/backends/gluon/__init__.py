"""`gluon`: attnbench's own exact attention for Hopper in Gluon, the language below Triton of the same compiler.

Read docs/gluon-kernel.md first, then backends/triton/attention.py and forward.py, the plain kernels that these follow.
pipeline.py explains how the warps of a program wait for each other. forward.py is the shorter pass; forward_tiles.py
has its tile sizes and the distribution of its work. The backward starts in backward.py; backward_shared.py has the work
of a program, backward_tiles.py its tile sizes, dq_sum.py the summation of dq, and backward_wide.py the kernel above 128
columns. attention.py has the function to call, and backend.py the backend that measures it.
"""

from attnbench.backends.gluon.backend import Gluon

__all__ = ["Gluon"]
