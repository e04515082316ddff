"""The time of a model's step beside attention: products with weights, and what several devices send each other.

**Products** take the longer of two times: their FLOPs at a share of the datasheet's peak, and reading the weights once
at a share of the datasheet's bandwidth (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009). Both
shares are measured, by the steps of whole models (`attnbench step`) among the run files; docs/dev/compare.md has the
formulas. The fastest implementation of a step counts, the median over files. The share of a machine comes from the
first available of these: the model's own step on it; for a model with experts, its own steps on other machines; steps
of dense models on it; dense steps on other machines; without any step, the matmul and the copy at the start of each
run, whose speed products do not exceed.

**Experts**: the FLOPs are of the experts that tokens take. The bytes are of the expected number of different experts
(`Step.experts_of`), in the bits in which they are published.

**Several devices** make two all-reduces a layer. Each sends 2 (tp - 1) / tp of the activations, as a ring does, at the
rate of a measured large all-to-all, else at the rate of NVLink by the datasheet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from attnbench.analysis.compare.machines import Machine, short_name
from attnbench.analysis.step.findings import timed_steps
from attnbench.core import gpus, stats
from attnbench.core.flops import products, weight_bytes
from attnbench.core.formats import digits, share
from attnbench.core.groups import grouped
from attnbench.core.models import Model, Phase
from attnbench.core.record import Run
from attnbench.core.step import Step
from attnbench.core.text import listed
from attnbench.results.cells import cells
from attnbench.results.rows import Rates
from attnbench.run.step_axes import heads

OF = {"prefill": "the peak", "decode": "the bandwidth"}  # phase -> the datasheet's rate of its share


@dataclass(frozen=True)
class StepShare:
    """The share of the datasheet's rate that the products of a measured step reach."""

    device: str  # name in the run
    label: str  # short name
    model: str
    phase: Phase  # the share is of FLOP/s in "prefill", of bytes/s in "decode"
    experts: bool  # whether some of its layers have experts
    share: float
    most: float  # the share that the matmul, or the copy, reached in the same run


@dataclass(frozen=True)
class Rate:
    """A speed of a machine: FLOP/s or bytes/s."""

    value: float
    said: str  # its origin: "the measured step of llama-3.1-8b on it (53% of the peak)"
    doubts: Mapping[object, float]  # source of doubt -> half the 95 % interval, relative; machines share sources
    at_most: bool = False  # whether it is an upper limit instead of a measured rate


def step_shares(runs: Sequence[Run]) -> list[StepShare]:
    """Return the shares from all measured steps in bf16 but training, one for each device, model, phase and kind."""
    found = defaultdict[tuple[Any, ...], list[tuple[float, float]]](list)
    for run in runs:
        steps = timed_steps(cells([run])) if any(record.case.model_step for record in run.records) else {}
        for (_, case), own in steps.items():
            step, device, rates = case.model_step, run.environment.device, own[0].cell.rates
            rest = next((one.latency - one.attention - one.idle for one in own if one.attention is not None), 0.0)
            if not step or step.phase == "train" or case.dtype != "bf16" or rest <= 0:
                continue
            of_prefill = products(case), rates.peak, device.matmul.get("bf16")
            of_decode = weight_bytes(case), rates.bandwidth, device.copy
            work, peak, most = of_prefill if step.phase == "prefill" else of_decode
            if peak:
                of = device.name, short_name(run), step.model, step.phase, step.layers > step.dense and step.experts > 0
                reached = work / rest / peak
                found[of].append((reached, max(reached, (most or peak) / peak)))
    return [StepShare(*of, *map(stats.median, map(list, zip(*each, strict=True)))) for of, each in found.items()]


