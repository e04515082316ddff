"""The verdict on a kernel whose process may cheat: results and latency along a chain of launches (core/chain.py).

The kernel's process has neither the inputs before the clock starts, nor the clock, nor the reference. This process, the
parent, has the clock: from the start signal to the answer of the kernel's process. The latency is the slope of the time
over the number of launches, less the slope of the same chain without a kernel. Lengths come in random order, and each
chain's last result is compared, with some others, and a row of each head of all. The last chain, of a random number
of chains, ends with SIGKILL before its results are read: work under way is lost, and its place holds NaN.

The latency is "proven" if the time by the kernel's own clock, along the same chains, agrees, if the time is
proportional to the number of launches, and if the machine can be as fast.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from attnbench.core import chain, flops, gpus, stats
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.formats import duration, percent
from attnbench.core.json import from_json, to_json
from attnbench.core.laps import Laps
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Measurement, Proof, Record, Unproven
from attnbench.core.text import one_line
from attnbench.run.judge import Judge
from attnbench.run.process import WorkerDied, WorkerHung

SHORT_CHAIN = 3  # launches of a chain that is not timed
TRIED = 8  # launches of the chain by which lengths are chosen
LEAST, LONGEST = 4, 0.2  # launches, and seconds of the longest chain
SHARES = (0.25, 0.5, 1.0)  # lengths of chains, as shares of the longest
REPEATS, MORE = 7, 4  # fewest of each length, and how many numbers of repeats there are
MOST_REPEATS = 28  # of each length, where the machine is busy
MOST_BYTES = {"cuda": 2**31, "cpu": 2**26}  # of the results of a chain
WITHIN = 0.03  # the least difference of two figures that counts
SHORT, WITHIN_SHORT = 50e-6, 0.10  # seconds below which the host's launches and the link weigh more, and the difference
CONSTANT = 1e-3  # seconds that a chain may take without launches, beside the least difference
LEAST_CONSTANTS = 20  # least time of the longest chain over CONSTANT, unless it is as long as memory allows
BENT = 0.05  # most deviation of the middle length from a straight line, as a share of its time
DISTURBED = "leave the machine alone meanwhile, or give it --rounds"
MOST_UNKNOWN = 0.2  # most uncertainty of a proven latency
ENOUGH = 0.1  # uncertainty above which a latency is measured longer

Seconds = Mapping[int, float]  # length of a chain -> seconds
Times = Mapping[int, Sequence[float]]  # length of a chain -> seconds of each repeat


class Pool(Protocol):
    """The workers of a run (run/workers.py)."""

    judge: Judge | None
    unfenced: dict[str, Mapping[str, str]]

    def ask(self, name: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the answer of a backend's worker. Raises UserError with the reason."""

    def close_worker(self, name: str) -> None:
        """Kill the workers of a backend."""


