"""Two runs -> a finding per cell and metric -> the verdict of the whole, with its exit code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnbench import stats
from attnbench.errors import UserError
from attnbench.gate import comparable, decide, looks, turns
from attnbench.gate.comparable import Difference
from attnbench.gate.margins import RULES, Margins
from attnbench.gate.readings import CYCLES, readings, signed
from attnbench.metrics import percent
from attnbench.report import words
from attnbench.report.cells import Cell, Key, cells
from attnbench.types import Case, Run

EXIT_PASS, EXIT_REGRESSION, EXIT_INCONCLUSIVE, EXIT_NOT_COMPARABLE = 0, 1, 3, 4

Verdict = Literal["newly-failing", "missing", "regressed", "inconclusive", "improved", "newly-working", "unchanged"]
Choice = Literal["pass", "fail"]
VERDICTS: tuple[Verdict, ...] = (
    "newly-failing",
    "missing",
    "regressed",
    "inconclusive",
    "improved",
    "newly-working",
    "unchanged",
)
_VERDICT_RANK = {verdict: rank for rank, verdict in enumerate(VERDICTS)}
_METRIC_RANK = {metric: rank for rank, metric in enumerate(RULES)}
ROUNDS = 5  # a side, at which docs/gate.md states the error rates
TOGETHER = 10  # cells, from which a change common to them is worth a line


@dataclass(frozen=True)
class Request:
    metrics: tuple[str, ...]
    margins: Margins = field(default_factory=Margins)
    expect: tuple[str, ...] = ()
    inconclusive: Choice = "fail"
    missing: Choice = "fail"


@dataclass(frozen=True)
class Finding:
    """What became of one metric of a cell, or with metric None of the cell as a whole."""

    case: Case
    backend: str
    metric: str | None
    verdict: Verdict
    rounds: tuple[int, int]  # with a value, in baseline and current
    values: tuple[Sequence[float], Sequence[float]] = ((), ())  # theirs, in the metric's unit
    margin: float | None = None
    decision: decide.Decision | None = None
    reason: str = ""
    held_down: bool = False  # a limit kept the clock below its best on either side

    @property
    def baseline(self) -> float | None:
        """Typical of the rounds, in the metric's unit: their ratio is the change."""
        return _typical(self.values[0])

    @property
    def current(self) -> float | None:
        return _typical(self.values[1])

    @property
    def name(self) -> str:
        return name(self.backend, self.case)

    @property
    def unmeasured(self) -> bool:
        """Of an A/B: there was no time for the cell."""
        return self.verdict == "inconclusive" and self.metric is None


@dataclass(frozen=True)
class Judgement:
    baseline: Run
    current: Run
    request: Request
    findings: tuple[Finding, ...] = ()
    meant: tuple[Difference, ...] = ()
    refused: tuple[Difference, ...] = ()  # if any, nothing was compared
    notes: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()  # how it was measured, where that is not the usual way

    def count(self, *verdicts: Verdict) -> int:
        return sum(f.verdict in verdicts for f in self.findings)

    def fails(self, finding: Finding) -> bool:
        """Whether this alone makes the gate fail as a regression does."""
        return finding.verdict in ("regressed", "newly-failing") or (
            finding.verdict == "missing" and self.request.missing == "fail"
        )

    def unsettles(self, finding: Finding) -> bool:
        """Whether this alone makes the gate inconclusive."""
        counts = finding.metric is None or not RULES[finding.metric].cached
        return finding.verdict == "inconclusive" and counts and self.request.inconclusive == "fail"

    @property
    def exit_code(self) -> int:
        if self.refused:
            return EXIT_NOT_COMPARABLE
        if any(self.fails(f) for f in self.findings):
            return EXIT_REGRESSION
        return EXIT_INCONCLUSIVE if any(self.unsettles(f) for f in self.findings) else EXIT_PASS


def name(backend: str, case: Case) -> str:
    """All of a cell, so that it stays its name whatever it stands beside: triton 16k d128 causal fwd bf16 b1 h16."""
    return f"{words.case(backend, case, dtype=True)} b{case.shape.batch} h{words.heads(case)}"


