"""A workload in words: requests to a model on a server, which --workload accepts instead of a file.

    chat: 2k in, 300 out, llama-3.1-8b, batch 32
    code: 16k in, 1k out, llama-3.1-70b, batch 64, tp 8

docs/compare.md defines the words, docs/dev/compare.md the interpolation of a time between measured cases of one backend
on one machine. If only cases with another layout of heads were measured, these stand in for the model's: the time of a
prefill is scaled by its FLOPs, the time of a decode by the bytes of keys and values, at the batch with the same number
of keys and values. A time is a sum of measured times, t = sum of c_i t_i; each machine runs a part with the backend of
the least t, among the backends with a figure for every case in the sum. Cases with the model's heads are preferred,
then bf16, then the nearest, then, for decode, pages of USUAL_PAGE tokens.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnbench.analysis.compare.common_cells import FASTEST_ON_ANOTHER, common
from attnbench.analysis.compare.like_kernels import shared_cells, tried_by_all
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.products import weights
from attnbench.analysis.compare.workload import MeasuredPart, MeasuredWorkload, shares_of_time
from attnbench.core.axes import AXES
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.flops import flops, ideal_bytes
from attnbench.core.formats import percent, size
from attnbench.core.groups import grouped
from attnbench.core.models import Layers, Model, Phase, find
from attnbench.core.sizes import format_size, parse_size
from attnbench.core.step import Step
from attnbench.core.text import count, listed
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.run.axes import matching
from attnbench.run.model_axes import FIXED, layer_axes
from attnbench.run.step_axes import whole_step

SERVED: tuple[Phase, ...] = ("prefill", "decode")
EXAMPLE = "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
FAR = 8.0  # largest ratio of FLOPs or bytes between a case and the measured cases of its interpolation
EXTRA = 1.25  # largest ratio of length or batch between a case and the nearest measured one, for extrapolation
DOUBT = 0.04  # half the 95 % interval of an interpolated time, for each doubling
STAND_IN = 0.31  # half the 95 % interval of a time from cases with other heads (docs/dev/compare.md)
USUAL_PAGE = 16  # tokens; among equally near cases, the one with such pages is most like a server
_NUMBER = r"(^|[:,\s])(\d\w* (in|out)|batch \d\w*)\s*($|[,\s])"  # marks a workload in words
_WORDS = {"in": r"(\S+) in", "out": r"(\S+) out", "batch": r"batch (\S+)", "tp": r"tp (\S+)"}


@dataclass(frozen=True)
class Requests:
    """The requests to a server, in the user's words."""

    name: str
    seqlen_in: int  # given tokens per sequence
    seqlen_out: int  # generated tokens per sequence
    model: Model
    batch: int
    tp: int = 1

    @property
    def step(self) -> Step | None:
        """The model's sizes beside attention; None if the table of models lacks them."""
        return whole_step(self.model) if self.model.step else None

    @property
    def calls(self) -> Mapping[Phase, int]:
        """Phase -> how often it runs: a prefill for each sequence, a decode for each token of a sequence."""
        return {"prefill": self.batch, "decode": self.seqlen_out}

    @property
    def seqlen_halfway(self) -> int:
        """The number of keys of a sequence when half of its output is generated."""
        return self.seqlen_in + self.seqlen_out // 2

    def measured(self, machines: Sequence[Machine], reference: Machine, shared: bool) -> MeasuredWorkload:
        """Return the requests as a workload, from cases measured on all machines with enough memory for it.

        `shared`: only with backends that all machines have. Raises UserError if a kind of layers or a phase has no
        figure, with the command that measures it, and if the reference's memory is too small.
        """
        full = [machine for machine in machines if self.too_large([machine])]
        if reference in full:
            smaller = len(full) == len(machines)
            advice = "ask for fewer tokens or sequences" if smaller else "name another reference with --to"
            raise UserError(f"--workload: {self.too_large(full)}; {advice}")
        notes = (f"{self.too_large(full)}: no figure of it there.",) if full else ()
        machines = [machine for machine in machines if machine not in full]
        cells = {*shared_cells(machines)} if shared else None
        found = [_part(self, layers, phase, machines, cells) for layers in self.model.parts for phase in SERVED]
        parts = tuple(shares_of_time(found, reference))
        tokens = self.batch * self.seqlen_out
        return MeasuredWorkload(self.name, "calls", 1, tokens, reference, parts, notes, "generated tokens")

    @property
    def cache(self) -> int:
        """The bytes of keys and values of all layers on one device, in 16 bits, at the end of the output.

        A layer of a delta rule keeps a state of 32 bits in their place; an indexer has keys of its own.
        """
        return self.batch * sum(layers.count * self._cache_of(layers) for layers in self.model.parts)

    def _cache_of(self, layers: Layers) -> int:
        """Return the bytes that one layer keeps of one sequence."""
        nheads, nheads_k = self.model.heads(self.tp, layers)
        *_, headdim, headdim_v = self.model.sizes(layers)
        if layers.kind in ("gdn", "kda"):
            return 4 * nheads * headdim * headdim_v
        tokens = min(self.seqlen_in + self.seqlen_out, layers.window or sys.maxsize)
        if layers.kind == "indexer":
            return 2 * tokens * headdim
        return 2 * tokens * sum(self.model.latent or (nheads_k * (headdim + headdim_v),))

    @property
    def weights(self) -> float:
        """The bytes of the model's weights on one device, as published; 0 if the table of models lacks its sizes."""
        return weights(self.model, self.step) / self.tp if self.step else 0.0

    def too_large(self, machines: Sequence[Machine]) -> str:
        """Return a text with the memory that the requests need, and the free memory of machines with less; or ""."""
        rooms = {machine.label: machine.environment.device for machine in machines}
        free = {label: min(device.memory, device.free) for label, device in rooms.items()}
        small = [f"{label} has {size(room)}" for label, room in free.items() if self.cache + self.weights > room]
        if not small:
            return ""
        of_weights = f" and {size(self.weights)} of weights" if self.weights else ", its weights not counted"
        bits = ", in 16 bits" if (self.model.bits, self.model.expert_bits) == (16, 16) else ", in the published bits"
        return f"{self.name!r} needs {size(self.cache)} of KV cache{of_weights}{bits}, and {listed(small)}"


