"""What the facts of fitness.py and an A/A test say of a machine: pure functions that give a finding for each check.

A warning is what spoils some figures, or makes them hard to repeat elsewhere. Unfit is what makes figures wrong, or
figures of something else than what was to be measured: another process that computes, a broken memory, a clock that
heat holds down, noise that drowns what one compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from attnbench.analysis.doctor.aa_test import Trial, label
from attnbench.analysis.doctor.resolution import MIN_TURNS, ROUNDS
from attnbench.core.machine import Environment
from attnbench.core.sizes import duration
from attnbench.results.metrics import percent

Level = Literal["ok", "warning", "unfit"]
LEVELS: tuple[Level, ...] = get_args(Level)

BUSY = 0.02  # of the GPU while attnbench lets it idle; a desktop's share is less
SLOW_CLOCK = 0.97  # of the highest; clocks come in steps of 1 %
HOT, TOO_HOT = 15.0, 5.0  # degrees below where the clock is lowered, while next to nothing runs
THROTTLED = frozenset({"hardware slowdown", "thermal", "hardware thermal", "power brake"})
LOADED, OVERLOADED = 0.25, 0.75  # of the cores, by others
LUCK = 0.002  # a difference between two processes that no comparison minds
COARSE, USELESS = 0.03, 0.10  # smallest difference over rounds; kernels worth comparing differ by no more

END_OTHERS = "wait for its end, or choose another GPU with --device"
REPLACE = "reset the GPU (nvidia-smi -r); have it replaced if they come back"
LOST = {
    "events": "nothing can be timed; look at the GPU with nvidia-smi",
    "graph": "--timer graph is refused, and cross-checks do without it",
    "cupti": "what ran cannot be proved; end other profilers (nsys, ncu, DCGM), and see that torch finds libcupti",
}


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, how bad it is, what was found, what to do."""

    check: str
    level: Level
    found: str
    todo: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, todo: str) -> Finding:
    return Finding(check, "warning", found, todo)


def unfit(check: str, found: str, todo: str) -> Finding:
    return Finding(check, "unfit", found, todo)


def judge(environment: Environment, facts: Mapping[str, Any]) -> list[Finding]:
    """What the facts of fitness.py mean, in the order in which they are shown."""
    kind = environment.device.kind
    if kind == "fake":
        return [ok("device", "simulated: only the A/A test applies")]
    found = list(_software(environment, facts))
    if kind == "cpu":
        found += _no_gpu(environment, facts)
    elif "broken" in facts:
        found.append(unfit("GPU", facts["broken"], "look at it with nvidia-smi; reset it, or restart the machine"))
    else:
        found += _gpu(facts["nvml"])
        found += _instruments(facts["instruments"])
        found += _l2(facts["instruments"])
    return [*found, *_host(environment, facts["host"])]


def _software(environment: Environment, facts: Mapping[str, Any]) -> Iterator[Finding]:
    packages, built_for = environment.packages, environment.cuda
    driver_cuda = (facts.get("nvml") or {}).get("cuda")
    on_gpu = environment.device.kind == "cuda"
    parts = [
        f"driver {environment.driver}{f' (CUDA {driver_cuda})' if driver_cuda else ''}" if on_gpu else "",
        f"torch {environment.torch}{f' (CUDA {built_for})' if on_gpu else ''}",
        *(f"{name} {version}" for name, version in packages.items()),
        f"Python {environment.python}",
    ]
    found = ", ".join(filter(None, parts))
    if driver_cuda and built_for and _major(driver_cuda) < _major(built_for):
        yield warning("software", f"the driver is older than torch's CUDA: {found}", "update the driver")
    elif on_gpu and "triton" not in packages:
        yield warning("software", f"no triton: {found}", "pip install triton, for the kernels that need it")
    else:
        yield ok("software", found)


