"""The cost of an hour of a machine, the work that a dollar buys, and the break-even price: all formulas.

Prices are given as --price NAME=PRICE; docs/compare.md has the forms.

P is the price of n devices for H hours. r is the work of a device of B over the work of a device of A in the same time;
it is the speed ratio if all compared work runs on the same number of devices.

    cost of a device and hour     c = P / (n H), and for a bought device + W / 1000 x PUE x energy price
    work for a dollar             PFLOP/$ = TFLOP/s x 3600 / c / 1000; of decode TB/$ = GB/s x 3600 / c / 1000
    for the money, B over A       r c_A / c_B
    break-even price of B         the price of B's device at which this is 1: c_B = r c_A, solved for P / n
    a million tokens              c / 3600 x device-seconds a token x 1,000,000 (workload.py)

For a purchase without a lifetime c is the price of a device, and a thousand dollars buy TFLOP/s (or GB/s)
x 1000 / c.

The cost of ownership is the purchase spread over its lifetime plus the energy; PUE is the power of a building over the
power of its computers (Barroso, Hölzle and Ranganathan, "The Datacenter as a Computer", third edition, 2018, chapters 5
and 6; ISO/IEC 30134-2:2016). W is the board's power in the compared work, without pauses and without the host. A rent
includes its energy.

The ratio for the money and the break-even price have the relative interval of r; prices and W are taken as exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnbench.analysis.compare.machines import Machine, named
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.core.errors import UserError
from attnbench.core.formats import digits

MOST_ENERGY, MOST_PUE = 1000.0, 10.0
LEAST, MOST = 1e-6, 1e12  # limits of an amount, which keep all computed figures finite
MOST_GPUS = 1024
HOURS = {"h": 1.0, "d": 24.0, "mo": 730.5, "y": 8766.0}  # a year has 365.25 days
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
    """The price of a device, or of a host with several."""

    amount: float  # for all devices
    currency: str  # a sign, or three letters; "" if none was given
    gpus: int = 1  # number of devices that the amount pays for
    hours: float | None = None  # that the amount covers; None for a purchase without a lifetime
    period: str = ""  # the same as it was given: "h", "4y"
    bought: bool = True  # False: rented, with power included

    def __str__(self) -> str:
        doubtful = self.hours is None and self.amount < 100  # perhaps meant as a price per hour
        whole = self.bought and self.amount == int(self.amount) and not doubtful
        text = self._with_sign(f"{self.amount:,.0f}" if whole else f"{self.amount:,.2f}")
        text = self.money(self.amount) if self.amount < 0.01 else text
        text += f"/{self.gpus}gpu" if self.gpus > 1 else ""
        return f"{text} to buy" if doubtful else f"{text}/{self.period}" if self.period else text

    @property
    def sign(self) -> str:
        """The currency in the form for units: PFLOP/$."""
        return self.currency or "$"

    def money(self, amount: float) -> str:
        """Return a computed amount as text in the currency, with three significant digits."""
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
        raise UserError("--price: some prices are for a time and some are not; write each as 3.40/h or 32000/4y")
    currencies = {price.currency for price in merged.values() if price.currency}
    if len(currencies) > 1:
        raise UserError(f"--price: in {' and '.join(sorted(currencies))}; give all prices in one currency")
    return {label: replace(price, currency="".join(currencies)) for label, price in merged.items()}


@dataclass(frozen=True)
class Offer:
    """A device at a price."""

    price: Price
    energy: float  # cost per hour, in the price's currency; 0 if the price includes it, or without an energy price

    @property
    def cost(self) -> float:
        """The cost of a device per hour; for a purchase without a lifetime, of the device."""
        price = self.price
        return price.amount / price.gpus / (price.hours or 1.0) + self.energy

    def buys(self, rate: float) -> float:
        """Return the PFLOP (of TFLOP/s) or TB (of GB/s) for a dollar; without a lifetime the rate for 1,000 dollars."""
        return rate * (3600 / 1e3 if self.price.hours else 1e3) / self.cost

    def unit(self, of: Literal["TFLOP/s", "GB/s"] = "TFLOP/s") -> str:
        """Return the unit of `buys`."""
        sign = self.price.sign
        thousand = f"{sign} 1,000" if sign.isalpha() else f"{sign}1,000"
        return f"{'PFLOP' if of == 'TFLOP/s' else 'TB'}/{sign}" if self.price.hours else f"{of} per {thousand}"

    def price_at(self, cost: float) -> float:
        """Return the price of one device, for the same time, that gives this `cost`."""
        return (cost - self.energy) * (self.price.hours or 1.0)

    def million_tokens(self, seconds: float) -> float | None:
        """Return the cost of a million tokens, from the device-seconds of one token; None without a cost per hour."""
        return self.cost / 3600 * seconds * 1e6 if self.price.hours else None


def for_the_money(speed: Ratio, reference: Offer, other: Offer) -> Ratio:
    """Return the work for the money on the other machine over the reference's. `speed`: ratio of a device."""
    return _scaled(speed, reference.cost / other.cost)


def worth_below(speed: Ratio, reference: Offer, other: Offer) -> Ratio:
    """Return the price of the other's device, with its interval, below which it gives more work for the money."""
    cost = _scaled(speed, reference.cost)
    ends = [None if end is None else other.price_at(end) for end in (cost.low, cost.high)]
    return Ratio(other.price_at(cost.value), ends[0], ends[1], cost.sources)


def _scaled(ratio: Ratio, by: float) -> Ratio:
    low, high = (None if end is None else end * by for end in (ratio.low, ratio.high))
    return Ratio(ratio.value * by, low, high, ratio.sources)


def energy_costs(
    prices: Mapping[str, Price], watts: Mapping[str, float | None], energy_price: float | None, pue: float | None
) -> dict[str, float]:
    """Return label -> the energy cost of a bought device per hour; empty without an energy price.

    `watts` is the power of each machine in the compared work. Raises UserError for an energy price that cannot be used.
    """
    _check("--energy-price", energy_price, 1e-6, MOST_ENERGY)
    _check("--pue", pue, 1.0, MOST_PUE)
    if energy_price is None:
        if pue is not None:
            raise UserError("--pue needs --energy-price, the price of a kWh")
        return {}
    bought = [price for price in prices.values() if price.bought]
    if not bought or not all(price.hours for price in bought):
        raise UserError("--energy-price needs the price of a purchase with a lifetime, as in --price h200=32000/4y")
    unknown = [label for label, of in watts.items() if of is None]
    if unknown:
        raise UserError(
            f"--energy-price: the power of {unknown[0]}'s work was not measured; measure all with run --sustained 10s"
        )
    return {label: (of or 0.0) / 1000 * (pue or 1.0) * energy_price for label, of in watts.items()}


def _check(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{option}: {value:g} is not a number from {least:g} to {most:g}")
