"""One file for each command: its options, one call, its output. Heavy imports stay inside, so that each starts fast.

options.py   the options that choose what to measure, which `run` and `ab` share
shared.py    functions that several share: they read run files, show progress, write text
"""