def is_in_words(text: str) -> bool:
    """Whether a text is a workload in words instead of a file."""
    return re.search(_NUMBER, text) is not None


def parse(text: str) -> Requests:
    """Return the requests in a text. Raises UserError, with an example."""
    name, colon, rest = text.partition(":")
    found: dict[str, str] = {}
    for part in (rest if colon else text).split(","):
        word = next((word for word, form in _WORDS.items() if re.fullmatch(form, part.strip())), "model")
        if word == "model" and re.search(_NUMBER, part):
            raise UserError(
                f"--workload: {part.strip()!r} has several parts; put commas between them, as in {EXAMPLE!r}"
            )
        if word in found:
            raise UserError(f"--workload: {part.strip()!r} gives {word} a second time; write {EXAMPLE!r}")
        match = re.fullmatch(_WORDS.get(word, r"(.*)"), part.strip())
        found[word] = match[1] if match else ""
    if missing := [word for word in ("in", "out", "model", "batch") if not found.get(word)]:
        raise UserError(f"--workload: {text!r} does not say {listed(missing)}; write {EXAMPLE!r}")
    model, tp = find(found["model"]), parse_size(found.get("tp", "1"), "tp")
    model.heads(tp)
    if lacking := model.lacks("decode"):
        raise UserError(f"--workload: attnbench cannot measure the decoding of {model.name}: {'; '.join(lacking)}")
    given, generated, batch = (parse_size(found[word], f"--workload, {word}") for word in ("in", "out", "batch"))
    return Requests(name.strip() if colon else model.name, given, generated, model, batch, tp)


