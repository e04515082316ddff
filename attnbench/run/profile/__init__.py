"""The measuring of `attnbench profile`: one call of each backend, by its worker and by tools of NVIDIA's."""