def _no_gpu(environment: Environment, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["asked"] == "auto" and facts["host"]["nvidia_driver"]:
        found = f"an NVIDIA driver is there, but torch {environment.torch} sees no GPU, so this is about the CPU"
        yield warning("GPU", found, "install a torch with CUDA, or say --device cpu if that is meant")
    else:
        yield ok("GPU", "not measured, so what asks NVML, CUDA's instruments and L2 does not apply")


def _gpu(nvml: Mapping[str, Any] | None) -> Iterator[Finding]:
    if nvml is None:
        found = "does not answer: clocks, power, heat, memory errors and other processes stay unseen"
        todo = "pip install nvidia-ml-py; start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield warning("NVML", found, todo)
        return
    yield ok("NVML", "answers")
    for rule in (_persistence, _clock, _power, _processes, _mig, _memory_errors, _heat, _throttling):
        yield from rule(nvml)


def _persistence(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    if nvml["persistence"] is None:
        yield _untold("persistence")
    elif nvml["persistence"]:
        yield ok("persistence", "on")
    else:
        yield warning("persistence", "off: the driver starts anew for each run", "sudo nvidia-smi -pm 1")


def _clock(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    now, most = nvml["clock_held"] or nvml["clock"], nvml["clock_max"]
    chosen, usual = nvml["clock_application"], nvml["clock_default"]
    if not now or not most:
        yield _untold("SM clock")
        return
    found = f"{now / 1e6:.0f} of {most / 1e6:.0f} MHz while next to nothing runs"
    if chosen and usual and chosen < usual:
        found += f"; application clock lowered to {chosen / 1e6:.0f} MHz, {usual / 1e6:.0f} by default"
        yield warning("SM clock", found, "figures are of that clock; sudo nvidia-smi -rac resets it")
    elif now < SLOW_CLOCK * most:
        found += f" ({', '.join(nvml['reasons'] or ()) or 'locked, as it seems'})"
        yield warning("SM clock", found, "figures are of that clock; sudo nvidia-smi -rgc, unless it is meant")
    else:
        yield ok("SM clock", found)


def _power(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    limit, usual = nvml["power_limit"], nvml["power_default"]
    if limit is None:
        yield _untold("power limit")
    elif usual is None:
        yield ok("power limit", f"{limit:.0f} W")
    elif limit < 0.99 * usual:
        found = f"{limit:.0f} W, lowered from {usual:.0f}: heavy cells are slower than on others of its kind"
        yield warning("power limit", found, f"sudo nvidia-smi -pl {usual:.0f}, if it may draw that much")
    else:
        raised = limit > 1.01 * usual
        yield ok("power limit", f"{limit:.0f} W, {f'raised from {usual:.0f}' if raised else 'the default'}")


def _processes(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    seen = nvml["processes"]
    busy, others = seen["busy"], list(seen["others"])
    if not seen["named"] and seen["count"] and seen["count"] > 1:
        others = [f"{seen['count'] - 1} that cannot be named here (a container)"]
    if busy is not None and busy > BUSY:
        who = ", ".join(seen["computing"] or others) or "not in NVML's list"
        yield unfit("other processes", f"one computes, the GPU {percent(busy)} busy with it: {who}", END_OTHERS)
    elif others:
        idle = "computing nothing now" if busy is not None else "whether they compute is not told"
        yield warning("other processes", f"{', '.join(others)}; {idle}, but holding memory", END_OTHERS)
    elif busy is None and not seen["named"]:
        yield _untold("other processes")
    else:
        yield ok("other processes", "none")


def _mig(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    if nvml["mig"]:
        found = "on: figures are of a slice, and other slices share its power and clock"
        yield warning("MIG", found, "compare with the same slice only, or have an administrator turn it off")
    else:
        yield ok("MIG", "not on this GPU" if nvml["mig"] is None else "off")


def _memory_errors(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    check, rows = "memory errors", nvml["rows"] or {}
    if nvml["ecc"] is None:
        yield ok(check, "not counted: no ECC on this GPU")
    elif nvml["ecc_errors"]:
        yield unfit(check, f"{nvml['ecc_errors']} uncorrected since the driver was loaded", REPLACE)
    elif rows.get("failed"):
        yield unfit(check, "a memory row could not be remapped", "have the GPU replaced")
    elif rows.get("pending"):
        yield warning(check, "a memory row waits to be remapped", "reset the GPU: nvidia-smi -r")
    elif not nvml["ecc"]:
        yield warning(check, "ECC is off, so none is seen", "sudo nvidia-smi -e 1, then restart the machine")
    elif nvml["ecc_pending"] is False:
        yield warning(check, "ECC is on, but off after the next restart", "sudo nvidia-smi -e 1")
    else:
        ever = f", {nvml['ecc_errors_ever']} uncorrected in its life" if nvml["ecc_errors_ever"] else ""
        remapped = rows.get("corrected", 0) + rows.get("uncorrected", 0)
        yield ok(check, f"none uncorrected, ECC on{ever}{f', {remapped} rows remapped' if remapped else ''}")


def _heat(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    now, left = nvml["temperature"], nvml["temperature_margin"]
    if now is None:
        yield _untold("temperature")
    elif left is None or left >= HOT:
        yield ok(
            "temperature", f"{now:.0f} C{'' if left is None else f', {left:.0f} below where the clock is lowered'}"
        )
    else:
        level: Level = "unfit" if left < TOO_HOT else "warning"
        found = f"{now:.0f} C while next to nothing runs, {left:.0f} below where the clock is lowered"
        yield Finding("temperature", level, found, "let it cool down, and look at its cooling")


def _throttling(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    reasons = nvml["reasons"]
    if reasons is None:
        yield _untold("throttling")
    elif not reasons:
        yield ok("throttling", "none")
    else:
        level: Level = "unfit" if THROTTLED & set(reasons) else "warning"
        found = f"{', '.join(reasons)}, while next to nothing runs"
        yield Finding("throttling", level, found, "look at cooling, supply and settings: nvidia-smi -q -d PERFORMANCE")


def _instruments(instruments: Mapping[str, Any]) -> Iterator[Finding]:
    works = [f"{f['seconds'] * 1e6:.1f} us by {name}" for name, f in instruments.items() if "error" not in f]
    if works:
        yield ok("instruments", f"a trivial kernel takes {', '.join(works)}")
    for name, found in instruments.items():
        if "error" in found:
            level: Level = "unfit" if name == "events" else "warning"
            yield Finding("instruments", level, f"{name} does not work: {found['error']}", LOST[name])


def _l2(instruments: Mapping[str, Any]) -> Iterator[Finding]:
    promises = [(name, p, f.get(f"l2_{p}")) for name, f in instruments.items() for p in ("cold", "warm")]
    looked = [(name, promise, seen) for name, promise, seen in promises if seen is not None]
    broken = [f"{seen} instead of {promise} by {name}" for name, promise, seen in looked if seen != promise]
    if broken:
        yield warning("L2", ", ".join(broken), "cells will say unproven; see that nothing else runs on the GPU")
    elif looked:
        yield ok("L2", "cold when it is to be, and warm when it is to be")


def _host(environment: Environment, host: Mapping[str, Any]) -> Iterator[Finding]:
    on_cpu, cores = environment.device.kind == "cpu", host["cores"] or 1
    share, load = host["load"] / cores, f"{host['load']:.1f} on {cores} cores over the last minute"
    if share > (LOADED if on_cpu else OVERLOADED):
        level: Level = "unfit" if on_cpu and share > OVERLOADED else "warning"
        yield Finding("load", level, load, "wait a minute, or end what runs; top shows it")
    else:
        yield ok("load", load)
    governors = ", ".join(host["governors"])
    if on_cpu and governors not in ("", "performance"):
        yield warning("CPU governor", governors, "sudo cpupower frequency-set -g performance")
    else:
        yield ok("CPU governor", governors or "not told here, as in most virtual machines")
    limit, threads = host["cpu_limit"], environment.device.threads or 2
    if limit is not None and limit < threads:
        found = f"{limit:g} CPUs for {threads} threads, which are stopped again and again"
        todo = f"set OMP_NUM_THREADS={max(1, int(limit))}, or raise it" if on_cpu else "raise it to 2 CPUs or more"
        yield warning("container limit", found, todo)
    else:
        yield ok("container limit", "none" if limit is None else f"{limit:g} CPUs")


def judge_trial(trial: Trial) -> list[Finding]:
    """What the A/A test says of the machine."""
    if trial.failed:
        ended = f"{label(trial.failed.case)} ended as {trial.failed.status}: {trial.failed.reason}"
        todo = f"attnbench run -b {trial.backend} says more; mend that first"
        return [unfit("A/A test", f"{trial.backend} against itself: {ended}", todo)]
    return [*_meanwhile(trial), *_luck(trial), *_resolution(trial)]


def _meanwhile(trial: Trial) -> Iterator[Finding]:
    if trial.others:
        yield unfit("other processes", f"computed during the A/A test: {', '.join(trial.others)}", END_OTHERS)
    if trial.ecc_errors:
        yield unfit("memory errors", f"{trial.ecc_errors} uncorrected during the A/A test", REPLACE)
    if throttled := [limit for limit in trial.limits if limit in THROTTLED]:
        yield warning("throttling", f"{', '.join(throttled)} during the A/A test", "look at cooling and supply")
    if trial.host_bound:
        yield warning("host", "the GPU waited for it during the A/A test", "end what else the host does")


def _luck(trial: Trial) -> Iterator[Finding]:
    resolutions = trial.resolutions()
    for case, r in resolutions:
        if r.differs and abs(r.difference) >= LUCK:
            interval = f"{signed(r.difference)} ({signed(r.low)} to {signed(r.high)})"
            found = f"{trial.backend} against itself, {label(case)}: two processes differ by {interval}"
            yield warning("A/A test", found, f"trust no such difference from one round; measure with --rounds {ROUNDS}")
    if resolutions and not any(r.differs and abs(r.difference) >= LUCK for _, r in resolutions):
        yield ok("A/A test", f"{trial.backend} against itself: no difference of {percent(LUCK)} or more")


def _resolution(trial: Trial) -> Iterator[Finding]:
    worst = trial.worst()
    if worst is None:
        turns = min(len(c.a) for c in trial.cases)
        found = f"not known: {turns} turns in {duration(trial.seconds)} where {MIN_TURNS} are needed"
        yield warning("resolution", found, "run it without --quick, on an idle machine")
        return
    case, r = worst
    if r.one == 0:
        yield ok("resolution", "readings repeat exactly, so that any difference shows")
        return
    level: Level = "ok" if r.rounds <= COARSE else "warning" if r.rounds <= USELESS else "unfit"
    found = f"one reading each tells {percent(r.one)} apart, {ROUNDS} rounds {percent(r.rounds)} ({label(case)})"
    yield Finding("resolution", level, found, "" if level == "ok" else "find what disturbs it, then run doctor again")


def signed(fraction: float) -> str:
    return f"{'-' if fraction < 0 else '+'}{percent(abs(fraction))}"


def _untold(check: str) -> Finding:
    return ok(check, "not told here")


def _major(version: str) -> int:
    return int(version.partition(".")[0])