@dataclass(frozen=True)
class Sum:
    """The time of a call as a sum of measured times."""

    case: Case  # the requested one; for a prefill one sequence
    times: Mapping[Case, float]  # measured case -> how often its time counts
    doublings: float  # from the case to the nearest measured one; 0 if it was measured itself

    @property
    def other_heads(self) -> bool:
        """Whether the measured cases have other heads than the requested one."""
        return any(_heads(case) != _heads(self.case) for case in self.times)

    @property
    def doubt(self) -> float:
        """Half the 95 % interval, relative, that the interpolation adds to the intervals of the measured times."""
        return math.hypot(DOUBT * self.doublings, STAND_IN if self.other_heads else 0.0)

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of preference among sums, the best first; other heads are nearest by their ratio."""
        pairs = zip(_heads(self.case), _heads(next(iter(self.times))), strict=True)
        apart = sum(abs(math.log(one / other)) for one, other in pairs)
        near = round(self.doublings, 6), *_pages(self.case), apart
        return (self.other_heads, self.case.dtype != "bf16", *near, self.case.key)

    @property
    def beyond(self) -> bool:
        """Whether the time is extrapolated: all measured cases are smaller, or all larger."""

        def is_beyond(place: int, places: set[int]) -> bool:
            return not min(places) <= place <= max(places)

        own, shapes = self.case.shape, [case.shape for case in self.times]
        if is_beyond(own.seqlen_k, {shape.seqlen_k for shape in shapes}):
            return True
        # A batch with other heads was chosen for the same number of keys and values, to the nearest sequence.
        return (
            _is_decode(self.case) and not self.other_heads and is_beyond(own.batch, {shape.batch for shape in shapes})
        )


def best_sum(
    asked: Requests, layers: Layers, phase: Phase, machines: Sequence[Machine], cells: Collection[Key] | None = None
) -> tuple[Sum, dict[Machine, dict[Key, float]]] | None:
    """Return the preferred time of a phase of a kind of layers, with its cells on each machine.

    None unless some sum has a figure on all machines. `cells`: the cells to choose from; None for all.
    """
    cases = common(machine.fastest for machine in machines)
    sums = (interpolated(asked, phase, family) for family in families(asked, layers, phase, cases))
    for total in sorted(filter(None, sums), key=lambda one: one.rank):
        on_each = {machine: fastest_sum(machine, total.times, cells) for machine in machines}
        if all(on_each.values()):
            return total, on_each
    return None


def _part(
    asked: Requests, layers: Layers, phase: Phase, machines: Sequence[Machine], cells: Collection[Key] | None
) -> MeasuredPart:
    """Return one phase of a kind of layers. Raises UserError unless all machines have a figure for it."""
    best = best_sum(asked, layers, phase, machines, cells)
    if best is None:
        lacking = [machine.label for machine in machines if not best_sum(asked, layers, phase, [machine])]
        raise UserError(_no_figure(asked, layers, phase, lacking))
    total, on_each = best
    if cells is None and not tried_by_all(machines, (key for of in on_each.values() for key in of)):
        raise UserError(f"--workload: for {phase} not each machine tried {FASTEST_ON_ANOTHER}")
    of_layers = f"{phase}, {_kind(layers)}"
    pages = AXES["page_size"].label(total.case)
    name = f"{of_layers}: {case_names.lengths(total.case)} b{asked.batch} {total.case.dtype} {pages}".strip()
    said = stands_in(asked, phase if len(asked.model.parts) == 1 else of_layers, total)
    calls = layers.count * asked.calls[phase]
    return MeasuredPart(name, 0.0, calls, (total.case,), 0, on_each, total.doubt, said, asked.tp)


def families(asked: Requests, layers: Layers, phase: Phase, cases: Iterable[Case]) -> list[list[Case]]:
    """Return the measured cases of a phase of a kind of layers, in lists that differ only in length and batch.

    They may have other heads than the model, except for latent rows, whose decode time is not given by bytes, and for
    other kinds of attention than softmax.
    """
    axes = layer_axes(asked.model, layers, asked.tp, phase).model_copy(update={"seqlen_q": None})
    if not axes.latent and layers.kind == "softmax":
        axes = axes.model_copy(update={"nheads": None, "nheads_k": None})
    of_phase = _is_decode if phase == "decode" else _is_prefill
    matches = matching(axes)
    plain = (case for case in cases if _is_plain(case, layers) and of_phase(case) and matches(case))
    return [*grouped(plain, lambda case: _with(case, 1, 1)).values()]


def interpolated(asked: Requests, phase: Phase, family: Sequence[Case]) -> Sum | None:
    """Return the time of a call from cases that differ only in length and batch; None if they are too far."""
    if phase == "prefill":
        case = _with(family[0], 1, asked.seqlen_in)
        nearest: dict[int, Case] = {}  # length -> the case with the nearest batch to the requested one
        for one in sorted(family, key=lambda one: (abs(math.log(one.shape.batch / asked.batch)), one.shape.batch)):
            nearest.setdefault(one.shape.seqlen_k, one)
        found = _between(asked.seqlen_in, {n: flops(_with(case, 1, n)) for n in nearest}, flops(case))
        if found is None:
            return None
        own = _with_heads(case, asked)
        times = {nearest[n]: n_times / nearest[n].shape.batch for n, n_times in found.times.items()}
        return _scaled(Sum(own, times, found.doublings), flops(own) / flops(case))
    length = 1 if family[0].is_delta else asked.seqlen_halfway  # a state has one size, whatever the context
    own = _with_heads(_with(family[0], asked.batch, length), asked)
    batch = max(1, round(asked.batch * own.shape.nheads_k / family[0].shape.nheads_k))  # as many keys and values
    case = _with(family[0], batch, length)
    rows: dict[int, _Between] = {}  # batch -> its time at the requested length
    sizes: dict[int, float] = {}
    for b, of_batch in grouped(family, lambda one: one.shape.batch).items():
        sizes[b] = ideal_bytes(_with(case, b, length))
        row = _between(length, {one.shape.seqlen_k: ideal_bytes(one) for one in of_batch}, sizes[b])
        if row:
            rows[b] = row
    found = _between(batch, {b: sizes[b] for b in rows}, ideal_bytes(case))
    if found is None:
        return None
    measured = {(one.shape.batch, one.shape.seqlen_k): one for one in family}
    times = {measured[b, n]: of_b * of_n for b, of_b in found.times.items() for n, of_n in rows[b].times.items()}
    total = Sum(own, times, found.doublings + max(rows[b].doublings for b in found.times))
    return _scaled(total, ideal_bytes(own) / ideal_bytes(case))


def _scaled(total: Sum, by: float) -> Sum:
    return total if by == 1 else replace(total, times={case: by * times for case, times in total.times.items()})


def _heads(case: Case) -> tuple[int, int]:
    return case.shape.nheads, case.shape.nheads_k


def _with_heads(case: Case, asked: Requests) -> Case:
    """Return a case with the heads of the model on one device; latent rows and other kinds have them already."""
    if case.latent or not case.is_softmax:
        return case
    nheads, nheads_k = asked.model.heads(asked.tp)
    return replace(case, shape=replace(case.shape, nheads=nheads, nheads_k=nheads_k))


class _Between(NamedTuple):
    """A time as a sum of times at measured positions on one axis, such as lengths."""

    times: Mapping[int, float]  # position -> how often its time counts
    doublings: float  # to the nearest position


def _between(place: int, sizes: Mapping[int, float], size: float) -> _Between | None:
    """Return the time at `place` on an axis, from the measured places; None if these are too far.

    `sizes` are the FLOPs or bytes at the measured places, `size` at `place`.
    """
    if place in sizes:
        return _Between({place: 1.0}, 0.0)
    below, above = max((p for p in sizes if p < place), default=0), min((p for p in sizes if p > place), default=0)
    if below and above and size <= FAR * sizes[below] and sizes[above] <= FAR * size:
        part = (size - sizes[below]) / (sizes[above] - sizes[below]) if sizes[above] > sizes[below] else 0.0
        return _Between({below: 1 - part, above: part}, math.log2(min(size / sizes[below], sizes[above] / size)))
    near = [p for p in (below, above) if p and 1 / EXTRA <= place / p <= EXTRA]
    if not near:
        return None
    one = min(near, key=lambda p: abs(math.log(place / p)))
    return _Between({one: size / sizes[one]}, abs(math.log2(size / sizes[one])))


def fastest_sum(machine: Machine, times: Mapping[Case, float], cells: Collection[Key] | None) -> dict[Key, float]:
    """Return the cells of the backend with the least sum of times -> how often each counts.

    Empty if no backend has all cells of a sum, or the fastest is too uncertain. `cells`: the cells to choose from;
    None for all.
    """

    def cells_of(backend: str) -> dict[Key, float]:
        return {(case, backend): weight for case, weight in times.items()}

    usable = [
        of
        for of in map(cells_of, dict.fromkeys(backend for _, backend in machine.log_rounds))
        if all(key in machine.log_rounds and machine.is_ranked(key) for key in of)
        and (cells is None or all(key in cells for key in of))
    ]
    best = min(usable, key=lambda of: sum(n * machine.latency(key) for key, n in of.items()), default={})
    return {} if any(map(machine.decides_nothing, best)) else best


def _with(case: Case, batch: int, seqlen: int) -> Case:
    """Return a case with another batch and length."""
    seqlen_q = 1 if _is_decode(case) else seqlen
    return replace(case, shape=replace(case.shape, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen))


def _is_plain(case: Case, layers: Layers) -> bool:
    """Whether a case is dense, with the default on each axis that neither a model nor a server sets."""
    set_by_others = (*FIXED, "dtype", "page_size", *(("mask",) if layers.topk else ()))
    others = (axis for name, axis in AXES.items() if axis.field and name not in set_by_others)
    return not case.is_ragged and all(axis.of(case) == axis.usual for axis in others)


def _is_decode(case: Case) -> bool:
    return case.direction == "fwd" and case.shape.seqlen_q == 1


def _is_prefill(case: Case) -> bool:
    return case.direction == "fwd" and 1 < case.shape.seqlen_q == case.shape.seqlen_k


def _pages(case: Case) -> tuple[bool, float]:
    """Return the sort key of a case by its pages: for decode, a server's pages come first."""
    return _is_decode(case) and not case.is_paged, abs(math.log((case.page_size or 1) / USUAL_PAGE))


