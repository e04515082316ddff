"""What a comparison says in a sentence or two, and how it writes a ratio."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.compare.compare import Comparison, Group
from attnbench.analysis.compare.ratios import SAMPLES, Ratio
from attnbench.results import case_names
from attnbench.results.metrics import digits

ONE_ROUND = 0.02  # two rounds of one H200 lie as far apart in the worst cell, and samples do not show it: docs/gate.md


def answer(c: Comparison) -> list[str]:
    """What a buyer wants to know first, in a sentence or two."""
    ranked = sorted(
        ((r, c.machines[i].label) for i in c.others() if (r := c.overall[i])), key=lambda pair: -pair[0].value
    )
    home = c.reference.label
    over = f"on the workload {c.workload.workload.name!r}" if c.workload else _over(c.whole)
    said = []
    if not ranked:
        said.append(f"No machine but {home} can run all of the workload {c.workload and c.workload.workload.name!r}.")
    elif len(ranked) == 1:
        ((ratio, label),) = ranked
        if even(ratio):
            alike = "cannot be told apart" if ratio.even else "are alike as far as a single round tells"
            said.append(f"{label} and {home} {alike}: {times(ratio)} {over}.")
        else:
            said.append(f"{label} is {times(ratio)} as fast as {home} {over}.")
        said += [*_same(c), *_extremes(c)]
    else:
        others = ", ".join(f"{label} {times(ratio)}" for ratio, label in ranked)
        said.append(f"{_lead(ranked, home)} {over}. As fast as {home}: {others}.")
    return [" ".join(filter(None, [*said, _dollar(c), _watt(c)]))]


def even(ratio: Ratio) -> bool:
    """Whether it is no difference that was shown: its interval holds 1, or only samples say that it does not."""
    return ratio.even or (SAMPLES in ratio.sources and abs(ratio.value - 1) < ONE_ROUND)


def _lead(ranked: Sequence[tuple[Ratio, str]], home: str) -> str:
    """Who is fastest, with those that were not shown to be slower."""
    base = Ratio(1.0, 1.0, 1.0, (), 0), home
    everyone = sorted([*ranked, base], key=lambda pair: -pair[0].value)
    first = everyone[0][0]
    level = [label for ratio, label in everyone if _level(first, ratio)]
    if len(level) == len(everyone):
        return "None of the machines was shown to be faster than another"
    if len(level) > 1:
        named = " and ".join(level) if len(level) < 4 else case_names.some(level)
        return f"Fastest are {named}, not shown to differ,"
    return f"Fastest is {level[0]}"


def _level(first: Ratio, other: Ratio) -> bool:
    """Whether the intervals meet, or only samples keep them apart by little."""
    if None in (first.low, other.high) or (other.high or 0) >= (first.low or 0):
        return True
    return SAMPLES in first.sources + other.sources and first.value / other.value < 1 + ONE_ROUND


def _over(group: Group) -> str:
    return (
        f"over {case_names.count(len(group.cases), 'case')}, with the fastest backends of each machine (geometric mean)"
    )


def _same(c: Comparison) -> list[str]:
    """Of two machines, where the fastest backend of one is not on the other: then not the machines alone differ."""
    if c.workload:
        return []
    (i,) = c.others()
    best, same = c.whole.best[i], c.whole.same[i]
    sides = (i, c.home), (c.home, i)
    lacking = any((case, c.bests[a][case]) not in c.machines[b].logs for a, b in sides for case in c.cases)
    if not lacking or same is None or abs(best.value / same.value - 1) < ONE_ROUND:
        return []
    return [f"With the same backends on both: {times(same)}."]


def _extremes(c: Comparison) -> list[str]:
    """The groups of cases that gain least and most, of two machines."""
    if c.workload:
        return []
    (i,) = c.others()
    ranked = sorted((g.best[i].value, g.name) for g in c.groups)
    if len(ranked) < 2 or all(even(g.best[i]) for g in c.groups):
        return []
    (low, least), (high, most) = ranked[0], ranked[-1]
    return [f"From {number(low)}x ({least}) to {number(high)}x ({most})."]


def _dollar(c: Comparison) -> str:
    bought = [(amount, m.label) for i, m in enumerate(c.machines) if (amount := c.bought(i)) is not None]
    if len(bought) < 2:
        return ""
    bought.sort(reverse=True)
    (most, best), (next_, second) = bought[:2]
    unit = next(iter(c.prices.values())).unit
    if most / next_ < 1 + ONE_ROUND:
        return f"For the money {best} and {second} are alike: {digits(most)} and {digits(next_)} {unit}."
    return f"Most for the money: {best}, {digits(most)} {unit}, {number(most / next_)}x of {second}."


def _watt(c: Comparison) -> str:
    if c.power is None:
        return ""
    found = [(v, m.label) for m, v in zip(c.machines, c.power.tflops_per_watt, strict=True) if v]
    found.sort(reverse=True)
    if len(found) < 2:
        return ""
    (most, best), (next_, second) = found[:2]
    if most / next_ < 1 + ONE_ROUND:
        return f"Per watt {best} and {second} are alike: {digits(most)} and {digits(next_)} TFLOP/s/W."
    return f"Most per watt: {best}, {digits(most)} TFLOP/s/W, {number(most / next_)}x of {second}."


def times(ratio: Ratio | None) -> str:
    """1.42x (1.40 to 1.44)."""
    if ratio is None:
        return case_names.NOTHING
    if ratio.low is None or ratio.high is None:
        return f"{number(ratio.value)}x"
    return f"{number(ratio.value)}x ({number(ratio.low)} to {number(ratio.high)})"


def number(value: float) -> str:
    """Three decimals near 1, else three significant digits."""
    return f"{value:.3f}" if 0.9 <= value < 1.1 else digits(value)
