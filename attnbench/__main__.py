"""`python -m attnbench`."""

from attnbench.cli import main

main()
