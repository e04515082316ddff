"""The break-even price as a table, in every format, and as a chart over the reference's price, on a page."""

from __future__ import annotations

from attnbench.analysis.compare.answer import price_text, ratio_text
from attnbench.analysis.compare.break_even import ALL, BreakEven, break_even, device_price
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.money import Price
from attnbench.render.document import BandLine, Column, Entry, LineChart, Table
from attnbench.results.case_names import NOTHING

STEPS = (0.5, 1.0, 1.5, 2.0)  # times the reference's given price: columns of the table, and the axis of the chart
MOST_LINES = 6  # in the chart; the table has all
POINTS = 21  # in a line of the chart


def tables(c: Comparison, brief: bool) -> list[Table]:
    """Return the table of break-even prices; none without the reference's price. `brief`: only at the given price."""
    found = [of for of in break_even(c) if of.home and of.other]
    if not found:
        return []
    home, several = found[0].home, len(c.others) > 1
    assert home
    given = device_price(home)
    steps = (1.0,) if brief else STEPS
    shown = [_price(home.price, step * given) for step in steps]
    rows: list[tuple[Entry, ...]] = []
    for of in found:
        assert of.other
        prices = (price_text(of.other.price, of.at(step * given)) for step in steps)
        name = of.machine if several else of.kind
        ratio = () if brief else (ratio_text(of.ratio),)  # a brief comparison has it in the speed by kind of work
        rows.append((name, *ratio, *prices, costs(of)))
    columns = (
        Column("machine" if several else "work"),
        *(() if brief else (Column(f"device / {c.reference.label}", "right"),)),
        *(Column(f"if {c.reference.label} costs {price}", "right") for price in shown),
        Column("at the given prices"),
    )
    who = found[0].machine if not several else "a machine"
    note = f"Below these prices {who} costs less than {c.reference.label} for the same work, above them more."
    note += " Not told apart: the given price lies in the interval."
    return [Table("break-even", columns, tuple(rows), "Break-even price", note)]


def costs(of: BreakEven) -> str:
    """Return the verdict at the given prices: "costs less", "costs more", "not told apart", or "-" without prices."""
    return {"less": "costs less", "more": "costs more"}.get(of.verdict or "", of.verdict or NOTHING)


def charts(c: Comparison) -> list[LineChart]:
    """Return the break-even price over the price of the reference as a chart; none without the reference's price."""
    found = [of for of in break_even(c) if of.home and of.other][:MOST_LINES]
    if not found:
        return []
    home, several = found[0].home, len(c.others) > 1
    assert home
    given = device_price(home)
    lines = tuple(_line(of, given, several) for of in found)
    labels = {of.machine: of for of in found if of.kind == ALL}
    marks = tuple((given, of.given, f"given: {label}") for label, of in labels.items() if of.given is not None)
    others = "a machine" if several else found[0].machine
    unit = _unit(home.price)
    return [
        LineChart(
            "break-even-chart",
            f"Break-even over the price of {c.reference.label}",
            f"On a line both cost the same for the same work; below it {others} costs less. Bands: 95 % interval. "
            f"Dashed: the given price of {c.reference.label}.",
            f"price of {c.reference.label}, {unit}",
            f"break-even price of {others}, {_unit(found[0].other.price) if found[0].other else unit}",
            lines,
            marks,
            given,
        )
    ]


def _line(of: BreakEven, given: float, several: bool) -> BandLine:
    points = []
    for i in range(POINTS):
        x = STEPS[-1] * given * i / (POINTS - 1)
        at = of.at(x)
        low, high = (at.value if end is None else end for end in (at.low, at.high))
        points.append((x, max(0.0, at.value), max(0.0, low), max(0.0, high)))
    name = of.machine if several else of.kind
    return BandLine(f"{name} {ratio_text(of.ratio)}", tuple(points))


def _unit(price: Price) -> str:
    """Return the unit of the price of one device: "$/h" or "$ for 4y"."""
    if price.hours is None:
        return price.sign
    return f"{price.sign} for {price.period}" if price.bought else f"{price.sign}/{price.period}"


def _price(price: Price, amount: float) -> str:
    return f"{price.money(amount)}{'' if price.bought else f'/{price.period}'}"
