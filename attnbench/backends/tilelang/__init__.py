"""`tilelang`: attnbench's own forward in TileLang, a language of tiles on TVM that becomes CUDA C++."""

from attnbench.backends.tilelang.backend import TileLang

__all__ = ["TileLang"]
