"""The serving figures of a whole model on a machine: tokens a second, time to the first token, time per token.

The requests are a `--workload` in words: a batch of sequences is filled, one sequence after the other, and then
generates. f is the time to fill one sequence, d the time of a step of generation at half of the output:

    time to the first token    f                          for a sequence that does not wait for others
    time per token             d                          each user gets 1 / d tokens a second
    tokens a second            batch x out / (batch x f + out x d)
    device-seconds a token     tp / (tokens a second)     the base of rent and energy

f and d are sums of the time of attention, from the pool of measured cells (requests.py has the interpolation), and of
the products with weights (products.py), each on one of `tp` devices. Left out are the traffic between these devices,
norms, sampling, the host and the wait for a free slot in the batch.

Doubts have names, and enter a figure by its derivative. In a ratio of two machines, a doubt with the same name, such as
the share of the bandwidth from one measured step, moves both alike and cancels in part or whole.

The power of products was not measured: the energy of a million tokens is between the one by the board's power in
attention without pauses, in all measured cases of the phase, and the one by the power limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.products import Rate, StepShare, rate, step_shares
from attnbench.analysis.compare.requests import Requests, Sum, families, fastest_sum, interpolated, stands_in
from attnbench.analysis.compare.speed_ratio import ROUNDS, TABLE, Ratio, uncertainty
from attnbench.core import stats
from attnbench.core.case import Case, Shape
from attnbench.core.flops import products, weight_bytes
from attnbench.core.groups import grouped
from attnbench.core.models import Layers, Phase
from attnbench.core.record import Run
from attnbench.core.text import listed
from attnbench.results.cells import Key
from attnbench.run.step_axes import whole_step

BATCHES = tuple(2**n for n in range(13))  # of a curve, besides the measured ones
Doubts = Mapping[object, float]  # name -> half the 95 % interval of the logarithm that it adds


@dataclass(frozen=True)
class PhaseTime:
    """The time of a phase on a machine: the filling of one sequence, or one step of a batch."""

    attention: float  # seconds, for all layers
    products: float  # seconds
    doubts: Doubts
    stands_in: tuple[str, ...]  # the measured cases that stand in for attention, for each kind of layers
    backends: tuple[str, ...]
    rate: Rate  # of the products: the one that bounds them
    measured: bool  # whether attention was measured as requested, without interpolation
    beyond: bool  # whether it is extrapolated: all its cases are smaller, or all larger

    @property
    def seconds(self) -> float:
        return self.attention + self.products


@dataclass(frozen=True)
class Served:
    """Requests to a whole model on one machine."""

    asked: Requests
    machine: Machine
    prefill: PhaseTime
    decode: PhaseTime

    @property
    def first_token(self) -> float:
        """Seconds to the first token."""
        return self.prefill.seconds

    @property
    def tokens_a_second(self) -> float:
        """Generated tokens a second on all devices together."""
        return self.asked.batch * self.asked.seqlen_out / self._seconds

    @property
    def of_a_user(self) -> float:
        """Generated tokens a second of one sequence during generation."""
        return 1 / self.decode.seconds

    @property
    def of_a_gpu(self) -> float:
        """Generated tokens a second per device."""
        return self.tokens_a_second / self.asked.tp

    @property
    def device_seconds(self) -> float:
        """Device-seconds per generated token."""
        return 1 / self.of_a_gpu

    @property
    def attention(self) -> float:
        """The share of attention in the time."""
        return sum(n * of.attention for n, of in self._phases) / self._seconds

    @property
    def at_most(self) -> bool:
        """Whether the time of the matrix products comes from the roofline instead of a measurement.

        The figures are then upper bounds.
        """
        return any(of.rate.at_most for _, of in self._phases)

    @cached_property
    def doubts(self) -> Doubts:
        """Source of doubt -> its half interval in the logarithm of the tokens a second."""
        found = defaultdict[object, float](float)
        for n, of in self._phases:
            for name, half in of.doubts.items():
                found[name] += half * n * of.seconds / self._seconds
        return found

    def interval(self, value: float) -> tuple[float, float] | None:
        """Return the 95 % interval of a figure that is as sure as the tokens a second; None for a bound (`at_most`)."""
        if self.at_most:
            return None
        half = math.hypot(*self.doubts.values())
        return value * stats.exp(-half), value * stats.exp(half)

    def watts(self, phase: str) -> list[float]:
        """Return the power in watts of the fastest attention in each case of a phase, without pauses."""
        sustained = self.machine.sustained
        keys = (
            key
            for case, key in sustained.fastest.items()
            if case.direction == "fwd" and case.ranks == 1 and case.is_decode == (phase == "decode")
        )
        return [power for key in keys if (power := sustained.watts(key))]

    def kilowatt_hours(self) -> tuple[float | None, float | None]:
        """Return the kWh of a million tokens by the power of measured attention, and by the power limit.

        Both are None if the time is a lower bound (`at_most`).
        """
        if self.at_most:
            return None, None
        limit, total = self.machine.environment.power_limit_w, self.asked.batch * self.asked.seqlen_out
        watts = [self.watts(phase) for phase in ("prefill", "decode")]
        low = None
        if all(watts):
            joules = sum(n * of.seconds * stats.median(w) for (n, of), w in zip(self._phases, watts, strict=True))
            low = joules * self.asked.tp / total * 1e6 / 3.6e6
        high = self.device_seconds * limit * 1e6 / 3.6e6 if limit else None
        return low if low and (high is None or low < high) else None, high

    @property
    def _phases(self) -> tuple[tuple[int, PhaseTime], ...]:
        """(How often it runs, its time) for prefill and decode."""
        return (self.asked.batch, self.prefill), (self.asked.seqlen_out, self.decode)

    @property
    def _seconds(self) -> float:
        return sum(n * of.seconds for n, of in self._phases)


@dataclass(frozen=True)
class Serving:
    """Requests to a whole model on all machines. Mappings are by the machine's label."""

    asked: Requests
    found: Mapping[str, Served]
    without: Mapping[str, str]  # label -> why it has no figure
    curves: Mapping[str, Sequence[Served]]  # one for each batch, the smallest first
    shares: Sequence[StepShare]

    @property
    def reasons(self) -> list[str]:
        """Parts of a sentence, one for each reason why machines have no figure."""
        reasons = grouped(self.without, self.without.__getitem__)
        return [f"no figure of the whole model on {listed(labels)}: {why}" for why, labels in reasons.items()]

    def ratio(self, label: str, reference: str) -> Ratio | None:
        """Return the ratio of a machine's tokens a second to the reference's.

        None if one of them has none, or only an upper bound.
        """
        if label not in self.found or reference not in self.found:
            return None
        ours, theirs = self.found[reference], self.found[label]
        if ours.at_most or theirs.at_most:
            return None
        names = {*ours.doubts, *theirs.doubts}
        half = math.hypot(*(theirs.doubts.get(name, 0.0) - ours.doubts.get(name, 0.0) for name in names))
        value = theirs.tokens_a_second / ours.tokens_a_second
        return Ratio(value, value * stats.exp(-half), value * stats.exp(half), (ROUNDS, TABLE))


