"""Approximations of attention: docs/approximate.md. `Approximate` is the base of a backend that is one."""

from attnbench.backends.approximate.base import Approximate as Approximate
