"""The break-even price: the price of a machine at which it costs as much as the reference for the same work.

r is the work of a device over the work of a reference device in the same time; c is the cost of an hour (money.py).
Both machines cost the same at c = r c_reference. The break-even price is thus a line over the reference's price,
through the origin if no energy is added; its band is the 95 % interval of r. Prices are for one device. The energy of
an hour is a mean over all the work that is compared, and the same for each kind of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnbench.analysis.compare.common_cells import kinds_of_work
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.money import Offer, worth_below
from attnbench.analysis.compare.speed_ratio import Ratio

ALL = "all"
Verdict = Literal["less", "more", "not told apart"]


@dataclass(frozen=True)
class BreakEven:
    """The prices at which a machine costs as much as the reference for one kind of work."""

    machine: str
    kind: str  # a kind of work, a part of the workload, or ALL
    ratio: Ratio  # work of a device over the work of a reference device in the same time
    home: Offer | None  # the reference's; None without its price
    other: Offer | None  # the machine's, else on the reference's terms; None without the reference's price
    given: float | None  # the given price of a device of the machine

    def at(self, price: float) -> Ratio:
        """Return the break-even price of a device of the machine, with its interval, at this price of the reference."""
        assert self.home
        assert self.other
        offered = replace(self.home.price, amount=price * self.home.price.gpus)
        return worth_below(self.ratio, replace(self.home, price=offered), self.other)

    @property
    def verdict(self) -> Verdict | None:
        """Whether the machine costs less or more than the reference for this work; None without both given prices."""
        if not self.home or self.given is None:
            return None
        found = self.at(device_price(self.home))
        if found.low is None or found.high is None or found.low <= self.given <= found.high:
            return "not told apart"
        return "less" if self.given < found.low else "more"


def device_price(offer: Offer) -> float:
    """Return the price of one device for the time that the price covers."""
    return offer.price.amount / offer.price.gpus


def break_even(c: Comparison) -> list[BreakEven]:
    """Return the break-even of each machine but the reference, over all cases of the main figures.

    With one other machine, also for each kind of work, or each part of the workload, if there are several. Empty for
    machines of one model, which have one price.
    """
    if c.one_model:
        return []
    home = c.offer(c.reference.label)
    found = []
    for machine in c.others:
        offer = c.offer(machine.label)
        like_home = (
            replace(home, energy=c.energy.get(machine.label, 0.0) if home.price.bought else 0.0) if home else None
        )
        for kind, ratio in _ratios(c, machine.label, by_kind=len(c.others) == 1):
            given = device_price(offer) if offer else None
            found.append(BreakEven(machine.label, kind, ratio, home, (offer or like_home) if home else None, given))
    return found


def _ratios(c: Comparison, label: str, by_kind: bool) -> list[tuple[str, Ratio]]:
    """Return (kind of work, ratio of a device) for a machine, ALL first; empty if it cannot run the workload."""
    main = c.main
    each: Sequence[tuple[str, Ratio | None]] = ()
    if c.workload:
        machine = main.machines[label]
        each = [(part.name, c.workload.ratio(machine, part, of_devices=True)) for part in c.workload.parts]
    else:
        each = [(kind, main.of(cases).ratio(label)) for kind, cases in kinds_of_work(main.cases).items()]
    several = each if by_kind and len(each) > 1 else ()
    return [(kind, ratio) for kind, ratio in ((ALL, main.ratio_of_device(label)), *several) if ratio]
