"""The `compare` command, for who buys hardware: run files -> machines -> what one does for the other's time and money.

    compare.py      everything together, as one value that the writers in report/compare/ read
    machines.py     run files -> machines, each with a short name; what sets their software apart
    join.py         the cells that all have, the fastest backend on each, what each lacks and why
    ratios.py       speed ratios and their intervals
    figures.py      TFLOP/s, utilisation, power; the spread between runs of one model
    workload.py     a workload file: cases with weights; mix.py: one figure of it with its parts
    differences.py  what sets machines apart beside the hardware
    prices.py       --price
    longest.py      the longest sequence that fits

docs/compare.md says what every figure is.
"""
