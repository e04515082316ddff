"""Frozen values and pure functions that every other folder uses. Imports the standard library only, nothing of ours.

torch is imported inside the few functions that need it, so that the parent process never loads it.
"""
