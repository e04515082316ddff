"""The facts that the checks read, by name: of the machine, and of an A/A test on it.

A fact that this kind of machine does not have is left out; one that cannot be read is None. Clocks are in MHz, power in
W, temperatures in degrees C, shares between 0 and 1. A fact that is not derived here is as worker/machine_facts.py or
run/host_facts.py read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnbench.analysis.doctor.checks import THROTTLED
from attnbench.analysis.doctor.resolution import ROUNDS, Resolution, resolutions, worst
from attnbench.core.formats import percent, times
from attnbench.core.machine import Environment
from attnbench.core.sizes import format_duration
from attnbench.run.aa_test import MIN_TURNS, AATest, case_label

NEGLIGIBLE = 0.002  # a difference between two processes that no comparison minds
MOST_TIMES = 100  # a larger factor is noise and not read as a figure


def facts_of_machine(environment: Environment, read: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a machine.

    read: "asked" (the device asked for), "host", and on a GPU either "nvml" (None where it does not answer) and
    "instruments", or "broken" (why the GPU could not be examined).
    """
    device, host = environment.device, read["host"]
    if device.kind == "fake":
        return {"simulated": True}
    on_cpu, cores, nvml = device.kind == "cpu", host["cores"] or 1, read.get("nvml")
    facts = {**host, "on_cpu": on_cpu, "cores": cores, "load_share": (host["load"] or 0.0) / cores}
    facts |= {"governor": ", ".join(host["governors"]) or None, "threads": device.threads or 2}
    facts |= {"whole_cpus": max(1, int(host["cpu_limit"] or 0)), **_software(environment, nvml and nvml["cuda"])}
    if on_cpu:  # gpu_unseen: torch cannot use a GPU that is there
        return {**facts, "gpu_unseen": read["asked"] == "auto" and host["nvidia_driver"]}
    if "broken" in read:
        return {**facts, "broken": read["broken"]}
    return {**facts, "nvml": nvml, **(_gpu(nvml) if nvml else {}), **_instruments(read["instruments"])}


def _software(environment: Environment, driver_cuda: str | None) -> dict[str, Any]:
    """Return the versions as a text; `driver_cuda` is the newest CUDA that the driver supports."""
    on_gpu, torch_cuda = environment.device.kind == "cuda", environment.cuda
    parts = [
        f"driver {environment.driver}{f' (CUDA {driver_cuda})' if driver_cuda else ''}" if on_gpu else "",
        f"torch {environment.torch}{f' (CUDA {torch_cuda})' if on_gpu else ''}",
        *(f"{name} {version}" for name, version in environment.packages.items()),
        f"Python {environment.python}",
    ]
    majors = [int(version.partition(".")[0]) for version in (driver_cuda, torch_cuda) if version]
    return {
        "software": ", ".join(filter(None, parts)),
        "torch": environment.torch,
        "driver_too_old": len(majors) == 2 and majors[0] < majors[1],
        "no_triton": on_gpu and "triton" not in environment.packages,
    }


def _gpu(nvml: Mapping[str, Any]) -> dict[str, Any]:
    """Return NVML's facts. `others`: the other processes on the GPU; `busy`: its use by them; `who` computes."""
    names = ("clock", "clock_held", "clock_told", "clock_max", "clock_application", "clock_default")
    clocks = {name: (nvml[name] or 0) / 1e6 for name in names}
    limits, rows, errors_ever = ", ".join(nvml["reasons"] or ()), nvml["rows"] or {}, nvml["ecc_errors_ever"]
    remapped = rows.get("corrected", 0) + rows.get("uncorrected", 0)
    seen = nvml["processes"]
    busy, others, unnamed = seen["busy"], ", ".join(seen["others"]), (seen["count"] or 0) - 1
    if not seen["named"] and unnamed > 0:
        others = f"{unnamed} that cannot be named here (a container)"
    return {
        **nvml,
        **clocks,
        "clock": (clocks["clock_max"] and (clocks["clock_held"] or clocks["clock"])) or None,
        "limits": limits,
        "slow_because": limits or "locked, as it seems",
        "rows": rows,
        "earlier_errors": (f", {errors_ever} uncorrected in its life" if errors_ever else "")
        + (f", {remapped} rows remapped" if remapped else ""),
        "others": others if others or busy is not None or seen["named"] else None,
        "busy": busy,
        "who": ", ".join(seen["computing"]) or others or "not in NVML's list",
    }


def _instruments(instruments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the instruments read of a trivial kernel, their errors, and where L2 was not as it was to be."""
    works = {name: found for name, found in instruments.items() if "error" not in found}
    facts = {f"{name}_error": found["error"] for name, found in instruments.items() if "error" in found}
    if works:
        readings = (f"{found['seconds'] * 1e6:.1f} us by {name}" for name, found in works.items())
        facts["trivial_kernel"] = ", ".join(readings)
    l2 = [(name, to_be, found.get(f"l2_{to_be}")) for name, found in works.items() for to_be in ("cold", "warm")]
    if any(state for *_, state in l2):
        wrong = (f"{state} instead of {to_be} by {name}" for name, to_be, state in l2 if state not in (None, to_be))
        facts["l2_wrong"] = ", ".join(wrong)
    return facts


def facts_of_aa_test(test: AATest) -> dict[str, Any]:
    """Return the facts of an A/A test: what happened meanwhile, how its processes differ, and what it can resolve."""
    facts: dict[str, Any] = {"backend": test.backend, "rounds": ROUNDS}
    if test.failed:
        failure = f"{case_label(test.failed.case)} ended as {test.failed.status}: {test.failed.reason}"
        return {**facts, "failure": failure}
    throttled = ", ".join(limit for limit in test.limits if limit in THROTTLED)
    meanwhile = {"others_in_test": ", ".join(test.others), "errors_in_test": test.ecc_errors, "throttled": throttled}
    facts |= {name: fact for name, fact in {**meanwhile, "host_bound": test.host_bound}.items() if fact}
    found = worst(test)
    if found is None:
        turns = min(len(c.a) for c in test.cases)
        return {**facts, "turns": turns, "duration": format_duration(test.seconds), "turns_needed": MIN_TURNS}
    case, r = found
    differing = (
        f"{case_label(one)} by {interval_in_words(found)}"
        for one, found in resolutions(test)
        if found.differs and abs(found.difference) >= NEGLIGIBLE
    )
    visible = max(NEGLIGIBLE, *((found.high - found.low) / 2 for _, found in resolutions(test)))
    facts |= {"differing": ", ".join(differing), "visible": percent(visible), "case": case_label(case)}
    facts |= {"by_one_reading": r.by_one_reading, "by_rounds": r.by_rounds}
    tell = {"one_reading_tells": difference_in_words(r.by_one_reading), "rounds_tell": difference_in_words(r.by_rounds)}
    return {**facts, **tell}


def difference_in_words(fraction: float) -> str:
    """Return a relative difference as per cent, from twice as much on as a factor: 3%, 2.5x, over 100x.

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
