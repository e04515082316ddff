"""The page of a site over time, recomputed from raw lines: backends against the version before, and cards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .audit import Audit
from .machines import Machine, machines, version
from .ratios import equal, speed_ratio
from .raw import Key, Record, RunFile, read
from .site import plain, ratio_text, short, table


def check(audit: Audit, text: str, paths: Sequence[Path]) -> None:
    """Compare the rows of both tables of the page, and the numbers in its answer."""
    expected = Counter[tuple[str, ...]]()
    faster = slower = 0
    for now in machines(paths):
        before = _before(now)
        if before is None:
            continue
        of_backend: dict[str, list[Key]] = defaultdict(list)
        for key in now.figures["latency"]:
            if key in before.figures["latency"] and not now.cells[key].case.step:
                of_backend[key[1]].append(key)
        for backend, keys in of_backend.items():
            ratio = speed_ratio(before, equal(keys), now, equal(keys), "latency")
            gpu = short(now.files[0].device["name"].removeprefix("NVIDIA "))
            expected[backend, gpu, ratio_text(ratio), str(len(keys))] += 1
            _, low, high = ratio
            faster += low is not None and low > 1
            slower += high is not None and high < 1
    shown = Counter((row[0], row[1], row[2], row[4]) for row in table(text, "versions"))
    for entry in {*shown, *expected}:
        audit.same("over time", "version before", str((entry, shown[entry])), str((entry, expected[entry])))
    said = (
        f"Of {expected.total()} backends on a GPU with an earlier version, {faster} became faster and {slower} slower"
    )
    audit.same("over time", "answer over time", said in plain(text), True)
    cards = Counter((file.device["name"], _unit(file)) for file in map(read, paths))
    printed = sorted((row[0], int(row[1].split()[0])) for row in table(text, "cards"))
    by_hand = sorted((f"{name}, unit {unit}", number) for (name, unit), number in cards.items())
    audit.same("over time", "cards", str(printed), str(by_hand))


def _before(now: Machine) -> Machine | None:
    """Return the machine by the records of the version that counted before, by the method that counts."""

    def is_older(file: RunFile, record: Record) -> bool:
        counts = now.versions.get((record["case"].key, record["backend"]))
        return bool(counts) and counts[0] == file.method and counts != version(file, record)

    files = [
        replace(file, records=[record for record in file.records if is_older(file, record)])
        for file in now.files
        if not file.head.get("search")
    ]
    left = [file for file in files if file.records]
    return Machine(left, left) if left else None


def _unit(file: RunFile) -> str:
    return str(file.device["uuid"]).removeprefix("GPU-")[:12]
