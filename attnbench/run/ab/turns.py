"""The turns of an A/B: two run files grow together, pair by pair of turns, until all cells are settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from attnbench.core.errors import Interrupted
from attnbench.core.record import WRONG, Job, Record, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import count
from attnbench.results.cells import Key
from attnbench.run.ab.schedule import LOOKS, START, affordable, certain, order, to_look
from attnbench.run.job_order import measure_jobs
from attnbench.run.plan import skipped_record
from attnbench.run.session import Recording, Session

LABELS = ("A", "B")


class AbObserver(Protocol):
    """Receives the events of an A/B; render/progress shows them to a person."""

    def say(self, text: str) -> None:
        """Take a text about the present activity."""

    def begun(self, a: Run, b: Run, cells: int, paths: Sequence[Path], notes: Sequence[str]) -> None:
        """Take the two runs without records, the number of measured cells, the run files, and notes."""

    def turn(self, number: int, side: str, jobs: int, open_cells: int, left: float) -> None:
        """Take a turn that begins: its number, side, jobs, the number of open cells, and the seconds left."""

    def started(self, job: Job) -> None:
        """Take a job whose measurement begins."""

    def ended(self, job: Job, record: Record) -> None:
        """Take a job and its record, which is in the run file."""

    def looked(self, pairs: int, settled: int, open_cells: int) -> None:
        """Take the numbers of settled and of open cells after `pairs` pairs of turns."""


@dataclass(frozen=True)
class Standing:
    """A gate's present judgement of an A/B: the open cells, which more rounds may decide, and the exit code."""

    open: set[Key]
    exit_code: int


class Gate(Protocol):
    """Judges the two runs of an A/B, before and during the measurement."""

    def refuses(self, a: Run, b: Run) -> bool:
        """Return whether the builds differ in more than the code under test, so that nothing is measured."""

    def standing(self, a: Run, b: Run) -> Standing:
        """Return the present judgement. Raises UserError where nothing can be compared."""


@dataclass
class Half:
    """One side of an A/B during its measurement."""

    session: Session
    recording: Recording
    jobs: Sequence[Job]  # jobs of all rounds; the run's plan has only the first round

    @property
    def run(self) -> Run:
        """The run without its records."""
        return self.recording.run


