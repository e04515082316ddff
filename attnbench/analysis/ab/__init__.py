"""The `ab` command: two builds on one machine in turns, A B B A, until every cell is settled or the time is up.

    sides.py       what --a and --b mean
    schedule.py    the order of the turns, and what still fits the time
    turns.py       the turns, and when to stop
    measure.py     from what was asked for to two run files and their judgement

gate/looks.py judges, as `attnbench gate A B` does with the same files; docs/ab.md has the method and its error rates.
"""
