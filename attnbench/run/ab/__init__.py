"""The measuring of an A/B: two builds in turns, A B B A, until every cell is settled or time is up.

    builds.py      what --a and --b mean: two interpreters, or two pieces of code
    schedule.py    the order of the turns, and which cells still fit the time
    turns.py       measures the turns, and decides when to stop
    in_turns.py    from a request to two run files

What cells are settled is asked of a gate, which analysis/ab/run_ab.py is.
"""
