"""Bounds of the numbers and texts in a run file: a line with a value that is impossible to plan or measure is damaged.

Beyond these bounds figures overflow formulas, counts fill the memory, and texts fill pictures and pages. NaN and
infinity are allowed only among the errors of a result; no instrument reads them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any

from attnbench.core import lengths, masks
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Forecast, Record, Run
from attnbench.core.sizes import MOST_SECONDS

LARGEST, SHORTEST = 1e30, 1e-15  # bounds in any unit; in seconds, SHORTEST is less than any clock's step
SLOWEST = 1e6  # Hz, less than any clock of a device; 0 is a clock that could not be read
MOST = 2**48  # bound of counts: bytes, tokens, rounds
UNITS = (  # the unit of each measurement by name; measurements of a newer attnbench may have any unit
    ("s", r"time(_rank\d+)?|attention|call|compute|enqueue|first_call|plan|span(_events)?|step_traced|sustained"),
    ("s", r"turns_\w+|(new|same)_inputs"),
    ("B", r"memory_\w+|moved|plan_memory"),
    ("B/s", "ceiling_(bus|copy)"),
    ("FLOP/s", "ceiling_matmul"),
    ("1/s", "ceiling_exp"),
    ("Hz", r"clock_\w+"),
    ("W", "power|sustained_power"),
    ("C", "temperature"),
    ("", "busy|cores_left|pairs|pairs_computed|sustained_power_error"),
)
MOST_OF_TEXT = 10_000  # characters of a name, a reason or an argument; a stored stderr has at most 4000
# Most samples that the [value, times] pairs of "runs" may represent, so that a damaged file cannot fill the memory.
MOST_OF_RECORD = 1_000_000
MOST_OF_FILE = 5_000_000  # most samples of a file in addition to one for each of its bytes
MOST_BLOCKS = 2**28  # blocks in all random masks of a run together, which are drawn to count pairs
MOST_SEQUENCES = 2**20  # sequences in all lengths of a run together, which are compared with patterns to name them
ANY = ("seed",)  # fields that may hold any number
POSITIVE = ("s", "B/s", "FLOP/s", "1/s")  # units of durations and rates
# Measurements that may be below 0: a call frees memory that was held before it, or clocks of other processes are read
# late.
DIFFERENCES = ("memory_saved", "cores_left")


def check_record(record: Record) -> None:
    """Raise ValueError, which names the field, for a number in a record that cannot have been measured.

    Also raises it for a measurement without samples, and for the status `ok` with errors above their tolerance.
    """
    for name, found in record.measurements.items():
        lowest = least(name, found.unit)
        if not found.values:
            raise ValueError(f"{name}: no samples")
        for value in found.values:
            if not lowest <= value <= LARGEST or (unit(name) == "Hz" and 0 < value < SLOWEST):
                raise ValueError(f"{name}: {value:g} {found.unit} cannot have been measured")
    check_without_samples(record)


def check_without_samples(record: Record) -> None:
    """Check a record, without its samples, as `check_record` does."""
    check_relations(record)
    counts = (record.round, record.ecc_errors, *record.kernels.values())
    numbers = [*counts, record.seconds or 0.0, *record.phases.values()]
    texts = (record.backend, record.reason or "", record.version or "", record.stderr or "", record.timer or "")
    lists = (record.measurements, record.phases, record.kernels, record.notes, record.others, record.limits)
    _check_texts(itertools.chain(texts, *lists))
    if not _are_counts(numbers):
        names = ("round", "seconds", "ecc_errors", "phases", "kernels")
        _check("", {name: getattr(record, name) for name in names})
    if record.forecast:
        check_forecast(record.forecast)


def check_relations(record: Record) -> None:
    """Check a record as `check_record` does, but for the numbers and texts that decode.py bounds by their types."""
    _check_case(record.case)
    if found := record.accuracy:
        for name, of in found.errors.items():
            if any(number < 0 for number in (of.max_error, of.eager_error, of.tolerance, of.relative)):
                raise ValueError(f"errors: {name}: a number below 0 is no error")
        if record.status == "ok" and not found.ok:
            raise ValueError(f"its status is ok, but its result is wrong: {found.problem()}")
        _check_texts((*found.flaws, *found.unwritten, *found.errors, *(of.where for of in found.errors.values())))
        if not _are_counts((found.rows, found.heads)):
            _check("accuracy", {"rows": found.rows, "heads": found.heads})
    if "pairs" in record.measurements:
        _check_pairs(record.case, max(record.measurements["pairs"].values))
    for name in ("approximation", "bitwise", "proof"):
        if of := getattr(record, name):
            _check(name, of)


def check_forecast(forecast: Forecast) -> None:
    """Raise ValueError, which names the field, for an impossible number in a forecast."""
    if not _are_counts((forecast.seconds, forecast.call, forecast.nbytes)):
        _check("forecast", forecast)


def _check_texts(texts: Iterable[str]) -> None:
    for text in texts:
        if len(text) > MOST_OF_TEXT:
            raise ValueError(_too_long(text))


def check_run(run: Run) -> None:
    """Raise ValueError, which names the field, for an impossible number in a run, whose records are not checked."""
    _check("", {f.name: getattr(run, f.name) for f in fields(run) if f.name not in ("plan", "records", "replaced")})
    for name, value in vars(run.policy).items():
        if isinstance(value, float) and value > MOST_SECONDS:  # as of the options
            raise ValueError(f"policy: {name}: {value:g} is outside the possible range")
    for job in run.plan:
        _check_case(job.case)
        _check("plan", [job.backend, job.skip])
        _check("plan: round", job.round)
        check_forecast(job.forecast)


def _are_counts(numbers: Sequence[float]) -> bool:
    """Return whether all numbers are within the bounds of counts. One test of all is faster than one test of each."""
    return min(numbers) >= 0 and max(numbers) <= MOST and math.isfinite(sum(numbers))


def check_cases(cases: Collection[Case]) -> None:
    """Raise UserError where a run has so many random masks or lengths that counting or naming them takes minutes."""
    drawn = {
        (c.mask, c.shape.seqlen_q, c.shape.seqlen_k, c.causal, c.window_size)
        for c in cases
        if c.mask.startswith("random:")
    }
    blocks = sum(-(-q // masks.BLOCK) * -(-k // masks.BLOCK) for _, q, k, *_ in drawn)
    batches = (sum(of[0] for of in found) for found in {c.lengths for c in cases})
    sequences = sum(batch for batch in batches if batch <= lengths.MOST_SEQUENCES)
    for number, most, what in (
        (blocks, MOST_BLOCKS, "blocks of different random masks"),
        (sequences, MOST_SEQUENCES, "sequences in different lengths"),
    ):
        if number > most:
            raise UserError(f"{number:,} {what}, more than the {most:,} that a run may have; give fewer of them")


@lru_cache(maxsize=10_000)  # many records share a case
def _check_case(case: Case) -> None:
    _check("case", case)


@cache
def unit(name: str) -> str | None:
    """Return the unit of a measurement; None for an unknown measurement."""
    return next((of for of, names in UNITS if re.fullmatch(names, name)), None)


@cache
def least(name: str, of_unit: str) -> float:
    """Return the least possible value of a measurement. Raises ValueError for another unit than its own."""
    if (known := unit(name)) not in (None, of_unit):
        raise ValueError(f"{name}: its unit is {known!r}, not {of_unit!r}")
    if of_unit in POSITIVE:
        return SHORTEST
    at_least_0 = known == "" or of_unit in ("B", "Hz", "W")
    return 0.0 if at_least_0 and name not in DIFFERENCES else -LARGEST


def _check_pairs(case: Case, most: float) -> None:
    """Raise ValueError for counted pairs where the case has no mask of a person, or can have fewer pairs."""
    if not masks.is_own(case.mask):
        raise ValueError("pairs: counted only for a person's own mask, which the case lacks")
    if most > case.shape.batch * case.shape.seqlen_q * case.shape.seqlen_k:
        raise ValueError(f"pairs: {most:g} are more than the case can have")


def _too_long(text: str) -> str:
    return f"a text of {len(text):,} characters is longer than any that attnbench writes"


def _check(place: str, value: Any) -> None:
    """Raise ValueError for a number that is negative, not finite or too large, anywhere in a value."""
    if isinstance(value, float):
        if not 0 <= value <= LARGEST:
            raise ValueError(f"{place}: {value:g} is outside the possible range")
    elif isinstance(value, int):
        if not 0 <= value <= MOST:
            raise ValueError(f"{place}: {value} is outside the possible range")
    elif isinstance(value, str):
        if len(value) > MOST_OF_TEXT:
            raise ValueError(f"{place}: {_too_long(value)}")
    elif value is None:
        return
    elif isinstance(value, Sequence):
        for item in value:
            _check(place, item)
    else:
        named = value if isinstance(value, Mapping) else {f.name: getattr(value, f.name) for f in fields(value)}
        for name, item in named.items():
            if len(name) > MOST_OF_TEXT:
                raise ValueError(f"{place}: {_too_long(name)}")
            if name not in ANY:
                _check(f"{place}: {name}" if place else name, item)
