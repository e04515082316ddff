"""The `check` command: whether a backend's results are right, over a few small shapes that tell, without timing."""
