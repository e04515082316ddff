"""The answer of a comparison in three sentences: speed, work for the money and per watt, and the longest context.

Each number in them is in a table too (tables.py), and can be computed by hand from the run files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.analysis.compare.break_even import ALL, BreakEven, break_even, device_price
from attnbench.analysis.compare.common_cells import kinds_of_work
from attnbench.analysis.compare.figures import Figures
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.like_kernels import unlike_versions
from attnbench.analysis.compare.longest_sequence import Fit
from attnbench.analysis.compare.money import Price
from attnbench.analysis.compare.speed_ratio import EXACTLY_ONE, Ratio
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.formats import digits, percent
from attnbench.core.sizes import format_size
from attnbench.core.text import capitalized, count, listed, some
from attnbench.results import case_names
from attnbench.results.disturbed import doubt

if TYPE_CHECKING:
    from attnbench.analysis.compare.workload import MeasuredWorkload

OWN = "each machine's own fastest backend"
BY_CHANCE = 0.05  # share of the 95 % intervals that do not contain the true value
CHANGED = (
    "but they differ by more than {}: something may have changed, such as {}software, the clock, other work on the "
    "machine or the code that was measured"
)
MOST_NAMED = 3  # backends whose code differs, and kinds of cases with their longest context


def answer(c: Comparison) -> list[str]:
    """Return the answer for a buyer, in a sentence each: speed, money and power, the longest context.

    If other processes used a GPU during a run, the first sentence says it.
    """
    disturbed = doubt([file.run for machine in c.machines for file in machine.files])
    if c.one_model:
        return [*disturbed, *filter(None, [_one_model(c), "" if c.one_setup else _speed(c), _no_prices(c)])]
    return [*disturbed, *filter(None, [_speed(c), _money(c), _longest(c)])]


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval: 1.42x (1.40 to 1.44)."""
    if ratio is None:
        return case_names.NOTHING
    return f"{ratio_digits(ratio.value)}x{_interval(ratio)}"


def ratio_digits(value: float) -> str:
    """Return a ratio as text: with three decimals near 1, else with three significant digits."""
    return f"{value:.3f}" if 0.9 <= value < 1.1 else digits(value)


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return f" ({ratio_digits(ratio.low)} to {ratio_digits(ratio.high)})"


# ---- Speed.


def _speed(c: Comparison) -> str:
    """Return the speed ratios with shared backends, with each machine's own backends, and at the other pace."""
    main, ratios = c.main, _ratios(c.main, c)
    if c.workload and not ratios:
        no_other = f"No machine but {c.reference.label} can run all of the workload {c.workload.name!r}"
        of_reference = "; ".join(filter(None, [no_other, _stand_ins(c), _tokens_a_second(c)]))
        return " ".join([f"{of_reference}.", *c.workload.notes])
    said = [f"{_compared(ratios, c.reference.label)} {_over(main)}", _stand_ins(c), _tokens_a_second(c)]
    if len(ratios) == 1:
        said.append(_works_apart(main, ratios[0][1]))
    own = c.beside(sustained=main.sustained, shared=False)
    if own:
        over = "" if c.workload or {*own.cases} == {*main.cases} else f" over {count(len(own.cases), 'case')}"
        said.append(f"with {OWN} {_short(own, c)}{over}")
    elif not main.shared:
        said.append("no backend was measured on all of them")
    said.append(_untried(c))
    if other := c.beside(sustained=not main.sustained, shared=main.shared):
        over = "" if c.workload else f" over {count(len(other.cases), 'case')}"
        said.append(f"{other.pace} {_short(other, c)}{over}")
    return "; ".join(filter(None, said)) + "."


def _stand_ins(c: Comparison) -> str:
    """Return the measured cases that stand in for cases of the requests; "" if all cases were measured."""
    return "; ".join(part.stands_in for part in c.workload.parts if part.stands_in) if c.workload else ""


def _tokens_a_second(c: Comparison) -> str:
    """Return the tokens a second of each machine; "" without a workload."""
    each = [(label, rate) for label in c.labels if (rate := c.tokens_a_second(c.main, label))]
    said = ", ".join(f"{digits(rate)} tokens/s on {label}" for label, rate in each)
    if not each or not c.workload:
        return ""
    of = f" (of {c.workload.tokens_are})" if c.workload.tokens_are != "tokens" else ""
    return f"attention alone{on_devices(c.workload, ' of ')} gives {said}{of}"


