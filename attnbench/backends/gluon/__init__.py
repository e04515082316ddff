"""`gluon`: attnbench's own exact attention for Hopper in Gluon, the language below Triton of the same compiler.

Read docs/gluon-kernel.md first, and of the plain kernels backends/triton/attention.py and forward.py, which these ones
follow. Then pipeline.py says how the warps of a program wait for each other, and forward.py is the shorter of the two
passes; forward_tiles.py has its sizes and who computes what. The backward starts in backward.py; backward_shared.py has
what a program works on, backward_tiles.py its sizes, dq_sum.py how dq is added up, and backward_wide.py the kernel
above 128 columns. attention.py is the function to call, and backend.py the backend that measures it.
"""

from attnbench.backends.gluon.backend import Gluon

__all__ = ["Gluon"]
