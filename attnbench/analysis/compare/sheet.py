"""A comparison on one side of A4 for a buyer to hand on, which is printed instead of the page.

It is a part of the page of `compare --html`: screen and paper come from one file, without another option or format.
Every list is limited to the entries that fit on the side; the page on the screen has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.analysis.compare.answer import price_text, ratio_text
from attnbench.analysis.compare.break_even import ALL, BreakEven, break_even, device_price
from attnbench.analysis.compare.break_even_tables import charts, costs
from attnbench.analysis.compare.common_cells import kinds_of_work
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.published import published_summary
from attnbench.core.documents import with_addresses
from attnbench.core.formats import digits, size
from attnbench.core.text import count, listed, some
from attnbench.render.document import Bar, Caution, Column, Document, Entry, Machine, Span, Table
from attnbench.results.case_names import NOTHING
from attnbench.results.run_setup import setup_texts

MOST_ROWS, MOST_GPUS, MOST_MACHINES, MOST_CAUTIONS, MOST_NAMED = 7, 7, 3, 3, 3
MOST_LETTERS, MOST_LETTERS_IN_ALL, MOST_LETTERS_OF_CAUTION = 620, 1700, 180  # in a sentence, the answer, a caution
MORE = with_addresses(
    "The page on the screen has every case, caution and file. Definitions of the figures: docs/compare.md."
)


def sheet(c: Comparison, answer: Sequence[str], cautions: Sequence[Caution]) -> Document | None:
    """Return the sheet of a comparison, with its answer and cautions; None if all machines are of one model."""
    if c.one_model:
        return None
    more = len(cautions) - MOST_CAUTIONS
    doubts = [Caution(_short(one.what, MOST_LETTERS_OF_CAUTION)) for one in cautions[:MOST_CAUTIONS]]
    return Document(
        command="compare",
        title=f"{some(c.labels, MOST_MACHINES)}: attention, compared",
        answer=tuple(_answer(answer)),
        machines=tuple(_machines(c)),
        charts=tuple(charts(c)),
        blocks=(_by_work(c), *published_summary(c, MOST_GPUS)),
        cautions=(*doubts, *([Caution(f"{count(more, 'more caution')} on the page.")] if more > 0 else ())),
        notes=tuple((Span(note),) for note in _notes(c)),
    )


def _answer(answer: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of an answer that fit on the side, long ones cut."""
    room = MOST_LETTERS_IN_ALL
    for sentence in answer:
        short = _short(sentence, min(MOST_LETTERS, room))
        room -= len(short)
        if room < 0:
            return
        yield short


def _short(sentence: str, most: int) -> str:
    """Return a sentence cut between its parts to `most` letters, with a mark for the parts left out."""
    if len(sentence) <= most:
        return sentence
    kept = sentence[:most]
    cut = max(kept.rfind("; "), kept.rfind(", "))
    return f"{kept[:cut] if cut > 0 else kept} ..."


