"""Below the tables: why cells have no figure, and what to doubt about those that do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnbench import metrics, store
from attnbench.report import words
from attnbench.report.cells import Cell
from attnbench.types import Run
from attnbench.work import Convention

NOTHING = "Nothing was measured: there are no records."


@dataclass(frozen=True)
class Note:
    """Why some cells ended without a figure: the word that stands in the table, which cells, the reason."""

    word: str
    who: str
    reason: str


@dataclass(frozen=True)
class Caution:
    """What happened, why it matters, what to do."""

    what: str
    why: str
    todo: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.what, self.why, self.todo)))


def notes(cells: Sequence[Cell]) -> list[Note]:
    """One line per ending, reason (numbers aside) and set of cells; backends that share all three share the line."""
    groups: dict[tuple[str, str, str, str], list[Cell]] = {}
    for cell in cells:
        if cell.status != "ok":
            reason = _one_line(cell.reason or "no reason given")
            groups.setdefault((cell.device, cell.backend, cell.status, words.template(reason)), []).append(cell)
    several_devices = len({c.device for c in cells}) > 1
    lines: dict[tuple[str, ...], list[list[Cell]]] = {}
    for (device, backend, _, template), group in groups.items():
        of_backend = [c for c in cells if (c.device, c.backend) == (device, backend)]
        place = words.where(group, of_backend)
        scope = "all" if len(group) == len(of_backend) else words.count(len(group), "case")
        lines.setdefault((words.ENDINGS[group[0].status], template, device, scope, place), []).append(group)
    found = []
    order = list(words.ENDINGS.values())
    ranked = sorted(
        lines.items(), key=lambda line: (order.index(line[0][0]), words.backend_rank(line[1][0][0].backend))
    )
    for (word, _, device, scope, place), alike in ranked:
        members = [c for group in alike for c in group]
        who = ", ".join(sorted({c.backend for c in members}, key=words.backend_rank))
        each = " each" if len(alike) > 1 and scope != "all" else ""
        detail = f"{who} ({scope}{each}{f': {place}' if place else ''})"
        if len(members) == 1:
            detail = words.name(members[0])
        on = f" on {device}" if several_devices else ""
        reasons = [_one_line(c.reason or "no reason given") for c in members]
        found.append(Note(word, detail + on, words.merged(reasons)))
    return found


def warnings(cells: Sequence[Cell], runs: Sequence[Run], convention: Convention = "exact") -> list[Caution]:
    """Everything that should make a reader careful, most serious first."""
    measured = [c for c in cells if c.status == "ok"]
    found = [*_wrong(cells), *_incomplete(runs), *_half_ok(measured), *_few(measured), *_noisy(measured)]
    found += [*_host_bound(measured), *_held_down(measured), *_no_peak(measured)]
    if convention == "fa" and any(c.case.window_size != (None, None) and c.case.causal for c in measured):
        found.append(
            Caution(
                "The fa convention ignores windows.",
                "TFLOP/s of causal sliding windows are far too high.",
                "Use --flops-convention exact.",
            )
        )
    return found


def _wrong(cells: Iterable[Cell]) -> Iterator[Caution]:
    wrong = [c for c in cells if c.status == "wrong"]
    if wrong:
        yield Caution(
            f"{words.count(len(wrong), 'result')} wrong: {words.some(words.name(c) for c in wrong)}.",
            "The speed of a wrong answer says nothing, so none is shown.",
            "See above by how much; report it to the backend's authors.",
        )


def _incomplete(runs: Iterable[Run]) -> Iterator[Caution]:
    for run in runs:
        done = {record.id for record in run.records}
        missing = store.missing(run)
        open_ = [job for job in missing if job.skip is None and job.id not in done]
        later = [job for job in missing if job.id in done]
        if open_:
            yield Caution(
                f"Incomplete: {len(open_)} of {words.count(len(run.plan), 'planned job')} of suite "
                f'"{run.suite}" have no record.',
                "What is missing may change who is fastest.",
                "Finish with: attnbench run --resume FILE",
            )
        elif later:
            yield Caution(
                f"Incomplete: {words.count(len(later), 'job')} skipped for want of time.",
                "",
                "Measure them with: attnbench run --resume FILE",
            )


def _half_ok(cells: Iterable[Cell]) -> Iterator[Caution]:
    odd = [c for c in cells if any(r.status != "ok" for r in c.records)]
    if odd:
        other = next(r for r in odd[0].records if r.status != "ok")
        yield Caution(
            f"{words.count(len(odd), 'cell')} measured in some rounds only: {words.some(words.name(c) for c in odd)} "
            f"({words.ENDINGS[other.status]}: {_one_line(other.reason or 'no reason given')}).",
            "Their figures are of the rounds that worked.",
            "Read them as unstable.",
        )


def _few(cells: Iterable[Cell]) -> Iterator[Caution]:
    counts = [(n, c) for c in cells if (n := min(_samples(c))) < c.run.policy.min_samples]
    if counts:
        fewest, cell = min(counts, key=lambda pair: pair[0])
        yield Caution(
            f"Few samples in {words.count(len(counts), 'cell')}, the fewest {fewest}: {words.name(cell)}.",
            "Their spread is hardly known"
            + (": below 6 no 95 % interval exists." if fewest < metrics.MIN_SAMPLES_INTERVAL else "."),
            f"Raise max_seconds in the suite (it was {cell.run.policy.max_seconds:g} s a cell).",
        )


def _noisy(cells: Sequence[Cell]) -> Iterator[Caution]:
    noisy = [(ci, c) for c in cells if (ci := c.value("ci")) is not None and ci > c.run.policy.target]
    if noisy:
        worst, cell = max(noisy, key=lambda pair: pair[0])
        target = metrics.percent(cell.run.policy.target)
        yield Caution(
            f"Noisy: {len(noisy)} of {words.count(len(cells), 'cell')} not known to {target}, the worst to "
            f"{metrics.percent(worst)}: {words.name(cell)}.",
            "Smaller differences than that are not real.",
            "Leave the machine alone meanwhile, or raise max_seconds in the suite "
            f"({cell.run.policy.max_seconds:g} s a cell).",
        )


def _held_down(cells: Sequence[Cell]) -> Iterator[Caution]:
    held = [c for c in cells if any(r.limits for r in c.records)]
    if held:
        limits = sorted({limit for c in held for r in c.records for limit in r.limits})
        clocks = [v for c in held if (v := c.value("clock_sm")) is not None]
        seen = f", SM clock {_range(clocks)}" if clocks else ""
        top = held[0].run.environment.clock_max_hz
        most = f" of {top / 1e6:.0f} MHz" if top and clocks else " MHz" if clocks else ""
        yield Caution(
            f"Clock held down by {', '.join(limits)} in {len(held)} of {words.count(len(cells), 'cell')}{seen}{most}.",
            "Their speed is what the machine sustains, not what the kernel could do, and moves by some percent "
            "from run to run.",
            "Compare within one run, over several rounds.",
        )


def _host_bound(cells: Sequence[Cell]) -> Iterator[Caution]:
    bound = [c for c in cells if c.status == "ok" and any(r.host_bound for r in c.records)]
    if bound:
        yield Caution(
            f"Host-bound: {words.count(len(bound), 'cell')} where the device waited for the host: "
            f"{words.some(map(words.name, bound))}.",
            "Their latency holds the time that Python takes to launch, not the kernels' alone.",
            "Launch fewer kernels, or capture them in a CUDA graph.",
        )


def _no_peak(cells: Iterable[Cell]) -> Iterator[Caution]:
    unknown: dict[str, set[str]] = {}
    for cell in cells:
        if cell.peak is None and cell.run.environment.device.kind == "cuda":
            unknown.setdefault(cell.run.environment.device.name, set()).add(cell.case.dtype)
    for device, dtypes in unknown.items():
        names = sorted(dtypes)
        yield Caution(
            f"Utilisation unknown: no {' or '.join(names)} peak is on file for {device}.",
            "TFLOP/s are not affected.",
            f"Give the datasheet's dense TFLOP/s: {' '.join(f'--peak {n}=...' for n in names)}",
        )


def _samples(cell: Cell) -> list[int]:
    return [
        len(r.measurements["time"].values) if "time" in r.measurements else 0 for r in cell.records if r.status == "ok"
    ]


def _range(hertz: Sequence[float]) -> str:
    low, high = f"{min(hertz) / 1e6:.0f}", f"{max(hertz) / 1e6:.0f}"
    return low if low == high else f"{low}-{high}"


def _one_line(text: str) -> str:
    """Without line breaks and escape sequences: reasons quote libraries."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
