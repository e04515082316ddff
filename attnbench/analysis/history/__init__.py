"""The `history` command: runs over commits and dates -> the latency of each cell -> when it changed.

    series.py         runs -> one series of points per cell, apart by unit and by how it was measured
    change_points.py  where the level of a series changes: the search is ruptures', what counts as noise is ours
    document.py       what changed, when, and what else changed then

docs/history.md says how it decides and how often it is wrong.
"""