def _kind(layers: Layers) -> str:
    window = f", window {layers.window}" if layers.window else ""
    rule = f" of {layers.kind}" if layers.kind != "softmax" else ""
    return f"{count(layers.count, 'layer')}{rule}{window}"


def stands_in(asked: Requests, what: str, total: Sum) -> str:
    """Return the measured cases of a time, with their other differences; "" if it is the requested case itself."""
    said, unlike = _measured_at(asked, what, total), []
    if total.other_heads:
        own, other = (" and ".join(map(str, _heads(case))) for case in (total.case, next(iter(total.times))))
        unlike.append(f"of {other} heads instead of {own}")
    if total.case.dtype != "bf16":
        unlike.append(f"in {total.case.dtype} instead of bf16")
    if not unlike:
        return said
    said = said or f"{what} counts as measured"
    return f"{said} {listed(unlike)}" + (f", to some {percent(total.doubt)}" if total.doubt else "")


def _measured_at(asked: Requests, what: str, total: Sum) -> str:
    shapes = [case.shape for case in total.times]
    lengths, batches = ({getattr(s, name) for s in shapes} for name in ("seqlen_k", "batch"))
    decodes = _is_decode(total.case)
    if not total.doublings and batches == {asked.batch}:
        return ""
    length = asked.seqlen_halfway if decodes else asked.seqlen_in
    measured = listed([format_size(n) for n in sorted(lengths)]) + (" keys" if decodes else "")
    at = f"at batch {listed([str(batch) for batch in sorted(batches)])}"
    if not total.doublings:
        return f"{what} counts as measured {at}, of {measured}"
    how = "interpolated between" if len(shapes) > 1 else "scaled from"
    of = f"{format_size(length)}{f' keys at batch {asked.batch}' if decodes else ''}"
    if decodes and total.case.is_delta:
        of, measured = f"batch {asked.batch}", "a token"
    to = "" if total.other_heads or total.case.dtype != "bf16" else f", to some {percent(total.doubt)}"
    return f"{what} of {of} is {how} {measured} {at}{to}"


def _no_figure(asked: Requests, layers: Layers, phase: Phase, lacking: Sequence[str]) -> str:
    """Return a message with the machines that lack a figure, or that each has other cases, and what to measure."""
    decodes = phase == "decode"
    size = asked.seqlen_halfway if decodes else asked.seqlen_in
    lengths = sorted({1 << math.floor(math.log2(size)), 1 << math.ceil(math.log2(size))})
    run = f"attnbench run --model {asked.model.name}" + (f" --tp {asked.tp}" if asked.tp > 1 else "")
    run += f" --phase decode --page-size {USUAL_PAGE} --batch {asked.batch}" if decodes else ""
    of = f"{asked.batch} x {format_size(size)} keys" if decodes else f"{format_size(size)} tokens"
    where = f"on {listed(lacking)}" if lacking else "of the same cases on all machines"
    return (
        f"--workload: no figure {where} of the {phase} of {of} by {_kind(layers)} of {asked.model.name}, nor "
        f"of cases to interpolate it from; measure {'there' if lacking else 'on each'}: {run} --seqlen "
        f"{','.join(map(format_size, lengths))}"
    )
