"""Published figures of GPUs that no run file measured: what claims print of them, apart from all that was measured.

They enter no ratio, mean, ranking or price. A rate in TFLOP/s or GB/s is the printed one, or computed from a printed
time and the setting of its claim: FLOPs as the source counts them, and of a decode the least bytes that a call moves.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.analysis.claims.claim_file import ANY_GPU, Figure, Setting, load
from attnbench.analysis.claims.document import printed_text
from attnbench.analysis.compare.common_cells import work
from attnbench.core import gpus
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.flops import flops, ideal_bytes
from attnbench.core.formats import digits
from attnbench.core.groups import grouped
from attnbench.core.machine import Device
from attnbench.core.text import count
from attnbench.render.document import Bar, Column, Entry, Paragraphs, Span, Table
from attnbench.run.axes import expand
from attnbench.run.select import is_approximate

NAME = "published"
TITLE = "Published, not measured"
RATES = {"tflops": "TFLOP/s", "gbps": "GB/s"}
APART = "Of GPUs that no run file measured, as their sources print it: in no ratio, mean, ranking or price"


@dataclass(frozen=True)
class Published:
    """A figure that a source prints of a GPU that was not measured."""

    gpu: str
    work: str  # "prefill", "training" or "decode"; "" where the claim has no case
    dtype: str  # "" where the claim has no case
    setting: str  # in words
    backend: str
    printed: str  # with its unit
    rate: float | None  # in `unit`; None where neither printed nor known from a time
    unit: str  # "TFLOP/s" or "GB/s"; "" without a rate
    is_printed: bool  # whether the rate is the printed one; False: computed from a printed time
    source: str
    where: str  # in the source
    address: str
    checked: str  # how the figure was compared with its source, or why not
    claim: str


def published(measured: Iterable[Device], settings: Sequence[Setting] | None = None) -> list[Published]:
    """Return the published figures of GPUs that are none of the measured devices, by GPU in the order of the table.

    `settings` are the claims, by default those that ship. Ratios of backends and figures of memory are left out, and
    so are approximations and other kinds than softmax attention.
    """
    names = {name for device in measured if (name := model_of(device))}
    order = {gpu.name: place for place, gpu in enumerate(gpus.GPUS)}
    found = [
        one
        for setting in (_shipped() if settings is None else settings)
        if setting.gpu != ANY_GPU and setting.gpu not in names and setting.axes.kind in (None, "softmax")
        for figure in setting.figures
        if not figure.is_ratio and figure.metric in (*RATES, "latency") and not is_approximate(figure.backends[0])
        for one in [_published(setting, figure)]
    ]
    return sorted(found, key=lambda one: order.get(one.gpu, len(order)))


@functools.cache
def _shipped() -> list[Setting]:
    """Return the claims that ship, read once a process."""
    return load()


def model_of(device: Device) -> str | None:
    """Return the name of a GPU in attnbench's table; None for a device that is not in it."""
    known = gpus.find(device.name, device.memory, device.multiprocessors)
    return known.name if known else None


def _published(setting: Setting, figure: Figure) -> Published:
    file, claim = setting.file, setting.claim
    try:
        cases = expand(setting.axes, None, None)
    except UserError:  # its claim names no length
        cases = []
    rate, unit = _rate(setting, figure, cases) if figure.printed.kind != "range" else (None, "")
    return Published(
        setting.gpu,
        _of_all(map(work, cases)),
        _of_all(case.dtype for case in cases),
        claim.what,
        figure.backends[0],
        printed_text(figure),
        rate,
        unit,
        figure.metric in RATES,
        file.source,
        claim.where,
        file.address,
        file.checked,
        claim.id,
    )


def _of_all(values: Iterable[str]) -> str:
    """Return the value that all cases share; "" if they differ, and without cases."""
    found = {*values}
    return found.pop() if len(found) == 1 else ""


def _rate(setting: Setting, figure: Figure, cases: Sequence[Case]) -> tuple[float | None, str]:
    """Return the rate of a figure and its unit; (None, "") for a time over several cases, whose work is not known."""
    if figure.metric in RATES:
        return figure.printed.low, RATES[figure.metric]
    if len(cases) != 1:
        return None, ""
    (case,) = cases
    if case.is_decode:
        return ideal_bytes(case) / figure.printed.low / 1e9, RATES["gbps"]
    return flops(case, setting.file.flops) / figure.printed.low / 1e12, RATES["tflops"]


def rows(found: Iterable[Published]) -> list[dict[str, Any]]:
    """Return published figures for JSON, each marked as not measured."""
    return [{**asdict(one), "measured": False} for one in found]


