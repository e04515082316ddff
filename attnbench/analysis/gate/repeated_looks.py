"""The statistics of `attnbench ab`: two builds measured in turns and judged after some pairs of rounds, until decided.

docs/dev/statistics.md has the method: a pair's difference is one value, compared with the margin by Student's t as
hypothesis_tests.py says, and the cells that are not settled are judged after each number of pairs in LOOKS. Each look
spends a seventh of the error rates:

- the false discovery rate: a look finds its regressions by Benjamini and Hochberg's step-up procedure at FDR / 7 over
  all cells and metrics of the A/B; settled cells are counted as hypotheses that cannot be rejected any more. The
  share of false regressions among all found is at most the sum of their shares at each look, each expected to be at
  most FDR / 7, and so FDR together; when a cell leaves, and why, does not matter.
- unchanged: two one-sided tests at 5 % / 7 in each look, so a cell slower by the margin or more is called unchanged at
  any look in at most 5 % of the cases (Bonferroni).
- the intervals of a cell at all its looks hold together with the same levels: a confidence sequence over seven looks.

This is a spending function (Lan and DeMets, Biometrika 70(3), 1983) used with Bonferroni's inequality in place of the
joint distribution of the looks, which cannot be computed for a moderated variance of few pairs. That costs more pairs
near the margin, and holds for any dependence (Jennison and Turnbull, "Group Sequential Methods with Applications to
Clinical Trials", 2000). A look may be moved for a reason that does not depend on the figures, such as the time limit.

The figures of a settled cell are the figures at its look; its variance stays in the common prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnbench.analysis.gate.hypothesis_tests import decide
from attnbench.analysis.gate.rounds import Rounds
from attnbench.analysis.gate.verdicts import Decision
from attnbench.run.ab.schedule import LOOKS

MIN_PAIRS = 3  # to judge noise; with two, simulations with ten times the noise had more than 1 % false alarms


def decide_in_looks(tests: Sequence[Rounds]) -> list[tuple[Decision, int]]:
    """Return one decision for each test, and the number of pairs on which it rests.

    The tests hold all pairs that were measured. The looks are repeated as they were taken while measuring, so the same
    files always give the same decisions.
    """
    found: list[tuple[Decision, int] | None] = [None] * len(tests)
    settled = [False] * len(tests)
    pairs = [0] * len(tests)
    for before, look in zip((0, *LOOKS), LOOKS, strict=False):
        going = [not done and len(test.baseline) > before for done, test in zip(settled, tests, strict=True)]
        if not any(going):
            break
        pairs = [
            seen if done else min(len(test.baseline), look)
            for seen, done, test in zip(pairs, settled, tests, strict=True)
        ]
        few = [bool(test.family) and seen < MIN_PAIRS for test, seen in zip(tests, pairs, strict=True)]
        shown = [_first(test, seen, alone) for test, seen, alone in zip(tests, pairs, few, strict=True)]
        fixed = [not more or alone for more, alone in zip(going, few, strict=True)]
        for i, decision in enumerate(decide(shown, 1 / len(LOOKS), fixed)):
            if going[i]:
                found[i] = (_undecided(decision) if few[i] else decision), pairs[i]
                settled[i] = decision.verdict != "inconclusive" and not few[i]
    return [each for each in found if each]


def _first(test: Rounds, pairs: int, alone: bool) -> Rounds:
    """Return the first pairs of a test; with `alone` in a family that does not share its noise with other tests."""
    family = f"{test.family}, too few" if alone else test.family
    return replace(test, baseline=test.baseline[:pairs], current=test.current[:pairs], family=family)


def _undecided(decision: Decision) -> Decision:
    return replace(decision, verdict="inconclusive", low=None, high=None, noise=None, more=None)
