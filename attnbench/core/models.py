"""The attention of published models: heads, head dims, windows, and the parts that attnbench cannot measure.

The table is models.json, with the values of each model's published configuration. "models" has one object per model:

    name                 as --model takes it
    layers               the kinds of its attention layers: "count", and "window": the keys that a query sees, its own
                         included (sliding_window of config.json); absent where it sees all; "topk": the keys that an
                         indexer chooses for each query of a latent model (index_topk), absent where there is none;
                         "kind": "gdn" or "kda" for layers of a gated delta rule; "heads": nheads, nheads_k, headdim
                         and headdim_v of layers that have others than the model; of a delta rule the value heads stand
                         first
    nheads, nheads_k     query heads, key and value heads
    headdim, headdim_v   of queries and keys, and of values
    causal               false for models of images and videos; true where absent
    softcap              the limit of the scores (attn_logit_softcapping); absent where there is none
    scale                the softmax scale, where it is not 1 / sqrt(headdim), and why
    sink                 true where each head has a learnt logit beside the scores
    indexer              heads and head dim of the indexer of each layer with "topk" (index_n_heads, index_head_dim)
    latent               for MLA: kv_lora_rank and qk_rope_head_dim, the widths of a token's row in the cache
    context              tokens (max_position_embeddings)
    seqlen               tokens of one call, where the model has a fixed length
    note                 of the length: of which input; of the layers: which others the model has beside them
    step                 for a model that `attnbench step` builds: the sizes of core/step.py without phase and layers
    bits, expert_bits    of a published weight in the layers' products, and of one in an expert; 16 where absent
    source               the address of the published configuration
    read, date           the form in which it was read, and the date: pages that ask for a login were read as copies

A model whose configuration could not be read is not in the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from attnbench.core.case import Kind
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.sizes import format_size

Phase = Literal["prefill", "decode", "mixed", "train"]
PHASES: Sequence[Phase] = get_args(Phase)


@dataclass(frozen=True)
class Layers:
    """Attention layers of a model that are alike."""

    count: int
    window: int | None = None  # keys that a query sees, its own included; None: all
    topk: int | None = None  # keys that an indexer chooses for each query, over latent rows; None: all
    kind: Kind = "softmax"
    heads: tuple[int, int, int, int] | None = None  # nheads, nheads_k, headdim, headdim_v; None: the model's

    @property
    def sees(self) -> str:
        """The keys that a query sees, after a word such as "layers": " with a window of 1024"; "" where it sees all."""
        if self.kind != "softmax":
            return f" of {self.kind}"
        if self.topk:
            return f" of {self.topk} chosen keys"
        return f" with a window of {self.window}" if self.window else ""

    @property
    def mask(self) -> str:
        """The mask as a Case has it."""
        return f"topk:{format_size(self.topk)}" if self.topk else ""

    @property
    def window_size(self) -> tuple[int | None, int | None]:
        """The window as a Case has it."""
        return (None, None) if self.window is None else (self.window - 1, 0)


@dataclass(frozen=True)
class Scale:
    """A softmax scale other than 1 / sqrt(headdim)."""

    value: float
    why: str


@dataclass(frozen=True)
class Model:
    """The attention of one model by its published configuration; the module's docstring has the fields."""

    name: str
    layers: tuple[Layers, ...]
    nheads: int
    nheads_k: int
    headdim: int
    headdim_v: int
    source: str
    read: str
    date: str
    causal: bool = True
    softcap: float = 0.0
    scale: Scale | None = None
    sink: bool = False
    latent: tuple[int, int] | None = None
    indexer: tuple[int, int] | None = None
    context: int | None = None
    seqlen: int | None = None
    note: str = ""
    bits: float = 16
    expert_bits: float = 16
    step: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def depth(self) -> int:
        """The number of its attention layers."""
        return sum(layers.count for layers in self.layers)

    @property
    def indexers(self) -> tuple[Layers, ...]:
        """The indexers of its layers, as layers of their own: () where it has none, or none is known."""
        if self.indexer is None:
            return ()
        nheads, headdim = self.indexer
        chosen = (layers for layers in self.layers if layers.topk)
        return tuple(replace(of, kind="indexer", heads=(nheads, 1, headdim, headdim)) for of in chosen)

    @property
    def parts(self) -> tuple[Layers, ...]:
        """Its attention layers, and their indexers: what a step of its attention consists of."""
        return (*self.layers, *self.indexers)

    @property
    def is_hybrid(self) -> bool:
        """Whether some of its layers are gated delta rules."""
        return any(layers.kind != "softmax" for layers in self.layers)

    def sizes(self, layers: Layers | None = None) -> tuple[int, int, int, int]:
        """Return nheads, nheads_k, headdim and headdim_v of some layers."""
        of_layers = layers.heads if layers else None
        return of_layers or (self.nheads, self.nheads_k, self.headdim, self.headdim_v)

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """The tensor-parallel sizes that divide the heads of all layers; devices may share a key head."""
        heads = [self.sizes(layers)[:2] for layers in self.layers]
        return tuple(
            n
            for n in range(1, self.nheads + 1)
            if all(nheads % n == 0 and (nheads_k % n == 0 or n % nheads_k == 0) for nheads, nheads_k in heads)
        )

    def heads(self, tp: int, layers: Layers | None = None) -> tuple[int, int]:
        """Return the query and key heads of each of `tp` devices. Raises UserError where `tp` does not divide them.

        Each device computes an indexer with all its heads, as it needs the keys of all.
        """
        if tp not in self.shares:
            sizes = ", ".join(map(str, self.shares))
            raise UserError(
                f"--tp: {tp} does not divide the {self.nheads} query and {self.nheads_k} key heads of {self.name}; "
                f"{sizes} do"
            )
        nheads, nheads_k, *_ = self.sizes(layers)
        if layers and layers.kind == "indexer":
            return nheads, nheads_k
        return nheads // tp, max(1, nheads_k // tp)

    def lacks(self, phase: Phase) -> list[str]:
        """Return the reasons why attnbench cannot measure all of a phase of this model; [] where it can."""
        if phase in ("decode", "mixed") and not self.causal:
            return ["it sees all tokens at once"]
        found = []
        if phase == "train" and any(layers.topk for layers in self.layers):
            found.append("no backend has a backward over chosen keys")
        if phase == "mixed" and self.latent:
            found.append("servers split such a step into decoding with latent rows and a prefill without; measure both")
        if phase == "mixed" and self.is_hybrid:
            found.append("delta rules have no ragged batches here")
        return found


