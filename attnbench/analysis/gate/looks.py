"""Two builds in turns, judged again and again until it is settled: the statistics of `attnbench ab`.

**Pairs.** Round i of the one side and round i of the other ran next to each other, as turns A B, B A, B A, A B, ...
(the Thue-Morse sequence). Their difference is one value: what drifts slowly is in both and falls out, and over four
pairs the order of the turns cancels drift that is linear or quadratic. The pairs' differences are compared with the
margin by Student's t, as decide.py says.

**Looks.** After so many pairs as LOOKS says the cells that are not settled are judged. Looking seven times would give
chance seven tries, so each look spends a seventh of the error rates of decide.py:

- the false discovery rate: a look's regressions are found by Benjamini and Hochberg's step-up at FDR / 7 over all
  cells and metrics of the A/B, the settled ones counted as hypotheses that cannot fall any more. The false ones among
  all that are found are at most the sum over the looks of the false among those found there, each expected at FDR / 7
  at most, and so FDR together; when a cell leaves, and why, does not matter.
- unchanged: two one-sided tests at 5 % / 7 each look, so a cell slower by the margin or more is called unchanged at
  any look with 5 % at most (Bonferroni).
- the intervals of a cell at all its looks hold together with the same levels: a confidence sequence over seven looks.

This is a spending function (Lan and DeMets, Biometrika 70(3), 1983) used with Bonferroni's inequality in place of the
joint distribution of the looks, which a moderated variance of few pairs does not let one compute: it costs more pairs
near the margin, and holds whatever depends on what (Jennison and Turnbull, "Group Sequential Methods with Applications
to Clinical Trials", 2000). The time of a look may be moved for a reason that the figures do not know: where the time is
up or a person ends it, the look that was due happens with the pairs that are there.

A cell is **settled** when it is regressed, improved or unchanged; its figures are those of that look, and it is
measured no more. The variances of settled cells stay in the common prior. Where it ended with one pair or two, nothing
that is noisy is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnbench.analysis.gate import rounds
from attnbench.analysis.gate.decide import Decision, decide
from attnbench.analysis.gate.rounds import Rounds

LOOKS = (4, 6, 8, 12, 16, 24, 32)  # pairs
MIN_PAIRS = 3  # that tell noise; with two, simulations of ten times the noise had more false alarms than 1 %


def decide_in_turns(every: Sequence[Rounds]) -> list[tuple[Decision, int]]:
    """One decision a test, and the pairs it rests on; tests hold all pairs that were measured, those to compare only.

    The looks are gone through as they were when it was measured, so the same files give the same decisions.
    """
    if not every:
        return []
    import numpy as np

    tests = rounds.of(every)
    found: dict[int, tuple[Decision, int]] = {}
    settled, seen = np.zeros(len(tests), bool), np.zeros(len(tests), int)
    for before, pairs in zip((0, *LOOKS), LOOKS, strict=False):
        going = ~settled & (tests.n > before)
        if not going.any():
            break
        seen = np.where(settled, seen, np.minimum(tests.n, pairs))
        few = (tests.family != "") & (seen < MIN_PAIRS)
        family = np.where(few, np.char.add(tests.family, ", too few"), tests.family)  # that tells nobody of the noise
        decisions = decide(tests.first(seen, family), 1 / len(LOOKS), (~going | few).tolist())
        for i in np.flatnonzero(going).tolist():
            found[i] = _unknown(decisions[i]) if few[i] else decisions[i], int(seen[i])
            settled[i] = found[i][0].verdict != "inconclusive"
    return [found[i] for i in range(len(tests))]


def _unknown(decision: Decision) -> Decision:
    return replace(decision, verdict="inconclusive", low=None, high=None, noise=None, more=None)
