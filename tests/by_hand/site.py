"""The pages of `attnbench site`, recomputed from raw lines: by GPU, by backend, the pair on the index, and of a run."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import unescape
from pathlib import Path

from . import latency, page
from .audit import Audit
from .comparison import _share
from .machines import Machine, machines, shared_cells
from .ratios import equal, speed_ratio
from .raw import Case, Key

TITLES = {"prefill": "Prefill", "decode": "Decode", "training": "Training", "several-gpus": "Several GPUs"}


def work_of(case: Case) -> str:
    """Return the kind of work of a case."""
    if case.ranks > 1:
        return "several-gpus"
    if case.direction != "fwd":
        return "training"
    return "decode" if case.is_decode else "prefill"


def table(text: str, name: str) -> list[list[str]]:
    """Return the entries of a table of a page as text, row by row."""
    found = re.search(rf'<section id="table-{re.escape(name)}".*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    if not found:
        return []
    rows = re.findall(r"<tr>(.*?)</tr>", found[1], re.DOTALL)
    return [[plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def word(label: str) -> str:
    """Return a label in the form of addresses."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower())


def plain(markup: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", markup))


def digits(number: float) -> str:
    """Return a number with three significant digits, whole from 100 on."""
    rounded = float(f"{number:.3g}") if abs(number) < 1000 else number
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def percent(fraction: float) -> str:
    return f"{float(f'{100 * fraction:.2g}'):g}%" if abs(fraction) < 1 else f"{100 * fraction:.0f}%"


def share(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    return f"{100 * fraction:.0f}%" if 100 * fraction >= 0.95 else f"{100 * fraction:.1g}%"


def check(audit: Audit, folder: Path, paths: Sequence[Path], pages: dict[str, str]) -> None:
    """Check the pages by GPU and by backend, and the chart of the index; `pages` maps machine labels to pages."""
    found = dict(zip(pages, machines(paths), strict=True))
    for label, name in pages.items():
        text = (folder / name).read_text()
        for work in TITLES:
            _check_gpu(audit, f"{name}: {work}", table(text, work), found[label], work)
    backends = {backend for machine in found.values() for _, backend in machine.figures["latency"]}
    for backend in sorted(backends):
        text = (folder / f"backend-{backend}.html").read_text()
        for label, machine in found.items():
            rows = table(text, word(label))
            _check_backend(audit, f"{backend} on {label}", rows, machine, backend)
    _check_pair(audit, (folder / "index.html").read_text(), found)


def check_run(audit: Audit, folder: Path, path: Path, name: str) -> None:
    """Check the rows of the page of a run file."""
    page.check(audit, path, (folder / name).read_text())


def _rate(machine: Machine, key: Key, work: str) -> float:
    return machine.gbps(key) if work == "decode" else machine.tflops(key)


def _rivals(machine: Machine, work: str) -> dict[str, list[Key]]:
    """Return case -> cells that compute it, for a kind of work."""
    found: dict[str, list[Key]] = {}
    for key in machine.figures["latency"]:
        if key[1] not in machine.approximate and work_of(machine.cells[key].case) == work:
            found.setdefault(key[0], []).append(key)
    return found


def _winners(machine: Machine, keys: Iterable[Key]) -> list[Key]:
    """Return the fastest cell and the cells that tie with it; none where the fastest figure decides nothing."""
    of = machine.figures["latency"]
    found = latency.fastest({key: (of[key].value, of[key].half) for key in keys})
    first = min(keys, key=lambda key: of[key].value)
    return [] if not found or machine.decides_nothing("latency", first) else found


def _check_gpu(audit: Audit, where: str, rows: list[list[str]], machine: Machine, work: str) -> None:
    expected = Counter[tuple[str, ...]]()
    for keys in _rivals(machine, work).values():
        winners = _winners(machine, keys)
        if len(keys) > 1 and winners:
            best = winners[0]
            names = " = ".join([best[1], *(key[1] for key in winners[1:])])
            half = machine.figures["latency"][best].half
            expected[names, digits(_rate(machine, best, work)), f"±{percent(half or 0.0)}"] += 1
    shown = Counter((row[1], row[2].rstrip("~"), row[3]) for row in rows if row[1] != "not known")
    audit.same(where, "cases", shown.total(), expected.total())
    for entry in {*shown, *expected}:
        audit.same(where, "fastest, rate and interval", str((entry, shown[entry])), str((entry, expected[entry])))


def _check_backend(audit: Audit, where: str, rows: list[list[str]], machine: Machine, backend: str) -> None:
    expected = Counter[tuple[str, ...]]()
    for key in (key for key in machine.figures["latency"] if key[1] == backend):
        case = machine.cells[key].case
        if case.step:
            continue
        work = work_of(case)
        unit = "GB/s" if work == "decode" else "TFLOP/s"
        winners = _winners(machine, _rivals(machine, work).get(key[0], [key]))
        of = machine.figures["latency"]
        against = "-"
        if winners:
            against = percent(of[winners[0]].value / of[key].value)
            if key in winners:
                against = "=" if len(winners) > 1 else "fastest"
        rate = f"{digits(_rate(machine, key, work))} {unit}" if backend not in machine.approximate else "-"
        limit = share(_share(machine, key, "latency")) if work != "decode" else None
        expected[TITLES[work], rate, limit or "", against] += 1
    shown = Counter((row[1], row[2].replace("~", ""), "" if row[1] == "Decode" else row[4], row[5]) for row in rows)
    for entry in {*shown, *expected}:
        audit.same(where, "rate beside the fastest", str((entry, shown[entry])), str((entry, expected[entry])))


def _check_pair(audit: Audit, text: str, found: dict[str, Machine]) -> None:
    """Check the chart of two machines, of which the first is the reference."""
    (home_label, home), (label, other) = found.items()
    name = f"speed-{word(label)}-against-{word(home_label)}"
    shown = {row[0]: row for row in table(text, name) if row[1] == "same backend"}
    common = shared_cells([home, other])
    ours, theirs = home.fastest("latency", common), other.fastest("latency", common)
    for work, title in TITLES.items():
        cases = [case for case in ours if case in theirs and work_of(home.cells[ours[case]].case) == work]
        if not cases:
            audit.same("index", f"{title} in the chart", title in shown, False)
            continue
        keys = equal([ours[case] for case in cases]), equal([theirs[case] for case in cases])
        ratio = speed_ratio(home, keys[0], other, keys[1], "latency")
        printed = re.findall(r"[\d.]+", shown[title][2])
        for end, value, by_hand in zip(("ratio", "low", "high"), printed, ratio, strict=True):
            audit.same(f"index: {title}", end, value, f"{by_hand:.{len(value.partition('.')[2])}f}")
        audit.same(f"index: {title}", "cases", shown[title][4], str(len(cases)))
