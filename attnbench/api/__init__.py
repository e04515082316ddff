"""The Python API: what the commands measure, check and show, for scripts, notebooks and tests."""
