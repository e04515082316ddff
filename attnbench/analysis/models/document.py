"""The documents of `attnbench models`: all models as a table, or one in full."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from attnbench.core.models import PHASES, Layers, Model
from attnbench.core.sizes import format_size
from attnbench.core.text import count
from attnbench.render.document import Column, Document, Pairs, Span, Table

MORE = "A model in full, with its source: attnbench models NAME; to measure it: attnbench run --model NAME --seqlen 4k"


def listed(models: Sequence[Model]) -> Document:
    """Return the table of some models."""
    rows = [_data(model) for model in models]
    headings = ("model", "layers", "heads", "head dim", "keys", "context", "phases")
    right = ("layers", "heads", "head dim", "context")
    return Document(
        command="models",
        title="Models by name",
        blocks=(
            Table(
                "models",
                tuple(Column(name, "right" if name in right else "left", wrap=name == "phases") for name in headings),
                tuple(_row(model) for model in models),
            ),
        ),
        notes=((Span(MORE, "quiet"),),),
        data=rows,
        rows=[{name: _flat(value) for name, value in row.items()} for row in rows],
    )


def in_full(model: Model) -> Document:
    """Return the document of one model: its attention in full, and the parts that attnbench cannot measure."""
    facts = [
        ("layers", "; ".join(_layers(layers) for layers in model.layers), model.note),
        ("heads", _heads(model), "query / key and value" if model.nheads != model.nheads_k else ""),
        ("head dim", _headdim(model), "queries and keys, values" if model.headdim != model.headdim_v else ""),
        ("mask", "causal" if model.causal else "full", ""),
        ("softcap", f"{model.softcap:g}" if model.softcap else "none", ""),
        ("softmax scale", f"{model.scale.value:.4g}" if model.scale else f"1 / sqrt({model.headdim})", _why(model)),
        ("sink", "a learnt logit of each head" if model.sink else "none", ""),
    ]
    if model.latent:
        facts.append(("cache", " + ".join(map(str, model.latent)), "values of a token, for all heads (MLA)"))
    if model.indexer:
        facts.append(("indexer", "{} heads of {}".format(*model.indexer), "of each layer; it chooses the keys"))
    if model.context:
        facts.append(("context", format_size(model.context), f"{model.context} tokens"))
    if model.seqlen:
        facts.append(("length", str(model.seqlen), "tokens, unless --seqlen gives another"))
    facts.append(("--tp", ", ".join(map(str, model.shares)), ""))
    told = [(phase, "; ".join(model.lacks(phase)) and "not yet", "; ".join(model.lacks(phase))) for phase in PHASES]
    return Document(
        command="models",
        title=model.name,
        blocks=(
            Pairs(tuple(facts), model.name),
            Pairs(tuple((phase, what or "yes", why) for phase, what, why in told), "What attnbench measures of it"),
            Pairs((("source", model.source, ""), ("read as", model.read, model.date)), "Where this is from"),
        ),
        data=_data(model),
        rows=[{name: _flat(value) for name, value in _data(model).items()}],
    )


def _row(model: Model) -> tuple[str, ...]:
    own = ((layers.count, str(layers.window or layers.topk or layers.kind)) for layers in model.layers)
    limits = [(number, keys) for number, keys in own if keys != "softmax"]
    windows, local = [keys for _, keys in limits], sum(number for number, _ in limits)
    window = f"{', '.join(windows)} in {local} of {model.depth}" if windows else ""
    able = [phase for phase in PHASES if not model.lacks(phase)]
    context = format_size(model.context) if model.context else ""
    phases = "all" if len(able) == len(PHASES) else ", ".join(able) or "not yet"
    return model.name, str(model.depth), _heads(model), _headdim(model), window, context, phases


def _layers(layers: Layers) -> str:
    own = "" if layers.heads is None else " ({}/{} heads of {})".format(*layers.heads[:3])
    return f"{count(layers.count, 'layer')}{layers.sees or ' that see all keys'}{own}"


def _heads(model: Model) -> str:
    return str(model.nheads) if model.nheads == model.nheads_k else f"{model.nheads}/{model.nheads_k}"


def _headdim(model: Model) -> str:
    return str(model.headdim) if model.headdim == model.headdim_v else f"{model.headdim}-{model.headdim_v}"


def _why(model: Model) -> str:
    return model.scale.why if model.scale else ""


def _data(model: Model) -> dict[str, Any]:
    """Return a model as JSON has it, with what it lacks in each phase."""
    return {
        "name": model.name,
        "depth": model.depth,
        "layers": [{**dataclasses.asdict(layers), "heads": model.sizes(layers)} for layers in model.layers],
        "nheads": model.nheads,
        "nheads_k": model.nheads_k,
        "headdim": model.headdim,
        "headdim_v": model.headdim_v,
        "causal": model.causal,
        "softcap": model.softcap,
        "softmax_scale": model.scale.value if model.scale else model.headdim**-0.5,
        "sink": model.sink,
        "latent": list(model.latent) if model.latent else None,
        "indexer": list(model.indexer) if model.indexer else None,
        "context": model.context,
        "seqlen": model.seqlen,
        "tp": list(model.shares),
        "not_measured": {phase: model.lacks(phase) for phase in PHASES},
        "source": model.source,
        "read": model.read,
        "date": model.date,
    }


def _flat(value: Any) -> Any:
    """Return a value as CSV has it."""
    return str(value) if isinstance(value, list | dict) else value
