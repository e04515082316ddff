"""Approximations of attention (docs/approximate.md). `Approximate` is the base class of their backends."""

from attnbench.backends.approximate.base import Approximate as Approximate