def rate(machine: Machine, step: Step, phase: Phase, shares: Sequence[StepShare]) -> Rate | None:
    """Return the speed of a machine in a model's products in a phase; None if none of its rates is known."""
    device = machine.environment.device
    rates = next((cell.rates for cell in machine.cells.values() if cell.case.dtype == "bf16"), Rates())
    of_prefill, of_decode = (rates.peak, device.matmul.get("bf16"), "matmul"), (rates.bandwidth, device.copy, "copy")
    peak, limit, what = of_prefill if phase == "prefill" else of_decode
    of_phase = [one for one in shares if one.phase == phase]
    dense = [one for one in of_phase if not one.experts]
    own = [one for one in of_phase if one.model == step.model and one.experts == bool(step.experts)]
    own_here, here = ([one for one in of if one.device == device.name] for of in (own, dense))
    used = own_here or (own if step.experts else []) or here or dense
    if not peak or not used:
        said = f"its roofline (at most, as a {what} before the run)"
        return Rate(limit, said, {}, at_most=True) if limit else None
    value, devices = stats.geomean([one.share for one in used]), {one.device for one in used}
    where = "on it" if device.name in devices else f"on {listed(dict.fromkeys(one.label for one in used))}"
    steps = f"measured {'step' if len(used) == 1 else 'steps'} of {listed(dict.fromkeys(one.model for one in used))}"
    reached = f"{share(value)} of {OF[phase]}"
    said = f"its roofline ({reached}, as in the {steps} {where})"
    said = f"the {steps} {where} ({reached})" if used is own_here else said
    alike = _doubt([one for one in of_phase if one.experts == used[0].experts])
    doubts: dict[object, float] = {(phase, *sorted({(one.device, one.model) for one in used})): alike}
    if device.name not in devices:
        each = grouped(shares, lambda one: (one.model, one.phase, one.experts)).values()
        across = max((_doubt(own) for own in each if len(own) > 1), default=alike)
        doubts[phase, "on another machine", device.name] = across
    return Rate(value * peak, said, doubts)


def _doubt(shares: Sequence[StepShare]) -> float:
    """Return half the interval of a share: the largest difference between the logarithms of the shares.

    Of a single share, its difference from the share that the matmul or the copy reached.
    """
    if len(shares) == 1:
        return math.log(shares[0].most / shares[0].share)
    return max(abs(math.log(one.share / other.share)) for one, other in combinations(shares, 2))


def weights(model: Model, step: Step, tokens: int | None = None) -> float:
    """Return the bytes of a model's weights as published: all, or those that a step of `tokens` tokens reads."""
    experts = step.experts if tokens is None else step.experts_of(tokens)
    others, of_all = (step.weights(heads(model), experts=of) for of in (0, experts))
    outside = step.outside if tokens is None else step.hidden * step.vocab
    return (others * model.bits + (of_all - others) * model.expert_bits + outside * 16) / 8


def bus(machine: Machine, tp: int) -> Rate | None:
    """Return the bytes/s that each of `tp` devices sends to others: as measured, else by the datasheet of NVLink.

    None if not known. Of measured rates, the median over the records of the nearest number of devices.
    """
    found = defaultdict[int, list[float]](list)
    for record in (record for file in machine.files for record in file.run.records):
        if measured := record.measurements.get("ceiling_bus"):
            found[record.case.ranks].append(stats.median(measured.values))
    if found:
        ranks = min(found, key=lambda ranks: abs(math.log(ranks / tp)))
        value = stats.median(found[ranks])
        return Rate(value, f"at {digits(value / 1e9)} GB/s, as in a large all-to-all of {ranks} devices", {})
    device = machine.environment.device
    gpu = gpus.find(device.name, device.memory, device.multiprocessors)
    if not gpu or not gpu.nvlink:
        return None
    return Rate(gpu.nvlink, f"at NVLink's {digits(gpu.nvlink / 1e9)} GB/s by the datasheet", {}, at_most=True)


def sent(step: Step, tp: int, tokens: int) -> float:
    """Return the bytes that each of `tp` devices sends in a step of a model: in bf16, by a ring."""
    return 2 * step.depth * 2 * (tp - 1) / tp * tokens * step.hidden * 2
