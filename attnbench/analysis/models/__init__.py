"""Models by name: what is known of their attention, and how long it takes a step.

document.py   the models, or one of them in full
step_time.py  the cells of a run -> milliseconds of attention in one step of a model
"""
