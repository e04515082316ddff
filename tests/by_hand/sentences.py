"""The sentences by which `attnbench compare` answers of two machines: each of their numbers is computed here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .audit import Audit
from .comparison import Figures, Offer, machine_figures, powered, ratio, untried
from .machines import Machine
from .ratios import Ratio

NUMBER = r"\d[\d,]*(?:\.\d+)?"
TIMES = rf"({NUMBER})x \(({NUMBER}) to ({NUMBER})\)"
OWN = "with each machine's own fastest backend"
LEFT = re.compile(rf"{NUMBER}x|[$]{NUMBER}")  # a ratio or an amount that no phrase explains


def check(
    audit: Audit,
    where: str,
    said: Sequence[str],
    names: Sequence[str],
    found: Sequence[Machine],
    figures: Sequence[Figures],
    costs: Sequence[Offer | None],
) -> None:
    """Compare the numbers of the answer with the figures of two machines. `costs` are what they cost."""
    text = " ".join(said)
    for letter, name in zip("AB", names, strict=True):
        text = text.replace(name, letter)
    text = re.sub(rf", if A costs [$]{NUMBER}(/\w+)?", "", text)  # as the person said it
    for phrase, values in _phrases(found, figures, costs):
        match = re.search(phrase, text)
        if not match:
            continue
        text = text[: match.start()] + text[match.end() :]
        for shown, value in zip(filter(None, match.groups()), values, strict=False):
            least = 10.0 ** -len(shown.partition(".")[2])  # the step of its last digit
            number = float(shown.replace(",", ""))
            alike = number if abs(number - value) <= 0.501 * least else value
            audit.same(f"{where}: answer, {phrase[:30]!r}", "numbers of the answer", number, alike)
    audit.same(f"{where}: answer {text!r}", "numbers that are not explained", len(LEFT.findall(text)), 0)


def _phrases(
    found: Sequence[Machine], figures: Sequence[Figures], costs: Sequence[Offer | None]
) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield what the answer may say, in its order, and the numbers that then stand in it."""
    main = figures[0]
    speed, values = ratio(found, main, 1, main.chosen[0]), machine_figures(found, main, 1, costs)
    yield rf"B (?:is )?{TIMES} as fast as A", _three(speed)
    yield rf"cannot be told apart: {TIMES}", _three(speed)
    cells = found[0].cells
    for what, is_decode in (("decode", True), ("and the others", False)):
        cases = [case for case, key in main.chosen[0].items() if cells[key].case.is_decode == is_decode]
        if cases:
            yield rf"{what} {TIMES} \((\d+) cases?\)", [*_three(ratio(found, main, 1, cases)), len(cases)]
    of_own = next((one for one in figures if one.what == main.what and not one.shared), main)
    own = machine_figures(found, of_own, 1, costs)
    out = untried(found, main.what)
    yield (
        rf"{OWN} {TIMES}(?: over (\d+) cases?)?",
        [*_three(ratio(found, of_own, 1, of_own.chosen[0])), len(of_own.chosen[0])],
    )
    yield r"(\d+) cases? (?:is|are) in no total of own fastest backends, as", [len(out)]
    for of in figures:
        if of.what != main.what and of.shared == main.shared:
            pace = "in bursts" if of.what == "latency" else "without pauses"
            values_of = [*_three(ratio(found, of, 1, of.chosen[0])), len(of.chosen[0])]
            yield rf"{pace} {TIMES} over (\d+) case", values_of
    if costs[0]:
        yield (
            rf"B gives {TIMES} of A",
            [values[name] for name in ("money_ratio", "money_ratio_low", "money_ratio_high")],
        )
        yield rf"{OWN} {TIMES}", [own[name] for name in ("money_ratio", "money_ratio_low", "money_ratio_high")]
        ends = ("worth_below", "worth_below_low", "worth_below_high")
        yield rf"below [$]({NUMBER})(?:/h)? \([$]({NUMBER}) to [$]({NUMBER})\)", [values[name] for name in ends]
    yield rf"B is worth it below {TIMES} of the price of A", _three(speed)
    values = machine_figures(found, powered(figures), 1, costs)
    of_energy = [values[name] for name in ("per_watt_ratio", "per_watt_ratio_low", "per_watt_ratio_high")]
    yield rf"per watt(?:, without pauses,)? B gives {TIMES} of A", of_energy


def _three(of: Ratio) -> list[float]:
    return [of.value, of.low or 0.0, of.high or 0.0]
