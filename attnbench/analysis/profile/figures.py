"""The figures of a profile in words: latency, spans, roofline, traffic; how much more standard attention moves."""

from __future__ import annotations

from collections.abc import Iterator

from attnbench.core import stats
from attnbench.core.activity import busy_seconds
from attnbench.core.flops import Roofline
from attnbench.core.formats import digits, duration, percent, size, times
from attnbench.core.split_sequence import COLLECTIVES, exposed
from attnbench.core.text import count
from attnbench.results.rows import launch_matters
from attnbench.run.profile.ncu import Traffic
from attnbench.run.profile.profile import HostWork, Outcome, Profile

Figure = tuple[str, str, str]  # label, value, what it means
LEAST_OVERHEAD = 0.01  # of tracing, as a share of the latency; less is noise
LEAST_GAIN = 0.02  # of a CUDA graph, as a share of the latency
STANDARD = ("eager", "sdpa-math")  # attention that writes its scores to memory
TIMERS = {"events": "CUDA events", "cupti": "CUPTI spans", "perf_counter": "perf_counter"}


def sentences(outcome: Outcome) -> list[str]:
    """Return how many times more bytes standard attention moves than each other backend.

    Papers derive this ratio; here it is measured. Empty without standard attention, and wrong results do not count.
    """
    counted = {p.backend: p.traffic.total for p in outcome.profiles if p.traffic and not p.wrong}
    standard = next((name for name in STANDARD if name in counted), None)
    if standard is None:
        return []
    most = counted[standard]
    return [
        f"Standard attention ({standard}) moves {digits(most / total)} times the bytes of {name}: "
        f"{size(most)} against {size(total)} between HBM and the GPU, for one call."
        for name, total in counted.items()
        if name not in STANDARD
    ]


def figures(profile: Profile, roofline: Roofline | None) -> Iterator[Figure]:
    """Yield those figures of a profile that are known."""
    yield "latency", duration(profile.latency), _method(profile)
    if profile.spans:
        yield from _spans(profile)
    elif profile.activities:
        yield "traced call", duration(profile.length), "the figure below, with the profiler on"
    if profile.activities and profile.what == "kernels":
        yield "kernels", str(len(profile.activities)), "in one call"
    yield from _communication(profile)
    if profile.enqueue:
        host = stats.median(profile.enqueue)
        slower = host > profile.latency
        meaning = "slower than the GPU, so calls in a row wait for it" if slower else "less than the GPU's time: hidden"
        yield "CPU launch", duration(host), f"of the host for one call; {meaning}"
    if profile.in_graph:
        in_graph = stats.median(profile.in_graph)
        yield "in a CUDA graph", duration(in_graph), _against(in_graph / profile.latency)
    yield from _host(profile.host)
    yield "first call", duration(profile.first_call), "preparing and compiling included"
    if roofline:
        yield from _rooflines(profile, roofline)
    yield "peak memory", size(profile.memory_peak), "that one call adds, of torch's allocator"
    if profile.traffic:
        yield from _traffic(profile, profile.traffic, roofline)


def _communication(profile: Profile) -> Iterator[Figure]:
    moving = [a for a in profile.activities if COLLECTIVES.search(a.name)]
    if moving:
        computing = busy_seconds([a for a in profile.activities if a not in moving])
        beside = max(0.0, round(computing + busy_seconds(moving) - busy_seconds(profile.activities), 12))
        what = f"in {count(len(moving), 'collective')} of rank 0, {duration(beside)} of it beside computation"
        yield "communication", duration(busy_seconds(moving)), what
    if profile.compute:
        share = exposed(profile.latency, stats.median(profile.compute))
        yield "exposed", percent(share), "of the latency: the difference to the same call without its communication"


def _against(ratio: float) -> str:
    """Return in words how long a call in a CUDA graph takes, relative to a call that the host launches."""
    if abs(ratio - 1) < LEAST_GAIN:
        return "of one call, captured; as long as launched by the host"
    change = f"{percent(abs(1 - ratio))} {'less' if ratio < 1 else 'more'}"
    return f"of one call, captured; {change} than launched by the host"


