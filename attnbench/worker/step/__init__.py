"""A step of a whole model.

step_cell.py has the steps of its cell, model.py builds and runs it, exact_model.py has the answer, attention_calls.py
intercepts its attention, and attention_share.py traces it.

The declarations of backends/transformers/step.py are tested here: the kernels of each layer show which implementation
transformers runs.
"""
