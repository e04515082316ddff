"""A profile for a terminal: figures, the timeline of one call with its memory, and several backends side by side."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench import metrics, stats
from attnbench.jsonable import to_json
from attnbench.report import words
from attnbench.types import Case

if TYPE_CHECKING:
    from attnbench.profile import Activity, Outcome, Profile
    from attnbench.work import Roofline

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
MAX_ROWS = 16
FEW_ROWS = 8  # up to here all are shown, however short
SMALL = 0.01  # of the timeline; shorter ones share a row
MIN_BARS, MAX_BARS = 16, 64  # characters
MAX_NAME = 44
TOLL = 0.01  # of the latency; less is noise
PROSE = 110  # characters; longer lines are hard to read
STANDARD = ("eager", "sdpa-math")  # attention that writes its scores to memory
TIMERS = {"events": "CUDA events", "cupti": "CUPTI spans", "perf_counter": "perf_counter"}
UTF_LEVELS, ASCII_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*#"

# C++ templates that wrap a kernel, and arguments of theirs that say nothing of it
WRAPPERS = re.compile(
    r"\w*elementwise_kernel\w*|reduce_kernel|device_kernel|[kK]ernel\d*|gpu_kernel_impl\w*|enable_\w+|ReduceOp|"
    r"(A|B)?(Una|Bina)ryFunctor|func_wrapper_t|[aA]rray|BFloat16|Half|bfloat16_t|half_t|\w*OffsetCalculator|"
    r"TensorIterator\w*|void|float|double|int|bool|char|unsigned|long|lambda|operator|const"
)


def render(console: Console, outcome: Outcome) -> None:
    """Prints a profile of each backend, what sets them apart where there are several, and what is missing and why."""
    out = _Writer(console)
    if not outcome.profiles:
        out.refusals(outcome)
        return
    environment, device = outcome.environment, outcome.environment.device
    driver = f", driver {environment.driver}" if environment.driver else ""
    out.line(device.name, f"{metrics.size(device.memory)}{driver}, torch {environment.torch}", "bold")
    out.line(described(outcome.case), "", "")
    for profile in outcome.profiles:
        out.blank()
        out.profile(profile, outcome)
    if len(outcome.profiles) > 1:
        out.blank()
        out.comparison(outcome.profiles, outcome.roofline)
    if outcome.refused or outcome.notes:
        out.blank()
    out.refusals(outcome)
    for note in outcome.notes:
        out.line(f"! {note}", "", "yellow")
    if found := sentences(outcome):
        out.blank()
    for sentence in found:
        out.line(sentence, "", "bold")


def described(case: Case) -> str:
    """The case in words: 8k d128 causal fwd bf16, batch 2, 16 heads."""
    return f"{words.case('', case, dtype=True).strip()}, batch {case.shape.batch}, {words.heads(case)} heads"


def sentences(outcome: Outcome) -> list[str]:
    """How many times more bytes standard attention moves than the others: what papers derive, measured."""
    counted = {p.backend: p.traffic.total for p in outcome.profiles if p.traffic and not p.wrong}
    standard = next((name for name in STANDARD if name in counted), None)
    if standard is None:
        return []
    most = counted[standard]
    return [
        f"Standard attention ({standard}) moves {metrics.digits(most / total)} times the bytes of {name}: "
        f"{metrics.size(most)} against {metrics.size(total)} between HBM and the GPU, for one call."
        for name, total in counted.items()
        if name not in STANDARD
    ]


def json_text(outcome: Outcome) -> str:
    """Everything, raw samples and what is derived from them, in seconds, bytes and FLOP/s."""
    data = to_json(outcome)
    roofline = outcome.roofline
    if roofline:
        derived = {"intensity": roofline.intensity, "ridge": roofline.ridge, "seconds": roofline.seconds}
        data["roofline"].update(derived, bound=roofline.bound)
    for profile, found in zip(outcome.profiles, data.get("profiles", ()), strict=True):
        found["latency"] = profile.latency
        if roofline:
            found["roofline_fraction"] = roofline.seconds / profile.latency
        if profile.traffic:
            found["traffic"].update(read=profile.traffic.read, written=profile.traffic.written)
    return json.dumps(data, indent=2)


def kernel_name(name: str) -> str:
    """A kernel's name without return type, namespaces, parameters and template arguments.

    Of a template that wraps any function, as torch's elementwise_kernel, the first argument that tells which.
    """
    if name.startswith(("Memset", "Memcpy")):
        return name
    text = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    base = re.sub(r"[<(].*", "", text).rpartition("::")[2]
    if not WRAPPERS.fullmatch(base):
        return base
    arguments = re.findall(r"(?<!\w)[A-Za-z_]\w*(?!\w|::)", text[text.index(base) + len(base) :])
    return next((word for word in arguments if not WRAPPERS.fullmatch(word)), base)


def shortened(text: str, width: int) -> str:
    """With its middle left out where it is too long: both ends tell kernels apart."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def bar(start: float, end: float, length: float, width: int, *, utf: bool) -> str:
    """A bar from `start` to `end` on an axis of `width` characters for `length`, in halves of one, at least a half."""
    first = min(2 * width - 1, round(2 * width * start / length))
    last = max(first + 1, min(2 * width, round(2 * width * end / length)))
    if not utf:
        return (" " * (first // 2) + "=" * max(1, -(-last // 2) - first // 2)).ljust(width)
    cells = (((2 * i >= first) and (2 * i < last), (2 * i + 1 >= first) and (2 * i + 1 < last)) for i in range(width))
    return "".join("━" if left and right else "╸" if left else "╺" if right else " " for left, right in cells)


def sparkline(steps: Sequence[tuple[float, int]], length: float, width: int, *, utf: bool) -> str:
    """The most of a step function in each of `width` parts of [0, length], as heights; something is never nothing."""
    levels = UTF_LEVELS if utf else ASCII_LEVELS
    top = max((nbytes for _, nbytes in steps), default=0)
    if top <= 0:
        return " " * width
    text = ""
    for column in range(width):
        since, until = length * column / width, length * (column + 1) / width if column + 1 < width else math.inf
        held = next((nbytes for at, nbytes in reversed(steps) if at <= since), 0)
        most = max([held, *(nbytes for at, nbytes in steps if since < at < until)])
        text += levels[max(1, round(most / top * (len(levels) - 1)))] if most > 0 else levels[0]
    return text


class _Writer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.utf = console.encoding.lower().startswith("utf")
        self.width = max(console.width, 40)

    def blank(self) -> None:
        self.console.print()

    def line(self, text: str, details: str, style: str, details_style: str = "dim") -> None:
        """Text and what is less important; a reason may quote anything, so never markup."""
        line = Text(self.printable(text), style)
        if details:
            line.append(f"  {self.printable(details)}", f"not bold {details_style}")
        self.console.print(line, highlight=False, soft_wrap=not self.console.is_terminal)

    def printable(self, text: str) -> str:
        """Without what the console's encoding lacks."""
        return text.encode(self.console.encoding, "replace").decode(self.console.encoding)

    def profile(self, profile: Profile, outcome: Outcome) -> None:
        if profile.wrong:
            self.line(f"{profile.backend}  WRONG", profile.wrong, "bold red", "red")
        else:
            self.line(profile.backend, profile.version or "", "bold cyan")
        rows = figures(profile, outcome.roofline)
        left, middle = (max(len(row[i]) for row in rows) for i in (0, 1))
        for label, value, meaning in rows:
            self.figure(f"  {label.ljust(left)}  ", value.rjust(middle), self.printable(meaning))
        if profile.activities:
            self.blank()
            self.timeline(profile)
        for note in profile.notes:
            self.line(f"! {note}", "", "yellow")
        if profile.trace:
            self.line(f"  trace: {profile.trace}", "open it at https://ui.perfetto.dev", "")

    def figure(self, label: str, value: str, meaning: str) -> None:
        indent = len(label) + len(value) + 2
        for i, line in enumerate(Text(meaning, "dim").wrap(self.console, max(20, min(self.width, PROSE) - indent))):
            start = Text(label, "dim").append(f"{value}  ", "not dim bold") if not i else Text(" " * indent)
            start.append_text(line).rstrip()
            self.console.print(start, highlight=False, soft_wrap=True)

    def timeline(self, profile: Profile) -> None:
        """A row for each kernel, with its place in the call; under them the memory in use."""
        shown, rest = selected(profile.activities, profile.length)
        gaps = dict(zip(profile.activities, profile.gaps, strict=True))
        names = {a: kernel_name(a.name) for a in shown}
        traffic = _by_activity(profile)
        columns = ("start", "time", "share", "gap", *(("HBM",) if traffic else ()))
        figures_ = [
            (
                metrics.duration(a.start) if a.start else "0",
                metrics.duration(a.seconds),
                metrics.share(a.seconds / profile.length),
                metrics.duration(gaps[a]) if gaps[a] > 0 else "-",
                *((metrics.size(traffic[a]) if a in traffic else "-",) if traffic else ()),
            )
            for a in shown
        ]
        widths = [max(map(len, column)) for column in zip(columns, *figures_, strict=True)]
        space = self.width - 2 - sum(w + 2 for w in widths) - 2
        memory = f"memory, to {metrics.size(max((nbytes for _, nbytes in profile.memory), default=0))}"
        longest = max(len(profile.what), len(memory), *map(len, names.values()))
        name_width = max(20, min(longest, MAX_NAME, space - MIN_BARS))
        width = min(MAX_BARS, space - name_width)
        if width < MIN_BARS // 2:  # a very narrow terminal keeps the figures
            width = 0
        colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(names.values()))}
        self.row(profile.what, name_width, columns, widths, Text(), "dim")
        for activity, cells in zip(shown, figures_, strict=True):
            drawn = bar(activity.start, activity.end, profile.length, width, utf=self.utf) if width else ""
            self.row(names[activity], name_width, cells, widths, Text(drawn, colours[names[activity]]))
        if rest:
            seconds = sum(a.seconds for a in rest)
            cells = ("", metrics.duration(seconds), metrics.share(seconds / profile.length))
            self.row(f"{len(rest)} more", name_width, cells, widths, Text(), "dim")
        if profile.memory and width:
            drawn = sparkline(profile.memory, profile.length, width, utf=self.utf)
            self.row(memory, name_width, (), widths, Text(drawn, "blue"), "dim")
        if width:
            axis = "0" + metrics.duration(profile.length).rjust(width - 1)
            self.row("", name_width, (), widths, Text(axis, "dim"))

    def row(
        self, name: str, name_width: int, cells: Sequence[str], widths: Sequence[int], drawn: Text, style: str = ""
    ) -> None:
        text = Text("  ").append(self.printable(shortened(name, name_width).ljust(name_width)), style)
        for i, width in enumerate(widths):
            text.append("  " + (cells[i] if i < len(cells) else "").rjust(width), style)
        text.append("  ").append_text(drawn)
        text.rstrip()
        self.console.print(text, highlight=False, soft_wrap=True)

    def comparison(self, profiles: Sequence[Profile], roofline: Roofline | None) -> None:
        """A column for each backend, without the rows that none has."""
        rows: dict[str, list[str]] = {
            "latency": [metrics.duration(p.latency) for p in profiles],
            "of the roofline": [metrics.percent(roofline.seconds / p.latency) if roofline else "" for p in profiles],
            "span": [metrics.duration(stats.median(p.spans)) if p.spans else "" for p in profiles],
            "kernels": [str(len(p.activities)) if p.what == "kernels" and p.activities else "" for p in profiles],
            "CPU launch": [metrics.duration(stats.median(p.enqueue)) if p.enqueue else "" for p in profiles],
            "peak memory": [metrics.size(p.memory_peak) for p in profiles],
            "HBM traffic": [metrics.size(p.traffic.total) if p.traffic else "" for p in profiles],
            "over the least": [
                f"{metrics.digits(p.traffic.total / roofline.nbytes)}x" if p.traffic and roofline else ""
                for p in profiles
            ],
        }
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        table.add_column("side by side", style="dim", header_style="bold cyan", no_wrap=True)
        for p in profiles:
            table.add_column(Text(f"{p.backend}{' WRONG' if p.wrong else ''}"), justify="right", overflow="fold")
        for label, cells in rows.items():
            if any(cells):
                table.add_row(label, *(cell or "-" for cell in cells))
        self.console.print(table)

    def refusals(self, outcome: Outcome) -> None:
        for name, reason in outcome.refused.items():
            self.line(f"{name}: no profile", reason, "yellow", "")