def judge(baseline: Run, current: Run, request: Request) -> Judgement:
    """Raises UserError where there is nothing to compare."""
    meant, refused, idle = differing(baseline, current, request.expect)
    in_turns = turns.in_turns(baseline, current)
    heading = turns.heading(baseline, current) if in_turns else ()
    if refused:
        return Judgement(baseline, current, request, meant=tuple(meant), refused=tuple(refused), heading=heading)
    compared = turns.whole_pairs(baseline, current) if in_turns else (baseline, current)
    before, after = ({c.key: c for c in cells([run])} for run in compared)
    if not before.keys() & after.keys():
        raise UserError(
            f"the two runs have no cell in common ({words.count(len(before), 'cell')} in the baseline, "
            f"{len(after)} in the current run); measure the same suite in both"
        )
    whole, both = _endings(before, after)
    late = turns.left_out(before, after) if in_turns else {}
    whole += [Finding(*key, None, "inconclusive", (0, 0), reason=why) for key, why in late.items()]
    findings = [*whole, *_measured(both, request, in_turns)]
    if both and CYCLES in request.metrics and not any(f.metric == CYCLES for f in findings):
        raise UserError("cycles: no cell knows the clock that was held in both runs; compare --metric latency")
    if not findings:
        raise UserError(f"nothing in the two runs can be compared by {', '.join(request.metrics)}")
    findings.sort(key=_rank)
    names = (name(backend, case) for case, backend in {**before, **after})
    notes = [
        *(f"--expect {n}: nothing differs there; is this the run that was meant?" for n in idle),
        *(f"margins: no cell is called {glob!r}" for glob in request.margins.unused(names)),
        *_unmeasured(findings),
        *_notes(findings, in_turns),
        *_beside(before, after),
    ]
    return Judgement(baseline, current, request, tuple(findings), tuple(meant), notes=tuple(notes), heading=heading)


def differing(
    baseline: Run, current: Run, expect: Sequence[str]
) -> tuple[list[Difference], list[Difference], list[str]]:
    """comparable.split of two runs. The builds of an A/B are meant to differ without being named."""
    comparable.check_names(expect, (baseline, current))
    found = comparable.differences(baseline, current)
    builds = turns.under_test(baseline, current) if turns.in_turns(baseline, current) else []
    meant, refused, idle = comparable.split(found, [*expect, *turns.meant(found, builds)])
    return meant, refused, idle


def _endings(before: Mapping[Key, Cell], after: Mapping[Key, Cell]) -> tuple[list[Finding], list[tuple[Cell, Cell]]]:
    """What can be said of cells without a figure, and the pairs that have figures on both sides."""
    found, both = [], []
    for key, old in before.items():
        new = after.get(key)
        was, now = _state(old), _state(new)
        rounds = (len(old.ok), len(new.ok) if new else 0)
        if was == now == "works" and new:
            both.append((old, new))
        elif was == "works" and now == "fails" and new:
            found.append(Finding(*key, None, "newly-failing", rounds, reason=_why(new)))
        elif was == "works":
            found.append(Finding(*key, None, "missing", rounds, reason=_why(new) if new else "no record of it"))
        elif now == "works":
            found.append(Finding(*key, None, "newly-working", rounds, reason=f"was: {_why(old)}"))
    return found, both


def _state(cell: Cell | None) -> Literal["works", "fails", "absent"]:
    """A cell that failed in any round fails: a crash now and then is one too many."""
    statuses = {cell.columns.statuses[i] for i in cell.rows} if cell else set()
    if statuses - {"ok", "skipped"}:
        return "fails"
    return "works" if "ok" in statuses else "absent"


def _why(cell: Cell) -> str:
    """Of the first round that was not ok: "2 of 5 rounds OOM: out of memory"."""
    statuses, rows = cell.columns.statuses, cell.rows
    bad = [i for i in rows if statuses[i] not in ("ok", "skipped")] or rows
    word = words.ENDINGS.get(statuses[bad[0]], statuses[bad[0]])
    share = f"{len(bad)} of {len(rows)} rounds " if len(rows) > 1 else ""
    reason = cell.columns.reasons.get(bad[0])
    return words.one_line(f"{share}{word}" + (f": {reason}" if reason else ""))


def _measured(both: Iterable[tuple[Cell, Cell]], request: Request, in_turns: bool) -> list[Finding]:
    """All metrics of all cells, decided together; of rounds that took turns, look by look."""
    cells_of: list[tuple[Cell, Cell, str, list[float], list[float]]] = []
    tests: list[decide.Rounds] = []
    missing = []
    for old, new in both:
        called = name(new.backend, new.case) if request.margins.cells else ""
        for metric in request.metrics:
            before, after = readings(metric, old, new)
            lost = before and not after
            paired = in_turns or RULES[metric].cached  # alike are the rounds of one number
            if paired:
                before, after = ({i: side[i] for i in sorted({*before} & {*after})} for side in (before, after))
            x, y = list(before.values()), list(after.values())
            if x and y:
                margin = request.margins.of(metric, called)
                tests.append(_rounds(metric, x, y, margin, paired))
                cells_of.append((old, new, metric, x, y))
            elif lost:
                gone = "no value any more"
                missing.append(Finding(new.case, new.backend, metric, "missing", (len(old.ok), 0), reason=gone))
    decided = looks.decide_in_turns(tests) if in_turns else [(d, None) for d in decide.decide(tests)]
    return missing + [
        Finding(
            new.case,
            new.backend,
            metric,
            decision.verdict,
            (len(x[:pairs]), len(y[:pairs])),
            (x[:pairs], y[:pairs]),
            test.margin,
            decision,
            _settle(decision) if decision.verdict == "inconclusive" else "",
            metric == "latency" and (old.held_down or new.held_down),
        )
        for (old, new, metric, x, y), test, (decision, pairs) in zip(cells_of, tests, decided, strict=True)
    ]