def on_devices(workload: MeasuredWorkload, before: str) -> str:
    """Return the number of devices of a workload, after a text: ", 2 devices", ", 1 and 2 devices"; "" for one."""
    if workload.devices == (1,):
        return ""
    return f"{before}{listed(map(str, workload.devices))} devices"


def _ratios(figures: Figures, c: Comparison) -> list[tuple[Ratio, str]]:
    """Return (speed ratio to the reference, label) of each other machine that has a ratio, the fastest first."""
    found = [(ratio, machine.label) for machine in c.others if (ratio := figures.ratio(machine.label))]
    return sorted(found, key=lambda pair: -pair[0].value)


def _short(figures: Figures, c: Comparison) -> str:
    """Return the speed ratios as text: "1.42x (1.40 to 1.44)"; with the names of the machines if there are several."""
    ratios = _ratios(figures, c)
    if len(c.others) == 1:
        return ratio_text(ratios[0][0]) if ratios else case_names.NOTHING
    return ", ".join(f"{label} {ratio_text(ratio)}" for ratio, label in ratios)


def _compared(ratios: Sequence[tuple[Ratio, str]], home: str) -> str:
    if len(ratios) == 1:
        ((ratio, label),) = ratios
        if ratio.overlaps(EXACTLY_ONE):
            return f"{label} and {home} cannot be told apart: {ratio_text(ratio)}"
        return f"{label} is {ratio_text(ratio)} as fast as {home}"
    others = ", ".join(f"{label} {ratio_text(ratio)}" for ratio, label in ratios)
    return f"{_fastest(ratios, home)}: {others} as fast as {home}"


def _fastest(ratios: Sequence[tuple[Ratio, str]], home: str) -> str:
    """Return the fastest machine as text, with the machines that were not shown to be slower."""
    everyone = sorted([*ratios, (EXACTLY_ONE, home)], key=lambda pair: -pair[0].value)
    first, label = everyone[0]
    level = [label for ratio, label in everyone if first.overlaps(ratio)]
    if len(level) == len(everyone):
        return "None of the machines was shown to be faster than another"
    if len(level) > 1:
        named = listed(level) if len(level) < 4 else some(level)
        return f"Fastest are {named}, not shown to differ"
    return f"Fastest is {label}"


def _over(figures: Figures) -> str:
    """Return "in bursts, over 43 cases (geometric mean) with the fastest backends that both have"."""
    steps = all(case.model_step for case in figures.cases)
    over = f"over {count(len(figures.cases), 'model step' if steps else 'case')} (geometric mean)"
    if figures.workload:
        over = f"on the workload {figures.workload.name!r}"
    everyone = "both" if len(figures.machines) == 2 else "all"
    backends = f"the fastest backends that {everyone} have" if figures.shared else OWN
    if unlike := unlike_software(figures):
        backends += f" (of unlike versions in {count(len(unlike), 'case')})"
    return f"{figures.pace}, {over} with {backends}"


def unlike_software(figures: Figures) -> list[Case]:
    """Return the cases that machines of unlike models measured with unlike versions of a shared backend."""
    machines = [*figures.machines.values()]
    if not figures.shared or len({machine.model for machine in machines}) == 1:
        return []
    chosen = figures.chosen.values()
    return [case for case in figures.cases if any(unlike_versions(machines, of[case]) for of in chosen)]


def _untried(c: Comparison) -> str:
    """Return the number of cases that the totals of own backends leave out, and why; "" if none is left out."""
    number = len(c.untried)
    left = f"{count(number, 'case')} {'is' if number == 1 else 'are'} in no total of own fastest backends"
    return (
        f"{left}, as a machine did not try the backend that is fastest on another, or ran it by unlike kernels"
        if number
        else ""
    )


def _works_apart(figures: Figures, label: str) -> str:
    """Return the speed ratio for each kind of work; "" if there is only one kind, or a workload."""
    works = {} if figures.workload else kinds_of_work(figures.cases)
    if len(works) < 2:
        return ""
    each = (
        f"{work} {ratio_text(figures.of(cases).ratio(label))} in {count(len(cases), 'case')}"
        for work, cases in works.items()
    )
    return f"of these {listed(each)}"


