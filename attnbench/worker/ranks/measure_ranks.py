"""Measures one case on several devices. Every rank runs this; the record is rank 0's.

Inputs of each rank -> hard inputs in some heads, checked -> the case's own inputs with dout masked, memory, checked ->
timed bursts, which begin together -> the same without communication -> inputs changed in place, traced, checked ->
inputs restored, calls one after the other, checked. What is checked are whole heads, gathered to rank 0: each is
attention of its own (split_inputs.py), so the reference and the tolerance are those of any case. Which heads is drawn.

A rank that raises leaves the others waiting; the parent sees that and ends them all (run/rank_workers.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.core.activity import Activity
from attnbench.core.backend import Inputs, Prepared, Unsupported
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Measurement
from attnbench.core.renewed_inputs import InputRenewal
from attnbench.core.split_sequence import COLLECTIVES, part_of
from attnbench.judge import HardInputsCheck, ResultCheck, inputs
from attnbench.judge.tolerance import worst
from attnbench.worker import kernel_rules
from attnbench.worker.cell_steps import notes_on_data
from attnbench.worker.instruments import Instruments, TimedLaunch
from attnbench.worker.laps import Laps
from attnbench.worker.measure.cpu_operators import trace_operators
from attnbench.worker.measure.profiler_session import recorded_events, session
from attnbench.worker.ranks import split_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.worker.ranks.group import RankGroup

Fields = dict[str, Any]  # of a Record
CHECKED_HEADS = 4  # key heads, or one for each rank where there are more ranks
CALLS, CALLS_SECONDS = 6, 0.5  # at most, one after the other, after timing; of calls too long for two none
BUS_BYTES = 2**28  # of the all-to-all that shows the most that the links carry


class RankCell:
    """One case on one rank: its inputs, its call, and the checks of whole heads, which rank 0 makes."""

    def __init__(self, instruments: Instruments, group: RankGroup, backend: Any, case: Case, policy: Policy) -> None:
        self.instruments, self.group, self.backend = instruments, group, backend
        self.case, self.policy, self.laps = case, policy, Laps()
        self.spans_of = [backend.spans(case, rank) for rank in range(case.ranks)]
        self.spans = self.spans_of[group.rank]
        self.heads = split_inputs.heads_to_check(case, group, max(CHECKED_HEADS, case.ranks))
        self.given = self._made()
        self.checks: dict[int, Any] = {}
        self.flaws = self.group.all(inputs.find_flaw(self.given, case.data))
        self.laps.end("inputs")

    def use(self, make: Callable[[int], Any] | None) -> None:
        """Put the inputs of new checks, one for each checked head, into all ranks; rank 0 makes the checks.

        With None the inputs that were made at first are put back, and the checks of the heads expect them.
        """
        for head in self.heads:
            whole: Inputs | None = None
            if self.group.rank == 0:
                if make:
                    self.checks[head] = make(head)
                    whole = self.checks[head].inputs
                else:
                    self.checks[head].drop_masked_dout()
                    whole = self._head(head)
            self.put(head, whole)
        self.laps.end("reference")

    def put(self, head: int, whole: Inputs | None) -> None:
        """Put rank 0's inputs of a head (None in the others) into all ranks."""
        split_inputs.put_head(self.case, self.given, head, whole, self.spans, self.instruments.device)

    def prepare(self) -> Prepared:
        prepared: Prepared = self.backend.prepare(self.case, self.given)
        self.instruments.synchronize()
        return prepared

    def checked(self, results: Mapping[str, Tensor], compare: Callable[[int, Mapping[str, Tensor]], Accuracy]) -> Any:
        """Return the accuracy of the checked heads together, in every rank; `compare` is called in rank 0."""
        found: list[Accuracy] = []
        for head in self.heads:
            whole = split_inputs.gather_head(self.case, results, head, self.spans_of)
            if self.group.rank == 0:
                found.append(compare(head, whole))
        finite = self.group.all([name for name, t in results.items() if not bool(t.isfinite().all())])
        accuracy = self.group.first(_together(found, finite) if found else None)
        self.laps.end("check")
        return accuracy

    def check_first(self, results: Mapping[str, Tensor]) -> Any:
        return self.checked(results, lambda head, whole: self.checks[head].check_first(whole))

    def check_renewed(self, renewal: InputRenewal, results: Mapping[str, Tensor]) -> Any:
        def compare(head: int, whole: Mapping[str, Tensor]) -> Accuracy:
            fresh = renewal.apply_to(self._head(head))
            accuracy: Accuracy = self.checks[head].check_renewed(renewal.now, fresh, whole)
            return accuracy

        return self.checked(results, compare)

    def check_restored(self, results: Mapping[str, Tensor]) -> Any:
        return self.checked(results, lambda head, whole: self.checks[head].check_restored(whole))

    def first_changed(self) -> str | None:
        """Return the name of an input that a launch of any rank has written to; None where none was."""
        names = self.group.all(split_inputs.is_as_made(self.case, self.given, self.spans, self.policy.seed))
        return next((name for name in names if name), None)

    def new_check(self, head: int) -> ResultCheck:
        """Return the check of a head on its own inputs."""
        return ResultCheck(split_inputs.head_case(self.case), self._head(head), self.policy.seed)

    def hard_check(self, _: int) -> HardInputsCheck:
        """Return a check of a head on hard inputs."""
        return HardInputsCheck(split_inputs.head_case(self.case), self.instruments.device)

    def _head(self, head: int) -> Inputs:
        return split_inputs.make_head(self.case, head, str(self.instruments.device), self.policy.seed)

    def _made(self) -> Inputs:
        return split_inputs.make_part(self.case, self.spans, str(self.instruments.device), self.policy.seed)


