"""The speed of the matrix products with a model's weights, which is the part of a model besides attention.

A product takes the longer of two times: its FLOPs at a share of the datasheet's peak, and reading its weights once at a
share of the datasheet's bandwidth (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009). Both shares are
measured, by the steps of whole models (`attnbench step`) among the run files. A step takes L; in it the kernels of
attention run for a, and the device waits for the host for w:

    share of the peak         FLOPs of the products / (L - a - w) / peak           in a prefill
    share of the bandwidth    bytes of the weights / (L - a - w) / bandwidth       in a decode

The fastest implementation of a step counts, the median over files. The share of a machine comes from
the first available of these: the model's own step on it; steps of other dense models on it; steps on other machines;
without any step, the matmul and the copy at the start of each run, whose speed products do not exceed.

Half the 95 % interval of a share is the largest difference between the logarithms of two measured shares of a phase;
for a single share, its difference from the share of this matmul or copy. A share from another machine adds the largest
difference between machines for one model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from attnbench.analysis.compare.machines import Machine, short_name
from attnbench.analysis.step.findings import timed_steps
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.flops import products, weight_bytes
from attnbench.core.formats import share
from attnbench.core.groups import grouped
from attnbench.core.models import Phase
from attnbench.core.record import Run
from attnbench.core.text import listed
from attnbench.results.cells import cells
from attnbench.results.rows import Rates

OF = {"prefill": "the peak", "decode": "the bandwidth"}  # phase -> the datasheet's rate of its share


@dataclass(frozen=True)
class StepShare:
    """The share of the datasheet's rate that the products of a measured step reach."""

    device: str  # name in the run
    label: str  # short name
    model: str
    phase: Phase  # the share is of FLOP/s in "prefill", of bytes/s in "decode"
    share: float
    most: float  # the share that the matmul, or the copy, reached in the same run


@dataclass(frozen=True)
class Rate:
    """The speed of a machine in matrix products: FLOP/s or bytes/s."""

    value: float
    doubts: Mapping[object, float]  # source of doubt -> half the 95 % interval, relative; machines share sources
    said: str  # its origin: "its measured step of llama-3.1-8b (53% of the peak)"
    of_model: bool = False  # whether it is from the model's own step on the machine
    at_most: bool = False  # whether it is an upper limit instead of a measured rate


def step_shares(runs: Sequence[Run]) -> list[StepShare]:
    """Return the shares from all measured steps of dense layers, one for each device, model and phase."""
    found: list[StepShare] = []
    for run in runs:
        if not any(record.case.model_step for record in run.records):
            continue
        for (_, case), own in timed_steps(cells([run])).items():
            device, phase = run.environment.device, _phase(case)
            rates = own[0].cell.rates
            peak, matmul = (rates.peak, device.matmul.get(case.dtype)) if phase == "prefill" else (None, None)
            peak, matmul = (rates.bandwidth, device.copy) if phase == "decode" else (peak, matmul)
            work = float(products(case) if phase == "prefill" else weight_bytes(case))
            rests = [one.latency - one.attention - one.idle for one in own if one.attention is not None]
            if phase and peak and rests and rests[0] > 0:
                reached = work / rests[0] / peak
                most = max(reached, (matmul or peak) / peak)
                model = case.model_step.model if case.model_step else ""
                found.append(StepShare(device.name, short_name(run), model, phase, reached, most))
    each = grouped(found, lambda one: (one.device, one.label, one.model, one.phase)).items()
    return [
        StepShare(*of, stats.median([one.share for one in own]), stats.median([one.most for one in own]))
        for of, own in each
    ]


def _phase(case: Case) -> Phase | None:
    """Return the phase of a dense step in bf16, whose products give a share; None for others, such as training."""
    step = case.model_step
    if not step or case.dtype != "bf16" or step.phase == "train" or (step.experts and step.layers > step.dense):
        return None
    return step.phase


def rate(machine: Machine, model: str, phase: Phase, shares: Sequence[StepShare]) -> Rate | None:
    """Return the speed of a machine in a model's products in a phase; None if none of its rates is known."""
    device, rates = machine.environment.device, _rates(machine)
    listed_rate = rates.peak if phase == "prefill" else rates.bandwidth
    of_phase = [one for one in shares if one.phase == phase]
    here = [one for one in of_phase if one.device == device.name]
    used = [one for one in here if one.model == model] or here or of_phase
    if not listed_rate or not used:
        limit = device.matmul.get("bf16") if phase == "prefill" else device.copy
        what = "matmul" if phase == "prefill" else "copy"
        said = f"its roofline (at most, as a {what} before the run)"
        return Rate(limit, {}, said, at_most=True) if limit else None
    value = stats.geomean([one.share for one in used])
    of_model = bool(here) and all(one.model == model for one in used)
    steps = f"measured {'step' if len(used) == 1 else 'steps'} of {listed(dict.fromkeys(one.model for one in used))}"
    reached = f"{share(value)} of {OF[phase]}"
    where = "on it" if here else f"on {listed(dict.fromkeys(one.label for one in used))}"
    said = f"the {steps} on it ({reached})" if of_model else f"its roofline ({reached}, as in the {steps} {where})"
    doubts: dict[object, float] = {(phase, *sorted({(one.device, one.model) for one in used})): _doubt(of_phase)}
    if not here:
        across = _across(shares)
        doubts[(phase, "on another machine", device.name)] = _doubt(of_phase) if across is None else across
    return Rate(value * listed_rate, doubts, said, of_model)


def _rates(machine: Machine) -> Rates:
    """Return the datasheet's rates for a machine in bf16."""
    found = next((cell.rates for cell in machine.cells.values() if cell.case.dtype == "bf16"), None)
    return found or Rates()


def _doubt(shares: Sequence[StepShare]) -> float:
    """Return half the interval of a share, from the differences between the measured shares of a phase."""
    if len(shares) > 1:
        return _spread(shares)
    return math.log(shares[0].most / shares[0].share)


def _across(shares: Sequence[StepShare]) -> float | None:
    """Return the largest log difference between machines in the share of one model and phase; None without two."""
    each = grouped(shares, lambda one: (one.model, one.phase)).values()
    return max((_spread(own) for own in each if len(own) > 1), default=None)


def _spread(shares: Sequence[StepShare]) -> float:
    return max((abs(math.log(one.share / other.share)) for one, other in combinations(shares, 2)), default=0.0)
