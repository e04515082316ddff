"""attnbench measures attention: how fast, how lean and how close to the hardware's limit."""

__version__ = "0.1.0"
