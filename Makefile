.PHONY: check test gpu-test bench tables site package

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

tables:  ## the figures in the documents, of run files in results/ and of docs/site/simulated/
	cog -r -I docs/site README.md docs/*.md docs/dev/*.md

site:  ## the documentation, into site/; needs pip install -e '.[docs]'
	mkdocs build --strict -f docs/site/mkdocs.yml

package:  ## wheel and sdist, into dist/, each tried in an environment of its own
	.ci/package