def figures(profile: Profile, roofline: Roofline | None) -> list[tuple[str, str, str]]:
    """(label, value, meaning) above a timeline."""
    found = [("latency", metrics.duration(profile.latency), _method(profile))]
    if profile.spans:
        found += _spans(profile)
    elif profile.activities:
        found.append(("traced call", metrics.duration(profile.length), "the one below, slowed by the profiler"))
    if profile.enqueue:
        host = stats.median(profile.enqueue)
        slower = host > profile.latency
        meaning = "slower than the GPU, so calls in a row wait for it" if slower else "less than the GPU's time: hidden"
        found.append(("CPU launch", metrics.duration(host), f"of the host for one call; {meaning}"))
    found.append(("first call", metrics.duration(profile.first_call), "preparing and compiling included"))
    if roofline:
        found += _rooflines(profile, roofline)
    found.append(("peak memory", metrics.size(profile.memory_peak), "that one call adds, of torch's allocator"))
    if profile.traffic:
        found += _traffic(profile, roofline)
    return found


def _method(profile: Profile) -> str:
    parts = [f"median of {len(profile.times)} samples", TIMERS.get(profile.timer, profile.timer), f"L2 {profile.l2}"]
    if profile.limits:
        parts.append(f"clock limited by {', '.join(profile.limits)}")
    if profile.host_bound:
        parts.append("some wait for the host")
    return ", ".join(parts)