def why_not_whole(asked: Requests) -> str:
    """Return why the figures of the whole model are not computed; "" if they are."""
    if not asked.model.step:
        return f"the table of models has no sizes of {asked.model.name} beside those of attention"
    return "products of experts are not computed" if asked.model.step.get("experts") else ""


def serving(asked: Requests, machines: Sequence[Machine], runs: Sequence[Run]) -> Serving:
    """Return the serving figures of all machines. `runs` include the measured steps of models."""
    shares = step_shares(runs)
    found: dict[str, Served] = {}
    without: dict[str, str] = {}
    curves: dict[str, list[Served]] = {}
    for machine in machines:
        one = served(asked, machine, shares)
        if isinstance(one, str):
            without[machine.label] = one
        else:
            found[machine.label] = one
        if not why_not_whole(asked):
            each = (served(replace(asked, batch=batch), machine, shares) for batch in _batches(asked, machine))
            curves[machine.label] = [of for of in each if not isinstance(of, str)]
    return Serving(asked, found, without, {label: own for label, own in curves.items() if own}, shares)


def served(asked: Requests, machine: Machine, shares: Sequence[StepShare]) -> Served | str:
    """Return the serving figures of a machine, or the reason for their absence."""
    if why := why_not_whole(asked) or asked.too_large([machine]):
        return why
    phases = []
    for phase in ("prefill", "decode"):
        of_products = [rate(machine, asked.model.name, of, shares) for of in ("prefill", "decode")]
        attention = [_attention(asked, layers, phase, machine) for layers in asked.model.layers]
        if not all(of_products):
            return "its rates of products are not known"
        if not all(attention):
            return f"no {phase} was measured that it could be interpolated between"
        known = [one for one in attention if one]
        phases.append(_phase_time(asked, phase, machine, known, *(one for one in of_products if one)))
    return Served(asked, machine, *phases)


