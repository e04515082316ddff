"""The doctor's checks: the faults that make a machine unfit to measure, or its figures doubtful.

A warning is a fault that spoils some figures, or makes them hard to repeat on another machine. Unfit is a fault that
makes figures wrong or meaningless: another process that computes, broken memory, a clock that heat holds down, noise
that hides the differences of interest.

Facts are as worker/machine_facts.py and run/host_facts.py read them; a fact that a machine does not tell is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from attnbench.analysis.doctor.resolution import ROUNDS, Resolution, resolutions, worst
from attnbench.core.formats import percent, times
from attnbench.core.machine import Device, Environment
from attnbench.core.other_work import BUSY, LOADED, OVERLOADED
from attnbench.core.sizes import format_duration
from attnbench.run.aa_test import MIN_TURNS, AATest, case_label

Level = Literal["ok", "warning", "unfit"]
LEVELS: tuple[Level, ...] = get_args(Level)

SLOW_CLOCK = 0.97  # of the highest; clocks come in steps of 1 %
SAME_CLOCK = 0.015  # relative difference of two clocks; a cold H100 runs at 1995 MHz where NVML says 1980
HOT, TOO_HOT = 15.0, 5.0  # degrees below the temperature that lowers the clock, while the GPU is nearly idle
THROTTLED = frozenset({"hardware slowdown", "thermal", "hardware thermal", "power brake"})  # by heat, or by the supply
COARSE, USELESS = 0.03, 0.10  # smallest difference over rounds; kernels worth comparing may differ by as little
NEGLIGIBLE = 0.002  # difference between two processes that matters to no comparison
MOST_TIMES = 100  # a larger factor is noise and not read as a figure

NOT_TOLD = "not told here"
IDLE = "while the GPU is nearly idle"
END_OTHERS = "wait for its end, or choose another GPU with --device"
RESET = "reset the GPU (nvidia-smi -r); have it replaced if they come back"


@dataclass(frozen=True)
class Finding:
    """The result of a check: its name, its level, what was found, and what to do about it (nothing where it is ok)."""

    check: str
    level: Level
    found: str
    todo: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, todo: str) -> Finding:
    """Return a finding that spoils some figures."""
    return Finding(check, "warning", found, todo)


def unfit(check: str, found: str, todo: str) -> Finding:
    """Return a finding that spoils all figures."""
    return Finding(check, "unfit", found, todo)


def findings_of_machine(environment: Environment, read: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings of the checks on a machine.

    read: "asked" (the device asked for), "host", "fences" (run/fences.py), and on a GPU either "nvml" (None where it
    does not answer) and "instruments", or "broken" (why the GPU could not be examined).
    """
    device, host, nvml = environment.device, read["host"], read.get("nvml")
    if device.kind == "fake":
        yield ok("device", "simulated: only the A/A test applies")
        return
    yield _software(environment, nvml and nvml["cuda"])
    if device.kind == "cpu":
        yield _no_gpu(environment, unseen=read["asked"] == "auto" and host["nvidia_driver"])
    elif "broken" in read:
        yield unfit("GPU", read["broken"], "look at it with nvidia-smi; reset it, or restart the machine")
    else:
        if nvml is None:
            yield warning(
                "NVML",
                "does not answer, so clocks, power, heat, memory errors and other processes are not known",
                "pip install nvidia-ml-py; start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            )
        else:
            yield ok("NVML", "answers")
            yield from _clocks(nvml)
            yield _power(nvml["power_limit"], nvml["power_default"])
            yield _others(nvml["processes"])
            yield from _memory(nvml)
            yield from _heat(nvml)
        yield from _instruments(read["instruments"])
    yield from _host(host, device)
    if "fences" in read:
        yield _fences(read["fences"])


def _software(environment: Environment, driver_cuda: str | None) -> Finding:
    """Return the finding on versions; `driver_cuda` is the newest CUDA that the driver supports."""
    on_gpu, torch_cuda = environment.device.kind == "cuda", environment.cuda
    parts = [
        f"driver {environment.driver}{f' (CUDA {driver_cuda})' if driver_cuda else ''}" if on_gpu else "",
        f"torch {environment.torch}{f' (CUDA {torch_cuda})' if on_gpu else ''}",
        *(f"{name} {version}" for name, version in environment.packages.items()),
        f"Python {environment.python}",
    ]
    software = ", ".join(filter(None, parts))
    majors = [int(version.partition(".")[0]) for version in (driver_cuda, torch_cuda) if version]
    if len(majors) == 2 and majors[0] < majors[1]:
        return warning("software", f"the driver is older than torch's CUDA: {software}", "update the driver")
    if on_gpu and "triton" not in environment.packages:
        return warning("software", f"no triton: {software}", "pip install triton, for the kernels that need it")
    return ok("software", software)


def _no_gpu(environment: Environment, *, unseen: bool) -> Finding:
    """Return the finding on the GPU where the CPU is measured; `unseen`: torch cannot use a GPU that is there."""
    if unseen:
        return warning(
            "GPU",
            f"an NVIDIA driver is there, but torch {environment.torch} sees no GPU, so this is about the CPU",
            "install a torch with CUDA, or give --device cpu if the CPU is meant",
        )
    return ok("GPU", "not measured, so the checks of NVML, CUDA's instruments and L2 do not apply")


def _clocks(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    on = nvml["persistence"]
    if on is None or on:
        yield ok("persistence", NOT_TOLD if on is None else "on")
    else:
        yield warning("persistence", "off: the driver starts anew for each run", "sudo nvidia-smi -pm 1")
    names = ("clock", "clock_held", "clock_told", "clock_max", "clock_application", "clock_default")
    read, held, told, most, application, default = ((nvml[name] or 0) / 1e6 for name in names)  # MHz
    clock = held or read
    said = f"{clock:.0f} of {most:.0f} MHz {IDLE}"
    if not most or not clock:
        yield ok("SM clock", NOT_TOLD)
    elif 0 < application < default:
        said += f"; application clock lowered to {application:.0f} MHz, {default:.0f} by default"
        yield warning("SM clock", said, "figures are measured at that clock; sudo nvidia-smi -rac resets it")
    elif clock >= SLOW_CLOCK * most:
        yield ok("SM clock", said)
    else:
        said += f" ({', '.join(nvml['reasons'] or ()) or 'locked, as it seems'})"
        yield warning(
            "SM clock", said, "figures are measured at that clock; unless it is meant, sudo nvidia-smi -rgc resets it"
        )
    gauge = f"counts {held:.0f} MHz over a second"
    if nvml["gauge_fault"]:
        todo = (
            "NVML's clock is used, which lags, so every burst is followed by a pause; torch 2.9 can compile the gauge"
        )
        yield warning("clock gauge", nvml["gauge_fault"], todo)
    elif not told or abs(held / told - 1) <= SAME_CLOCK:
        yield ok("clock gauge", f"{gauge} (NVML: {told:.0f})" if told else gauge)
    else:
        todo = "one of the two is wrong: do not trust -m clock_held, cycles, and the mark ~ on cells"
        yield warning("clock gauge", f"{gauge} (NVML: {told:.0f})", todo)


def _power(limit: float | None, default: float | None) -> Finding:
    if limit is None:
        return ok("power limit", NOT_TOLD)
    if default is None or limit >= 0.99 * default:
        more = "" if default is None else f", raised from {default:.0f}" if limit > 1.01 * default else ", the default"
        return ok("power limit", f"{limit:.0f} W{more}")
    said = f"{limit:.0f} W, lowered from {default:.0f}: heavy cells are slower than on other GPUs of this model"
    return warning("power limit", said, f"unless it was lowered on purpose: sudo nvidia-smi -pl {default:.0f}")


def _others(seen: Mapping[str, Any]) -> Finding:
    busy, others, unnamed = seen["busy"], ", ".join(seen["others"]), (seen["count"] or 0) - 1
    if not seen["named"] and unnamed > 0:
        others = f"{unnamed} that cannot be named here (a container)"
    if (busy or 0) > BUSY:
        who = ", ".join(seen["computing"]) or others or "not in NVML's list"
        return unfit(
            "other processes", f"another process computes, and keeps the GPU {busy:.0%} busy: {who}", END_OTHERS
        )
    if not others:
        return ok("other processes", "none" if busy is not None or seen["named"] else NOT_TOLD)
    computing = "whether they compute is not known" if busy is None else "computing nothing now"
    return warning("other processes", f"{others}; {computing}, but holding memory", END_OTHERS)


def _memory(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    if nvml["mig"]:
        said = "on: figures are of a slice, and other slices share its power and clock"
        yield warning("MIG", said, "compare with the same slice only, or have an administrator turn it off")
    else:
        yield ok("MIG", "not on this GPU" if nvml["mig"] is None else "off")
    check, rows, ever = "memory errors", nvml["rows"] or {}, nvml["ecc_errors_ever"]
    if nvml["ecc"] is None:
        yield ok(check, "not counted: no ECC on this GPU")
    elif nvml["ecc_errors"]:
        yield unfit(check, f"{nvml['ecc_errors']} uncorrected since the driver was loaded", RESET)
    elif rows.get("failed"):
        yield unfit(check, "a memory row could not be remapped", "have the GPU replaced")
    elif rows.get("pending"):
        yield warning(check, "a memory row waits to be remapped", "reset the GPU: nvidia-smi -r")
    elif not nvml["ecc"]:
        yield warning(
            check, "ECC is off, so memory errors are not seen", "sudo nvidia-smi -e 1, then restart the machine"
        )
    elif nvml["ecc_pending"] is False:
        yield warning(check, "ECC is on, but off after the next restart", "sudo nvidia-smi -e 1")
    else:
        remapped = rows.get("corrected", 0) + rows.get("uncorrected", 0)
        earlier = f", {ever} uncorrected in its life" if ever else ""
        yield ok(check, f"none uncorrected, ECC on{earlier}{f', {remapped} rows remapped' if remapped else ''}")


def _heat(nvml: Mapping[str, Any]) -> Iterator[Finding]:
    temperature, margin = nvml["temperature"], nvml["temperature_margin"]
    if temperature is None or margin is None:
        yield ok("temperature", NOT_TOLD if temperature is None else f"{temperature:.0f} C")
    elif margin >= HOT:
        yield ok("temperature", f"{temperature:.0f} C, {margin:.0f} below where the clock is lowered")
    else:
        said = f"{temperature:.0f} C {IDLE}, {margin:.0f} below where the clock is lowered"
        level: Level = "unfit" if margin < TOO_HOT else "warning"
        yield Finding("temperature", level, said, "let it cool down, and look at its cooling")
    if reasons := nvml["reasons"]:
        level = "unfit" if THROTTLED & {*reasons} else "warning"
        todo = "look at cooling, supply and settings: nvidia-smi -q -d PERFORMANCE"
        yield Finding("throttling", level, f"{', '.join(reasons)}, {IDLE}", todo)
    else:
        yield ok("throttling", NOT_TOLD if reasons is None else "none")


def _instruments(instruments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the readings of the instruments on a trivial kernel, their errors, and any wrong state of L2."""
    works = {name: found for name, found in instruments.items() if "error" not in found}
    if works:
        readings = (f"{found['seconds'] * 1e6:.1f} us by {name}" for name, found in works.items())
        yield ok("instruments", f"a trivial kernel takes {', '.join(readings)}")
    for name, make, todo in (
        ("events", unfit, "nothing can be timed; look at the GPU with nvidia-smi"),
        (
            "cupti",
            warning,
            "kernels that ran are not known; end other profilers (nsys, ncu, DCGM), and see that torch finds libcupti",
        ),
        ("graph", warning, "--timer graph is refused, and cross-checks do without it"),
    ):
        if name not in works:
            yield make("instruments", f"{name} does not work: {instruments[name]['error']}", todo)
    l2 = [(name, to_be, found.get(f"l2_{to_be}")) for name, found in works.items() for to_be in ("cold", "warm")]
    if wrong := [f"{is_} instead of {to_be} by {name}" for name, to_be, is_ in l2 if is_ not in (None, to_be)]:
        yield warning("L2", ", ".join(wrong), "cells will say unproven; see that nothing else runs on the GPU")
    elif any(state for *_, state in l2):
        yield ok("L2", "cold or warm, as the timers need it")


def _host(host: Mapping[str, Any], device: Device) -> Iterator[Finding]:
    on_cpu, cores, load, limit = device.kind == "cpu", host["cores"] or 1, host["load"], host["cpu_limit"]
    share = (load or 0.0) / cores
    said = NOT_TOLD if load is None else f"{load:.1f} on {cores} cores over the last minute"
    if share > (LOADED if on_cpu else OVERLOADED):
        level: Level = "unfit" if on_cpu and share > OVERLOADED else "warning"
        yield Finding("load", level, said, "wait a minute, or end the processes that top shows")
    else:
        yield ok("load", said)
    governor = ", ".join(host["governors"])
    if on_cpu and governor not in ("", "performance"):
        yield warning("CPU governor", governor, "sudo cpupower frequency-set -g performance")
    else:
        yield ok("CPU governor", governor or "not known here, as in most virtual machines")
    threads = device.threads or 2
    if limit is None or limit >= threads:
        yield ok("container limit", "none" if limit is None else f"{limit:g} CPUs")
    else:
        said = f"{limit:g} CPUs for {threads} threads, which are stopped again and again"
        fewer = f"set OMP_NUM_THREADS={max(1, int(limit))}, or raise the limit of CPUs"
        yield warning("container limit", said, fewer if on_cpu else "raise the limit to 2 CPUs or more")


def _fences(held: Mapping[str, str]) -> Finding:
    """Return which fences hold around a kernel that is not trusted; they do not matter to other measurements."""
    names: dict[str, list[str]] = {}  # by reason
    for name, reason in held.items():
        names.setdefault(reason, []).append(name)
    good = ", ".join(names.pop("", ["none"]))
    bad = "; ".join(f"{', '.join(of_one)} ({reason})" for reason, of_one in names.items())
    said = f"for --untrusted hold: {good}{f'; do not hold: {bad}' if bad else ''}"
    return ok("fences", said if held else "for --untrusted: they cannot be tried here")


def findings_of_aa_test(test: AATest) -> Iterator[Finding]:
    """Yield the findings of an A/A test: disturbances during it, how its processes differ, and the resolution."""
    name, against = "A/A test", f"{test.backend} against itself"
    if test.failed:
        said = f"{against}: {case_label(test.failed.case)} ended as {test.failed.status}: {test.failed.reason}"
        yield unfit(name, said, f"attnbench run -b {test.backend} says more; mend this first")
        return
    if test.others:
        yield unfit("other processes", f"computed during the A/A test: {', '.join(test.others)}", END_OTHERS)
    if test.ecc_errors:
        yield unfit("memory errors", f"{test.ecc_errors} uncorrected during the A/A test", RESET)
    if throttled := [limit for limit in test.limits if limit in THROTTLED]:
        yield warning("throttling", f"{', '.join(throttled)} during the A/A test", "look at cooling and supply")
    if test.host_bound:
        yield warning("host", "the GPU waited for it during the A/A test", "end other work on the host")
    found = worst(test)
    if found is None:
        turns = f"{min(len(c.a) for c in test.cases)} turns in {format_duration(test.seconds)}"
        todo = "run it without --quick, on an idle machine"
        yield warning("resolution", f"not known: {turns} where {MIN_TURNS} are needed", todo)
        return
    every = resolutions(test)
    if apart := [(case, r) for case, r in every if r.differs and abs(r.difference) >= NEGLIGIBLE]:
        differing = ", ".join(f"{case_label(case)} by {interval_in_words(r)}" for case, r in apart)
        todo = f"trust no such difference from one round; measure with --rounds {ROUNDS}"
        yield warning(name, f"{against}: two processes differ in {differing}", todo)
    else:
        visible = max(NEGLIGIBLE, *((r.high - r.low) / 2 for _, r in every))
        yield ok(name, f"{against}: no difference of {percent(visible)} or more")
    case, r = found
    one, rounds = difference_in_words(r.by_one_reading), difference_in_words(r.by_rounds)
    said = f"one reading each tells {one} apart, {ROUNDS} rounds {rounds} ({case_label(case)})"
    if r.by_one_reading == 0:
        yield ok("resolution", "readings repeat exactly, so that any difference shows")
    elif r.by_rounds <= COARSE:
        yield ok("resolution", said)
    else:
        todo = "find what disturbs it, then run doctor again"
        useless = r.by_rounds > USELESS
        yield unfit("resolution", f"not comparable: {said}", todo) if useless else warning("resolution", said, todo)


def difference_in_words(fraction: float) -> str:
    """Return a relative difference as per cent, from a factor of 2 on as a factor: 3%, 2.5x, over 100x.

    It is the exponential of a standard deviation of logarithms, so on a machine that disturbs every reading (one turn
    ten times as long as another) it has no end.
    """
    if fraction < 1:
        return percent(fraction)
    return times(1 + fraction) if fraction < MOST_TIMES - 1 else f"over {MOST_TIMES}x"


def interval_in_words(resolution: Resolution) -> str:
    """Return the difference of the two processes with its interval: "+1% (+0.8% to +1.2%)"."""
    values = (resolution.difference, resolution.low, resolution.high)
    signs = ("-" if value < 0 else "" if value >= 1 else "+" for value in values)
    difference, low, high = (f"{sign}{difference_in_words(abs(v))}" for sign, v in zip(signs, values, strict=True))
    return f"{difference} ({low} to {high})"