def _spans(profile: Profile) -> Iterable[tuple[str, str, str]]:
    span = stats.median(profile.spans)
    of = f"median of {words.count(len(profile.spans), 'traced call')}"
    yield "span", metrics.duration(span), f"first kernel's start to last one's end, CUPTI, {of}"
    gap = stats.median([events - own for events, own in zip(profile.traced, profile.spans, strict=True)])
    yield "launch gap", metrics.duration(gap), "from the events to the kernels and back, of the same calls"
    toll = stats.median(profile.traced) / profile.latency - 1
    if abs(toll) >= TOLL:
        longer = "longer" if toll > 0 else "less"
        yield "tracing", metrics.percent(abs(toll)), f"{longer} than untraced: the profiler's toll, or the clock moved"
    if len(profile.activities) > 1:
        idle = sum(profile.gaps)
        what = f"{metrics.percent(idle / profile.length)} of the span, between its {len(profile.activities)} kernels"
        yield "gaps", metrics.duration(idle), what


def _rooflines(profile: Profile, roofline: Roofline) -> Iterable[tuple[str, str, str]]:
    limit = (
        f"{metrics.digits(roofline.intensity)} FLOP/B, and memory is the limit below {metrics.digits(roofline.ridge)}"
    )
    yield "roofline", metrics.duration(roofline.seconds), f"bound by {roofline.bound}: {limit}; by {roofline.source}"
    work = f"{_si(roofline.flops, 'FLOP')} at {_si(roofline.peak, 'FLOP/s')}"
    yield "  compute", metrics.duration(roofline.compute), work
    moved = f"{metrics.size(roofline.nbytes)}, each operand once, at {_si(roofline.bandwidth, 'B/s')}"
    yield "  bytes", metrics.duration(roofline.memory), moved
    reached = f"of the roofline, {_si(roofline.flops / profile.latency, 'FLOP/s')}"
    if roofline.datasheet and profile.ceilings.keys() >= {"matmul", "copy"}:
        matmul, copy = profile.ceilings["matmul"], profile.ceilings["copy"]
        share = metrics.percent(max(roofline.flops / matmul, roofline.nbytes / copy) / profile.latency)
        reached += f"; {share} of what a matmul, {_si(matmul, 'FLOP/s')}, and a copy, {_si(copy, 'B/s')}, reach here"
    yield "reached", metrics.percent(roofline.seconds / profile.latency), reached


