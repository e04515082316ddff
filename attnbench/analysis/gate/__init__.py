"""The `gate` command: it compares two runs, judges each metric of each cell, and ends with one exit code.

    judge.py              from two runs to findings and the verdict on the whole
    run_differences.py    what differs between two runs that a gate does not compare unless it is expected
    cell_states.py        cells that are missing, failing or working where they did not before
    metric_findings.py    the metrics of all other cells, decided together
    rounds.py             one value per round of each metric, and a test's rounds, as logarithms
    margins.py            how large a change must be to matter, per metric and cell
    hypothesis_tests.py   the statistics: improved, unchanged, regressed or inconclusive
    change_noise.py       the noise of each change that the statistics need
    run_effects.py        what all rounds of a run have in common: of all cells, of one, and of controls
    first_calls.py        first calls that empty caches explain
    disturbed_rounds.py   rounds in which something else disturbed many cells
    two_speeds.py         cells that jump between two speeds, and what they make likely
    repeated_looks.py     the statistics of an A/B, which is judged again and again
    ab_files.py           what is special about the two run files of an A/B
    findings.py           a finding, and the order of findings
    notes.py              what a reader must know of all figures together
    document.py           the document; plots.py: the rounds, for its page
    junit.py, github.py   the gate's own formats

docs/gate.md explains the method, its error rates as simulated, and the sources.
"""
