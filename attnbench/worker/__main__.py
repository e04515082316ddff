"""The program of a worker: `python -m attnbench.worker`. The parent starts one for each backend."""

from attnbench.worker.serve import main

main()
