"""The `compare` command, for a person who buys hardware: run files -> machines -> speed, price and memory of each.

    findings.py           the whole comparison as one value
    machines.py           run files -> machines: which files are one, which rounds count, which libraries they used
    common_cells.py       the cells and cases that all machines measured, and what each machine lacks and why
    like_kernels.py       whether one backend ran like kernels on two machines
    figures.py            the figures that a buyer may mean: in bursts or without pauses, shared backends or own
    speed_ratio.py        how many times as fast one machine is as another, with its 95 % interval
    prices.py             --price: what a machine costs
    money.py              what an hour costs, what a dollar buys, below which price a machine is worth it: all formulas
    requests.py           --workload in words: requests to a model, interpolated between cases
    workload.py           --workload: cases with weights, the speed ratio of them all, and the time of a token
    longest_sequence.py   the longest sequence that fits in memory
    answer.py             the answer in three sentences
    tables.py             the tables
    cautions.py           what to doubt: intervals, and what sets machines apart beside the hardware
    document.py           all of it as a document, and as data for other programs

docs/compare.md says what every figure is.
"""
