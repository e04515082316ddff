"""--price NAME=3.40/h (rent) or NAME=32000 (purchase), of the one device that a run measured.

Rent gives PFLOP per dollar: TFLOP/s times the seconds that a dollar pays for, over 1,000. Purchase gives TFLOP/s per
1,000 dollars. Any currency will do, if all prices are in the same one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.compare.machines import Machine, named
from attnbench.core.errors import UserError

_AMOUNT = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d[\d_]*(?:\.\d+)?|\.\d+"
_PRICE = re.compile(rf"\$?\s*({_AMOUNT})\s*(?:/\s*(h|hr|hour))?", re.IGNORECASE)


@dataclass(frozen=True)
class Price:
    """What a device costs, in dollars: an hour of it, or the device itself."""

    amount: float
    per: Literal["hour", "purchase"]

    def __str__(self) -> str:
        if self.per == "hour":
            return f"${self.amount:.2f}/h"
        doubtful = self.amount < 100  # perhaps meant by the hour
        return f"${self.amount:,.2f} to buy" if doubtful else f"${self.amount:,.0f}"

    def buys(self, tflops: float) -> float:
        """Return PFLOP per dollar of rent, or TFLOP/s per 1,000 dollars of a purchase."""
        return tflops * 3600 / self.amount / 1e3 if self.per == "hour" else tflops * 1000 / self.amount

    @property
    def unit(self) -> str:
        """The unit of `buys`."""
        return "PFLOP/$" if self.per == "hour" else "TFLOP/s per $1,000"


def parse_price(option: str) -> tuple[str, Price]:
    """Return the name and the price of an option: ("h200", Price) for "h200=3.40/h"."""
    name, equals, text = (part.strip() for part in option.rpartition("="))
    match = _PRICE.fullmatch(text)
    if not equals or not name or not match:
        raise UserError(f"--price: {option!r} is not NAME=PRICE; write h200=3.40/h (rent) or h200=32000 (purchase)")
    amount = float(match[1].replace(",", "").replace("_", ""))
    if amount <= 0:
        raise UserError(f"--price: {option!r} is not above 0")
    return name, Price(amount, "hour" if match[2] else "purchase")


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
    if len({price.per for price in merged.values()}) > 1:
        raise UserError("--price: some are by the hour and some are purchase prices; give all the same way")
    return merged
