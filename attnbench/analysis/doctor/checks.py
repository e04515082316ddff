"""The table of the doctor's checks: what makes a machine unfit to measure, or its figures doubtful.

To add a check, add one entry to CHECKS: its name, the fact that it reads, and its rules, of which the first that holds
gives the finding. check_facts.py lists the facts. Texts are templates of str.format over the facts.

A warning is what spoils some figures, or makes them hard to repeat on another machine. Unfit is what makes figures
wrong, or figures of something else than what was to be measured: another process that computes, broken memory, a clock
that heat holds down, noise that hides the differences that one looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, get_args

from attnbench.core.other_work import BUSY, LOADED, OVERLOADED

Level = Literal["ok", "warning", "unfit"]
LEVELS: tuple[Level, ...] = get_args(Level)

SLOW_CLOCK = 0.97  # of the highest; clocks come in steps of 1 %
SAME_CLOCK = 0.015  # of each other; a cold H100 runs at 1995 MHz where NVML says 1980
HOT, TOO_HOT = 15.0, 5.0  # degrees below where the clock is lowered, while the GPU is all but idle
THROTTLED = frozenset({"hardware slowdown", "thermal", "hardware thermal", "power brake"})  # by heat, or by the supply
COARSE, USELESS = 0.03, 0.10  # smallest difference over rounds; kernels worth comparing differ by no more


@dataclass(frozen=True)
class Finding:
    """What a check found: its name, how bad it is, what was found, and what to do about it (nothing where it is ok)."""

    check: str
    level: Level
    found: str
    todo: str = ""


@dataclass(frozen=True)
class Rule:
    """A level of a check: what was found, what to do, and when it holds.

    `when` is asked with the facts as attributes. None in its place: the rule holds where the fact that the check reads
    is None, as this machine does not tell it. No other rule is asked then; a check without such a rule says NOT_TOLD.
    """

    level: Level
    found: str
    todo: str = ""
    when: Callable[[Any], Any] | None = lambda _: True


def judge(facts: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of all checks whose fact is there, in the order of CHECKS."""
    attributes, findings = SimpleNamespace(**facts), []
    for (check, fact), rules in CHECKS.items():
        if fact in facts:
            asked = [rule for rule in rules if (rule.when is None) == (facts[fact] is None)] or [NOT_TOLD]
            rule = next(rule for rule in asked if rule.when is None or rule.when(attributes))
            findings.append(Finding(check, rule.level, rule.found.format(**facts), rule.todo.format(**facts)))
    return findings


ok, warning, unfit = partial(Rule, "ok"), partial(Rule, "warning"), partial(Rule, "unfit")
NOT_TOLD = ok("not told here", when=None)  # for a fact that is None, where the check has no rule for it
CLOCK = "{clock:.0f} of {clock_max:.0f} MHz while next to nothing runs"
GAUGE = "counts {clock_held:.0f} MHz over a second (NVML: {clock_told:.0f})"
HEAT = "{temperature:.0f} C while next to nothing runs, {temperature_margin:.0f} below where the clock is lowered"
LIMITS = "{limits}, while next to nothing runs"
LOAD = "{load:.1f} on {cores} cores over the last minute"
TOO_FEW_CPUS = "{cpu_limit:g} CPUs for {threads} threads, which are stopped again and again"
RESOLUTION = "one reading each tells {one_reading_tells} apart, {rounds} rounds {rounds_tell} ({case})"
UNRESOLVED = "not comparable: " + RESOLUTION
END_OTHERS = "wait for its end, or choose another GPU with --device"
REPLACE = "reset the GPU (nvidia-smi -r); have it replaced if they come back"
COOL = "let it cool down, and look at its cooling"
SETTINGS = "look at cooling, supply and settings: nvidia-smi -q -d PERFORMANCE"
END_LOAD = "wait a minute, or end what runs; top shows it"
FIND_CAUSE = "find what disturbs it, then run doctor again"