def _typical(values: Sequence[float]) -> float | None:
    """The geometric mean, as logarithms are compared; a reading of 0 has none."""
    if not values:
        return None
    return stats.geomean(values) if min(values) > 0 else stats.median(values)


def _rounds(metric: str, before: Sequence[float], after: Sequence[float], margin: float, paired: bool) -> decide.Rounds:
    rule = RULES[metric]
    least = rule.floor or math.ulp(0.0)
    x, y = ([math.log(value if value > least else least) for value in side] for side in (before, after))
    hidden = max(before) <= rule.floor and max(after) <= rule.floor  # no noise to know
    return decide.Rounds(x, y, margin, metric if rule.noisy and not hidden else "", paired)


def _settle(decision: decide.Decision) -> str:
    if decision.noise is None:
        return "too few rounds to know its noise"
    if decision.more is None:
        return f"over {decide.MORE[-1]} more rounds a side: it lies at the margin, or is too noisy"
    return f"{words.count(decision.more, 'more round')} a side would settle it"


def _rank(finding: Finding) -> tuple[object, ...]:
    """The gravest first, within a verdict by metric, the largest change first; else in the order of a report."""
    metric = _METRIC_RANK[finding.metric] if finding.metric else -1
    change = finding.decision.change if finding.decision else 0.0
    return (_VERDICT_RANK[finding.verdict], metric, change if finding.verdict == "improved" else -change)


def _unmeasured(findings: Iterable[Finding]) -> list[str]:
    """In a line: the findings say of each cell the same."""
    names = [f.name for f in findings if f.unmeasured]
    if not names:
        return []
    number = words.count(len(names), "cell")
    return [f"{number} left out for want of time, which is no pass: {words.some(names)}; give a longer --time-limit."]


def _notes(findings: Sequence[Finding], in_turns: bool) -> list[str]:
    """What a reader must know of all figures together."""
    notes = []
    timed = [f for f in findings if f.metric in ("latency", CYCLES) and f.decision]
    if not in_turns and any(f.decision.weak for f in timed if f.decision):
        notes.append(_weakness(timed))
    changes = [f.decision.change for f in timed if f.decision]
    if len(changes) >= TOGETHER:
        low, middle, high = (stats.percentile(changes, p) for p in (25, 50, 75))
        margin = stats.median([f.margin for f in timed if f.margin is not None])
        line = f"Of {len(changes)} cells the median {timed[0].metric} changed by {signed(middle)}, "
        line += f"the middle half by {signed(low)} to {signed(high)}."
        if not in_turns and low * high > 0 and abs(middle) > margin / 3:
            line += " Nearly all moved together: that is as likely the machine as the code; measure the baseline again."
        notes.append(line)
    held = [f for f in timed if f.held_down]
    if held:
        notes.append(
            f"~ {words.count(len(held), 'cell')}: a limit held the clock below its best, so the latency is also the "
            "machine's; --metric cycles compares without the clock."
        )
    return notes


def _weakness(timed: Sequence[Finding]) -> str:
    some = [f.decision for f in timed if f.decision and f.decision.noise is not None]
    sides = {min(f.rounds) for f in timed if max(f.rounds) > 1}
    if not some:
        return f"One round a side says nothing of the noise, and the cells are too few to; run --rounds {ROUNDS}."
    halves = [math.log1p(d.high) - math.log1p(d.change) for d in some if d.high is not None]
    known = f"the typical change is known to {percent(stats.median(halves))}"
    if sides:
        return f"One side has one round only, so its noise is taken to be the other's; {known}. Run --rounds {ROUNDS}."
    return (
        "One round a side is weak: noise is taken from how differently the cells changed, a disturbed cell cannot be "
        f"told from a changed one, and {known}. Run both with --rounds {ROUNDS}."
    )


def _beside(before: Mapping[Key, Cell], after: Mapping[Key, Cell]) -> list[str]:
    """Cells that were not compared."""
    failing = [key for key in before if _state(before[key]) != "works" and _state(after.get(key)) == "fails"]
    new = [key for key in after if key not in before]
    notes = []
    if failing:
        names = words.some(name(backend, case) for case, backend in failing)
        notes.append(f"{words.count(len(failing), 'cell')} worked in neither run: {names}")
    if new:
        names = words.some(name(backend, case) for case, backend in new)
        notes.append(f"{words.count(len(new), 'cell')} in the current run only, not compared: {names}")
    return notes
