"""The `ab` command: two builds are measured in turns (run/ab), and judged as `attnbench gate A B` judges the files.

    run_ab.py      an A/B with its judgement
    settle.py      `gate --settle`: an A/B of the cells that a gate left open

gate/repeated_looks.py has the statistics. docs/ab.md explains the method and its error rates.
"""
