"""One rank of a case on several devices, by the steps of worker/cell.py. Every rank takes them; the record is rank 0's.

Whole heads, drawn at random, are gathered to rank 0 and checked: each is an attention of its own (split_inputs.py),
with the reference and the tolerance of any case. The ranks agree whether results are right, so that all end a cell
together.

A rank that raises leaves the others waiting; the parent notices that and ends them all (run/rank_workers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.core.activity import Activity
from attnbench.core.backend import Inputs, Prepared, Unsupported
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Measurement
from attnbench.core.renewed_inputs import InputRenewal, parts_of
from attnbench.core.split_sequence import COLLECTIVES, part_of
from attnbench.judge import inputs
from attnbench.judge.heads import together
from attnbench.worker import kernel_rules
from attnbench.worker.cell import Cell, Fields, notes_on_data
from attnbench.worker.instruments import Instruments, TimedLaunch, Timing
from attnbench.worker.judging import CellJudge, HeadsJudge, heads_judge_of
from attnbench.worker.kernel_trace import TraceFindings
from attnbench.worker.measure.cpu_operators import trace_operators
from attnbench.worker.measure.profiler_session import recorded_events, session
from attnbench.worker.ranks import split_inputs
from attnbench.worker.ranks.group import RankGroup
from attnbench.worker.timeline import ran_on_device

if TYPE_CHECKING:
    from torch import Tensor

CALLS, CALLS_SECONDS = 6, 0.5  # most successive calls after timing, most seconds of them; none if two take longer
BUS_BYTES = 2**28  # bytes of the all-to-all that measures the links


class RankCell(Cell):
    """One case on one rank: its inputs, its call, and the checks of whole heads by rank 0's judge."""

    backend: Any  # a backend that splits a sequence
    given: Inputs  # this rank's part of the inputs
    prepared: Prepared
    renewal: InputRenewal
    heads: tuple[int, ...]  # checked heads

    def __init__(
        self, instruments: Instruments, backend: Any, case: Case, policy: Policy, *, timed: bool = True
    ) -> None:
        """Take a cell to measure."""
        super().__init__(instruments, backend, case, policy, timed=timed)
        assert isinstance(instruments.together, RankGroup)
        self.group, self.part = instruments.together, part_of(case)
        self.spans_of = [backend.spans(case, rank) for rank in range(case.ranks)]
        self.spans = self.spans_of[self.group.rank]
        self._judge: HeadsJudge | None = None  # rank 0 only

    def make_inputs(self) -> Fields | None:
        """Make this rank's part of the inputs, with hard inputs in the checked heads."""
        if self.policy.timer != "events":
            raise Unsupported("several ranks are timed by CUDA events; use --timer events")
        if flawed := self.make_part():
            return flawed
        found: Any = None
        if self.group.rank == 0:
            self._judge, refused = heads_judge_of(self.instruments, self.case, self.policy.seed, self.backend)
            self._notes += [refused] if refused else []
            flaw = self._judge.flaw
            found = (flaw, (), 0) if flaw else (None, self._judge.heads, self._judge.renewal_seed)
        flaw, self.heads, self._renewal_seed = self.group.first(found)
        if flaw:
            return {"status": "failed", "reason": flaw}
        self._notes.append(self.how_checked)
        self.use(lambda judge: judge.hard_inputs())
        return None

    def launch_first(self) -> Fields | None:
        """Prepare and launch once on the hard inputs, both timed, and check; `launch_to_check` reports faults."""
        self.instruments.memory.fill_with_nan(self.part)
        began = perf_counter()
        prepared = self.prepare()
        raw = prepared.launch()
        self.instruments.synchronize()
        self.first_call = self.group.most(perf_counter() - began)
        self.laps.end("first call")
        self._first = self._judged(prepared.canonical(raw), lambda judge, whole: judge.check_hard(whole))
        self._notes += notes_on_data(self.case, is_hard_checked=True)
        return None

    def launch_to_check(self) -> Fields | None:
        """Prepare on the case's own inputs, measure the memory of a launch, and check its results."""
        self.use(lambda judge: judge.to_check)
        memory = self.instruments.memory
        held, self.prepared = memory.measure_held(self.prepare)
        self.memory, _, raw = memory.measure_peak(self.prepared.launch, self.part)
        self.laps.end("memory")
        self.accuracy = self._judged(self.prepared.canonical(raw), lambda judge, whole: judge.check_first(whole))
        del raw
        self._add_kept(held)
        self.laps.end("memory")
        if not self.accuracy.ok:
            return self.wrong(self.accuracy)
        return None if self._first.ok else self.wrong(self._first, "on hard inputs: ")

    def prepare_to_time(self) -> None:
        """Prepare the launch on the original inputs, with a dense `dout`."""

        def given(judge: CellJudge) -> Inputs:
            judge.use_given()
            judge.keep_original()
            return judge.given

        self.use(given)
        del self.prepared
        self.instruments.memory.empty_cache()
        self.prepared = self.prepare()

    def timed_launch(self) -> TimedLaunch:
        return TimedLaunch(self.prepared.launch, _no_copies, self.prepared.moved, self.given.nbytes)

    def time_beside(self, launch: TimedLaunch, timing: Timing) -> None:
        """Add each rank's own measurements, the launch without communication, and the rate of the links."""
        found, group = timing.measurements, self.group
        clock = tuple(found["clock_held"].values) if "clock_held" in found else ()
        each = group.all((self.prepared.moved, self.memory, clock))
        found["moved"] = Measurement("B", (max(moved for moved, _, _ in each),))
        found["memory_ranks"] = Measurement("B", tuple(of["memory_peak"] for _, of, _ in each))
        self.memory = {name: max(of[name] for _, of, _ in each) for name in self.memory}
        if clocks := tuple(stats.median(clock) for _, _, clock in each if clock):
            found["clock_ranks"] = Measurement("Hz", clocks)
        for rank, seconds in enumerate(group.of_each(found["time"].values)):
            found[f"time_rank{rank}"] = Measurement("s", seconds)
        timing.limits = tuple(dict.fromkeys(limit for of in group.all(timing.limits) for limit in of))
        timing.host_bound = bool(group.most(timing.host_bound))
        if self.prepared.compute is not None:
            alone = self.instruments.time(TimedLaunch(self.prepared.compute, _no_copies, 0, 0), self.policy)
            found["compute"] = alone.measurements["time"]
            if held := alone.measurements.get("clock_held"):
                found["clock_compute"] = held
        found["ceiling_bus"] = Measurement("B/s", tuple(_bus(self.instruments, group)))

    def first_changed(self) -> str | None:
        """Return the name of an input to which a launch of any rank has written; None where there is none."""
        names = self.group.all(split_inputs.is_as_made(self.case, self.given, self.spans, self.policy.seed))
        return next((name for name in names if name), None)

    def trace_launch(self) -> TraceFindings:
        """Change the inputs in place and launch once, traced in rank 0, whose kernels are judged."""
        self.renewal = InputRenewal(self.case, self.given, self.prepared, self._renewal_seed)
        self.renewal.renew()
        activities, raw = self._traced()
        names = [a.name for a in activities]
        signature = self.backend.signature(self.case, self.instruments.device_info)
        problem = None
        if activities:
            computing = [a for a in activities if not COLLECTIVES.search(a.name)]
            problem = kernel_rules.find_broken_rule(self.case, signature, [a.name for a in computing])
            if self.instruments.device.type == "cuda":  # a CPU's times contain other work
                problem = problem or kernel_rules.find_low_share(signature, computing)
        untraced = () if activities else ("what ran is not known: no kernel was traced",)
        notes = (*untraced, *kernel_rules.float32_notes(self.case, signature, names))
        return TraceFindings(raw, kernel_rules.count_by_name(names), self.group.first(problem), notes)

    def check_renewed_inputs(self) -> Fields | None:
        results = self.prepared.canonical(self.traced.result)
        self.traced = replace(self.traced, result=None)
        accuracy = self._judged(results, lambda judge, whole: judge.check_renewed(self.renewal, whole))
        return None if accuracy.ok else self.wrong(accuracy, f"{self.later}on inputs renewed in place: ")

    def check_restored_inputs(self) -> Fields | None:
        """Restore the inputs, and check the last of several calls without pauses, unless calls are long."""
        calls = min(CALLS, int(CALLS_SECONDS / self.latency)) if self.latency else CALLS
        if calls <= 1:
            return None
        self.renewal.restore()
        for _ in range(calls):
            raw = self.prepared.launch()
        accuracy = self._judged(self.prepared.canonical(raw), lambda judge, whole: judge.check_restored(whole))
        return None if accuracy.ok else self.wrong(accuracy, f"{self.later}in call {calls}, one after the other: ")

    def make_part(self) -> Fields | None:
        """Make this rank's part of the inputs."""
        device = str(self.instruments.device)
        self.given = split_inputs.make_part(self.case, self.spans, device, self.policy.seed)
        flaws = self.group.all(inputs.find_flaw(self.given, self.case.data))
        self.laps.end("inputs")
        flaw = next((flaw for flaw in flaws if flaw), None)
        return {"status": "failed", "reason": flaw} if flaw else None

    @property
    def how_checked(self) -> str:
        """A sentence that names the checked heads."""
        return f"checked: {len(self.heads)} of {self.case.shape.nheads_k} key heads, as whole sequences"

    def use(self, inputs_of: Callable[[CellJudge], Inputs]) -> None:
        """Put inputs of the checked heads into all ranks; rank 0 gets them from its judge."""
        for head in self.heads:
            self.put(head, inputs_of(self._judge.of(head)) if self._judge else None)
            self.instruments.synchronize()  # before the judge replaces these inputs by the next head's
        self.laps.end("reference")

    def put(self, head: int, whole: Inputs | None) -> None:
        """Put rank 0's inputs of a head (None in the others) into all ranks."""
        split_inputs.put_head(self.case, self.given, head, whole, self.spans, self.instruments.device)

    def prepare(self) -> Prepared:
        prepared: Prepared = self.backend.prepare(self.case, self.given)
        self.instruments.synchronize()
        return prepared

    def checked(
        self, results: Mapping[str, Tensor], compare: Callable[[int, Mapping[str, Tensor]], Accuracy]
    ) -> Accuracy:
        """Return the accuracy of the checked heads together, in every rank; `compare` is called in rank 0."""
        found: list[Accuracy] = []
        for head in self.heads:
            whole = split_inputs.gather_head(self.case, results, head, self.spans_of)
            if self.group.rank == 0:
                found.append(compare(head, whole))
        finite = self.group.all([name for name, t in results.items() if not bool(t.isfinite().all())])
        accuracy: Accuracy | None = None
        if found:
            accuracy = together(found)
            unwritten = dict.fromkeys(name for names in (*finite, accuracy.unwritten) for name in names)
            accuracy = replace(accuracy, unwritten=tuple(unwritten))
        agreed: Accuracy = self.group.first(accuracy)
        self.laps.end("check")
        return agreed

    def _judged(
        self, results: Mapping[str, Tensor], compare: Callable[[CellJudge, Mapping[str, Tensor]], Accuracy]
    ) -> Accuracy:
        """Return the accuracy as `checked` does, by the judge of each head, and keep the judges' notes."""

        def judged(head: int, whole: Mapping[str, Tensor]) -> Accuracy:
            assert self._judge
            judge = self._judge.of(head)
            accuracy = compare(judge, whole)
            self._notes += [note for note in judge.notes if note not in self._notes]
            return accuracy

        return self.checked(results, judged)

    def make_head(self, head: int) -> Inputs:
        """Make the inputs of a whole head."""
        return split_inputs.make_head(self.case, head, str(self.instruments.device), self.policy.seed)

    def _add_kept(self, held: int) -> None:
        """Add the part of the `held` bytes of `prepare` that counts to the memory of a launch.

        Copies of the inputs in another layout (`Prepared.reads`), and tensors saved by the forward of a timed backward,
        do not count.
        """
        if self.case.has_backward and self.prepared.forward is not None:
            self.memory["memory_saved"] = self.instruments.memory.measure_held(self.prepared.forward)[0]
        copies = sum(sum(t.nbytes for t in parts_of(copy)) for copy in self.prepared.reads.values())
        kept = max(0, held - copies - (0 if self.case.has_forward else self.memory.get("memory_saved", 0)))
        self.memory |= {name: nbytes + kept for name, nbytes in self.memory.items() if name != "memory_saved"}

    def _traced(self) -> tuple[list[Activity], Any]:
        """Launch once in every rank, traced in rank 0. Return rank 0's activities, and this rank's result."""
        raw: Any = None

        def launch() -> None:
            nonlocal raw
            raw = self.prepared.launch()
            self.instruments.synchronize()

        if self.group.rank:
            launch()
            return [], raw
        if self.instruments.device.type != "cuda":
            return trace_operators(launch), raw
        with session(cpu=True, cuda=True) as profiler:
            launch()
        kernels = [
            Activity(e.name(), e.start_ns() / 1e9, e.end_ns() / 1e9)
            for e in recorded_events(profiler)
            if ran_on_device(e)
        ]
        return sorted(kernels, key=lambda a: a.start), raw


def _bus(instruments: Instruments, group: RankGroup) -> list[float]:
    """Return the bytes/s that each rank sends in a large all-to-all, by nccl-tests' definition of busbw."""
    import torch
    import torch.distributed as dist

    n = BUS_BYTES if instruments.device.type == "cuda" else BUS_BYTES // 64
    sent = torch.ones(n // group.ranks * group.ranks, dtype=torch.uint8, device=instruments.device)
    received = torch.empty_like(sent)
    times = instruments.collect(partial(dist.all_to_all_single, received, sent))
    return [sent.numel() * (group.ranks - 1) / group.ranks / t for t in times]


def _no_copies(_: int) -> Any:
    raise Unsupported("several ranks are not captured in a CUDA graph; use --timer events")