def _batches(asked: Requests, machine: Machine) -> list[int]:
    """Return the batches of a curve: powers of two, the measured ones of decode, and the requested one."""
    decode = {case.shape.batch for case in machine.fastest if case.is_decode and not case.is_ragged}
    return sorted({*BATCHES, *decode, asked.batch})


@dataclass(frozen=True)
class _Attention:
    """The attention of one kind of layers in a phase on a machine."""

    layers: Layers
    total: Sum
    cells: Mapping[Key, float]


def _attention(asked: Requests, layers: Layers, phase: Phase, machine: Machine) -> _Attention | None:
    """Return the best sum of a machine's measured cells; None if all are too far."""
    found = (interpolated(asked, phase, family) for family in families(asked, layers, phase, machine.fastest))
    for total in sorted((one for one in found if one), key=lambda one: one.rank):
        if of := fastest_sum(machine, total.times, None):
            return _Attention(layers, total, of)
    return None


def _phase_time(
    asked: Requests, phase: Phase, machine: Machine, found: Sequence[_Attention], by_flops: Rate, by_bytes: Rate
) -> PhaseTime:
    seconds = [one.layers.count * sum(n * machine.latency(k) for k, n in one.cells.items()) for one in found]
    attention = sum(seconds)
    step = _step(asked, phase)
    computing, reading = products(step) / by_flops.value / asked.tp, weight_bytes(step) / by_bytes.value / asked.tp
    of_products, bound = max((computing, by_flops), (reading, by_bytes), key=lambda pair: pair[0])
    total = attention + of_products
    weights = defaultdict[Key, float](float)
    for one in found:
        for key, n in one.cells.items():
            weights[key] += one.layers.count * n * machine.latency(key) / attention
    doubts = {name: half * of_products / total for name, half in bound.doubts.items()}
    doubts[phase, "cells", machine.label] = uncertainty(machine, weights) * attention / total
    far = math.hypot(*(one.total.doubt * s / total for one, s in zip(found, seconds, strict=True)))
    doubts[phase, "interpolation", machine.label] = far
    several = len(asked.model.layers) > 1
    names = (f"{phase} of {one.layers.count} layers" if several else phase for one in found)
    said = (stands_in(asked, name, one.total) for name, one in zip(names, found, strict=True))
    return PhaseTime(
        attention,
        of_products,
        doubts,
        tuple(filter(None, said)),
        tuple(dict.fromkeys(backend for one in found for _, backend in one.cells)),
        bound,
        measured=not any(one.total.doubt for one in found),
        beyond=any(one.total.beyond for one in found),
    )


def _step(asked: Requests, phase: Phase) -> Case:
    """Return a step of the whole model on one device: the filling of one sequence, or a token for each sequence."""
    model = asked.model
    decodes = phase == "decode"
    n = asked.seqlen_halfway if decodes else asked.seqlen_in
    sizes = model.nheads, model.nheads_k, model.headdim, model.headdim_v
    shape = Shape(asked.batch if decodes else 1, 1 if decodes else n, n, *sizes)
    step = replace(whole_step(model), phase="decode" if decodes else "prefill")
    return Case(shape, "bf16", "fwd", causal=True, step=str(step))
