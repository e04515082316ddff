"""The `ab` command: it measures two builds on one machine in turns, A B B A, until every cell is settled or time is up.

    builds.py      what --a and --b mean: two interpreters, or two pieces of code
    schedule.py    the order of the turns, and which cells still fit the time
    turns.py       measures the turns, and decides when to stop
    run_ab.py      from a request to two run files and their judgement
    settle.py      `gate --settle`: an A/B of the cells that a gate left open

gate/repeated_looks.py judges, as `attnbench gate A B` does with the same files. docs/ab.md explains the method and its
error rates.
"""
