"""`helion`: attnbench's own forward in Helion, a language of tiles on torch's operators that becomes Triton code."""

from attnbench.backends.helion.backend import Helion

__all__ = ["Helion"]
