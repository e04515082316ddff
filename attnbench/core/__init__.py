"""Frozen values and pure functions, of the standard library alone: they import nothing of ours outside this folder."""