def _si(number: float, unit: str) -> str:
    factor, prefix = next((f for f in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if number >= f[0]), (1.0, ""))
    return f"{metrics.digits(number / factor)} {prefix}{unit}"


def _traffic(profile: Profile, roofline: Roofline | None) -> Iterable[tuple[str, str, str]]:
    traffic = profile.traffic
    assert traffic is not None
    parts = [f"read {metrics.size(traffic.read)}, written {metrics.size(traffic.written)}"]
    if roofline:
        parts.append(f"{metrics.digits(traffic.total / roofline.nbytes)} times the least")
    parts.append("by ncu, L2 emptied before and after the call and not between its kernels")
    if traffic.passes > 1:
        parts.append(f"{traffic.passes} passes, so some reads may have hit L2")
    yield "HBM traffic", metrics.size(traffic.total), "; ".join(parts)
    if profile.spans:
        rate = traffic.total / stats.median(profile.spans)
        of = f", {metrics.percent(rate / roofline.bandwidth)} of the bandwidth" if roofline else ""
        yield "  rate", _si(rate, "B/s"), f"over the span{of}"


def selected(activities: Sequence[Activity], length: float) -> tuple[list[Activity], list[Activity]]:
    """Those that get a row of their own, and the short ones that share one."""
    if len(activities) <= FEW_ROWS:
        return list(activities), []
    longest = sorted(activities, key=lambda a: -a.seconds)[:MAX_ROWS]
    own = [a for a in activities if a in longest and a.seconds >= SMALL * length]
    return own, [a for a in activities if a not in own]


def _by_activity(profile: Profile) -> dict[Activity, float]:
    """HBM bytes of each kernel, where ncu saw the same ones."""
    kernels = [a for a in profile.activities if not a.name.startswith(("Memset", "Memcpy"))]
    if profile.traffic is None or len(kernels) != len(profile.traffic.kernels):
        return {}
    return {a: k.read + k.written for a, k in zip(kernels, profile.traffic.kernels, strict=True)}
