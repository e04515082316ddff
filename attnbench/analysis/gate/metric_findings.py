"""The findings on all metrics of all cells that have values in both runs, decided together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import special  # type: ignore[import-untyped]

from attnbench.analysis.gate.hypothesis_tests import MORE_ROUNDS, decide
from attnbench.analysis.gate.margins import RULES, TIMED, Margins
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.rounds import Rounds, round_values, timer_tick
from attnbench.analysis.gate.verdicts import Decision, Finding, signed
from attnbench.core import stats
from attnbench.core.formats import percent
from attnbench.core.text import count, listed
from attnbench.results.case_names import full_name
from attnbench.results.cells import Cell, Key

CHANCE = 0.001  # probability that a round is called disturbed in a run whose rounds are alike
MIN_ROUNDS = 3  # with two rounds that differ, neither can be named as the disturbed one


@dataclass(frozen=True)
class _Pair:
    """One metric of a cell of both runs: its values by round."""

    old: Cell
    new: Cell
    before: dict[int, float]
    after: dict[int, float]
    margin: float
    earlier: tuple[dict[int, float], ...] = ()  # of further runs of the baseline


def metric_findings(
    pairs: Sequence[tuple[Cell, Cell]],
    metrics: Collection[str],
    margins: Margins,
    in_turns: bool,
    earlier: Sequence[Mapping[Key, Cell]] = (),
    controls: Collection[str] = (),
) -> tuple[list[Finding], list[str]]:
    """Return a finding for each metric of each pair of cells (baseline, current) that has values in the baseline.

    Return too a note on each round that differs from the others. With `in_turns` the rounds were measured in turns and
    are compared in pairs, look by look. `earlier`: the cells of further runs of the baseline; `controls`: backends that
    no difference between the runs can have changed.
    """
    found, compared, tests, notes = list[Finding](), list[Finding](), list[Rounds](), list[str]()
    for metric in metrics:
        rule, both = RULES[metric], list[_Pair]()
        paired = in_turns or rule.cached
        for old, new in pairs:
            before, after = round_values(metric, old), round_values(metric, new)
            if before and not after:
                rounds = len(old.ok), 0
                found.append(Finding(*new.key, metric, "missing", rounds, reason="no value any more"))
            if paired:  # round i with round i
                before, after = ({n: side[n] for n in side if n in before and n in after} for side in (before, after))
            if before and after:
                cells = [run[new.key] for run in earlier if new.key in run] if rule.noisy and not paired else []
                others = tuple(filter(None, (round_values(metric, cell) for cell in cells)))
                margin = margins.of(metric, full_name(new.backend, new.case), new.load)
                both.append(_Pair(old, new, before, after, margin, others))
        smallest = 0.0
        if metric == "latency":
            smallest = timer_tick(cell for pair in both for cell in (pair.old, pair.new))
        if rule.noisy and not paired:
            notes += _disturbed(metric, both)
        for pair in both:
            runs = [[*run.values()] for run in (pair.before, *pair.earlier)]
            values = [value for run in runs for value in run], [*pair.after.values()]
            rounds = len(values[0]), len(values[1])
            held_down = metric == "latency" and (pair.old.held_down or pair.new.held_down)
            finding = Finding(*pair.new.key, metric, "inconclusive", rounds, values, pair.margin, held_down=held_down)
            compared.append(replace(finding, reason=pair.new.not_computed if metric in TIMED else ""))
            test = _test(metric, (runs[0], values[1]), pair.margin, paired, smallest)
            further = tuple(_logarithms(metric, run) for run in runs[1:]) if test.family else ()
            tests.append(replace(test, earlier=further, control=pair.new.backend in controls))
    decided = decide_in_looks(tests) if in_turns else [(decision, None) for decision in decide(tests)]
    found += [_decided(f, test, *seen) for f, test, seen in zip(compared, tests, decided, strict=True)]
    return found, notes


def _disturbed(metric: str, both: Sequence[_Pair]) -> list[str]:
    """Return a note on the disturbed rounds of either run.

    Several such rounds may also mean a build that is slow in some of its processes.
    """
    notes = []
    margins = [pair.margin for pair in both]
    for name, cells in (("baseline", [p.before for p in both]), ("current run", [p.after for p in both])):
        logs = [dict(zip(values, _logarithms(metric, [*values.values()]), strict=True)) for values in cells]
        found = disturbed_rounds(logs, margins)
        where = f"in the {metric} of {max(found.values(), default=0)} of {len(cells)} cells"
        if len(found) == 1:
            (n,) = found
            notes.append(
                f"Round {n} of the {name} differs {where}, the others agree. "
                f"Measure it again with attnbench run --resume FILE --again {n}."
            )
        elif found:
            more = 2 * len({n for values in cells for n in values})
            notes.append(
                f"Rounds {listed([*map(str, found)])} of the {name} differ from its others {where}: the machine was "
                "disturbed, or the build is slower in some of its processes. "
                f"More rounds tell which: attnbench run --resume FILE --rounds {more}."
            )
    return notes


def disturbed_rounds(cells: Sequence[Mapping[int, float]], margins: Sequence[float]) -> dict[int, int]:
    """Return disturbed round of a run -> number of cells in which it lies apart.

    `cells`: for each cell, round -> logarithm of one metric; `margins`: of each cell, relative. A value lies apart
    where it is further from the median of its cell's rounds than half the margin. If the rounds of a run are alike,
    such values fall on them by chance: of k such values in n rounds, one round has Binomial(k, 1/n). A round was
    disturbed if it has so many that the probability of this is below CHANCE for all rounds together (Bonferroni). Where
    that holds for half of the rounds or more, none was. Disturbed rounds still count, since a build that is slow in
    some of its processes would pass otherwise.
    """
    apart: Counter[int] = Counter()
    for values, margin in zip(cells, margins, strict=True):
        if len(values) >= MIN_ROUNDS:
            middle = stats.median([*values.values()])
            apart.update(n for n, value in values.items() if abs(value - middle) > margin / 2)
    if not apart:
        return {}
    rounds = len({n for values in cells for n in values})
    found = {
        n: number
        for n, number in sorted(apart.items())
        if special.bdtrc(number - 1, apart.total(), 1 / rounds) <= CHANCE / rounds
    }
    return found if 2 * len(found) < rounds else {}


def _test(metric: str, values: tuple[list[float], list[float]], margin: float, paired: bool, smallest: float) -> Rounds:
    """Return the rounds of a metric, as logarithms. A metric that both sides have at or below its floor has no noise.

    `smallest`: the steps in which the metric is read, in its unit.
    """
    rule = RULES[metric]
    before, after = (_logarithms(metric, side) for side in values)
    hidden = all(value <= rule.floor for side in values for value in side)
    if not rule.noisy or hidden:
        return Rounds(before, after, margin, "", paired)
    tick = smallest / math.exp(stats.median(before))
    return Rounds(before, after, margin, metric, paired, tick, rule.cached)


def _logarithms(metric: str, values: Sequence[float]) -> list[float]:
    least = RULES[metric].floor or math.ulp(0.0)
    return [math.log(max(value, least)) for value in values]


def _decided(finding: Finding, test: Rounds, decision: Decision, pairs: int | None = None) -> Finding:
    """Return a finding with its decision, which rests on the first pairs of rounds of an A/B, or on all rounds.

    A finding that has a reason rests on a latency that is not the computation's, which is no improvement.
    """
    before, after = (side[:pairs] for side in finding.values)
    if finding.reason and decision.verdict == "improved":
        return replace(finding, decision=decision)
    return replace(
        finding,
        verdict=decision.verdict,
        rounds=(len(before), len(after)),
        values=(before, after),
        decision=decision,
        reason=_remedy(test, decision) if decision.verdict == "inconclusive" else "",
    )


def _remedy(test: Rounds, decision: Decision) -> str:
    """Return the remedy of an inconclusive decision, or the reason why there is none."""
    if decision.noise is None:
        return "too few rounds to know the noise"
    more = decision.more and f"{count(decision.more, 'more round')} of both runs"
    if decision.slow_rounds:
        return f"{decision.slow_rounds} of {len(test.current)} rounds of the current run are slower by about the margin"
    if decision.jumped:
        return f"runs of the baseline differ in {count(decision.jumped, 'cell')} by a third of this change or more"
    if decision.jumping:
        return (
            f"perhaps a jump between two speeds, as seen in {count(decision.jumping, 'cell')}; {more} would decide it"
        )
    if decision.more_current:
        rounds = f"{count(decision.more_current, 'more round')} of the current run"
        return f"{rounds}{f' or {more}' if more else ''} would decide it"
    if more:
        return f"{more} would decide it"
    if test.tick > test.margin / 4:
        return f"the timer counts in steps of {percent(test.tick)} of the value, too coarse for this margin"
    if decision.in_common:
        return f"nearly all cells moved together, by {signed(decision.in_common)}: measure the baseline again"
    if decision.between > test.margin / 4:
        return "more rounds do not decide it: the spread between runs is too large (see the note)"
    noise = decision.noise / math.sqrt(len(test.current))
    near = abs(abs(decision.change) - test.margin) < noise
    return (
        f"too {'close to the margin' if near else 'noisy'} to decide: over {MORE_ROUNDS[-1]} more rounds of both runs"
    )
