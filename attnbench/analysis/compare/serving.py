"""The serving figures of a whole model on a machine: tokens a second, time to the first token, time per token.

The requests are a `--workload` in words: a batch of sequences is filled, one sequence after the other, and then
generates. f is the time to fill one sequence, d the time of a step of generation at half of the output:

    time to the first token    f                          for a sequence that does not wait for others
    time per token             d                          each user gets 1 / d tokens a second
    tokens a second            batch x out / (batch x f + out x d)
    device-seconds a token     tp / (tokens a second)     the base of rent and energy

f and d are sums of the time of attention, from the pool of measured cells (requests.py has the interpolation), and of
the products with weights and the all-reduces (products.py), each on one of `tp` devices. Left out are norms, sampling,
the host, the latency of an all-reduce and the wait for a free slot in the batch.

Doubts have names, and enter a figure by its derivative. In a ratio of two machines, a doubt with the same name, such as
the share of the bandwidth from one measured step, moves both alike and cancels in part or whole.

The power of products was not measured: the energy of a million tokens lies between the energy by the board's power in
attention without pauses, in all measured cases of the phase, and the energy by the power limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.products import Rate, StepShare, bus, rate, sent, step_shares, weights
from attnbench.analysis.compare.requests import SERVED, Requests, best_sum, stands_in
from attnbench.analysis.compare.speed_ratio import ROUNDS, TABLE, Ratio, uncertainty
from attnbench.core import stats
from attnbench.core.groups import grouped
from attnbench.core.models import Phase
from attnbench.core.record import Run
from attnbench.core.step import Step
from attnbench.core.text import listed
from attnbench.results.cells import Key
from attnbench.run.step_axes import heads

BATCHES = tuple(2**n for n in range(13))  # of a curve, besides the measured and the requested ones
Doubts = Mapping[object, float]  # name -> half the 95 % interval of the logarithm that it adds


@dataclass(frozen=True)
class PhaseTime:
    """The time of a phase on a machine: the filling of one sequence, or one step of a batch."""

    attention: float  # seconds, for all layers
    products: float  # seconds
    sending: float  # seconds of the all-reduces between devices, by their bytes alone; 0 if their rate is not known
    doubts: Doubts
    stands_in: tuple[str, ...]  # the measured cases that stand in for attention, for each kind of layers
    backends: tuple[str, ...]
    rate: Rate  # of the products: the one that bounds them
    measured: bool  # whether attention was measured as requested, without interpolation
    beyond: bool  # whether it is extrapolated: all its cases are smaller, or all larger

    @property
    def seconds(self) -> float:
        return self.attention + self.products + self.sending


@dataclass(frozen=True)
class Served:
    """Requests to a whole model on one machine."""

    asked: Requests
    machine: Machine
    phases: Mapping[Phase, PhaseTime]
    bus: Rate | None  # between its devices; None if not known, or for one device

    @property
    def prefill(self) -> PhaseTime:
        """The filling of one sequence."""
        return self.phases["prefill"]

    @property
    def decode(self) -> PhaseTime:
        """A step of generation of the whole batch."""
        return self.phases["decode"]

    @property
    def first_token(self) -> float:
        """Seconds to the first token."""
        return self.prefill.seconds

    @property
    def tokens_a_second(self) -> float:
        """Generated tokens a second on all devices together."""
        return self.asked.batch * self.asked.seqlen_out / sum(self._seconds.values())

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
        return sum(self._shares[phase] * of.attention / of.seconds for phase, of in self.phases.items())

    @property
    def sending(self) -> float:
        """The share of the all-reduces in the time."""
        return sum(self._shares[phase] * of.sending / of.seconds for phase, of in self.phases.items())

    @property
    def at_most(self) -> bool:
        """Whether the time of the matrix products comes from the roofline instead of a measurement.

        The figures are then upper bounds.
        """
        return any(of.rate.at_most for of in self.phases.values())

    @cached_property
    def doubts(self) -> Doubts:
        """Source of doubt -> its half interval in the logarithm of the tokens a second."""
        found = defaultdict[object, float](float)
        for phase, of in self.phases.items():
            for name, half in of.doubts.items():
                found[name] += half * self._shares[phase]
        return found

    def interval(self, value: float) -> tuple[float, float] | None:
        """Return the 95 % interval of a figure that is as sure as the tokens a second; None for a bound (`at_most`)."""
        if self.at_most:
            return None
        half = math.hypot(*self.doubts.values())
        return value * stats.exp(-half), value * stats.exp(half)

    def watts(self, phase: Phase) -> list[float]:
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
        limit, watts = self.machine.environment.power_limit_w, {phase: self.watts(phase) for phase in self.phases}
        kilowatt_hours = self.device_seconds * 1e6 / 3.6e6  # for each W
        low = None
        if all(watts.values()):
            low = kilowatt_hours * sum(share * stats.median(watts[phase]) for phase, share in self._shares.items())
        high = kilowatt_hours * limit if limit else None
        return low if low and (high is None or low < high) else None, high

    @cached_property
    def _seconds(self) -> Mapping[Phase, float]:
        return {phase: self.asked.calls[phase] * of.seconds for phase, of in self.phases.items()}

    @cached_property
    def _shares(self) -> Mapping[Phase, float]:
        """Phase -> its share of the time."""
        return {phase: seconds / sum(self._seconds.values()) for phase, seconds in self._seconds.items()}


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

        None if either machine has no figure, or only an upper bound.
        """
        ours, theirs = self.found.get(reference), self.found.get(label)
        if not ours or not theirs or ours.at_most or theirs.at_most:
            return None
        names = {*ours.doubts, *theirs.doubts}
        half = math.hypot(*(theirs.doubts.get(name, 0.0) - ours.doubts.get(name, 0.0) for name in names))
        value = theirs.tokens_a_second / ours.tokens_a_second
        return Ratio(value, value * stats.exp(-half), value * stats.exp(half), (ROUNDS, TABLE))


