"""The answer of a comparison in a sentence or two, and how a ratio is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnbench.analysis.compare.compare import Comparison, Group
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import EXACTLY_ONE, Ratio
from attnbench.core.formats import digits
from attnbench.core.text import count, some
from attnbench.results import case_names

NOTICEABLE = 0.02  # a smaller difference is not worth a sentence of its own


def answer(c: Comparison) -> list[str]:
    """Return what a buyer wants to know first: who is faster, by how much, and what is best for money and power."""
    ratios = [(ratio, machine.label) for machine in c.others if (ratio := c.overall[machine.label])]
    ratios.sort(key=lambda pair: -pair[0].value)
    home = c.reference.label
    said = []
    if c.workload and not ratios:
        said.append(f"No machine but {home} can run all of the workload {c.workload.name!r}.")
    elif len(ratios) == 1:
        ((ratio, label),) = ratios
        if _no_difference_shown(ratio):
            said.append(f"{label} and {home} cannot be told apart: {ratio_text(ratio)} {_over(c)}.")
        else:
            said.append(f"{label} is {ratio_text(ratio)} as fast as {home} {_over(c)}.")
        if not c.workload:
            said += [_same_backends(c, c.others[0]), _extremes(c.groups, label)]
        said.append(_without_pauses(c, c.others[0]))
    else:
        others = ", ".join(f"{label} {ratio_text(ratio)}" for ratio, label in ratios)
        said.append(f"{_fastest(ratios, home)} {_over(c)}. As fast as {home}: {others}.")
    unit = next((price.unit for price in c.prices.values()), "")
    said.append(_best("for the money", {label: c.bought(label) for label in c.labels}, unit))
    said.append(_best("per watt", {label: of.tflops_per_watt for label, of in c.efficiency.items()}, "TFLOP/s/W"))
    return [" ".join(filter(None, said))]


def _no_difference_shown(one: Ratio, other: Ratio = EXACTLY_ONE) -> bool:
    """Return whether the intervals overlap, or one is not known."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.low <= other.high and other.low <= one.high


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval: 1.42x (1.40 to 1.44)."""
    if ratio is None:
        return case_names.NOTHING
    if ratio.low is None or ratio.high is None:
        return f"{ratio_digits(ratio.value)}x"
    return f"{ratio_digits(ratio.value)}x ({ratio_digits(ratio.low)} to {ratio_digits(ratio.high)})"


def ratio_digits(value: float) -> str:
    """Return a ratio as text: with three decimals near 1, else with three significant digits."""
    return f"{value:.3f}" if 0.9 <= value < 1.1 else digits(value)


def _fastest(ratios: Sequence[tuple[Ratio, str]], home: str) -> str:
    """Return the beginning of a sentence that names the fastest machine, and those not shown to be slower than it."""
    everyone = sorted([*ratios, (EXACTLY_ONE, home)], key=lambda pair: -pair[0].value)
    first, label = everyone[0]
    level = [label for ratio, label in everyone if _no_difference_shown(first, ratio)]
    if len(level) == len(everyone):
        return "None of the machines was shown to be faster than another"
    if len(level) > 1:
        named = " and ".join(level) if len(level) < 4 else some(level)
        return f"Fastest are {named}, not shown to differ,"
    return f"Fastest is {label}"


def _over(c: Comparison) -> str:
    if c.workload:
        return f"on the workload {c.workload.name!r}"
    return f"over {count(len(c.cases), 'case')}, with the fastest backends of each machine (geometric mean)"


def _same_backends(c: Comparison, other: Machine) -> str:
    """Return a sentence with the ratio for the same backends on both machines.

    It is "" unless a fastest backend of one machine is missing on the other, and this changes the ratio noticeably.
    """
    home = c.reference
    fastest, same = c.whole.fastest[other.label], c.whole.same[other.label]
    lacking = any(
        one.fastest[case] not in another.log_latencies
        for one, another in ((other, home), (home, other))
        for case in c.cases
    )
    if not lacking or same is None or abs(fastest.value / same.value - 1) < NOTICEABLE:
        return ""
    return f"With the same backends on both: {ratio_text(same)}."


def _without_pauses(c: Comparison, other: Machine) -> str:
    """Return a sentence with the ratio without pauses; "" where that was not measured on both machines."""
    ratio = c.sustained_ratio(other)
    return f"Without pauses: {ratio_text(ratio)} ({count(len(c.sustained_cases), 'case')})." if ratio else ""


def _extremes(groups: Sequence[Group], label: str) -> str:
    """Return a sentence on the groups of cases in which a machine gains least and most; "" where none differs."""
    ranked = sorted((group.fastest[label].value, group.name) for group in groups)
    if len(ranked) < 2 or all(_no_difference_shown(group.fastest[label]) for group in groups):
        return ""
    (low, least), (high, most) = ranked[0], ranked[-1]
    return f"From {ratio_digits(low)}x ({least}) to {ratio_digits(high)}x ({most})."


def _best(what: str, amounts: Mapping[str, float | None], unit: str) -> str:
    """Return a sentence on the machine that gives most of `what`; "" unless two machines have a figure of it."""
    ranked = sorted(((amount, label) for label, amount in amounts.items() if amount), reverse=True)
    if len(ranked) < 2:
        return ""
    (most, best), (next_, second) = ranked[:2]
    if most / next_ < 1 + NOTICEABLE:
        start = what[0].upper() + what[1:]
        return f"{start} {best} and {second} are alike: {digits(most)} and {digits(next_)} {unit}."
    return f"Most {what}: {best}, {digits(most)} {unit}, {ratio_digits(most / next_)}x of {second}."
