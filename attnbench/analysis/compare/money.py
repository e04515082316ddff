"""What an hour of a machine costs, what a dollar buys, below which price a machine is worth it: all formulas.

With a price P for n devices that pays for H hours, and r, how many times as much a device of B does as one of A in the
same time, which is how many times as fast B is where all that is compared runs on as many devices:

    cost of a device and hour     c = P / (n H), and for a device that is bought + W / 1000 x PUE x energy price
    what a dollar buys            PFLOP/$ = TFLOP/s x 3600 / c / 1000; of decode TB/$ = GB/s x 3600 / c / 1000
    for the money, B over A       r c_A / c_B
    B is worth it below           the price of B's device at which that is 1: c_B = r c_A, solved for P / n
    a million tokens              c / 3600 x device-seconds a token x 1,000,000 (workload.py has them)

For a purchase without a lifetime c is the price of a device itself, and a thousand dollars buy TFLOP/s (or GB/s)
x 1000 / c.

The cost of ownership as a purchase spread over its lifetime plus its energy, and PUE, the power of a building over that
of its computers: Barroso, Hölzle and Ranganathan, "The Datacenter as a Computer", third edition, 2018, chapters 5 and
6; PUE is ISO/IEC 30134-2:2016. W is the board's power in the work that is compared, without pauses; the host's is not
in it. A rent holds its energy.

The interval of what is for the money, and of a price to be below, is that of r; prices and W are taken as exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.compare.prices import Price
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.core.errors import UserError

MOST_ENERGY, MOST_PUE = 1000.0, 10.0


@dataclass(frozen=True)
class Offer:
    """A device at a price."""

    price: Price
    energy: float  # of an hour of it, in the price's currency; 0 where the price holds it, or it is not asked for

    @property
    def cost(self) -> float:
        """The cost of a device and hour; for a purchase without a lifetime that of the device."""
        price = self.price
        return price.amount / price.gpus / (price.hours or 1.0) + self.energy

    def buys(self, rate: float) -> float:
        """Return what a dollar buys of TFLOP/s or GB/s: PFLOP or TB; of a purchase without a lifetime what 1,000 do."""
        return rate * (3600 / 1e3 if self.price.hours else 1e3) / self.cost

    def unit(self, of: Literal["TFLOP/s", "GB/s"] = "TFLOP/s") -> str:
        """Return the unit of `buys`."""
        sign = self.price.sign
        thousand = f"{sign} 1,000" if sign.isalpha() else f"{sign}1,000"
        return f"{'PFLOP' if of == 'TFLOP/s' else 'TB'}/{sign}" if self.price.hours else f"{of} per {thousand}"

    def price_at(self, cost: float) -> float:
        """Return the price of one device, for the same time, at which `cost` would be this."""
        return (cost - self.energy) * (self.price.hours or 1.0)

    def million_tokens(self, seconds: float) -> float | None:
        """Return what a million tokens cost that take so many seconds each; None without a cost of an hour."""
        return self.cost / 3600 * seconds * 1e6 if self.price.hours else None


def for_the_money(speed: Ratio, reference: Offer, other: Offer) -> Ratio:
    """Return how many times as much the other buys as the reference."""
    return _scaled(speed, reference.cost / other.cost)


def worth_below(speed: Ratio, reference: Offer, other: Offer) -> Ratio:
    """Return the price of the other's device, with its interval, below which it buys more than the reference."""
    cost = _scaled(speed, reference.cost)
    ends = [None if end is None else other.price_at(end) for end in (cost.low, cost.high)]
    return Ratio(other.price_at(cost.value), ends[0], ends[1], cost.sources)


def _scaled(ratio: Ratio, by: float) -> Ratio:
    low, high = (None if end is None else end * by for end in (ratio.low, ratio.high))
    return Ratio(ratio.value * by, low, high, ratio.sources)


def energy_costs(
    prices: Mapping[str, Price], watts: Mapping[str, float | None], energy_price: float | None, pue: float | None
) -> dict[str, float]:
    """Return label -> what an hour of a bought device's power costs; empty without an energy price.

    `watts` are those of each machine's work. Raises UserError for an energy price that cannot be used.
    """
    _check("--energy-price", energy_price, 1e-6, MOST_ENERGY)
    _check("--pue", pue, 1.0, MOST_PUE)
    if energy_price is None:
        if pue is not None:
            raise UserError("--pue needs --energy-price, the price of a kWh")
        return {}
    bought = [price for price in prices.values() if price.bought]
    if not bought or not all(price.hours for price in bought):
        raise UserError("--energy-price adds to a purchase with a lifetime; give one, as in --price h200=32000/4y")
    unknown = [label for label, of in watts.items() if of is None]
    if unknown:
        raise UserError(
            f"--energy-price: the power of {unknown[0]}'s work was not measured; measure all with run --sustained 10s"
        )
    return {label: (of or 0.0) / 1000 * (pue or 1.0) * energy_price for label, of in watts.items()}


def _check(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{option}: {value:g} is not a number from {least:g} to {most:g}")
