"""The `compare` command, for who buys hardware: run files -> machines -> what one does for the other's time and money.

    command.py      parse, call, write
    compare.py      everything together, as one value that the writers in report/compare/ read
    machines.py     run files -> machines, each with a short name; what sets their software apart
    join.py         the cells that all have, the fastest backend on each, what each lacks and why
    ratios.py       speed ratios and their intervals
    workload.py     a workload file: the cells weighed, one figure with its parts
    prices.py       --price
    longest.py      the longest sequence that fits

docs/compare.md says what every figure is.
"""
