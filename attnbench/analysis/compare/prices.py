"""--price NAME=PRICE: what a machine's device costs, by the hour or to buy; docs/compare.md has the forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.compare.machines import Machine, named
from attnbench.core.errors import UserError
from attnbench.core.formats import digits

LEAST, MOST = 1e-6, 1e12  # of an amount, so that all that is computed from it is finite
MOST_GPUS = 1024
HOURS = {"h": 1.0, "d": 24.0, "mo": 730.5, "y": 8766.0}  # of a year of 365.25 days
EXAMPLES = "h200=3.40/h (rent), h200=32000/4y (bought, for 4 years), h200=280000/8gpu/4y (a host of 8) or h200=32000"

_AMOUNT = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d[\d_]*(?:\.\d+)?|\.\d+"
_CURRENCY = r"[$€£¥₹]|[a-z]{3}"
_PRICE = re.compile(
    rf"(?P<before>{_CURRENCY})?\s*(?P<amount>{_AMOUNT})\s*(?P<after>{_CURRENCY})?"
    r"(?:\s*/\s*(?P<gpus>\d+)\s*gpus?)?"
    r"(?:\s*/\s*(?P<number>\d+(?:\.\d+)?)?\s*(?:(?P<h>h|hr|hours?)|(?P<d>d|days?)|(?P<mo>mo|months?)|(?P<y>y|yr|years?)))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Price:
    """What a device costs, or a host with several."""

    amount: float  # of all of them
    currency: str  # a sign, or three letters; "" where none was given
    gpus: int = 1  # devices that the amount is for
    hours: float | None = None  # that it pays for; None for a purchase without a lifetime
    period: str = ""  # the same as it was given: "h", "4y"
    bought: bool = True  # False: rented, so that power is included

    def __str__(self) -> str:
        doubtful = self.hours is None and self.amount < 100  # perhaps meant by the hour
        whole = self.bought and self.amount == int(self.amount) and not doubtful
        text = self._with_sign(f"{self.amount:,.0f}" if whole else f"{self.amount:,.2f}")
        text = self.money(self.amount) if self.amount < 0.01 else text
        text += f"/{self.gpus}gpu" if self.gpus > 1 else ""
        return f"{text} to buy" if doubtful else f"{text}/{self.period}" if self.period else text

    @property
    def sign(self) -> str:
        """The currency as units name it: PFLOP/$."""
        return self.currency or "$"

    def money(self, amount: float) -> str:
        """Return a computed amount in the currency, with three significant digits."""
        return self._with_sign(f"{float(f'{amount:.3g}'):,.0f}" if abs(amount) >= 1000 else digits(amount))

    def _with_sign(self, text: str) -> str:
        return f"{self.sign} {text}" if self.sign.isalpha() else f"{self.sign}{text}"


def parse_price(option: str) -> tuple[str, Price]:
    """Return the name and the price of an option: ("h200", Price) for "h200=3.40/h"."""
    name, equals, text = (part.strip() for part in option.rpartition("="))
    match = _PRICE.fullmatch(text)
    if not equals or not name or not match or (match["before"] and match["after"]):
        raise UserError(f"--price: {option!r} is not NAME=PRICE; write {EXAMPLES}")
    amount = float(match["amount"].replace(",", "").replace("_", ""))
    gpus, number = float(match["gpus"] or 1), float(match["number"] or 1)
    unit = next((unit for unit in HOURS if match[unit]), "")
    within = {"price": (amount, LEAST, MOST), "number of GPUs": (gpus, 1, MOST_GPUS), "time": (number, 1e-3, 1e6)}
    for what, (value, least, most) in within.items():
        if not least <= value <= most:
            raise UserError(f"--price: {option!r}: the {what} is not above 0, or over {most:g}")
    return name, Price(
        amount,
        (match["before"] or match["after"] or "").upper(),
        int(gpus),
        number * HOURS[unit] if unit else None,
        f"{match['number'] or ''}{unit}",
        bought=not unit or bool(match["number"]),
    )


def parse_prices(options: Sequence[str], machines: Sequence[Machine]) -> dict[str, Price]:
    """Return label -> price. A name that is the whole label of a machine outweighs a name that is a part of it."""
    exact: dict[str, Price] = {}
    partial: dict[str, Price] = {}
    for option in options:
        name, price = parse_price(option)
        for machine in named(machines, name, "--price"):
            found = exact if machine.label.casefold() == name.casefold() else partial
            if machine.label in found:
                raise UserError(f"--price: {machine.label} has two prices; name each machine in full")
            found[machine.label] = price
    merged = {**partial, **exact}
    if len({price.hours is None for price in merged.values()}) > 1:
        raise UserError("--price: some say for how long they pay and some do not; write each as 3.40/h or 32000/4y")
    currencies = {price.currency for price in merged.values() if price.currency}
    if len(currencies) > 1:
        raise UserError(f"--price: in {' and '.join(sorted(currencies))}; give all prices in one currency")
    return {label: replace(price, currency="".join(currencies)) for label, price in merged.items()}
