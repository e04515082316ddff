"""At which price of one machine another costs the same for the same work: by kind of work, over the other's price.

With r, how many times as much a device does as one of the reference in the same time, and the costs of an hour of
money.py, both cost the same where c = r c_reference. So the price is a line over the reference's price, through the
origin where no energy is added; its band is the 95 % interval of r. Prices are those of one device. The energy of an
hour is that of all the work that is compared, for each kind of work alike.
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
    kind: str  # of work, a part of the workload, or ALL
    ratio: Ratio  # of the work that a device does
    home: Offer | None  # of the reference; None without its price
    other: Offer | None  # of the machine, or as the reference is paid for; None without the reference's price
    given: float | None  # the price of a device of the machine that was given

    def at(self, price: float) -> Ratio:
        """Return the price of a device of the machine, with its interval, where one of the reference has this price."""
        assert self.home
        assert self.other
        offered = replace(self.home.price, amount=price * self.home.price.gpus)
        return worth_below(self.ratio, replace(self.home, price=offered), self.other)

    @property
    def verdict(self) -> Verdict | None:
        """What the machine costs for this work beside the reference, at the given prices; None without both."""
        if not self.home or self.given is None:
            return None
        found = self.at(device_price(self.home))
        if found.low is None or found.high is None or found.low <= self.given <= found.high:
            return "not told apart"
        return "less" if self.given < found.low else "more"


def device_price(offer: Offer) -> float:
    """Return the price of one device, for the time that it pays for."""
    return offer.price.amount / offer.price.gpus


def break_even(c: Comparison) -> list[BreakEven]:
    """Return the break-even of each machine but the reference, in all that answers the buyer.

    With one other machine also of each kind of work, or of each part of the workload, where there are several. None of
    machines of one model, which differ by no price.
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
    """Return (kind of work, ratio of a device) of a machine, ALL first; none where it cannot run the workload."""
    main = c.main
    each: Sequence[tuple[str, Ratio | None]] = ()
    if c.workload:
        machine = main.machines[label]
        each = [(part.name, c.workload.ratio(machine, part, of_devices=True)) for part in c.workload.parts]
    else:
        each = [(kind, main.of(cases).ratio(label)) for kind, cases in kinds_of_work(main.cases).items()]
    several = each if by_kind and len(each) > 1 else ()
    return [(kind, ratio) for kind, ratio in ((ALL, main.ratio_of_device(label)), *several) if ratio]
