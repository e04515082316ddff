"""A step of a whole model: step_cell.py has the steps of its cell, model.py builds and runs it, exact_model.py has the
answer, attention_calls.py gets hold of its attention, attention_share.py traces it.

What backends/transformers/step.py declares is tested here: the implementation that transformers runs is known by the
kernels of each layer.
"""
