"""The `history` command: runs over commits and dates -> the latency of each cell -> when it changed.

    series.py         runs -> one series of points per cell, apart by unit and by how it was measured
    change_points.py  where the level of a series changes: the search is ruptures', what counts as noise is ours
    trends.py         what each series does
    events.py         the runs at which cells changed, and what else changed with them
    document.py       all of it as a document, and as data for other programs

docs/history.md says how it decides and how often it is wrong.
"""