@dataclass
class Turns:
    """Measurement of pairs of turns until all cells are settled, the time is up, or a person interrupts it."""

    halves: Sequence[Half]
    gate: Gate
    observer: AbObserver
    time_limit: float  # the given seconds, for messages
    deadline: float  # the end of the time, by `clock`
    clock: Callable[[], float]
    pairs: int = 0  # complete pairs of turns
    ended: str = ""  # the reason: "certain", "time", "looks", "interrupted"; "" where all is settled
    interrupt: int = 0  # the exit code of an interrupting signal
    late: set[Key] = field(default_factory=set)  # cells given up for lack of time

    def __post_init__(self) -> None:
        self._start = START[self.halves[0].run.environment.device.kind]

    def measure(self, keys: Mapping[Key, float]) -> None:
        """Measure cells until the end. `keys` has each cell's forecast seconds on both sides together."""
        try:
            self._measure(dict(keys))
        except Interrupted as end:
            self.ended, self.interrupt = "interrupted", end.exit_code

    def _measure(self, costs: dict[Key, float]) -> None:
        self._skip_unable(costs)
        for pair in range(LOOKS[-1]):
            left = self.deadline - self.clock()
            # Before the first pair the times are forecasts, which may be twice too long, and a cell that is dropped
            # does not return. So fewer pairs must fit.
            ahead = to_look(pair) if pair else LOOKS[0] // 2
            kept = affordable(costs, self._start, ahead, left)
            self._leave_out(pair, set(costs) - kept)
            costs = {key: cost for key, cost in costs.items() if key in kept}
            if not costs:
                self.ended = "time"
                return
            costs = self._pair(pair, costs)
            self.pairs = pair + 1
            at_look = self.pairs in LOOKS
            if not pair or at_look or self._wrong():
                standing = self.standing()  # after the first pair too, to report faults of the metrics early
                if at_look:
                    going = {key: cost for key, cost in costs.items() if key in standing.open}
                    self.observer.looked(self.pairs, len(costs) - len(going), len(going))
                    costs = going
                if costs and certain(standing.exit_code, at_look):
                    self.ended = "certain"
                    return
            if not costs:
                self.ended = "time" if self.late else ""
                return
        self.ended = "looks"

    def _pair(self, pair: int, costs: Mapping[Key, float]) -> dict[Key, float]:
        """Measure one pair of turns. Return the cells that work on both sides, with their measured seconds."""
        taken = dict.fromkeys(costs, 0.0)
        broken: set[Key] = set()
        for turn, which in enumerate(order(pair)):
            half, began, measuring = self.halves[which], self.clock(), 0.0
            jobs = [j for j in half.jobs if j.round == pair and (j.case, j.backend) in costs]
            self.observer.turn(2 * pair + turn + 1, LABELS[which], len(jobs), len(costs), self.deadline - began)
            for job, record in measure_jobs(jobs, half.session.pool, half.run.policy, half.session.device):
                if record is None:
                    self.observer.started(job)
                    continue
                record = half.recording.add(record)
                self.observer.ended(job, record)
                key, seconds = (job.case, job.backend), record.seconds or 0.0
                measuring += seconds
                taken[key] += seconds
                if record.status != "ok":
                    broken.add(key)
            half.session.pool.close()
            spent = max(0.0, self.clock() - began - measuring)
            self._start = max(self._start, spent) if turn else spent  # the slower start of the pair
        return {key: seconds for key, seconds in taken.items() if key not in broken}

    def _wrong(self) -> bool:
        """Return whether the judged build gave a wrong result in the last pair of turns."""
        return any(r.status in WRONG and r.round == self.pairs - 1 for r in self.halves[1].recording.records)

    def standing(self) -> Standing:
        """Return the present judgement of the A/B. Raises UserError where nothing can be compared."""
        return self.gate.standing(*self.measured)

    @property
    def measured(self) -> tuple[Run, Run]:
        """The two runs with their present records."""
        a, b = (half.recording.measured for half in self.halves)
        return a, b

    def _skip_unable(self, costs: Mapping[Key, float]) -> None:
        """Write a skip with its reason to the run files, for each cell that neither side can run."""
        for half in self.halves:
            for job in half.run.plan:
                if (job.case, job.backend) not in costs:
                    half.recording.add(skipped_record(job))

    def _leave_out(self, pair: int, late: set[Key]) -> None:
        """Give up the cells for which there is no time; cells without any round get a record that says so."""
        self.late |= late
        reason = f"no room for it within the time limit of {format_duration(self.time_limit)} (--time-limit)"
        for half in self.halves if not pair else ():
            for job in half.run.plan:
                if (job.case, job.backend) in late:
                    half.recording.add(skipped_record(job if job.skip else replace(job, skip=reason, resumable=True)))

    def notes(self, open_cells: int) -> list[str]:
        """Return the end of the A/B in one line; [] where all cells were settled."""
        left = f"{count(open_cells, 'cell')} not settled" if open_cells else "all measured cells are settled"
        lines = {
            "certain": f"Stopped after {count(self.pairs, 'pair')} of turns, as more cannot change the exit code: "
            f"{left}.",
            "time": f"The time limit of {format_duration(self.time_limit)} was up after "
            f"{count(self.pairs, 'pair')} of turns: {left}.",
            "looks": f"{LOOKS[-1]} pairs of turns are the most: {left}.",
            "interrupted": f"Interrupted after {count(self.pairs, 'whole pair')} of turns: {left}.",
        }
        return [lines[self.ended]] if self.ended else []
