"""The `compare` command, for a person who buys hardware: run files -> machines -> speed, price and memory of each.

    compare.py            the whole comparison as one value
    machines.py           run files -> machines, each with a short label
    common_cells.py       the cells and cases that all machines measured, and the error where there are none
    missing_cells.py      the cells that a machine lacks, and why
    speed_ratio.py        how many times as fast one machine is as another, with its 95 % interval
    efficiency.py         TFLOP/s, share of the peak, watts and TFLOP/s per watt of each machine
    prices.py             --price: what a dollar buys
    workload_file.py      --workload: a file of cases with weights
    weighted_workload.py  the speed ratio of a whole workload and of its parts
    longest_sequence.py   the longest sequence that fits in memory
    unit_spread.py        how far apart runs of one model lie
    setup_differences.py  what sets machines apart beside the hardware, as cautions
    answer.py             the answer in a sentence or two
    tables.py             the tables; machine_columns.py: machines as columns or, where that is too wide, as rows
    json_and_csv.py       the comparison for other programs
    document.py           all of it as a document

docs/compare.md says what every figure is.
"""