def measure_ranks(
    instruments: Instruments,
    group: RankGroup,
    backend: Any,
    case: Case,
    policy: Policy,
    *,
    timed: bool = True,
) -> Fields:
    """Measure one case and return the fields of its Record; without `timed` make the same checks and time nothing.

    Raises Unsupported where the library refuses the case, or the policy asks for what several ranks do not have.
    """
    if policy.timer != "events":
        raise Unsupported("several ranks are timed by CUDA events; use --timer events")
    began, errors_before = time.time(), instruments.state.ecc_errors()
    cell = RankCell(instruments, group, backend, case, policy)
    if flaw := next((flaw for flaw in cell.flaws if flaw), None):
        return {"status": "failed", "reason": flaw}
    memory, part = instruments.memory, part_of(case)
    cell.use(cell.hard_check)
    with memory.job_window():
        memory.fill_with_nan(part)
        started = time.perf_counter()
        prepared = cell.prepare()
        raw = prepared.launch()
        instruments.synchronize()
        first_call = time.perf_counter() - started
        cell.laps.end("first call")
        hard = cell.check_first(prepared.canonical(raw))
        on_hard = dict.fromkeys(note for check in cell.checks.values() for note in check.notes)
        del raw, prepared
        cell.use(cell.new_check)
        held, prepared = memory.measure_held(cell.prepare)
        used, _, raw = memory.measure_peak(prepared.launch, part)
        cell.laps.end("memory")
        accuracy = cell.check_first(prepared.canonical(raw))
        del raw
        used = _with_kept(instruments, case, prepared, held, used)
        cell.laps.end("memory")
    if not accuracy.ok or not hard.ok:
        worse, where = (accuracy, "") if not accuracy.ok else (hard, "on hard inputs: ")
        return {"status": "wrong", "reason": where + worse.problem(), "accuracy": worse}
    cell.use(None)
    del prepared
    memory.empty_cache()
    prepared = cell.prepare()

    measurements, timing = {}, None
    if timed:
        launch = TimedLaunch(prepared.launch, _no_copies, prepared.moved, cell.given.nbytes)
        timing = instruments.time(launch, policy)
        measurements = {**timing.measurements, **_of_each_rank(group, timing.measurements, prepared, used)}
        for rank, seconds in enumerate(group.of_each(timing.measurements["time"].values)):
            measurements[f"time_rank{rank}"] = Measurement("s", seconds)
        measurements["first_call"] = Measurement("s", (group.most(first_call),))
        if prepared.compute is not None:
            alone = instruments.time(TimedLaunch(prepared.compute, _no_copies, 0, 0), policy)
            measurements["compute"] = alone.measurements["time"]
            if clock := alone.measurements.get("clock_held"):
                measurements["clock_compute"] = clock
        measurements["ceiling_bus"] = Measurement("B/s", tuple(_bus(instruments, group)))
        cell.laps.end("timing")
    if changed := cell.first_changed():
        return {"status": "wrong", "reason": f"it wrote to its input {changed}", "accuracy": accuracy}

    renewal = InputRenewal(case, cell.given, prepared, seed=0)
    renewal.renew()
    activities, raw = _traced(instruments, group, prepared)
    cell.laps.end("trace")
    again = cell.check_renewed(renewal, prepared.canonical(raw))
    when = "on inputs renewed in place: "
    latency = stats.median(timing.measurements["time"].values) if timing else 0.0
    calls = min(CALLS, int(CALLS_SECONDS / latency)) if latency else CALLS
    if again.ok and calls > 1:
        renewal.restore()
        for _ in range(calls):
            raw = prepared.launch()
        again, when = cell.check_restored(prepared.canonical(raw)), f"in call {calls}, one after the other: "
    if not again.ok:
        return {"status": "wrong", "reason": when + again.problem(), "accuracy": again}
    others = instruments.state.other_processes(began)
    record: Fields = {"status": "ok", "accuracy": accuracy, "others": others}
    record["kernels"] = kernel_rules.count_by_name(a.name for a in activities)
    problem = group.first(_wrong_kernels(backend, case, instruments, activities))
    if problem:
        return {**record, "status": "wrong-kernel", "reason": problem}
    checked = f"checked: {len(cell.heads)} of {case.shape.nheads_k} key heads, as whole sequences"
    untraced = () if activities else ("what ran is not known: no kernel was traced",)
    signature = backend.signature(case, instruments.device_info)
    float32 = kernel_rules.float32_notes(case, signature, [a.name for a in activities])
    record["notes"] = (checked, *on_hard, *notes_on_data(case, is_hard_checked=True), *untraced, *float32)
    if timing is None:
        return record
    errors = (instruments.state.ecc_errors() or 0) - errors_before if errors_before is not None else 0
    return record | {
        "measurements": measurements,
        "timer": timing.timer,
        "l2": timing.l2,
        "limits": tuple(dict.fromkeys(limit for of in group.all(timing.limits) for limit in of)),
        "host_bound": bool(group.most(timing.host_bound)),
        "ecc_errors": max(0, int(group.most(errors))),
        "notes": (*record["notes"], *timing.notes),
        "phases": cell.laps.seconds,
    }


