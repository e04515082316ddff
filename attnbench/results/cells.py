"""A cell: all rounds of one case on one backend of one device. Reports, gates and comparisons ask cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.flops import Bound, Convention
from attnbench.core.formats import duration, times
from attnbench.core.policy import CHECK
from attnbench.core.record import STATUSES, WRONG, Bitwise, Record, Run, Status
from attnbench.results import bits, case_names, metrics
from attnbench.results.case_names import backend_rank, case_name, case_rank, unusual_versions
from attnbench.results.rows import Rates, Row, Source
from attnbench.results.run_setup import setup, setup_texts, unique_labels
from attnbench.results.together import Together, together, versioned
from attnbench.results.uncertainty import (
    NORMAL,
    Contest,
    Uncertainty,
    apart,
    contest,
    doubt,
    hardly_known,
    load,
    of_energy,
    of_sustained,
    uncertainty,
)

IMPOSSIBLE = 2.0  # times the rate of a large matmul; cells that compute reach less than 1.1
ABOVE_PEAK = 1.02  # times the peak at the highest clock: up to this, a gauge or a boost may be off
CLOCK_HELD = 0.985  # share of the best clock; the gauge and the GPU's boost cause smaller differences
# By importance: the status of a cell whose rounds ended differently is the first of theirs.
_HEAVIEST_FIRST: Sequence[Status] = (*WRONG, "ok", "failed", "timeout", "oom", "skipped")
assert {*_HEAVIEST_FIRST} == {*STATUSES}

Machine = tuple[str, float | None]  # a model of device and its power limit in watts
Key = tuple[Case, str]  # the identity of a cell on a device: its case and backend


def heaviest(statuses: Iterable[Status]) -> Status:
    """Return the most important of several statuses."""
    return min(statuses, key=_HEAVIEST_FIRST.index)


def machine_of(run: Run) -> Machine:
    """Return the machine of a run: the model of its device, which all its cards share, and the power limit."""
    return run.environment.device.name, run.environment.power_limit_w


def is_of_earlier_check(run: Run, record: Record) -> bool:
    """Return whether an earlier version of the check called a record wrong, and the present one may not."""
    changed = record.status == "wrong-kernel" or (record.status == "wrong" and record.case.dtype == "fp8")
    return changed and run.check < CHECK


@dataclass(frozen=True, eq=False)
class Cell:
    """All rounds of one case on one backend in one run. Cells are compared by identity."""

    case: Case
    backend: str
    rows: tuple[Row, ...]  # one per round, in their order
    source: Source

    def __repr__(self) -> str:
        return f"<Cell {self.name}: {case_names.ENDINGS.get(self.status) or duration(self.value('latency') or 0.0)}>"

    @property
    def key(self) -> Key:
        return self.case, self.backend

    @property
    def name(self) -> str:
        """The cell in a few words: triton 16k d128 causal fwd; dtype, batch and heads where other cells need them."""
        return case_name(self.backend, self.case, self.source.several_dtypes, self.case in self.source.alike)

    @property
    def backend_name(self) -> str:
        """The backend's name in tables: "sdpa-fa4 (4.0.0b18)" where another backend of the run has another version."""
        return self.source.backend_names.get(self.backend, self.backend)

    @property
    def is_exact(self) -> bool:
        """Whether its backend computes exact attention; approximations are not ranked among exact backends."""
        return self.backend not in self.source.approximate

    @property
    def is_ranked(self) -> bool:
        """Whether the cell can be the best: it computes exact attention, and did so while it was timed."""
        return self.is_exact and not self.not_computed

    @property
    def usual(self) -> tuple[str, ...]:
        """The most telling metrics of its case; only the latency where some backend approximates the case."""
        return ("latency",) if self.case in self.source.approximated else metrics.usual(self.case, self.rates)

    @property
    def device(self) -> str:
        """The label of its device."""
        return self.source.device

    @property
    def run(self) -> Run:
        return self.source.run

    @property
    def rates(self) -> Rates:
        return self.source.rates(self.case.dtype)

    @property
    def flops(self) -> float:
        """FLOPs of one call by the run's convention; with a person's own mask, FLOPs of the counted pairs."""
        return metrics.work((self.ok or self.rows)[0])

    @cached_property
    def kernels(self) -> frozenset[str]:
        """The names of the kernels that ran in the measured rounds."""
        return frozenset(kernel for row in self.ok for kernel in row.record.kernels)

    @cached_property
    def status(self) -> Status:
        """The status of the cell as a whole: wrong or wrong-kernel if any round was, else ok if any round was."""
        return heaviest(row.record.status for row in self.rows)

    @cached_property
    def ok(self) -> list[Row]:
        """The rounds that were measured."""
        return [row for row in self.rows if row.ok]

    @property
    def reason(self) -> str | None:
        """The reason of the first round with the cell's status, with a note where an earlier check gave it."""
        reason = next(row.record.reason for row in self.rows if row.record.status == self.status)
        return f"{reason} (by an earlier check; measure it again)" if self.of_earlier_check else reason

    @property
    def of_earlier_check(self) -> bool:
        """Whether an earlier version of the check called a round wrong that the present one may call right."""
        return any(is_of_earlier_check(row.source.run, row.record) for row in self.rows)

    @property
    def uses_span(self) -> bool:
        """Whether its latency is the kernels' span (timing_method.py)."""
        return any(row.uses_span for row in self.ok)

    @cached_property
    def held_down(self) -> bool:
        """Whether power or heat kept the clock below its best in a measured round."""
        return any(_held_down(row) for row in self.ok)

    @property
    def bound(self) -> Bound | None:
        """The case's bound by the roofline."""
        return metrics.bound(self.case, self.rates)

    @property
    def bits(self) -> tuple[Bitwise, ...]:
        """The comparisons of its bits, of the rounds that have one."""
        return tuple(of for row in self.ok if (of := row.record.bitwise))

    def rounds(self, metric: str) -> dict[int, float]:
        """Return round -> value of a metric, for the rounds that have one."""
        found = ((row.record.round, metrics.value(metric, row)) for row in self.rows)
        return {number: value for number, value in found if value is not None}

    def value(self, metric: str) -> float | None:
        """Return the median of a metric over the rounds; None unless the cell is ok and a round has a value.

        For `ci` it is the uncertainty of the latency's median over the rounds. Raises UserError for an unknown metric.
        """
        if not isinstance(metric, str) or metric not in self._values:
            self._values[metric] = self._value(metric)
        return self._values[metric]

    @cached_property
    def _values(self) -> dict[str, float | None]:
        """Metric -> its value, for the metrics that were asked for."""
        return {}

    def _value(self, metric: str) -> float | None:
        metrics.named(metric)
        if self.status != "ok":
            return None
        if metric == "ci":
            return self.uncertainty.total if self.uncertainty else None
        if metric in bits.VERDICTS:  # of all rounds together, as each has a process of its own
            verdict = bits.VERDICTS[metric](self.bits)
            return None if verdict is None else float(verdict)
        found = [value for row in self.ok if (value := metrics.value(metric, row)) is not None]
        return stats.median(found) if found else None

    @cached_property
    def is_disturbed(self) -> bool:
        """Whether other processes used the GPU meanwhile: the cell then has no uncertainty and is never the best."""
        return any(row.disturbance for row in self.ok)

    @cached_property
    def not_computed(self) -> str:
        """Why the latency is probably not the time of the computation; "" where no sign of it is found."""
        if not self.ok:
            return ""
        if self.source.beside and any(versioned(row.record) in self.source.beside.stored for row in self.ok):
            longer = self.value("new_inputs")
            where = f"a call on new inputs takes {times(longer)} as long as the next" if longer else ""
            return f"{where or 'in another run it was slower on new inputs'}: results are probably stored"
        if self.is_above_the_peak:
            return "its rate is above what the device can do"
        share = (self.value("utilization_ceiling") or 0.0) if self.source.convention == "exact" else 0.0
        # These store no results: the matmul was slow.
        ships = self.run.specs.get(self.backend, "").startswith("attnbench.")
        if share <= IMPOSSIBLE or ships:
            return ""
        return f"{times(share)} as fast as a large matmul: results are stored, or other work slowed the matmul"

    @property
    def is_above_the_peak(self) -> bool:
        """Whether it computes attention at a rate that no device of this model can reach."""
        return self.is_exact and (self._beats_tensor_cores or self._beats_memory)

    @property
    def _beats_tensor_cores(self) -> bool:
        """Whether it computes faster than the datasheet's peak, scaled to the highest clock.

        A peak that a person gave (run --peak) does not count, as its error is no fault of attnbench.
        """
        peak, clock, top = self.rates.peak, self.rates.clock, self.run.environment.clock_max_hz
        if not peak or self.run.peak or self.source.convention != "exact":
            return False
        limit = peak * max(1.0, top / clock) if clock and top else peak
        return (self.value("tflops") or 0.0) * 1e12 > ABOVE_PEAK * limit

    @property
    def _beats_memory(self) -> bool:
        """Whether a step of generation reads faster than the datasheet's memory allows, with nothing in L2."""
        is_cold = all(row.record.l2 == "cold" for row in self.ok)
        return self.case.is_decode and is_cold and (self.value("bandwidth_utilization") or 0.0) > ABOVE_PEAK

    @cached_property
    def uncertainty(self) -> Uncertainty | None:
        """The uncertainty of the latency; None where it is unknown."""
        if self.is_disturbed or self.not_computed:
            return None
        medians = [[median] for row in self.ok if (median := row.median) is not None]
        rounds = medians if len(medians) > 1 else [row.samples for row in self.ok]
        added = stats.median([row.added for row in self.ok]) if rounds else 0.0
        return uncertainty(rounds, self.source.spread, self.source.prior if len(rounds) > 1 else None, added)

    def uncertainty_of(self, metric: str) -> Uncertainty | None:
        """Return the uncertainty of `latency`, `sustained_latency` or `joules` by parts; None where unknown."""
        if metric not in ("sustained_latency", "joules"):
            return self.uncertainty
        if self.is_disturbed:
            return None
        rounds = [*self.rounds(metric).values()]
        spread, prior = self.source.spread, self.source.prior if len(rounds) > 1 else None
        if metric == "joules":
            return of_energy(rounds, [*self.rounds("power_error").values()], spread, prior)
        return of_sustained(rounds, spread, prior)

    def half_interval(self, metric: str) -> float | None:
        """Return the relative uncertainty of `latency`, `sustained_latency` or `joules`; None where it is unknown.

        A metric that is proportional to one of them, or to its inverse, has the same uncertainty (Metric.sure_as).
        """
        found = self.uncertainty_of(metric)
        return found.total if found else None

    def is_hardly_known(self, metric: str = "latency") -> bool:
        """Whether the latency's uncertainty is unknown, or too large to say which cell is best."""
        return hardly_known(self.half_interval(metric))

    def is_host_bound(self, metric: str = "latency") -> bool:
        """Whether a latency contains time in which the device waited for the host.

        A latency without pauses also does where the host takes longer to launch a call than the device to run it.
        """
        waits = metric != "latency" and self.is_launch_bound
        return waits or any(row.host_bound for row in self.ok)

    @property
    def is_launch_bound(self) -> bool:
        """Whether the host takes longer to launch a call than the device to run it."""
        return (self.value("latency") or 0.0) < (self.value("enqueue") or 0.0)

    def alike(self, other: Cell, metric: str = "latency") -> bool:
        """Return whether the uncertainties of two measured cells (half_interval) explain the difference of a metric."""
        ours, theirs = self.value(metric), other.value(metric)
        if not ours or not theirs:
            return False
        halves = self.half_interval(metric), other.half_interval(metric)
        return not apart(ours, theirs, *halves, self.between_cards(other))

    @property
    def cards(self) -> frozenset[str]:
        """The known UUIDs of the devices that computed the cell, one for each rank."""
        environment = self.run.environment
        devices = (environment.device, *environment.peers)[: self.case.ranks]
        return frozenset(device.uuid for device in devices if device.uuid)

    def between_cards(self, other: Cell) -> float:
        """Return half the 95 % interval that their cards add to the ratio of two cells; 0 where they share a card.

        Runs that do not name their cards count as runs on different cards.
        """
        shared = self.run is other.run or self.cards & other.cards
        return 0.0 if shared else NORMAL * math.hypot(self.units, other.units)

    @cached_property
    def load(self) -> float:
        """The load in bursts, 0 to 1; 1 where it is unknown, as in decode (pool.py)."""
        return load(None if self.case.is_decode else self.value("utilization"))

    @property
    def units(self) -> float:
        """The standard deviation of the latency's logarithm between cards of the model."""
        return self.source.spread.cards.units(self.load)

    @property
    def latency_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the latency for other processes on this card, as (low, high) relative to the latency."""
        half = self.uncertainty.total if self.uncertainty else math.inf
        return (math.exp(-half), math.exp(half)) if half < 700 else None


def _held_down(row: Row) -> bool:
    """Whether the clock of a row was below its best by more than CLOCK_HELD allows.

    A kernel that hardly loads the GPU leaves the clock to the power controller, so its clock is compared with the
    worker's best reading before the calls (and after them where a call is longer than a burst, so that pauses cannot
    help). A kernel that loads the GPU lowers the clock by its power, so its clock is compared with the best of the
    cell. Without a clock gauge, NVML's limits decide.
    """
    held = row.one_value("clock_held")
    if held is None:
        return bool(row.record.limits)
    if row.source.run.method == 1:  # in method 1, `held` is the clock after the calls
        top = row.source.run.environment.clock_max_hz
        short = top is None or held < CLOCK_HELD * top
        return held < CLOCK_HELD * row.source.best_clock or (bool(row.record.limits) and short)
    idle = [row.one_value("clock_before")]
    if (row.one_value("time") or 0.0) > row.source.run.policy.burst_s:
        idle.append(row.one_value("clock_after"))
    pairs = [(held, row.one_value("clock_best")), *((clock, row.one_value("clock_idle")) for clock in idle)]
    return any(clock is not None and best is not None and clock < CLOCK_HELD * best for clock, best in pairs)


def cells(
    runs: Sequence[Run],
    convention: Convention = "exact",
    *,
    beside: Together | None = None,
    by_machine: bool = False,
) -> list[Cell]:
    """Return the cells of several runs, in the order of a report; the last record of a job wins within a run.

    `beside` has the facts of all runs that they are compared with: by default these runs, or, with `by_machine`, the
    runs among them on the same model of device with the same power limit.

    Runs whose results can share a table have one device label: their environment, timer and cache state are equal, and
    no cell is in two of them. Otherwise each has a label of its own.
    """
    joined = [(Source(run, convention), _records_by_key(run)) for run in runs]
    whole = together(runs) if beside is None and not by_machine else beside
    machines = {*map(machine_of, runs)} if whole is None else ()
    of_machine = {machine: together(run for run in runs if machine_of(run) == machine) for machine in machines}
    cases = {case for _, keys in joined for case, _ in keys}
    several = len({case.dtype for case in cases}) > 1
    names = {case: case_name("", case, several) for case in cases}
    shared = Counter(names.values())
    alike = frozenset(case for case, name in names.items() if shared[name] > 1)
    found: list[Cell] = []
    groups = _groups(joined)
    versions = [{b: v for source, _ in group for b, v in source.run.versions.items()} for _, group in groups]
    unusual = frozenset(pair for of_device in versions for pair in unusual_versions(of_device))
    for label, group in groups:
        own = []
        for source, keys in group:
            source.unusual_versions = unusual
            source.device, source.several_dtypes, source.alike = label, several, alike
            source.beside = whole or of_machine[machine_of(source.run)]
            own += _cells_of(source, keys)
        eager = {cell.case: cell.rounds("latency") for cell in own if cell.backend == "eager" and cell.status == "ok"}
        for source, _ in group:
            source.eager = eager
            source.fastest_library = _fastest_library(own) if source.run.own_code else {}
        found += sorted(own, key=lambda cell: (case_rank(cell.case), backend_rank(cell.backend)))
    return found


def _fastest_library(cells: Iterable[Cell]) -> dict[Case, dict[int, float]]:
    """Return case -> round -> latency, of the fastest exact backend that is no person's own code."""
    found: dict[Case, Cell] = {}
    for cell in cells:
        fastest = found.get(cell.case, cell).value("latency") or math.inf
        if cell.is_ranked and cell.backend not in cell.run.own_code and 0 < (cell.value("latency") or 0) <= fastest:
            found[cell.case] = cell
    return {case: cell.rounds("latency") for case, cell in found.items()}