def _host(host: HostWork) -> Iterator[Figure]:
    if host.operators or host.launches:
        launched = f", and {host.launches} launched" if host.launches else ""
        yield "host", str(host.operators), f"operators of torch in one call{launched}"
    if host.waits:
        what = ", ".join(f"{name} {times}x" for name, times in host.waits.items())
        yield "waits", str(sum(host.waits.values())), f"of the host for a result: {what}"
    if host.allocations:
        driver = f"; {host.from_driver} calls of the driver" if host.from_driver else ""
        yield "allocations", str(host.allocations), f"{size(host.allocated)} in one call, by torch's allocator{driver}"


def _method(profile: Profile) -> str:
    parts = [f"median of {len(profile.times)} samples", TIMERS.get(profile.timer, profile.timer), f"L2 {profile.l2}"]
    if profile.limits:
        parts.append(f"clock limited by {', '.join(profile.limits)}")
    if profile.host_bound and launch_matters(profile.enqueue, profile.latency):
        parts.append("some wait for the host")
    return ", ".join(parts)


def _spans(profile: Profile) -> Iterator[Figure]:
    span = stats.median(profile.spans)
    of = f"median of {count(len(profile.spans), 'traced call')}"
    yield "span", duration(span), f"first kernel's start to last one's end, CUPTI, {of}"
    gap = stats.median([events - own for events, own in zip(profile.traced, profile.spans, strict=True)])
    yield (
        "launch gap",
        duration(gap),
        "between CUDA events and the kernels, before and after, in the same calls",
    )
    overhead = stats.median(profile.traced) / profile.latency - 1
    if abs(overhead) >= LEAST_OVERHEAD:
        longer = "longer" if overhead > 0 else "less"
        yield "tracing", percent(abs(overhead)), f"{longer} than untraced: by the profiler's overhead, or another clock"
    if len(profile.activities) > 1:
        idle = sum(profile.gaps)
        what = f"{percent(idle / profile.length)} of the span, between its {len(profile.activities)} kernels"
        yield "gaps", duration(idle), what


def _rooflines(profile: Profile, roofline: Roofline) -> Iterator[Figure]:
    limit = f"{digits(roofline.intensity)} FLOP/B, and memory is the limit below {digits(roofline.ridge)}"
    yield "roofline", duration(roofline.seconds), f"bound by {roofline.bound}: {limit}; by {roofline.source}"
    work = f"{_si(roofline.flops, 'FLOP')} at {_si(roofline.peak, 'FLOP/s')}"
    yield "  compute", duration(roofline.compute_seconds), work
    moved = f"{size(roofline.nbytes)}, each operand once, at {_si(roofline.bandwidth, 'B/s')}"
    yield "  bytes", duration(roofline.memory_seconds), moved
    if roofline.exp_rate:
        work = f"{_si(roofline.exps, 'exp')} of the softmax at {_si(roofline.exp_rate, 'exp/s')}, measured here"
        yield "  exp", duration(roofline.exp_seconds), work
    reached = f"of the roofline, {_si(roofline.flops / profile.latency, 'FLOP/s')}"
    if roofline.datasheet and profile.ceilings.keys() >= {"matmul", "copy"}:
        matmul, copy = profile.ceilings["matmul"], profile.ceilings["copy"]
        share = percent(max(roofline.flops / matmul, roofline.nbytes / copy) / profile.latency)
        reached += f"; {share} of what a matmul, {_si(matmul, 'FLOP/s')}, and a copy, {_si(copy, 'B/s')}, reach here"
    yield "reached", percent(roofline.seconds / profile.latency), reached


def _si(number: float, unit: str) -> str:
    factor, prefix = next((f for f in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if number >= f[0]), (1.0, ""))
    return f"{digits(number / factor)} {prefix}{unit}"


def _traffic(profile: Profile, traffic: Traffic, roofline: Roofline | None) -> Iterator[Figure]:
    parts = [f"read {size(traffic.read)}, written {size(traffic.written)}"]
    parts.append("by ncu, L2 emptied before and after the call and not between its kernels")
    if traffic.passes > 1:
        parts.append(f"{traffic.passes} passes, so some reads may have hit L2")
    yield "HBM traffic", size(traffic.total), "; ".join(parts)
    if roofline:
        over_least = "measured traffic over the least possible, which moves each operand once"
        yield "  ratio", times(traffic.total / roofline.nbytes), over_least
    if profile.spans:
        rate = traffic.total / stats.median(profile.spans)
        of = f", {percent(rate / roofline.bandwidth)} of the bandwidth" if roofline else ""
        yield "  rate", _si(rate, "B/s"), f"over the span{of}"
