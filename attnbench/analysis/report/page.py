"""The parts of a report's page beyond its text: environments, and the commands that measure it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnbench.analysis.report.grids import heading
from attnbench.core.formats import digits, megahertz, percent, size
from attnbench.core.record import Run
from attnbench.core.text import one_line
from attnbench.render.document import Pairs, Section
from attnbench.results import metrics
from attnbench.results.cells import Cell
from attnbench.results.metrics import METRICS
from attnbench.results.run_setup import setup_texts


def note_on_figures(cells: Sequence[Cell]) -> str:
    """Return the note on all figures of the page: how FLOPs and bytes are counted, and the base of their shares."""
    # Rate that a cell shows -> the metric whose heading says how it is counted.
    told = {"tflops": "utilization", "gbps": "gbps"}
    usual = {name: [c for c in cells if name in metrics.usual(c.case, c.rates) and c.is_exact] for name in told}
    return ". ".join(heading(METRICS[told[name]], found) for name, found in usual.items() if found)


def environment(runs: Sequence[Run], files: Sequence[Path]) -> Section:
    """Return the section on the device, software and settings of each run. `files` are the run files."""
    each = (_environment(run, file) for run, file in zip(runs, files, strict=True))
    return Section("environment", "Environment", tuple(each))


def _environment(run: Run, file: Path) -> Pairs:
    env, device, policy = run.environment, run.environment.device, run.policy
    rates = [f"{digits(rate / 1e12)} TFLOP/s {dtype}" for dtype, rate in device.matmul.items()]
    seconds = [record.seconds for record in run.records if record.seconds is not None]
    facts: dict[str, str | None] = {
        "Run file": file.name,
        "Started": run.started,
        "Measured for": f"{sum(seconds):.0f} s" if seconds else None,
        "Device": f"{device.name} ({device})",
        "Memory": size(device.memory) if device.memory else None,
        "L2": size(device.l2) if device.l2 else None,
        "Multiprocessors": str(device.multiprocessors) if device.multiprocessors else None,
        "Compute capability": ".".join(map(str, device.capability)) if device.capability else None,
        "Power limit": f"{env.power_limit_w:g} W" if env.power_limit_w else None,
        "Highest SM clock": megahertz(env.clock_max_hz) if env.clock_max_hz else None,
        "Quick matmul readings": ", ".join(rates),
        "Driver": env.driver,
        "CUDA": env.cuda,
        "torch": env.torch,
        "Python": env.python,
        "Platform": env.platform,
        "CPU": env.cpu,
        "Packages": _versions(env.packages),
        "Environment variables": setup_texts(run)["variables"],
        "Backends": _versions(run.versions),
        "attnbench": env.attnbench,
        "git": env.git,
        "Suite": run.suite,
        "Timer, L2": f"{policy.timer}, {policy.l2}",
        "Samples": f"{policy.min_samples} to {policy.max_samples}, until within {percent(policy.target)} or "
        f"{policy.max_seconds:g} s",
        "Peaks given": ", ".join(f"{k or 'any dtype'} {v / 1e12:g} TFLOP/s" for k, v in run.peak.items()),
    }
    return Pairs(tuple((label, value, "") for label, value in facts.items() if value))


def _versions(of: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in of.items())


def reproduce(runs: Sequence[Run], files: Sequence[Path], cells: Sequence[Cell]) -> Section:
    """Return the commands that measure the runs again, and the commands that make this page and one of its figures."""
    lines = []
    for run in runs:
        env = run.environment
        packages = [f"torch=={env.torch.partition('+')[0]}"] if env.torch else []
        packages += [f"{name}=={version}" for name, version in env.packages.items()]
        if packages:
            lines.append(one_line(f"# {run.started[:10]}, {env.device.name}: {', '.join(packages)}"))
        lines.append(shlex.join(["attnbench", *(run.argv or ("run", "--suite", run.suite))]))
    convention = " --flops-convention fa" if cells and cells[0].source.convention == "fa" else ""
    report = f"attnbench report {shlex.join(file.name for file in files)}{convention}"
    lines += ["", "# this page, and one of its figures for a paper", f"{report} --html report.html"]
    lines.append(f"{report} --figure throughput --svg throughput.svg")
    return Section("reproduce", "Reproduce", code="\n".join(lines))
