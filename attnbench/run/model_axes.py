"""The axes of a model's attention: --model, --tp and --phase as values of --nheads, --window and others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from attnbench.core.axes import AXES
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.models import PHASES, Layers, Model, Phase, find
from attnbench.core.sizes import parse_size, parse_sizes
from attnbench.run.axes import LATENT_SCALE, Axes, overlay

_BY_PHASE = ("seqlen_q", "direction", "lengths")
FIXED = (  # the axes that a model or its phase sets
    *("headdim", "nheads", "nheads_k", "causal", "window", "softcap", "softmax_scale", "sink", "latent", "kind"),
    *_BY_PHASE,
)
CHUNK = 2048  # queries of the prefill in a mixed step, near the default of servers
MIXED_BATCH = 32  # sequences of a mixed step without --batch: one in prefill, the others in decode


def parse_phases(text: str | None) -> list[Phase]:
    """Return the phases of a text such as "prefill,decode", prefill for None. Raises UserError."""
    names = list(dict.fromkeys(name.strip() for name in (text or "prefill").split(",")))
    if unknown := [name for name in names if name not in PHASES]:
        raise UserError(f"--phase: unknown phase {unknown[0]!r}{did_you_mean(unknown[0], PHASES)}")
    return [phase for phase in PHASES if phase in names]


def check_not_both(given: Axes) -> None:
    """Raise UserError where axes that a model sets are given too."""
    if both := [name for name in FIXED if getattr(given, name) is not None]:
        options = ", ".join(AXES[name].switch or f"--{AXES[name].option}" for name in both)
        by = "--phase sets" if {*both} <= {*_BY_PHASE} else "--model sets"
        raise UserError(f"{options}: {by} this; leave it out, or leave out --model")


def model_axes(names: Sequence[str], tp: int | None, phase: str | None, below: Axes, given: Axes) -> list[Axes]:
    """Return the axes of each kind of layer of some models and phase, over the axes `below`, which have the lengths.

    A model with a fixed length uses it, unless `given` has another. Without a batch size, decode has one sequence, and
    a mixed step has MIXED_BATCH. Raises UserError, also for a model whose phase attnbench cannot measure.
    """
    if tp is not None and tp < 1:
        raise UserError(f"--tp: {tp} is not at least 1")
    found = []
    for model, step in product(dict.fromkeys(map(find, names)), parse_phases(phase)):
        if lacking := model.lacks(step):
            raise UserError(_refusal(model, step, lacking))
        if given.mask is not None and any(of.mask for of in model.parts):
            raise UserError(f"--mask: {model.name} sets this; leave it out, or leave out --model")
        own = Axes(seqlen=str(model.seqlen)) if model.seqlen and given.seqlen is None else Axes()
        found += [_of_phase(overlay(below, own), layer_axes(model, of, tp or 1, step), step) for of in model.parts]
    return found


def layer_axes(model: Model, layers: Layers, tp: int, phase: Phase) -> Axes:
    """Return the axes that one kind of layers of a model sets in a phase, on one of `tp` devices."""
    nheads, nheads_k = model.heads(tp, layers)
    if layers.kind != "softmax":
        return _other_axes(model, layers, nheads, nheads_k, phase)
    latent = model.latent is not None and (phase == "decode" or layers.topk is not None)
    headdim, headdim_v = model.sizes(layers)[2:]
    sizes: dict[str, Any] = {"headdim": f"{headdim}-{headdim_v}", "nheads_k": str(nheads_k)}
    if latent and model.latent:  # with absorbed weights all heads share one row, whose first part is the value
        sizes = {"headdim": f"{sum(model.latent)}-{model.latent[0]}", "nheads_k": "1"}
    sizes["pass"] = "fwd,bwd" if phase == "train" else "fwd"
    scale = model.scale.value if model.scale else LATENT_SCALE if latent else 0.0
    return Axes(
        **sizes,
        nheads=str(nheads),
        causal=model.causal,
        window="none" if layers.window is None else f"{layers.window - 1}/0",
        softcap=f"{model.softcap:g}",
        softmax_scale=str(scale or "none"),
        sink=model.sink,
        latent=latent,
        mask=layers.mask or None,
        kind="softmax",
        seqlen_q="1" if phase == "decode" else None,
    )


def _other_axes(model: Model, layers: Layers, nheads: int, nheads_k: int, phase: Phase) -> Axes:
    """Return the axes of layers of a delta rule, which have a state in place of pages, or of an indexer.

    attnbench has no backend of an indexer whose keys lie in pages.
    """
    headdim, headdim_v = model.sizes(layers)[2:]
    return Axes(
        kind=layers.kind,
        headdim=f"{headdim}-{headdim_v}",
        nheads=str(nheads),
        nheads_k=str(nheads_k),
        causal=True,
        window="none",
        page_size="none",
        cache_dtype="same",
        append=False,
        direction="fwd,bwd" if phase == "train" else "fwd",
        mask=layers.mask or None,
        seqlen_q="1" if layers.kind == "indexer" and phase == "decode" else None,
    )


def _of_phase(below: Axes, layer: Axes, phase: Phase) -> Axes:
    """Return the axes of a kind of layers over the axes `below`, with the batch and the lengths of a phase."""
    axes = overlay(below, layer)
    if phase == "decode" and layer.kind in ("gdn", "kda"):
        axes = overlay(axes, Axes(seqlen="1"))
    if phase == "decode" and axes.batch is None:
        return overlay(axes, Axes(batch="1"))
    if phase != "mixed":
        return axes
    batches = parse_sizes(axes.batch or str(MIXED_BATCH), "batch")
    lengths = [_mixed(batch, length) for batch in batches for length in parse_sizes(axes.seqlen or "", "seqlen")]
    return axes.model_copy(update={"seqlen": None, "batch": None, "lengths": ",".join(lengths)})


def _mixed(batch: int, seqlen: int) -> str:
    """Return the lengths, as for --lengths, of a step in which one sequence prefills a chunk and the others decode."""
    if batch < 2:
        raise UserError(f"--phase mixed: a chunk of a prefill beside decode steps needs --batch 2 or more, not {batch}")
    chunk = min(parse_size(str(CHUNK)), seqlen)
    return f"{chunk}x{seqlen}+{batch - 1}*1x{seqlen}"


def _refusal(model: Model, phase: Phase, lacking: Sequence[str]) -> str:
    if not model.causal:
        return f"--model {model.name}: no {phase}: {'; '.join(lacking)}; give --phase prefill"
    line = f"--model {model.name}: attnbench cannot measure --phase {phase} yet: {'; '.join(lacking)}"
    windows = [("none" if one.window is None else f"{one.window - 1}/0") for one in model.layers]
    window = "" if windows == ["none"] else f" --window {','.join(windows)}"
    query = " --seqlen-q 1" if phase == "decode" else ""
    heads = f"--nheads {model.nheads} --nheads-k {model.nheads_k} --headdim {model.headdim}"
    values = "" if model.headdim == model.headdim_v else f"-{model.headdim_v}"
    return f"{line}. The same sizes without this: {heads}{values} --causal{window}{query}"