# ---- Money and power.


def _money(c: Comparison) -> str:
    """Return the work that each machine gives for its price, its break-even price, and its work per watt."""
    said = [_bought(c), _worth(c), _tokens(c)]
    if not any(said) and len(c.others) == 1 and (ratio := c.main.ratio_of_device(c.others[0].label)):
        said = [f"{c.others[0].label} is worth it below {ratio_text(ratio)} of the price of {c.reference.label}"]
        said[0] += _worth_by_kind(c)
        if c.prices:
            said.append(f"{c.reference.label} has no price: --price {c.reference.label.lower()}=...")
    of = c.powered
    what = "per watt" if of is c.main else f"per watt, {of.pace},"
    said.append(_gives(what, {machine.label: of.per_watt(machine.label) for machine in c.others}, c))
    text = "; ".join(filter(None, said))
    return f"{capitalized(text, c.labels)}." if text else ""


def _bought(c: Comparison) -> str:
    """Return the work that each machine gives for its price; of two machines also with each one's own backends."""
    ratios = {machine.label: c.for_the_money(c.main, machine.label) for machine in c.others}
    said = _gives(f"for the money, {c.main.pace},", ratios, c)
    own = c.beside(sustained=c.main.sustained, shared=False)
    if said and own and len(c.others) == 1:
        said += f", and with {OWN} {ratio_text(c.for_the_money(own, c.others[0].label))}"
    return said


def _gives(what: str, ratios: Mapping[str, Ratio | None], c: Comparison) -> str:
    """Return the ratios of the machines to the reference as text, the largest first; "" if none is known."""
    ranked = sorted(((ratio.value, label, ratio) for label, ratio in ratios.items() if ratio), reverse=True)
    each = ", ".join(f"{label} gives {ratio_text(ratio)}" for _, label, ratio in ranked)
    return f"{what} {each} of {c.reference.label}" if each else ""


def _worth(c: Comparison) -> str:
    """Return the price of a device below which each machine gives more for its price than the reference."""
    found = []
    for machine in c.others:
        price, worth = c.worth_below(c.main, machine.label), c.offer(machine.label) or c.offer(c.reference.label)
        if price and worth:
            if price.value <= 0:
                found.append(f"{machine.label} is worth it at no price, as its power alone costs more")
            else:
                found.append(f"{machine.label} is worth it below {price_text(worth.price, price)}")
    by_kind = _worth_by_kind(c) if found else ""
    return (
        ", ".join(found) + (f", if {c.reference.label} costs {c.prices[c.reference.label]}" if found else "") + by_kind
    )


def _worth_by_kind(c: Comparison) -> str:
    """Return the lowest and the highest break-even by kind of work: ", from 0.800x in decode to 1.005x in prefill"."""
    kinds = sorted((of for of in break_even(c) if of.kind != ALL), key=lambda of: of.ratio.value)
    if not kinds:
        return ""
    least, most = (f"{_worth_of(of)} in {of.kind}" for of in (kinds[0], kinds[-1]))
    return f", from {least} to {most}"


def _worth_of(of: BreakEven) -> str:
    if not of.home or not of.other:
        return f"{ratio_digits(of.ratio.value)}x"
    return price_text(of.other.price, replace(of.at(device_price(of.home)), low=None, high=None))


def price_text(of: Price, ratio: Ratio) -> str:
    """Return the price of one device, with its interval: "$3.27/h ($3.20 to $3.35)"."""
    ends = "" if ratio.low is None or ratio.high is None else f" ({of.money(ratio.low)} to {of.money(ratio.high)})"
    return f"{of.money(ratio.value)}{'' if of.bought else f'/{of.period}'}{' a GPU' if of.gpus > 1 else ''}{ends}"


def _tokens(c: Comparison) -> str:
    """Return the cost of a million tokens of the workload on each machine."""
    costs = {label: found for label in c.labels if (found := c.million_tokens(c.main, label))}
    if not costs or not c.workload:
        return ""
    each = ", ".join(f"{c.prices[label].money(cost)} on {label}" for label, cost in costs.items())
    layers = "all layers" if c.workload.weights == "calls" else count(c.workload.layers, "layer")
    on = on_devices(c.workload, ", ")
    return f"a million {c.workload.tokens_are} of {c.workload.name!r} cost {each} (attention alone, {layers}{on})"