def _by_work(c: Comparison) -> Table:
    """Return the ratio, rates and break-even by kind of work or by machine, with bars instead if there are no prices.

    A workload, whose parts are work of several kinds, has no rates.
    """
    found = break_even(c)[:MOST_ROWS]
    home, several = c.reference.label, len(c.others) > 1
    priced = any(of.home and of.other for of in found)
    ends = [end for of in found for end in (1.0, of.ratio.value, of.ratio.low, of.ratio.high) if end is not None]
    least, most = min(ends), max(ends)
    rows: list[tuple[Entry, ...]] = []
    for of in found:
        rates = () if c.workload else (_rate(c, of, label) for label in dict.fromkeys((home, of.machine)))
        money: tuple[Entry, ...] = (_bar(of, least, most),)
        if priced:
            price = price_text(of.other.price, of.at(device_price(of.home))) if of.home and of.other else NOTHING
            money = (price, costs(of))
        rows.append((of.machine if several else of.kind, _cases(c, of), ratio_text(of.ratio), *rates, *money))
    axis = (
        (Column("costs less below", "right", wrap=False), Column("at given prices", wrap=False))
        if priced
        else (Column(f"{least:.2f}x to {most:.2f}x", wrap=False),)
    )
    unlike = c.workload and c.workload.devices != (1,)  # with several devices the ratio is of the work per device
    rated = () if c.workload else (home, "the machine" if several else c.others[0].label)
    columns = (
        Column("machine" if several else "work"),
        Column("cases", "right"),
        Column(f"{'a device' if unlike else 'speed'} / {home}", "right", wrap=False),
        *(Column(of, "right", wrap=False) for of in rated),
        *axis,
    )
    note = f"{c.main.pace.capitalize()}, with {'the same backends' if c.main.shared else 'own fastest backends'}; "
    note += "95 % intervals, other cards of the model included."
    if priced:
        note += f" If {home} costs {c.prices[home]}."
    return Table("by-work", columns, tuple(rows), f"By {'machine' if several else 'kind of work'}", note)


def _bar(of: BreakEven, least: float, most: float) -> Entry:
    """Return a bar from 1x to the ratio, on an axis from `least` to `most`."""
    width = (most - least) or 1.0
    start, end = sorted(((1 - least) / width, (of.ratio.value - least) / width))
    low, high = of.ratio.low, of.ratio.high
    known = None if low is None or high is None else ((low - least) / width, (high - least) / width)
    return Bar(start, end, interval=known)


def _cases(c: Comparison, of: BreakEven) -> str:
    if c.workload:
        return str(sum(len(part.cases) for part in c.workload.parts if of.kind in (ALL, part.name)))
    return str(len(c.main.cases if of.kind == ALL else kinds_of_work(c.main.cases)[of.kind]))


def _rate(c: Comparison, of: BreakEven, label: str) -> str:
    """Return the TFLOP/s of a machine, or GB/s for decode; "-" without a figure."""
    main = c.main if of.kind == ALL else c.main.of(kinds_of_work(c.main.cases)[of.kind])
    tflops, gbps = main.tflops(label), main.gbps(label)
    return f"{digits(tflops)} TFLOP/s" if tflops else f"{digits(gbps)} GB/s" if gbps else NOTHING


def _machines(c: Comparison) -> Iterator[Machine]:
    for machine in c.machines[:MOST_MACHINES]:
        environment, texts = machine.environment, setup_texts(machine.run)
        price = c.prices.get(machine.label)
        parts = (
            environment.device.name,
            size(environment.device.memory),
            texts["power_limit_w"],
            str(price) if price else "",
            count(len(machine.cards), "card"),
            count(len(machine.files), "run file"),
        )
        yield Machine(machine.label, ", ".join(filter(None, parts)))


def _notes(c: Comparison) -> Iterator[str]:
    """Yield notes on the omitted parts and the sources of the figures."""
    left = [] if c.workload else ["all of a model but its attention, hosts and network"]
    left += (
        [f"{count(len(c.untried), 'case')} that not each machine tried with the fastest backend"] if c.untried else []
    )
    missing = sum(of.cells for of in c.missing)
    left += [f"{count(missing, 'cell')} that a machine lacks"] if missing else []
    left += [f"{some(c.machines_left_out, MOST_NAMED)} (no case in common)"] if c.machines_left_out else []
    left += [count(len(c.left_out), "file")] if c.left_out else []
    left += [f"{count(len(c.machines) - MOST_MACHINES, 'more machine')}"] if len(c.machines) > MOST_MACHINES else []
    yield f"Left out: {listed(left)}." if left else ""
    days = sorted(file.run.started[:10] for machine in c.machines for file in machine.files if file.run.started)
    files = sum(len(machine.files) for machine in c.machines)
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    yield f"Sources: {count(files, 'run file')} of attnbench{when}. {MORE}"