def find(name: str) -> Model:
    """Return the model of a name, in upper or lower case. Raises UserError for a name that is not in the table."""
    model = MODELS.get(name.strip().lower())
    if model is None:
        if name.strip().lower() == TINY.name:
            raise UserError(
                f"{TINY.name} is not a published model; only attnbench step has it: attnbench step {TINY.name}"
            )
        raise UserError(f"no model {name.strip()!r}{did_you_mean(name.strip(), MODELS)}")
    return model


def _model(entry: Mapping[str, Any]) -> Model:
    fields = dict(entry)
    fields["layers"] = tuple(Layers(**{name: _frozen(value) for name, value in of.items()}) for of in entry["layers"])
    fields["scale"] = Scale(**entry["scale"]) if "scale" in entry else None
    fields |= {name: _frozen(entry[name]) for name in ("latent", "indexer") if name in entry}
    return Model(**fields)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _read(file: Path) -> dict[str, Model]:
    return {entry["name"]: _model(entry) for entry in json.loads(file.read_text(encoding="utf-8"))["models"]}


MODELS: Mapping[str, Model] = _read(Path(__file__).with_name("models.json"))
_SMALL = {"arch": "llama", "hidden": 128, "intermediate": 256, "vocab": 512}
TINY = Model(  # for `attnbench step` only
    "tiny", (Layers(2),), 4, 2, 32, 32, source="none: it is for trying the command", read="", date="", step=_SMALL
)
