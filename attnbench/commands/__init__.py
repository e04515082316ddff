"""One file for each command: its options, one call, its output. Heavy imports stay inside, so that each starts fast.

options.py   the options that choose what to measure, which `run` and `ab` share
shared.py    what several share: read run files, tell what goes on, write a text
"""
