"""Backends of torch itself: eager, SDPA, compiled, nested and ragged."""
