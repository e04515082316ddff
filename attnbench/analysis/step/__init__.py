"""The `step` command: a step of a whole model, by implementation of its attention."""