# (name of the check, the fact that it reads): its rules
CHECKS: Mapping[tuple[str, str], tuple[Rule, ...]] = {
    ("device", "simulated"): (ok("simulated: only the A/A test applies"),),
    ("software", "software"): (
        warning("the driver is older than torch's CUDA: {software}", "update the driver", lambda f: f.driver_too_old),
        warning("no triton: {software}", "pip install triton, for the kernels that need it", lambda f: f.no_triton),
        ok("{software}"),
    ),
    ("GPU", "gpu_unseen"): (
        warning(
            "an NVIDIA driver is there, but torch {torch} sees no GPU, so this is about the CPU",
            "install a torch with CUDA, or say --device cpu if that is meant",
            when=lambda f: f.gpu_unseen,
        ),
        ok("not measured, so what asks NVML, CUDA's instruments and L2 does not apply"),
    ),
    ("GPU", "broken"): (unfit("{broken}", "look at it with nvidia-smi; reset it, or restart the machine"),),
    ("NVML", "nvml"): (
        warning(
            "does not answer: clocks, power, heat, memory errors and other processes stay unseen",
            "pip install nvidia-ml-py; start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            when=None,
        ),
        ok("answers"),
    ),
    ("persistence", "persistence"): (
        ok("on", when=lambda f: f.persistence),
        warning("off: the driver starts anew for each run", "sudo nvidia-smi -pm 1"),
    ),
    ("SM clock", "clock"): (
        warning(
            CLOCK + "; application clock lowered to {clock_application:.0f} MHz, {clock_default:.0f} by default",
            "figures are of that clock; sudo nvidia-smi -rac resets it",
            when=lambda f: 0 < f.clock_application < f.clock_default,
        ),
        ok(CLOCK, when=lambda f: f.clock >= SLOW_CLOCK * f.clock_max),
        warning(CLOCK + " ({slow_because})", "figures are of that clock; sudo nvidia-smi -rgc, unless it is meant"),
    ),
    ("clock gauge", "gauge_fault"): (
        warning(
            "{gauge_fault}",
            "NVML's clock counts, which lags, and every burst is followed by a pause; torch 2.9 can compile the gauge",
            when=lambda f: f.gauge_fault,
        ),
        ok("counts {clock_held:.0f} MHz over a second", when=lambda f: not f.clock_told),
        ok(GAUGE, when=lambda f: abs(f.clock_held / f.clock_told - 1) <= SAME_CLOCK),
        warning(GAUGE, "one of the two is wrong: do not trust -m clock_held, cycles, and what marks cells ~"),
    ),
    ("power limit", "power_limit"): (
        ok("{power_limit:.0f} W", when=lambda f: f.power_default is None),
        ok(
            "{power_limit:.0f} W, raised from {power_default:.0f}",
            when=lambda f: f.power_limit > 1.01 * f.power_default,
        ),
        ok("{power_limit:.0f} W, the default", when=lambda f: f.power_limit >= 0.99 * f.power_default),
        warning(
            "{power_limit:.0f} W, lowered from {power_default:.0f}: heavy cells are slower than on others of its kind",
            "sudo nvidia-smi -pl {power_default:.0f}, if it may draw that much",
        ),
    ),
    ("other processes", "others"): (
        unfit("one computes, the GPU {busy:.0%} busy with it: {who}", END_OTHERS, lambda f: (f.busy or 0) > BUSY),
        ok("none", when=lambda f: not f.others),
        warning("{others}; whether they compute is not told, but holding memory", END_OTHERS, lambda f: f.busy is None),
        warning("{others}; computing nothing now, but holding memory", END_OTHERS),
    ),
    ("MIG", "mig"): (
        ok("not on this GPU", when=None),
        ok("off", when=lambda f: not f.mig),
        warning(
            "on: figures are of a slice, and other slices share its power and clock",
            "compare with the same slice only, or have an administrator turn it off",
        ),
    ),
    ("memory errors", "ecc"): (
        ok("not counted: no ECC on this GPU", when=None),
        unfit("{ecc_errors} uncorrected since the driver was loaded", REPLACE, lambda f: f.ecc_errors),
        unfit("a memory row could not be remapped", "have the GPU replaced", lambda f: f.rows.get("failed")),
        warning("a memory row waits to be remapped", "reset the GPU: nvidia-smi -r", lambda f: f.rows.get("pending")),
        warning("ECC is off, so none is seen", "sudo nvidia-smi -e 1, then restart the machine", lambda f: not f.ecc),
        ok("none uncorrected, ECC on{earlier_errors}", when=lambda f: f.ecc_pending is not False),
        warning("ECC is on, but off after the next restart", "sudo nvidia-smi -e 1"),
    ),
    ("temperature", "temperature"): (
        ok("{temperature:.0f} C", when=lambda f: f.temperature_margin is None),
        unfit(HEAT, COOL, when=lambda f: f.temperature_margin < TOO_HOT),
        warning(HEAT, COOL, when=lambda f: f.temperature_margin < HOT),
        ok("{temperature:.0f} C, {temperature_margin:.0f} below where the clock is lowered"),
    ),
    ("throttling", "reasons"): (
        ok("none", when=lambda f: not f.reasons),
        unfit(LIMITS, SETTINGS, when=lambda f: THROTTLED & set(f.reasons)),
        warning(LIMITS, SETTINGS),
    ),
    ("instruments", "trivial_kernel"): (ok("a trivial kernel takes {trivial_kernel}"),),
    ("instruments", "events_error"): (
        unfit("events does not work: {events_error}", "nothing can be timed; look at the GPU with nvidia-smi"),
    ),
    ("instruments", "cupti_error"): (
        warning(
            "cupti does not work: {cupti_error}",
            "what ran cannot be proved; end other profilers (nsys, ncu, DCGM), and see that torch finds libcupti",
        ),
    ),
    ("instruments", "graph_error"): (
        warning("graph does not work: {graph_error}", "--timer graph is refused, and cross-checks do without it"),
    ),
    ("L2", "l2_wrong"): (
        ok("cold when it is to be, and warm when it is to be", when=lambda f: not f.l2_wrong),
        warning("{l2_wrong}", "cells will say unproven; see that nothing else runs on the GPU"),
    ),
    ("load", "load"): (
        ok("not told here", when=None),
        unfit(LOAD, END_LOAD, when=lambda f: f.on_cpu and f.load_share > OVERLOADED),
        warning(LOAD, END_LOAD, when=lambda f: f.load_share > (LOADED if f.on_cpu else OVERLOADED)),
        ok(LOAD),
    ),
    ("CPU governor", "governor"): (
        ok("not told here, as in most virtual machines", when=None),
        ok("{governor}", when=lambda f: not f.on_cpu or f.governor == "performance"),
        warning("{governor}", "sudo cpupower frequency-set -g performance"),
    ),
    ("container limit", "cpu_limit"): (
        ok("none", when=None),
        ok("{cpu_limit:g} CPUs", when=lambda f: f.cpu_limit >= f.threads),
        warning(TOO_FEW_CPUS, "set OMP_NUM_THREADS={whole_cpus}, or raise it", when=lambda f: f.on_cpu),
        warning(TOO_FEW_CPUS, "raise it to 2 CPUs or more"),
    ),
    # What the A/A test shows of the machine.
    ("A/A test", "failure"): (
        unfit("{backend} against itself: {failure}", "attnbench run -b {backend} says more; mend that first"),
    ),
    ("other processes", "others_in_test"): (unfit("computed during the A/A test: {others_in_test}", END_OTHERS),),
    ("memory errors", "errors_in_test"): (unfit("{errors_in_test} uncorrected during the A/A test", REPLACE),),
    ("throttling", "throttled"): (warning("{throttled} during the A/A test", "look at cooling and supply"),),
    ("host", "host_bound"): (warning("the GPU waited for it during the A/A test", "end what else the host does"),),
    ("A/A test", "differing"): (
        ok("{backend} against itself: no difference of {visible} or more", when=lambda f: not f.differing),
        warning(
            "{backend} against itself: two processes differ in {differing}",
            "trust no such difference from one round; measure with --rounds {rounds}",
        ),
    ),
    ("resolution", "turns_needed"): (
        warning(
            "not known: {turns} turns in {duration} where {turns_needed} are needed",
            "run it without --quick, on an idle machine",
        ),
    ),
    ("resolution", "by_rounds"): (
        ok("readings repeat exactly, so that any difference shows", when=lambda f: f.by_one_reading == 0),
        ok(RESOLUTION, when=lambda f: f.by_rounds <= COARSE),
        warning(RESOLUTION, FIND_CAUSE, when=lambda f: f.by_rounds <= USELESS),
        unfit(UNRESOLVED, FIND_CAUSE),
    ),
}
