"""A profile for a terminal: figures, the timeline of one call with its memory, and several backends side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.profile.figures import figures, sentences
from attnbench.analysis.profile.timeline import bar, kernel_name, selected, shortened, sparkline
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.json import to_json
from attnbench.results import case_names, metrics

if TYPE_CHECKING:
    from attnbench.analysis.profile.profile import Activity, Outcome, Profile
    from attnbench.core.flops import Roofline

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
MIN_BARS, MAX_BARS = 16, 64  # characters
MAX_NAME = 44
PROSE = 110  # characters; longer lines are hard to read


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
    return f"{case_names.case('', case, dtype=True).strip()}, batch {case.shape.batch}, {case_names.heads(case)} heads"


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


def _by_activity(profile: Profile) -> dict[Activity, float]:
    """HBM bytes of each kernel, where ncu saw the same ones."""
    kernels = [a for a in profile.activities if not a.name.startswith(("Memset", "Memcpy"))]
    if profile.traffic is None or len(kernels) != len(profile.traffic.kernels):
        return {}
    return {a: k.read + k.written for a, k in zip(kernels, profile.traffic.kernels, strict=True)}