def contest_of(
    cells: Iterable[Cell], metric: str = "latency", *, sure_as: str = "latency", higher: bool = False
) -> Contest[Cell]:
    """Return the cells with the best value of a metric whose uncertainty is `sure_as`'s."""
    return contest(
        cells, lambda c: c.value(metric), lambda c: c.half_interval(sure_as), Cell.between_cards, higher=higher
    )


def why_no_winner(
    contests: Sequence[Contest[Cell]], name: Callable[[Cell], str] = lambda cell: cell.backend_name
) -> str:
    """Return why no cell has the best latency, with the backends' names; "" where one has in each comparison."""
    return doubt(contests, name, lambda cell: cell.half_interval("latency"))


def runs_of(cells: Iterable[Cell]) -> list[Run]:
    """Return the runs that measured some cells, each once."""
    return [*{id(cell.run): cell.run for cell in cells}.values()]


def by_key(cells: Iterable[Cell]) -> dict[Key, Cell]:
    return {cell.key: cell for cell in cells}


# Words that precede the start of a run, or of the first and last run, in the labels of devices of one name
STARTS = ("run of ", "runs of ")
_Records = Mapping[Key, Mapping[int, Record]]  # cell -> round -> its last record


def _records_by_key(run: Run) -> dict[Key, dict[int, Record]]:
    found: dict[Key, dict[int, Record]] = {}
    for record in run.records:
        found.setdefault((record.case, record.backend), {})[record.round] = record
    return found