def _with_kept(
    instruments: Instruments, case: Case, prepared: Prepared, held: int, used: Mapping[str, int]
) -> dict[str, int]:
    """Return the bytes of a launch with those that `prepare` keeps for it, of the `held`.

    Those are not copies of the inputs in another layout (`Prepared.reads`), nor what the forward of a timed backward
    saved.
    """
    found = dict(used)
    if case.has_backward and prepared.forward is not None:
        found["memory_saved"] = instruments.memory.measure_held(prepared.forward)[0]
    copies = sum(t.nbytes for t in prepared.reads.values())
    kept = max(0, held - copies - (0 if case.has_forward else found.get("memory_saved", 0)))
    return {name: nbytes + (0 if name == "memory_saved" else kept) for name, nbytes in found.items()}


def _of_each_rank(
    group: RankGroup, measured: Mapping[str, Measurement], prepared: Prepared, used: Mapping[str, int]
) -> dict[str, Measurement]:
    """Return what each rank has of its own, in the record of rank 0."""
    each = group.all((prepared.moved, used, tuple(measured["clock_held"].values) if "clock_held" in measured else ()))
    found = {"moved": Measurement("B", (max(moved for moved, _, _ in each),))}
    for name in used:
        found[name] = Measurement("B", (max(of[name] for _, of, _ in each),))
    found["memory_ranks"] = Measurement("B", tuple(of["memory_peak"] for _, of, _ in each))
    clocks = tuple(stats.median(clock) for _, _, clock in each if clock)
    return {**found, "clock_ranks": Measurement("Hz", clocks)} if clocks else found


def _together(found: Sequence[Accuracy], unfinished: Sequence[Sequence[str]]) -> Accuracy:
    """Return the accuracy of several heads: the worst error of each result, and which are not finite in any rank."""
    errors = {name: worst([one.errors[name] for one in found if name in one.errors]) for name in found[0].errors}
    unwritten = dict.fromkeys(name for names in (*unfinished, *(one.unwritten for one in found)) for name in names)
    flaws = dict.fromkeys(flaw for one in found for flaw in one.flaws)
    return Accuracy(
        errors, found[0].rows, sum(one.heads for one in found), tuple(unwritten), tuple(flaws), found[0].seed
    )


def _traced(instruments: Instruments, group: RankGroup, prepared: Prepared) -> tuple[list[Activity], Any]:
    """Launch once in every rank, traced in rank 0. Return what ran there, and this rank's result."""
    raw: Any = None

    def launch() -> None:
        nonlocal raw
        raw = prepared.launch()
        instruments.synchronize()

    if group.rank:
        launch()
        return [], raw
    if instruments.device.type != "cuda":
        return trace_operators(launch), raw
    with session(cpu=True, cuda=True) as profiler:
        launch()
    kernels = [
        Activity(e.name(), e.start_ns() / 1e9, e.end_ns() / 1e9)
        for e in recorded_events(profiler)
        if str(e.device_type()) == "DeviceType.CUDA" and not e.is_user_annotation() and e.duration_ns() > 0
    ]
    return sorted(kernels, key=lambda a: a.start), raw


def _wrong_kernels(backend: Any, case: Case, instruments: Instruments, activities: Sequence[Activity]) -> str | None:
    """Return why what ran is not what the backend declares; None where it is, or where nothing is known."""
    if not activities:
        return None
    signature = backend.signature(case, instruments.device_info)
    computing = [a for a in activities if not COLLECTIVES.search(a.name)]
    broken = kernel_rules.find_broken_rule(case, signature, [a.name for a in computing])
    on_gpu = instruments.device.type == "cuda"  # on a CPU times hold what else it did
    return broken or (kernel_rules.find_low_share(signature, computing) if on_gpu else None)


def _bus(instruments: Instruments, group: RankGroup) -> list[float]:
    """Return the bytes/s that each rank sends in a large all-to-all, as nccl-tests' busbw counts them."""
    import torch
    import torch.distributed as dist

    n = BUS_BYTES if instruments.device.type == "cuda" else BUS_BYTES // 64
    sent = torch.ones(n // group.ranks * group.ranks, dtype=torch.uint8, device=instruments.device)
    received = torch.empty_like(sent)
    times = instruments.collect(partial(dist.all_to_all_single, received, sent))
    return [sent.numel() * (group.ranks - 1) / group.ranks / t for t in times]


def _no_copies(_: int) -> Any:
    raise Unsupported("several ranks are not captured in a CUDA graph; use --timer events")