def serving(asked: Requests, machines: Sequence[Machine], runs: Sequence[Run]) -> Serving:
    """Return the serving figures of all machines. `runs` include the measured steps of models."""
    shares = step_shares(runs)
    each = {machine.label: served(asked, machine, shares) for machine in machines}
    curves = {}
    for machine in machines:
        measured = {case.shape.batch for case in machine.fastest if case.is_decode and not case.is_ragged}
        batches = sorted({*BATCHES, *measured, asked.batch})
        points = (served(replace(asked, batch=batch), machine, shares) for batch in batches)
        curves[machine.label] = [one for one in points if isinstance(one, Served)]
    found = {label: one for label, one in each.items() if isinstance(one, Served)}
    without = {label: one for label, one in each.items() if isinstance(one, str)}
    return Serving(asked, found, without, {label: own for label, own in curves.items() if own}, shares)


def served(asked: Requests, machine: Machine, shares: Sequence[StepShare]) -> Served | str:
    """Return the serving figures of a machine, or the reason for their absence."""
    step = asked.step
    if not step:
        return f"the table of models has no sizes of {asked.model.name} beside those of attention"
    if why := asked.too_large([machine]):
        return why
    by_flops, by_bytes = (rate(machine, step, phase, shares) for phase in SERVED)
    if not by_flops or not by_bytes:
        return "its rates of products are not known"
    between = bus(machine, asked.tp) if asked.tp > 1 else None
    phases: dict[Phase, PhaseTime] = {}
    for phase in SERVED:
        found = _phase_time(asked, step, phase, machine, by_flops, by_bytes, between)
        if not found:
            return f"no {phase} was measured from which it could be interpolated"
        phases[phase] = found
    return Served(asked, machine, phases, between)


def _phase_time(
    asked: Requests, step: Step, phase: Phase, machine: Machine, by_flops: Rate, by_bytes: Rate, between: Rate | None
) -> PhaseTime | None:
    """Return the time of a phase; None if all measured cases are too far from it."""
    model, sequences = asked.model, asked.batch if phase == "decode" else 1
    best = [best_sum(asked, layers, phase, [machine]) for layers in model.parts]
    found = [(layers, one[0], one[1][machine]) for layers, one in zip(model.parts, best, strict=True) if one]
    if len(found) < len(best):
        return None
    tokens = sequences if phase == "decode" else asked.seqlen_in
    computing = step.products(heads(model), tokens, sequences) / by_flops.value / asked.tp
    reading = weights(model, step, tokens) / by_bytes.value / asked.tp
    products, bound = max((computing, by_flops), (reading, by_bytes), key=lambda pair: pair[0])
    sending = sent(step, asked.tp, tokens) / between.value if between else 0.0
    times = defaultdict[Key, float](float)  # cell -> seconds in the phase
    far = []  # seconds of doubt
    for layers, total, of in found:
        seconds = {key: layers.count * n * machine.latency(key) for key, n in of.items()}
        far.append(total.doubt * sum(seconds.values()))
        for key, own in seconds.items():
            times[key] += own
    attention = sum(times.values())
    whole = attention + products + sending
    doubts: dict[object, float] = {name: half * products / whole for name, half in bound.doubts.items()}
    of_attention = {key: seconds / attention for key, seconds in times.items()}
    doubts[phase, "cells", machine.label] = uncertainty(machine, of_attention) * attention / whole
    doubts[phase, "interpolation", machine.label] = math.hypot(*far) / whole
    several = len(model.parts) > 1
    names = (f"{phase} of {layers.count} layers" if several else phase for layers, _, _ in found)
    said = (stands_in(asked, name, total) for name, (_, total, _) in zip(names, found, strict=True))
    return PhaseTime(
        attention,
        products,
        sending,
        doubts,
        tuple(filter(None, said)),
        tuple(dict.fromkeys(backend for _, backend in times)),
        bound,
        measured=not any(total.doubt for _, total, _ in found),
        beyond=any(total.beyond for _, total, _ in found),
    )
