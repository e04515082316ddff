"""The two run files of an A/B: rounds that were measured in turns, and builds that are meant to differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.gate.repeated_looks import MIN_PAIRS
from attnbench.analysis.gate.verdicts import Finding
from attnbench.core.record import WRONG, Run
from attnbench.core.text import count, some
from attnbench.results.cells import Cell, Key
from attnbench.run.ab.schedule import LOOKS


def in_turns(a: Run, b: Run) -> bool:
    """Return whether two runs are the two halves of one A/B."""
    return bool(a.turns) and a.turns == b.turns


def whole_pairs(a: Run, b: Run) -> tuple[Run, Run]:
    """Return the runs without the records of turns of which only one half was measured.

    A wrong result stays: it counts without its other half.
    """
    both = {r.id for r in a.records} & {r.id for r in b.records}
    first, second = (
        replace(run, records=tuple(r for r in run.records if r.id in both or r.status in WRONG)) for run in (a, b)
    )
    return first, second


def left_out(before: Mapping[Key, Cell], after: Mapping[Key, Cell]) -> list[Finding]:
    """Return a finding for each cell that neither build had time to measure: nothing is known of the cell."""
    return [
        Finding(*key, None, "inconclusive", (0, 0), reason=cell.reason or "")
        for key, cell in before.items()
        if key in after and all(row.record.resumable for side in (cell, after[key]) for row in side.rows)
    ]


def before_the_first_look(findings: Sequence[Finding]) -> tuple[list[Finding], list[str]]:
    """Return the findings of an A/B, with a note if it ended before its first look.

    In that case the reason of each finding that was not judged says after how many pairs the first look is.
    """
    pairs = max((f.rounds[0] for f in findings if f.decision), default=LOOKS[0])
    if pairs >= LOOKS[0]:
        return list(findings), []
    reason = f"{count(pairs, 'pair')} of turns; the first look is after {LOOKS[0]}"
    said = f"Ended before the first look, which is after {LOOKS[0]} pairs of turns: "
    said += (
        "an early look was taken at its end, with the same error rates."
        if pairs >= MIN_PAIRS
        else "no noisy metric was judged."
    )
    return [replace(f, reason=reason) if f.unjudged else f for f in findings], [said]


def under_test(a: Run, b: Run) -> list[str]:
    """Return the backends that the two runs load from different code, or run in different interpreters."""
    return [name for name in a.specs if name in b.specs and _build(a, name) != _build(b, name)]


def heading(a: Run, b: Run) -> tuple[str, ...]:
    """Return the lines that say how an A/B was measured, for the top of every output."""
    rounds = [count(len({r.round for r in run.records if r.status != "skipped"}), "round") for run in (a, b)]
    lines = [
        f"A/B in turns, A B B A B A A B: {rounds[0]} of the baseline and {rounds[1]} of the current build, each in "
        f"fresh processes; {len(LOOKS)} looks at most, after {LOOKS[0]} to {LOOKS[-1]} pairs of rounds",
        f"baseline: {_described(a, b)}",
        f"current:  {_described(b, a)}",
    ]
    if not under_test(a, b):
        lines.append("the two are one build: this tests the machine, and every change is an error")
    return tuple(lines)


def _build(run: Run, name: str) -> tuple[str, str]:
    return run.specs[name], run.interpreters.get(name, "")


def _described(run: Run, other: Run) -> str:
    """Return the versions under test, and the code and interpreter where they differ from the other run's."""
    names = under_test(run, other) or list(run.specs)
    parts = [run.versions.get(name, "not usable") for name in names]
    if any(run.specs[name] != other.specs.get(name) for name in names):
        parts += [run.specs[name] for name in names]
    parts += [python for name in names if (python := run.interpreters.get(name))]
    return some(dict.fromkeys(parts), 6)
