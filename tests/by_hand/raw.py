"""Read run files line by line, as docs/run-files.md describes them, without attnbench."""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]  # a line of a run file
Key = tuple[str, str]  # the key of a case, and a backend

# Default values of a case's fields, which a line leaves out.
DEFAULTS: dict[str, Any] = {
    "causal": False,
    "window_size": (None, None),
    "softcap": 0.0,
    "dropout_p": 0.0,
    "layout": "native",
    "data": "normal",
    "lengths": (),
    "page_size": 0,
    "scale": 0.0,
    "cache_dtype": "same",
    "latent": False,
    "sink": False,
    "alibi": False,
    "mask": "",
    "append": False,
    "ranks": 1,
    "step": "",
    "kind": "softmax",
    "shared_prefix": 0,
}
# Where rounds ended differently, a wrong result counts before a figure, and a figure before an untried job.
HEAVIEST_FIRST = ("wrong", "wrong-kernel", "ok", "failed", "timeout", "oom", "skipped")


class Case:
    """A case of a run file: its fields, and those of its shape, as attributes."""

    def __init__(self, line: dict[str, Any]) -> None:
        said = {**line, **({"scale": float(line["scale"])} if "scale" in line else {})}
        self.key = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
        self.line, self.fields = line, {**DEFAULTS, **line}
        self.batch, self.seqlen_q, self.seqlen_k, self.nheads, self.nheads_k, self.headdim, self.headdim_v = (
            line["shape"][name]
            for name in ("batch", "seqlen_q", "seqlen_k", "nheads", "nheads_k", "headdim", "headdim_v")
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def sequences(self) -> list[tuple[int, int, int]]:
        """(number, seqlen_q, seqlen_k) of the sequences of the batch."""
        return [tuple(of) for of in self.lengths] or [(self.batch, self.seqlen_q, self.seqlen_k)]

    @property
    def mean_lengths(self) -> tuple[int, int]:
        """Mean tokens of a sequence, (queries, keys), rounded down."""
        return (
            sum(number * q for number, q, _ in self.sequences) // self.batch,
            sum(number * k for number, _, k in self.sequences) // self.batch,
        )

    @property
    def is_decode(self) -> bool:
        """Whether the case is a forward of at most 16 queries a sequence, on more keys (docs/paged.md)."""
        queries, keys = self.mean_lengths
        return bool(self.direction == "fwd" and queries <= 16 < keys)


@dataclass(eq=False)
class RunFile:
    """A run file: its first line, and the last record of each job."""

    path: Path
    head: dict[str, Any]
    records: list[Record]

    @property
    def device(self) -> dict[str, Any]:
        return dict(self.head["environment"]["device"])

    @property
    def method(self) -> int:
        return int(self.head.get("method", 1))

    @property
    def card(self) -> tuple[str, str | None]:
        return self.device["name"], self.device.get("uuid")


@dataclass(eq=False)
class Cell:
    """All rounds of a case on a backend. `card_of` says which card measured a round."""

    case: Case
    backend: str
    rounds: dict[int, Record] = field(default_factory=dict)
    card_of: dict[int, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.case.key, self.backend

    @property
    def status(self) -> str:
        return min((record["status"] for record in self.rounds.values()), key=HEAVIEST_FIRST.index)

    @property
    def ok(self) -> dict[int, Record]:
        return {n: record for n, record in sorted(self.rounds.items()) if record["status"] == "ok"}


def read(path: Path) -> RunFile:
    """Return a run file; of several records of one job the last counts."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    head, *rest = map(json.loads, data.splitlines())
    jobs: dict[tuple[str, str, int], Record] = {}
    cases: dict[str, Case] = {}
    for line in rest:
        if line["type"] != "record":
            continue
        text = json.dumps(line["case"], sort_keys=True)
        case = cases.setdefault(text, Case(line["case"]))
        jobs[case.key, line["backend"], line["round"]] = {**line, "case": case}
    return RunFile(path, head, [*jobs.values()])


def cells_of(records: Iterable[Record], first_round: int = 0) -> dict[Key, Cell]:
    """Return the cells of the records of one file."""
    found: dict[Key, Cell] = {}
    for record in records:
        case = record["case"]
        cell = found.setdefault((case.key, record["backend"]), Cell(case, record["backend"]))
        cell.rounds[first_round + record["round"]] = record
    return found


def samples(record: Record, name: str) -> list[float]:
    """Return the samples of a measurement; empty without one."""
    found = record.get("measurements", {}).get(name, {})
    if "runs" in found:
        return [value for value, times in found["runs"] for _ in range(times)]
    return list(found.get("values", ()))


def middle(record: Record, name: str) -> float | None:
    """Return the median of a measurement; None without one."""
    found = samples(record, name)
    return statistics.median(found) if found else None


def memory_peak(record: Record) -> float | None:
    return max(samples(record, "memory_peak"), default=None)


def over_rounds(cell: Cell, value: Any) -> float | None:
    """Return the median of value(record) over the measured rounds; None unless the cell is ok and has a value."""
    if cell.status != "ok":
        return None
    found = [one for record in cell.ok.values() if (one := value(record)) is not None]
    return statistics.median(found) if found else None
