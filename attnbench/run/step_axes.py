"""The cases of `attnbench step`: a model, its phases and lengths, as blocks of a suite."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from attnbench.core import step
from attnbench.core.axes import AXES
from attnbench.core.case import ITEMSIZE
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.models import MODELS, TINY, Model
from attnbench.core.sizes import parse_sizes
from attnbench.core.step import Heads, Phase, Step
from attnbench.run.model_axes import layer_axes
from attnbench.run.suite import Block


def models() -> dict[str, Model]:
    """Return the models of which a step can be built, by name."""
    return {name: model for name, model in (*MODELS.items(), (TINY.name, TINY)) if model.step}


def step_blocks(
    names: Sequence[str], phases: Sequence[Phase], seqlen: str, batch: str, dtype: str, layers: int | None
) -> list[Block]:
    """Return the blocks of some models in some phases.

    Raises UserError for a model that cannot be built, or that has fewer layers than `layers`.
    """
    known = models()
    if unknown := next((name for name in names if name not in known), None):
        if unknown in MODELS:
            raise UserError(f"no step of {unknown} can be built, only of {', '.join(known)}")
        raise UserError(f"no model {unknown!r}{did_you_mean(unknown, known)}")
    if (shortest := min(parse_sizes(seqlen, "--seqlen"))) < 2:
        raise UserError(f"--seqlen: a step has two tokens or more, not {shortest}")
    parse_sizes(batch, "--batch")
    if "fp8" in AXES["dtype"].parse(dtype):
        raise UserError("--dtype: a step is in bf16, fp16 or fp32; leave out fp8")
    widest = max(ITEMSIZE[of] for of in AXES["dtype"].parse(dtype))
    found = []
    for name in dict.fromkeys(names):
        whole = whole_step(known[name])
        kept = _kept(whole, heads(known[name]), layers, widest)
        for phase in phases:
            own = layer_axes(known[name], known[name].layers[0], 1, "prefill").model_copy(
                update={
                    "seqlen": seqlen,
                    "batch": batch,
                    "dtype": dtype,
                    "seqlen_q": "1" if phase == "decode" else None,
                    "direction": "fwd_bwd" if phase == "train" else "fwd",
                    "step": str(dataclasses.replace(whole, phase=phase, layers=kept)),
                }
            )
            found.append(Block(**own.model_dump(exclude_none=True)))
    return found


def heads(model: Model) -> Heads:
    """Return the sizes of the attention of a model's layers."""
    return Heads(model.nheads, model.nheads_k, model.headdim, model.headdim_v)


def whole_step(model: Model) -> Step:
    """Return the prefill of a model with all layers."""
    windows = tuple(of.window or 0 for of in model.layers) if len(model.layers) > 1 else ()
    return Step("prefill", model.name, model.depth, model.depth, windows=windows, **model.step)


def _kept(whole: Step, of: Heads, layers: int | None, itemsize: int) -> int:
    """Return the number of kept layers: `layers`, else as many as fit `step.WEIGHTS` bytes of weights.

    At least one layer of each kind is kept. Raises UserError for too many `layers`.
    """
    if layers is not None:
        if not 1 <= layers <= whole.depth:
            raise UserError(f"--layers: {layers} is not from 1 to the {whole.depth} of {whole.model}")
        return layers
    room = step.WEIGHTS // itemsize - whole.outside
    fitting = [n for n in range(1, whole.depth + 1) if whole.weights(of, layers=n) <= room]
    kinds = max(1, len(whole.windows))
    return max(kinds, (fitting[-1] if fitting else 1) // kinds * kinds)