def _cells_of(source: Source, keys: _Records) -> list[Cell]:
    """Return the cells of one run, and set the fields of their source that depend on all: ceilings, best clock."""
    found = [
        Cell(case, backend, tuple(Row(rounds[n], source) for n in sorted(rounds)), source)
        for (case, backend), rounds in keys.items()
    ]
    matmuls: dict[str, list[float]] = {}
    copies: list[float] = []
    exps: list[float] = []
    for record in source.run.records:
        of_dtype = matmuls.setdefault(record.case.dtype, [])
        for name, readings in (("ceiling_matmul", of_dtype), ("ceiling_copy", copies), ("ceiling_exp", exps)):
            if measured := record.measurements.get(name):
                readings += filter(math.isfinite, measured.values)
    source.rows = [cell.rows for cell in found]
    source.matmul_ceilings = {dtype: stats.median(readings) for dtype, readings in matmuls.items() if readings}
    source.copy_ceiling = stats.median(copies) if copies else None
    source.exp_ceiling = stats.median(exps) if exps else None
    clocks = (metrics.value("clock_held", row) for cell in found for row in cell.rows)
    source.best_clock = max(filter(None, clocks), default=0.0)
    return found


def _groups(joined: Sequence[tuple[Source, _Records]]) -> list[tuple[str, list[tuple[Source, _Records]]]]:
    """Return (device label, runs whose results can share a table) for each such group."""
    groups: list[tuple[list[tuple[Source, _Records]], set[Key], dict[str, Any]]] = []
    for source, keys in joined:
        own = {name: value for name, value in setup(source.run).items() if value is not None}
        for members, taken, of_group in groups:
            if own == of_group and taken.isdisjoint(keys):
                members.append((source, keys))
                taken.update(keys)
                break
        else:
            groups.append(([(source, keys)], set(keys), own))
    runs = [members[0][0].run for members, *_ in groups]
    names = [run.environment.device.name for run in runs]
    started = [sorted(source.run.started.replace("T", " ") for source, _ in members) for members, *_ in groups]
    minutes = {(name, _started(starts, 16)) for name, starts in zip(names, started, strict=True)}
    length = 16 if len(minutes) == len(groups) else 19  # to the minute, or to the second
    texts = [[*setup_texts(run).values(), _started(starts, length)] for run, starts in zip(runs, started, strict=True)]
    labels = unique_labels(names, texts, "{} ({})")
    return [(label, members) for label, (members, *_) in zip(labels, groups, strict=True)]


def _started(starts: Sequence[str], length: int) -> str:
    """Return when a group's runs began, each time cut to `length`: "runs of 2026-11-23 17:05 to 2026-11-26 09:19"."""
    one, several = STARTS
    first, last = starts[0][:length], starts[-1][:length]
    return f"{several}{first} to {last}" if len(starts) > 1 else f"{one}{first}"