@dataclass
class _Chains:
    """The chains of a case on a backend's worker, beside the judge."""

    pool: Pool
    judge: Judge
    name: str
    timeout: float
    laps: Laps = field(default_factory=Laps)
    is_plain: bool = True  # whether all tensors are contiguous
    uncaptured: str = ""  # why the latest chain was launched one by one, not in a CUDA graph; "" where it was in one

    def begin(self, case: Case, device: Device, *, any_strides: bool) -> int:
        """Return the most launches of a chain.

        With `any_strides` a case with a layout has random strides.
        """
        request = {"device": to_json(device), "chain": to_json(case)}
        orders = self.pool.ask(self.name, {**request, "op": "orders"}, self.timeout)["orders"]
        asked = {"do": "chain", "case": to_json(case), "orders": orders, "bytes": MOST_BYTES.get(device.kind, 2**26)}
        made = self._judged(asked)
        self.is_plain = made.pop("is_plain")
        self.pool.ask(self.name, {**request, **made, "op": "chain", "any_strides": any_strides}, self.timeout)
        self.laps.end("start of the chains")
        return len(made["places"])

    def run(self, count: int) -> tuple[float, float]:
        """Return the seconds of a chain of new inputs by this process's clock, and by the worker's."""
        self._judged({"do": "draw"})
        began = time.perf_counter()
        self._judged({"do": "release"})  # within the time, as the kernel's process can watch the inputs
        answer = self.pool.ask(self.name, {"op": "go", "launches": count}, self.timeout)
        seconds, self.uncaptured = time.perf_counter() - began, one_line(str(answer.get("uncaptured", "")))[:200]
        self.laps.end("chains")
        return seconds, float(answer["seconds"])

    def keep(self, count: int) -> None:
        """Keep results of the last chain, for `rule`."""
        self._judged({"do": "keep", "launches": count})
        self.laps.end("check of the chains")

    def right(self, record: Record) -> Record:
        """Return a record with the verdict on all kept results."""
        found = self._judged({"do": "rule"})
        self.laps.end("check of the chains")
        accuracy, launch = from_json(Accuracy, found["accuracy"]), found["launch"]
        proof = Proof((), None, None, None, found["checked"], self.pool.unfenced.get(self.name, {}))
        if accuracy.ok:
            return replace(record, proof=proof)
        reason = f"wrong in launch {launch} of a chain whose inputs follow from its results: {accuracy.problem()}"
        return replace(record, status="wrong", reason=reason, accuracy=accuracy, proof=proof)

    def link(self, count: int, *, plain: bool) -> float:
        """Return the seconds of a chain without a kernel: of the kernel's orders in memory, or `plain` contiguous."""
        began = time.perf_counter()
        self._judged({"do": "link", "launches": count, "plain": plain})
        self.laps.end("chains")
        return time.perf_counter() - began

    def _judged(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = self.judge.ask(request, self.timeout)
        if "error" in answer:
            raise UserError(f"the judge of the chain failed: {answer['error']}")
        return answer


def judged(pool: Pool, record: Record, policy: Policy, device: Device, *, timed: bool) -> Record:
    """Return the record of a right result with the verdict of a chain of launches in place of the worker's figures.

    A wrong result along the chain makes it `wrong`. With `timed` its latency is the one by this process's clock; where
    that is not proven, the record is `failed`, with the reason.
    """
    if record.status != "ok" or pool.judge is None:
        return record
    case = record.case if timed or record.case.has_forward else replace(record.case, direction="fwd_bwd")
    if why := chain.refusal(case):
        return _not_proven(record, "chain", f"{why}; --pass fwd_bwd has one" if not case.has_forward else why)
    chains = _Chains(pool, pool.judge, record.backend, policy.timeout_s)
    found = _along(chains, record, case, device, timed=timed)
    spent = chains.laps.seconds
    return replace(found, seconds=(record.seconds or 0.0) + sum(spent.values()), phases={**found.phases, **spent})


def _along(chains: _Chains, record: Record, case: Case, device: Device, *, timed: bool) -> Record:
    """Return a record with the verdict of chains of a case; failed where they end the worker, or it answers wrongly."""
    try:
        most = chains.begin(case, device, any_strides=not timed)
        if not timed:
            count = min(SHORT_CHAIN, most)
            chains.run(count)
            chains.keep(count)
            return chains.right(record)
        return _timed(chains, record, most, device)
    except (UserError, WorkerDied, WorkerHung) as error:
        chains.pool.close_worker(record.backend)
        failed = replace(record.proof or Proof((), None, None, None, 0), failing="chain")
        reason = f"no chain of launches: {error or 'no answer'}"[:400]
        return replace(record, status="failed", reason=reason, proof=failed)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        chains.pool.close_worker(record.backend)
        reason = f"its process gave another answer than was asked for: {type(error).__name__}: {error}"
        return replace(record, status="failed", reason=reason[:400])


def _timed(chains: _Chains, record: Record, most: int, device: Device) -> Record:
    if most < LEAST:
        return _not_proven(record, "chain", f"its results are too large for {LEAST} launches in a row")
    tried = min(TRIED, most)
    _, (seconds, _) = chains.run(tried), chains.run(tried)  # the first chain of a length compiles and captures
    longest = max(LEAST, min(most, int(LONGEST * tried / seconds)))
    counts = [max(1, round(share * longest)) for share in SHARES]
    for count in counts:
        chains.run(count)
    order = _shuffled(counts, REPEATS + random.SystemRandom().randrange(MORE))
    outside: dict[int, list[float]] = {count: [] for count in counts}
    own: dict[int, list[float]] = {count: [] for count in counts}
    for number, count in enumerate(order, start=1):
        if number == len(order) < len(counts) * MOST_REPEATS and _uncertainty(outside) > ENOUGH:
            order += _shuffled(counts, REPEATS)  # the list that this loop reads
        by_parent, by_worker = chains.run(count)
        if number == len(order):
            chains.pool.close_worker(chains.name)
        chains.keep(count)
        outside[count].append(by_parent)
        own[count].append(by_worker)
    found = chains.right(record)
    if found.status != "ok":
        return found
    if chains.uncaptured:
        note = f"launched one by one, so its latency has the host's time: no CUDA graph ({chains.uncaptured})"
        found = replace(found, notes=(*found.notes, note))
    links = []
    for plain in (False, True)[: 2 - chains.is_plain]:
        chains.link(longest, plain=plain)
        links.append(slope({n: stats.median([chains.link(n, plain=plain) for _ in range(REPEATS)]) for n in counts}))
    return _with_latency(found, outside, own, min(links), device, is_longest=longest == most)


def _shuffled(counts: Sequence[int], repeats: int) -> list[int]:
    order = [count for count in counts for _ in range(repeats)]
    random.SystemRandom().shuffle(order)
    return order


def _slopes(outside: Times) -> list[float]:
    """Return the seconds of a launch and its link in each repeat that has all lengths."""
    return [slope(dict(zip(outside, times, strict=True))) for times in zip(*outside.values(), strict=False)]


def _uncertainty(outside: Times) -> float:
    found = _slopes(outside)
    return stats.relative_halfwidth(found) if min(found) > 0 else math.inf


def _with_latency(
    record: Record, outside: Times, own: Times, link: float, device: Device, *, is_longest: bool = True
) -> Record:
    """Return a record with the latency by this process's clock, or with the reason why it is not proven."""
    samples = tuple(each - link for each in _slopes(outside))
    claimed = slope({count: stats.median(times) for count, times in own.items()}) - link
    if (latency := stats.median(samples)) <= 0:
        return _not_proven(
            replace(record, measurements={}), "proportion", "its time does not grow with the number of launches"
        )
    if min(samples) <= 0:  # at least one repeat was disturbed by more than all its launches took
        return _not_proven(replace(record, measurements={}), "uncertainty", f"its latency is not known; {DISTURBED}")
    proof = record.proof or Proof((), None, None, None, 0)
    half = stats.relative_halfwidth(samples)
    within = max(WITHIN_SHORT if latency < SHORT else WITHIN, half)
    found = replace(
        record,
        measurements={"time": Measurement("s", samples)},
        timer="outside",
        l2="warm",
        host_bound=False,
        kernels={},
        proof=replace(proof, launches=tuple(outside), claimed=claimed, link=link, within=within),
    )
    if not 0 < claimed < math.inf:
        unknown = replace(found, proof=replace(proof, claimed=None))
        return _not_proven(unknown, "clock", "by its own clock, its time does not grow with the number of launches")
    bend = _bend(outside)
    least = _least(record.case, device)
    if half > MOST_UNKNOWN:
        limit = f"and {percent(MOST_UNKNOWN)} are allowed"
        return _not_proven(found, "uncertainty", f"its latency is known to {percent(half)} only, {limit}; {DISTURBED}")
    times = {count: stats.median(of) for count, of in outside.items()}
    if not is_longest and times[max(times)] < LEAST_CONSTANTS * CONSTANT:
        return _not_proven(found, "proportion", f"its longest chain takes {duration(times[max(times)])} only")
    if (off := abs((slope(times) - link) / latency - 1)) > within:  # the times of a repeat differ from all repeats'
        why = f"its latency in each repeat is {percent(off)} off the one by all repeats"
        return _not_proven(found, "proportion", why)
    if bend > max(BENT, half):
        why = f"its time is not in proportion to the number of launches: {percent(bend)} off"
        return _not_proven(found, "proportion", why)
    if (constant := _constant(outside)) > CONSTANT + within * stats.median(outside[max(outside)]):
        return _not_proven(found, "proportion", f"a chain takes {duration(constant)} beside its launches")
    if latency < least:
        why = f"its FLOPs need at least {duration(least)} here, and it takes {duration(latency)}"
        return _not_proven(found, "roofline", why)
    if not abs(claimed / latency - 1) <= within:
        why = f"its own clock says {duration(claimed)}, the one outside {duration(latency)}"
        return _not_proven(found, "clock", why)
    return found


def _bend(outside: Times) -> float:
    """Return how far the middle length is from a straight line through the others, as a share of its time."""
    (low, first), (middle, between), (high, last) = sorted((n, stats.median(of)) for n, of in outside.items())
    return abs(between / (first + (last - first) * (middle - low) / (high - low)) - 1)


def _constant(outside: Times) -> float:
    """Return the seconds of a chain without launches: with sleep in short chains, a launch would seem fast."""
    times = {count: stats.median(of) for count, of in outside.items()}
    return sum(times.values()) / len(times) - slope(times) * sum(times) / len(times)


def _least(case: Case, device: Device) -> float:
    """Return the seconds that a GPU needs for the FLOPs of a case; 0 where its peak is unknown."""
    gpu = gpus.find(device.name, device.memory, device.multiprocessors) if device.kind == "cuda" else None
    peak = gpus.peak(gpu, case.dtype) if gpu else None
    return flops.flops(case) / peak if peak else 0.0


def slope(times: Seconds) -> float:
    """Return the seconds of one more launch: the slope of a straight line through the times of chains."""
    mean_x, mean_y = sum(times) / len(times), sum(times.values()) / len(times)
    across = sum((x - mean_x) ** 2 for x in times)
    return sum((x - mean_x) * (y - mean_y) for x, y in times.items()) / across if across else 0.0


def _not_proven(record: Record, failing: Unproven, why: str) -> Record:
    proof = replace(record.proof or Proof((), None, None, None, 0), failing=failing)
    return replace(record, status="failed", reason=f"not proven: {why}", proof=proof)
