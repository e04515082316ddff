"""The `compare` command, for a person who buys hardware: run files -> machines -> speed, price and memory of each.

    compare.py            the whole comparison as one value
    machines.py           run files -> machines, each with a short label
    common_cells.py       the cells and cases that all machines measured, and what each machine lacks and why
    speed_ratio.py        how many times as fast one machine is as another, with its 95 % interval
    efficiency.py         TFLOP/s, share of the peak and power of each machine, and how far apart runs of one model lie
    prices.py             --price: what a dollar buys
    workload.py           --workload: cases with weights, and the speed ratio of them all
    longest_sequence.py   the longest sequence that fits in memory
    answer.py             the answer in a sentence or two
    tables.py             the tables
    cautions.py           what to doubt: intervals, and what sets machines apart beside the hardware
    document.py           all of it as a document, and as data for other programs

docs/compare.md says what every figure is.
"""
