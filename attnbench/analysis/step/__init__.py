"""The `step` command: a step of a whole model, by implementation of its attention.

findings.py  what a faster attention kernel is worth in a step: predicted, and measured
document.py  steps and gains as a document
"""