def table(found: Sequence[Published]) -> Table:
    """Return the fastest published kernel of each claim with its source.

    Bars are hatched, unlike bars of measured figures.
    """
    found = [max(of, key=lambda one: one.rate or 0.0) for of in grouped(found, lambda one: one.claim).values()]
    sources = {one.source: one for one in found}
    numbers = {source: number for number, source in enumerate(sources, 1)}
    most = _most(found)
    entries: list[tuple[Entry, ...]] = [
        (
            "" if i else f"{gpu}, published",
            one.setting,
            one.backend,
            _published_text(one),
            _bar(one, most),
            f"[{numbers[one.source]}]",
        )
        for gpu, of_gpu in grouped(found, lambda one: one.gpu).items()
        for i, one in enumerate(of_gpu)
    ]
    columns = (
        Column("GPU", wrap=False),
        Column("setting"),
        Column("kernel"),
        Column("published", "right", wrap=False),
        Column("TFLOP/s", optional=1),
        Column("source"),
    )
    note = f"{APART}. Hatched: not measured. Of each claim the fastest kernel; JSON has all. A rate in brackets is "
    note += "computed from the printed time and the setting."
    footnotes = tuple(map(_source, sources.values()))
    return Table(NAME, columns, tuple(entries), TITLE, note, footnotes, narrow=_narrow(found))


def _narrow(found: Sequence[Published]) -> Paragraphs:
    """Return the figures below each other, for a terminal or a page that is too narrow for their table."""
    lines: list[tuple[Span, ...]] = []
    for (gpu, source, address), own in grouped(found, lambda one: (one.gpu, one.source, one.address)).items():
        lines.append((Span(f"{gpu}, published", "strong"), Span(f": {source}, {address}")))
        lines += [(Span(f"{_published_text(one)}, {one.backend}: {one.setting}"),) for one in own]
    return Paragraphs(tuple(lines), TITLE)


def _published_text(one: Published) -> str:
    return one.printed if one.is_printed or not one.rate else f"{one.printed} ({_rate_text(one)})"


def summary(found: Sequence[Published], more: str, bars: bool = True) -> Table:
    """Return a row for each GPU: the highest published rate of each kind of work and dtype, and the sources.

    `more` says where each figure stands. `bars`: with a hatched bar of the highest TFLOP/s of each GPU, fp8 left out.
    """
    of_bars = [one for one in found if one.unit == RATES["tflops"] and one.dtype != "fp8"]
    most = _most(of_bars)
    numbers: dict[str, int] = {}
    entries: list[tuple[Entry, ...]] = []
    for gpu, of_gpu in grouped(found, lambda one: one.gpu).items():
        known = grouped((one for one in of_gpu if one.rate), lambda one: (one.work, one.dtype, one.unit))
        best = [max(of, key=lambda one: one.rate or 0.0) for of in known.values()]
        said = (" ".join(filter(None, (one.work, one.dtype, "to", _rate_text(one)))) for one in best)
        highest = max((one for one in of_gpu if one in of_bars), key=lambda one: one.rate or 0.0, default=None)
        bar = (_bar(highest, most) if highest else "",) if bars else ()
        marks = (f"[{numbers.setdefault(_findable(one), len(numbers) + 1)}]" for one in best)
        entries.append((gpu, ", ".join(said) or count(len(of_gpu), "time"), *bar, " ".join(dict.fromkeys(marks))))
    bar_column = (Column("TFLOP/s, not fp8", optional=1),) if bars else ()
    columns = (Column("GPU", wrap=False), Column("published"), *bar_column, Column("source"))
    return Table(NAME, columns, tuple(entries), TITLE, f"{APART}. {more}".strip(), tuple(numbers))


def _most(found: Iterable[Published]) -> float:
    """Return the highest TFLOP/s, to which bars are drawn."""
    return max((one.rate for one in found if one.rate and one.unit == RATES["tflops"]), default=0.0)


def _bar(one: Published, most: float) -> Entry:
    return Bar(0.0, one.rate / most, hatched=True) if one.rate and one.unit == RATES["tflops"] else ""


def _rate_text(one: Published) -> str:
    return f"{digits(one.rate)} {one.unit}" if one.rate else ""


def _findable(one: Published) -> str:
    """Return a source as a reader can find it: a paper by its number, any other source with its address."""
    return one.source if "arXiv" in one.source else f"{one.source}, {one.address}"


def _source(one: Published) -> str:
    return f"{one.source}, {one.address}; compared with the source: {one.checked}."
