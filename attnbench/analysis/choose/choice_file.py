"""The choice file: JSON for programs, with the backend of each region of shapes and the measurements behind it.

docs/choice-file.schema.json is its JSON Schema. A `shape` has `seqlen_q` only where there are not as many queries as
keys. Latencies are in seconds, with the ends of their 95 % intervals where these are known.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from attnbench.analysis.choose.regions import Region, regions
from attnbench.analysis.recommend.findings import Candidate, Problem
from attnbench.core.axes import AXES
from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.record import Run
from attnbench.results.cells import runs_of
from attnbench.results.run_file import FIRST, GZIP
from attnbench.results.uncertainty import NORMAL

SCHEMA = 1  # number of the format
MOST_BYTES = 2**26  # unpacked
_KEY = re.compile(rb'"choices"\s*:\s*\d')  # inside a string the quotes would be escaped


@dataclass(frozen=True)
class Timed:
    """A backend whose results were right, at one measured size.

    `low` and `high` hold for other processes on the measured card. Another card of the model adds `between_cards`, a
    share of the latency, to half that interval, in quadrature; 0 where the difference of cards is not known.
    """

    backend: str
    latency: float
    low: float | None = None
    high: float | None = None
    between_cards: float = 0.0
    error: float | None = None  # its largest error against the reference, as a share of the tolerance


@dataclass(frozen=True)
class Measured:
    """The backends at one measured size, the fastest first."""

    batch: int
    seqlen_k: int
    backends: tuple[Timed, ...]
    default: str = ""  # PyTorch's default, where it was measured
    gain: float | None = None  # how many times as fast the region's backend is as the default
    gain_low: float | None = None
    gain_high: float | None = None


@dataclass(frozen=True)
class Chosen:
    """A region of shapes with its backend."""

    step: str  # "fwd", "bwd", "fwd_bwd", or "fwd + bwd" for both passes of one implementation, timed one by one
    shape: Mapping[str, str]  # the values of the other axes, as in a suite: dtype, nheads, headdim, causal, ...
    batch: tuple[int, int]  # first and last
    seqlen_k: tuple[int, int]  # first and last
    use: str  # the backend; "" where none was right, or none is known to be the fastest
    alternatives: tuple[str, ...] = ()  # backends that are as fast within the uncertainty, in all of the region
    deterministic: bool = False  # whether `use` stands for the library's deterministic variant
    for_all: bool = False  # whether `use` was chosen for all regions of this step and shape, as training needs it
    worst: float = 1.0  # how many times as long as the fastest `use` takes, at worst
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class ChoiceFile:
    """The choices of one machine."""

    choices: int  # number of the format, 1
    attnbench: str  # version
    made: str  # time, ISO 8601, UTC
    gpu: str
    kind: str  # "cuda" or "cpu"
    regions: tuple[Chosen, ...]
    runs: tuple[str, ...] = ()  # times at which the runs were started
    driver: str | None = None
    torch: str | None = None
    power_limit_w: float | None = None
    packages: Mapping[str, str] = field(default_factory=dict)  # library -> version
    versions: Mapping[str, str] = field(default_factory=dict)  # backend -> version of its library
    default: str = "sdpa"  # for shapes outside all regions


def choice_file(problems: Sequence[Problem], run: Run, *, vary: bool) -> ChoiceFile:
    """Return the choices of the problems of one machine, of which `run` is the newest run; `vary` as for `regions`."""
    found = regions(problems, vary=vary)
    environment = run.environment
    runs = runs_of([cell for problem in problems for one in problem.candidates for cell in one.cells])
    return ChoiceFile(
        choices=SCHEMA,
        attnbench=environment.attnbench,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        gpu=environment.device.name,
        kind="cpu" if environment.device.kind == "cpu" else "cuda",
        regions=tuple(map(_chosen, found)),
        runs=tuple(sorted({one.started for one in runs})),
        driver=environment.driver,
        torch=environment.torch,
        power_limit_w=environment.power_limit_w,
        packages=environment.packages,
        versions={name: version for one in runs for name, version in one.versions.items()},
    )


def text(choices: ChoiceFile) -> str:
    """Return a choice file as JSON."""
    return json.dumps(to_json(choices), indent=1) + "\n"


def read(path: Path) -> ChoiceFile:
    """Read a choice file. Raises UserError where it is none, or of a newer format."""
    try:
        with _opened(path) as file:
            content = file.read(MOST_BYTES + 1).removeprefix(codecs.BOM_UTF8)
        if len(content) > MOST_BYTES:
            raise ValueError("it is too large")
        data = json.loads(content)
        if not isinstance(data, dict) or "choices" not in data:
            raise ValueError('it has no "choices"')
        if isinstance(data["choices"], int) and data["choices"] > SCHEMA:
            raise UserError(f"{path} was written by a newer attnbench (choices {data['choices']}); upgrade")
        return from_json(ChoiceFile, data)
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is no choice file: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def is_choice_file(path: Path) -> bool:
    """Return whether a file, plain or gzipped, is a choice file by its content, be it damaged; a run file is none."""
    try:
        if not path.is_file():  # reading a pipe would take its content from another reader
            return False
        with _opened(path) as file:
            start = file.read(64).removeprefix(codecs.BOM_UTF8)
            is_json = start.lstrip().startswith(b"{") and not start.startswith(FIRST)
            return is_json and bool(_KEY.search(start + file.read(MOST_BYTES)))
    except (OSError, EOFError, ValueError, zlib.error):
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    with path.open("rb") as plain:
        yield gzip.GzipFile(fileobj=plain) if plain.peek(2).startswith(GZIP) else plain


def _chosen(region: Region) -> Chosen:
    case = region.kind.case
    shape = {
        name: axis.text(axis.of(case))
        for name, axis in AXES.items()
        if name not in ("seqlen", "seqlen_q", "batch", "direction", "lengths")
        and (axis.of(case) not in (axis.usual, (None, None)) or name in ("dtype", "causal", "headdim"))
    }
    if case.is_ragged:
        shape["lengths"] = AXES["lengths"].text(AXES["lengths"].of(case))
    if region.kind.is_decode:
        shape["seqlen_q"] = str(case.shape.seqlen_q)
    measured = tuple(_measured(region, problem) for problem in region.problems)
    return Chosen(
        step=region.kind.step,
        shape=shape,
        batch=region.batches,
        seqlen_k=region.lengths,
        use=region.use,
        alternatives=region.others,
        deterministic=region.deterministic,
        for_all=region.for_all,
        worst=round(region.loss, 4),
        measured=measured,
    )


def _measured(region: Region, problem: Problem) -> Measured:
    shape, use, default = problem.case.shape, region.candidate(problem), problem.default
    gain = problem.gain_of(use) if use and default and use.backend != default.backend else None
    return Measured(
        batch=shape.batch,
        seqlen_k=shape.seqlen_k,
        backends=tuple(map(_timed, problem.candidates)),
        default=default.backend if default else "",
        gain=gain.value if gain else None,
        gain_low=gain.low if gain else None,
        gain_high=gain.high if gain else None,
    )


def _timed(one: Candidate) -> Timed:
    low, high = (None if one.half is None else one.latency * (1 + sign * one.half) for sign in (-1, 1))
    between_cards = NORMAL * math.sqrt(2) * max(cell.units for cell in one.cells)
    return Timed(one.backend, one.latency, low, high, round(between_cards, 4), one.error)