# ---- The longest context.


def _longest(c: Comparison) -> str:
    """Return each machine's longest context in the kinds of cases that reached the limit of memory; "" without any."""
    told = [of for of in c.longest_of_any if of.limited and all(of.fits.values())]
    shown = told[-MOST_NAMED:]
    text = length_text(fit for of in shown for fit in of.fits.values())
    fits = ((of.cases, (f"{label} {fit_text(fit, text)}" for label, fit in of.fits.items())) for of in shown)
    each = "; ".join(f"{cases}: {', '.join(own)}" for cases, own in fits)
    more = f" and {count(len(told) - MOST_NAMED, 'more kind')} of cases below" if len(told) > MOST_NAMED else ""
    tried = f"any backend that {'both' if len(c.machines) == 2 else 'all'} tried"
    return f"Longest context measured, of one layer, with {tried}: {each}{more}." if told else ""


def length_text(fits: Iterable[Fit | None]) -> Callable[[int], str]:
    """Return a function that writes lengths as 64k, or in tokens if one of the fits has no multiple of 1k."""
    lengths = [n for fit in fits if fit for n in (fit.longest, fit.refused, *fit.not_measured) if n]
    return format_size if not any(n % 1024 for n in lengths) else "{:,}".format


def fit_text(fit: Fit | None, text: Callable[[int], str]) -> str:
    """Return a fit as text: "64k (no room to measure 128k)", or "at least 64k (96k not measured)"."""
    if fit is None:
        return case_names.NOTHING
    if fit.refused:
        return f"{text(fit.longest) if fit.longest else 'none'} (no room to measure {text(fit.refused)})"
    longest = f"at least {text(fit.longest)}" if fit.longest else "unknown"
    return f"{longest} ({some(map(text, fit.not_measured))} not measured)" if fit.not_measured else longest


# ---- Runs of one model.


def _one_model(c: Comparison) -> str:
    """Return the answer where all runs are on one GPU model: by how much they differ and why, and no better one."""
    cards = {card for machine in c.machines for card in machine.cards}
    runs = count(len(c.machines), "run")
    setup = "one model and setup" if c.one_setup else "one model"
    what, why = f"{runs} of one machine", "noise"
    if any(card.uuid is None for card in cards):
        what = f"{runs} of {setup}, whose units are not all named"
    elif len(cards) > 1:
        what, why = f"{runs} of {len(cards)} units of {setup}", "noise and the spread between units"
    code = some(c.of_unlike_code, MOST_NAMED)
    what += f", between which the code of {code} differs" if code else ""
    if not c.one_setup:
        return f"These are {what}, so they differ by their software or setup, and by {why}."
    of_cells = [ratio for machine in c.others for key in c.cells if (ratio := c.same_ratio(machine, key))]
    apart = sum(not ratio.overlaps(EXACTLY_ONE) for ratio in of_cells)
    ratios = _ratios(c.main, c)
    if apart > math.ceil(BY_CHANCE * len(of_cells)) or any(not ratio.overlaps(EXACTLY_ONE) for ratio, _ in ratios):
        unit = "the unit, " if any(card.uuid is None for card in cards) else ""
        because = CHANGED.format(why, unit)
    elif all(ratio.low is None for ratio, _ in ratios):
        because = f"and how much of their differences is {why} is not known"
    else:
        because = f"but they differ by no more than {why}" if code else f"so they differ by {why} alone"
    said = [f"These are {what}, {because}"]
    if of_cells:
        moves = [abs(ratio.value - 1) for ratio in of_cells]
        outside = f", in {apart} of {count(len(of_cells), 'cell')} by more than the interval" if apart else ""
        least_and_most = f"{percent(stats.median(moves))} in the median, {percent(max(moves))} at most"
        said.append(f"a cell differs by {least_and_most}{outside}")
    each = ", ".join(f"{label} {ratio_text(ratio)}" for ratio, label in ratios)
    said.append(f"{each} as fast as {c.reference.label} {_over(c.main)}")
    return "; ".join(said) + "."


def _no_prices(c: Comparison) -> str:
    """Return why given prices are not compared; "" if none were given."""
    why = "all machines are of one model, and differences between its runs and cards are no reason to buy one"
    return f"No price is compared: {why}." if c.prices else ""
