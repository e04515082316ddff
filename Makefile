.PHONY: check test gpu-test bench

check:  ## lint, format and types
	ruff check .
	ruff format --check .
	mypy

test:  ## everything that runs without a GPU, a process a core (tests/conftest.py)
	pytest

gpu-test:  ## on a machine with a CUDA GPU
	pytest -n 0 -s tests/gpu

bench:  ## the main job; the run file goes to results/
	attnbench run --seqlen 1k-64k
