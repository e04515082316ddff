"""The `history` command: runs over commits and dates -> the metrics of each cell -> when they changed.

    chosen_runs.py    which runs it is of: a branch's, those since a date or commit
    series.py         runs -> one series of points per cell and metric, apart by unit and by how it was measured
    change_tests.py   whether anything changed in the cells of a unit: two tests
    change_points.py  where the level of a series changes: the search is ruptures', what counts as noise is ours
    acknowledged.py   changes that are meant, from a file
    findings.py       what each series does
    events.py         the runs between which cells changed, and what else changed with them
    document.py       all of it as a document, and as data for other programs

docs/history.md says how it decides and how often it is wrong.
"""
