"""The `gate` command: two runs -> are they comparable -> a finding per cell and metric -> one exit code.

    gate.py        two runs -> findings -> the verdict of the whole
    findings.py    what became of each metric of each cell
    endings.py     cells without a figure in one of the runs; measured.py: the metrics of all others
    notes.py       what a reader must know of all figures together
    comparable.py  what differs between two runs that no gate may compare
    margins.py     how large a change must be to matter, per metric and cell
    rounds.py      what is decided on: the rounds of a metric of a cell, and those of many by column
    decide.py      the statistics of all cells together
    moderate.py    the noise of one cell, helped by what the others say
    readings.py    records -> one value a round of each metric
    looks.py       an A/B judged again and again; turns.py: what sets its files apart from two runs

docs/gate.md has the method, its error rates as simulated, and the sources.
"""
