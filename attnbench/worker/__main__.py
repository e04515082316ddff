"""`python -m attnbench.worker`: what each backend's interpreter starts."""

from attnbench.worker.serve import main

main()
