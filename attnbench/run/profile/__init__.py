"""The measurement of `attnbench profile`: one call of each backend, by its worker and by NVIDIA's tools."""
