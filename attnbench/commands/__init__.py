"""One file a command: its options, one call, what it prints. Heavy imports stay inside, so that each starts at once.

options.py   the options that choose what to measure, which `run` and `ab` share
shared.py    what several do: read run files, tell what goes on, write a text
"""
