"""The time of a model's attention in one step, all layers together, from the cells of run files.

A kind of layers counts as often as the model has it: a model of 52 local and 10 global layers takes 52 times the
latency of the local case plus 10 times the latency of the global case. Both must be measured on one backend, device,
length and batch.

A hybrid's layers of a delta rule are on a backend of their own: such a step has two, "fa3 + fla". In a step of decoding
these layers take the same time in any context. The indexer of sparse attention is added in the same way, where it was
measured at the length of the step; where it was not, the step is without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from attnbench.core.case import Case
from attnbench.core.models import Layers, Model, Phase
from attnbench.results.cells import Cell
from attnbench.results.uncertainty import of_sum
from attnbench.run.axes import matching
from attnbench.run.model_axes import layer_axes

BOTH = "fwd + bwd"
_Key = tuple[str, str, Case]  # device, backend, case without its window


@dataclass(frozen=True)
class StepTime:
    """The attention of all layers in one step, on one backend."""

    device: str
    backend: str
    case: Case  # of one of the layers, without its window
    direction: str  # the direction of the case, or BOTH
    seconds: float
    uncertainty: float | None  # half the 95 % interval over `seconds`, as if the errors of all layers went one way
    plan: float | None  # seconds to build what the layers share, once a step; None where nothing is built
    held_down: bool
    parts: tuple[tuple[int, Cell], ...]  # its terms: how often a cell counts, and the cell

    @property
    def cell(self) -> Cell:
        """The cell of one of its layers; all are of one device, and mostly of one run."""
        return self.parts[0][1]


def step_times(cells: Iterable[Cell], model: Model, tp: int) -> list[StepTime]:
    """Return the times of a step on one of `tp` devices, for all sizes of which every kind of layers was measured."""
    found: dict[_Key, dict[Layers, Cell]] = {}
    for cell in cells:
        if cell.value("latency") is None or not cell.is_ranked:
            continue
        for layers in model.parts:
            if is_of(layers, model, tp, cell.case):
                key = cell.device, cell.backend_name, _without_differences(cell.case, layers, model, tp)
                found.setdefault(key, {})[layers] = cell
    whole = _whole(found, model)
    times = [_sum(*key, key[2].direction, [of]) for key, of in whole.items()]
    for (device, backend, case), of in whole.items():
        if case.direction != "fwd" or case.is_paged or case.latent:
            continue
        if backward := whole.get((device, backend, dataclasses.replace(case, direction="bwd"))):
            times.append(_sum(device, backend, case, BOTH, [of, backward]))
    return times


def _without_differences(case: Case, layers: Layers, model: Model, tp: int) -> Case:
    """Return the case of a kind of layers without what tells it from a model's other layers of softmax attention."""
    if layers.kind != "softmax":
        return case
    if layers.heads:
        nheads, nheads_k = model.heads(tp)
        *_, headdim, headdim_v = model.sizes()
        sizes = {"nheads": nheads, "nheads_k": nheads_k, "headdim": headdim, "headdim_v": headdim_v}
        case = dataclasses.replace(case, shape=dataclasses.replace(case.shape, **sizes))
    return dataclasses.replace(case, window_size=(None, None), mask="" if layers.topk else case.mask)


def _whole(found: Mapping[_Key, dict[Layers, Cell]], model: Model) -> dict[_Key, dict[Layers, Cell]]:
    """Return the cells of all kinds of layers by device, backend and case; of a hybrid by each pair of backends.

    Steps have the cells of an indexer too, where it was measured.
    """
    rules = {layers for layers in model.layers if layers.kind != "softmax"}
    others = {*model.layers} - rules
    whole = {key: of for key, of in found.items() if {*of} == others}
    for kind in (*rules, *model.indexers):
        joined: dict[_Key, dict[Layers, Cell]] = {}
        for (device, backend, case), of in whole.items():
            its = {
                (device, f"{backend} + {other}", case): {**of, **cells}
                for (on, other, beside), cells in found.items()
                if {*cells} == {kind} and on == device and _is_beside(beside, case)
            }
            joined |= {(device, backend, case): of} if not its and kind.kind == "indexer" else its
        whole = joined
    return whole


def _is_beside(rule: Case, case: Case) -> bool:
    """Return whether a case of a delta rule or an indexer is in the same step as a case of softmax attention."""
    ours, its = ((c.dtype, c.direction, c.shape.batch, c.is_decode) for c in (rule, case))
    if rule.is_indexer:
        lengths, others = ((c.shape.seqlen_q, c.shape.seqlen_k) for c in (rule, case))
        return ours == its and lengths == others
    return ours == its and (case.is_decode or rule.shape.seqlen_k == case.shape.seqlen_k == case.shape.seqlen_q)


def unmeasured(cells: Iterable[Cell], model: Model, tp: int) -> list[Layers]:
    """Return the kinds of layers of which no cell was measured."""
    cases = {cell.case for cell in cells if cell.value("latency") is not None}
    return [layers for layers in model.layers if not any(is_of(layers, model, tp, case) for case in cases)]


def is_of(layers: Layers, model: Model, tp: int, case: Case) -> bool:
    """Return whether a case is of a kind of layers, of any length, batch and direction; a whole model's step is not."""
    return not case.step and _matching(layers, model, tp, "decode" if case.is_decode else "prefill")(case)


@cache
def _matching(layers: Layers, model: Model, tp: int, phase: Phase) -> Callable[[Case], bool]:
    axes = layer_axes(model, layers, tp, phase)
    return matching(axes.model_copy(update={"direction": None, "seqlen_q": None}))


def _sum(device: str, backend: str, case: Case, direction: str, passes: Sequence[Mapping[Layers, Cell]]) -> StepTime:
    pairs = tuple((layers.count, cell) for of in passes for layers, cell in of.items())
    latencies = [(count * (cell.value("latency") or 0.0), cell.half_interval("latency")) for count, cell in pairs]
    plans = [plan for _, cell in pairs if (plan := cell.value("plan")) is not None]
    return StepTime(
        device,
        backend,
        case,
        direction,
        sum(seconds for seconds, _ in latencies),
        of_sum(latencies),
        sum(plans) if plans else None,
        any(cell.held_down for _, cell in pairs),
        pairs,
    )
