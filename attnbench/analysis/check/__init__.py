"""The `check` command: whether a backend's results are right, over small shapes that show bugs, without timing."""
