"""The pages of `attnbench site`, recomputed from raw lines: by GPU, work and backend, of a pair, the index, a run."""

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
from .ratios import Ratio, equal, speed_ratio
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


def short(label: str) -> str:
    """Return the name of a GPU in a table; names of different GPUs begin differently."""
    return label.split()[0]


def plain(markup: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", markup))


def digits(number: float) -> str:
    """Return a number with three significant digits, whole from 100 on."""
    rounded = float(f"{number:.3g}") if abs(number) < 1000 else number
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def percent(fraction: float) -> str:
    return f"{float(f'{100 * fraction:.2g}'):g}%" if abs(fraction) < 1 else f"{100 * fraction:.0f}%"


def duration(seconds: float) -> str:
    factor, unit = next((f, u) for f, u in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if float(f"{seconds / f:.3g}") >= 1)
    return f"{digits(seconds / factor)} {unit}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval as texts have it."""
    value, *ends = (f"{one:.3f}" if 0.9 <= one < 1.1 else digits(one) for one in ratio if one is not None)
    return f"{value}x ({' to '.join(ends)})" if ends else f"{value}x"


def share(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    return f"{100 * fraction:.0f}%" if 100 * fraction >= 0.95 else f"{100 * fraction:.1g}%"


def check(audit: Audit, folder: Path, paths: Sequence[Path], pages: dict[str, str]) -> None:
    """Check the pages by GPU, work and backend, and of the pair; `pages` maps machine labels to pages."""
    found = dict(zip(pages, machines(paths), strict=True))
    for label, name in pages.items():
        text = (folder / name).read_text()
        for work in TITLES:
            _check_gpu(audit, f"{name}: {work}", table(text, work), found[label], work)
    backends = {backend for machine in found.values() for _, backend in machine.figures["latency"]}
    for backend in sorted(backends):
        text = (folder / f"backend-{backend}.html").read_text()
        for work in TITLES:
            rows = table(text, work)
            for label, machine in found.items():
                of_gpu = [row for row in rows if row[1] == short(label)]
                _check_backend(audit, f"{backend} on {label}: {work}", of_gpu, machine, backend, work)
    for work in TITLES:
        _check_work(audit, work, folder / f"work-{work}.html", found)
    _check_pair(audit, (folder / "index.html").read_text(), found)
    (home, _), (other, _) = found.items()
    _check_cells_of_pair(audit, (folder / f"pair-{word(other)}-against-{word(home)}.html").read_text(), found)


def check_run(audit: Audit, folder: Path, path: Path, name: str) -> None:
    """Check the rows of the page of a run file."""
    page.check(audit, path, (folder / name).read_text())


def _rate(machine: Machine, key: Key, by: str = "") -> str:
    """Return the speed of a cell in the unit of its limit, by default on its machine."""
    by = by or machine.limit(key)
    if by == "launch":
        return duration(machine.seconds("latency", key))
    return f"{digits(machine.gbps(key))} GB/s" if by == "memory" else f"{digits(machine.tflops(key))} TFLOP/s"


def _rivals(machine: Machine, work: str) -> dict[str, list[Key]]:
    """Return case -> cells that compute it, for a kind of work."""
    found: dict[str, list[Key]] = {}
    for key in machine.figures["latency"]:
        if key[1] not in machine.approximate and work_of(machine.cells[key].case) == work:
            found.setdefault(key[0], []).append(key)
    return found


def _winners(machine: Machine, keys: Iterable[Key]) -> list[Key]:
    """Return the fastest cell and the cells that tie with it; none where the fastest figure decides nothing."""
    of, keys = machine.figures["latency"], [*keys]
    if not keys:
        return []
    found = latency.fastest({key: (of[key].value, of[key].half) for key in keys})
    first = min(keys, key=lambda key: of[key].value)
    if not found or machine.decides_nothing("latency", first):
        return []
    best = min(keys, key=lambda key: machine.seconds("latency", key))
    return [best, *(key for key in found if key != best)]


def _named(winners: Sequence[Key]) -> str:
    return _in_order(" = ".join(key[1] for key in winners))


def _in_order(names: str) -> str:
    """Return the names of a fastest backend and of those that tie with it, in the order of the alphabet."""
    first, *alike = names.split(" = ")
    return " = ".join([first, *sorted(alike)])


def _check_gpu(audit: Audit, where: str, rows: list[list[str]], machine: Machine, work: str) -> None:
    expected = Counter[tuple[str, ...]]()
    for keys in _rivals(machine, work).values():
        winners = _winners(machine, keys)
        if len(keys) > 1 and winners:
            best = winners[0]
            names = _named(winners)
            half = machine.figures["latency"][best].half
            expected[names, _rate(machine, best), f"±{percent(half or 0.0)}"] += 1
    shown = Counter((_in_order(row[1]), row[2].rstrip("~"), row[3]) for row in rows if row[1] != "not known")
    audit.same(where, "cases", shown.total(), expected.total())
    for entry in {*shown, *expected}:
        audit.same(where, "fastest, rate and interval", str((entry, shown[entry])), str((entry, expected[entry])))


def _check_backend(audit: Audit, where: str, rows: list[list[str]], machine: Machine, backend: str, work: str) -> None:
    expected = Counter[tuple[str, ...]]()
    of = machine.figures["latency"]
    keys = [key for key in of if key[1] == backend and work_of(machine.cells[key].case) == work]
    rivals = _rivals(machine, work)
    for key in (key for key in keys if not machine.cells[key].case.step):
        winners = _winners(machine, rivals.get(key[0], []))
        against = "-"
        if winners:
            against = percent(machine.seconds("latency", winners[0]) / machine.seconds("latency", key))
            if key in winners:
                against = "=" if len(winners) > 1 else "fastest"
        exact = backend not in machine.approximate
        rate = _rate(machine, key) if exact else duration(machine.seconds("latency", key))
        computes = exact and machine.limit(key) == "compute"
        expected[rate, share(_share(machine, key, "latency")) if computes else "", against] += 1
    shown = Counter((row[2].rstrip("~"), row[5] if "TFLOP/s" in row[2] else "", row[6]) for row in rows)
    for entry in {*shown, *expected}:
        audit.same(where, "rate beside the fastest", str((entry, shown[entry])), str((entry, expected[entry])))


def _check_work(audit: Audit, work: str, path: Path, found: dict[str, Machine]) -> None:
    """Compare the fastest of each case on each machine; a case that one backend of one machine has is not shown."""
    rivals = {label: _rivals(machine, work) for label, machine in found.items()}
    if not any(rivals.values()):
        audit.same(work, "page", path.exists(), False)
        return
    rows = table(path.read_text(), work)
    for label, machine in found.items():
        expected = Counter[tuple[str, ...]]()
        for case, keys in rivals[label].items():
            if sum(len(of.get(case, ())) for of in rivals.values()) > 1:
                winners = _winners(machine, keys)
                rate = _rate(machine, winners[0]) if winners else "-"
                expected[_named(winners) if winners else "not known", rate] += 1
        shown = Counter((_in_order(row[2]), row[3].rstrip("~")) for row in rows if row[1] == short(label))
        for entry in {*shown, *expected}:
            audit.same(f"{work} on {label}", "fastest", str((entry, shown[entry])), str((entry, expected[entry])))


def _check_cells_of_pair(audit: Audit, text: str, found: dict[str, Machine]) -> None:
    """Compare the rates and the ratio of each cell that both machines ran by like kernels."""
    home, other = found.values()
    expected = Counter[tuple[str, ...]]()
    for key in shared_cells([home, other]):
        ratio = speed_ratio(home, {key: 1.0}, other, {key: 1.0}, "latency")
        rates = (_rate(machine, key, home.limit(key)).split()[0] for machine in (home, other))
        expected[(*rates, ratio_text(ratio))] += 1
    shown = Counter((*(rate.split()[0] for rate in row[1:3]), row[3]) for row in table(text, "cells"))
    for entry in {*shown, *expected}:
        audit.same("pair", "cell of both", str((entry, shown[entry])), str((entry, expected[entry])))


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
