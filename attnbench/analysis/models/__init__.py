"""Models by name: what is known of their attention, and how long it takes a step.

findings.py       the cells of a run -> milliseconds of attention in one step of a model
step_document.py  the same as the document of `attnbench report --model`
document.py       the document of `attnbench models`: all of them, or one in full
"""
