"""The `profile` command: the kernels, memory and traffic of one call of one case."""
