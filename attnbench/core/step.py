"""A step of a whole model: its sizes, as a case spells them, and its floating-point operations and bytes.

`Case.step` is one line that needs no table to be read:

    prefill llama-3.1-8b 4/32 arch=llama hidden=4096 intermediate=14336 vocab=128256

The words are the phase, the model, the kept layers and the layers of the model, and sizes: for dense layers the width
of the MLP; for layers with experts their number, the number that a token takes, the number shared by all tokens, the
width of one, and the number of dense layers at the beginning; for MLA the ranks of its projections; and, where layers
have different windows, `windows` (keys that a query sees, its own included, 0: all), which repeat in turn. Heads,
batch, lengths, dtype, direction and mask are fields of the case; its window is the first layer's.

**Model FLOPs** (Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B: 6 N a token for N parameters, and attention's
two products; recomputation does not count):

    forward     2 x the parameters that a token is multiplied with x tokens, and the products of attention
    training    3 x the forward

Looked-up parameters, norms and biases do not count; of the experts, the ones that a token takes count. Attention counts
the pairs that the mask leaves, as everywhere in attnbench; PaLM counts all pairs. Prefill and decode compute the logits
of the last position of each sequence only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from attnbench.core.text import shortened

Phase = Literal["prefill", "decode", "train"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Architecture = Literal["llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma2", "gpt_oss", "deepseek_v3"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
MOST_LAYERS, LARGEST = 10_000, 2**48  # the most layers of a model; the largest value of any size
WEIGHTS = 8 * 10**9  # bytes; without --layers, layers are left out until the weights fit


@dataclass(frozen=True)
class Heads:
    """The sizes of the attention of a model's layer."""

    nheads: int
    nheads_k: int
    headdim: int
    headdim_v: int


@dataclass(frozen=True)
class Step:
    """The work of a step beside attention; the module's docstring has its spelling."""

    phase: Phase
    model: str
    layers: int  # layers that are kept
    depth: int  # layers of the model
    arch: Architecture  # the name in transformers
    hidden: int
    intermediate: int  # the width of a dense layer's MLP, or of an expert where no layer is dense
    vocab: int
    tied: int = 0  # 1: the embedding is also the matrix of the logits
    experts: int = 0
    taken: int = 0  # experts that a token takes
    shared: int = 0  # experts that all tokens take
    expert: int = 0  # the width of one expert, where the first layers are dense
    dense: int = 0  # layers at the beginning without experts
    q_rank: int = 0
    k_rank: int = 0
    rope: int = 0  # the part of the head dim with positions; 0: all of it
    windows: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = []
        for name in _SIZES:
            value = getattr(self, name)
            if value != _SIZES[name].default:
                sizes.append(f"{name}={'/'.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join([self.phase, self.model, f"{self.layers}/{self.depth}", *sizes])

    @property
    def title(self) -> str:
        """The step in a few words: "prefill llama-3.1-8b 4/32"."""
        return f"{self.phase} {self.model} {self.layers}/{self.depth}"

    @property
    def cut(self) -> str:
        """The kept layers, as "4 of 32 layers" or "all 32 layers"."""
        return f"{self.layers} of {self.depth} layers" if self.layers < self.depth else f"all {self.depth} layers"

    def window(self, layer: int) -> int:
        """Return the keys that a query of a layer sees, by `windows`; 0 for all."""
        return self.windows[layer % len(self.windows)] if self.windows else 0

    def experts_of(self, tokens: int) -> float:
        """Return the expected number of a layer's experts that `tokens` tokens take, if each takes experts at random.

        A token leaves out an expert with probability 1 - taken / experts.
        """
        return self.experts * (1 - (1 - self.taken / self.experts) ** tokens) if self.experts else 0.0

    def layer_weights(self, layer: int, of: Heads, experts: float) -> float:
        """Return the parameters in the products of a layer, of which this number of experts beside the shared ones."""
        heads = of.nheads * of.headdim
        if self.k_rank:
            found = self.hidden * (self.q_rank + self.k_rank + self.rope) + self.q_rank * heads
            found += self.k_rank * of.nheads * (of.headdim - self.rope + of.headdim_v)
        else:
            found = self.hidden * (heads + of.nheads_k * (of.headdim + of.headdim_v))
        found += of.nheads * of.headdim_v * self.hidden
        if not self.experts or layer < self.dense:
            return found + 3 * self.hidden * self.intermediate
        each = 3 * self.hidden * (self.expert or self.intermediate)
        return found + self.hidden * self.experts + each * (self.shared + experts)

    def weights(self, of: Heads, *, layers: int | None = None, experts: float | None = None) -> float:
        """Return the parameters of the first `layers` layers (default: the kept ones), without norms and biases.

        `experts` is the number of experts of a layer that count beside the shared ones; None for all.
        """
        layers = self.layers if layers is None else layers
        experts = self.experts if experts is None else experts
        first = min(self.dense, layers)
        rest = (layers - first) * self.layer_weights(self.dense, of, experts)
        return rest + first * self.layer_weights(0, of, experts)

    def products(self, of: Heads, tokens: int, logits: int) -> float:
        """Return the FLOPs, forward, of the products with weights of `tokens` tokens, with the logits of some."""
        return 2 * (self.weights(of, experts=self.taken) * tokens + self.hidden * self.vocab * logits)

    @property
    def outside(self) -> int:
        """The parameters of the embedding and of the product that gives the logits."""
        return self.hidden * self.vocab * (1 if self.tied else 2)


_SIZES: Mapping[str, Any] = {f.name: f for f in fields(Step) if f.name not in ("phase", "model", "layers", "depth")}


def parse(text: str) -> Step:
    """Return the step of a text. Raises ValueError, with the fault of the text."""
    phase, model, layers, *sizes = [*text.split(), "", "", ""][: max(3, len(text.split()))]
    kept, _, depth = layers.partition("/")
    values: dict[str, Any] = {"phase": phase, "model": model}
    try:
        values |= {"layers": int(kept), "depth": int(depth)}
        for size in sizes:
            name, _, value = size.partition("=")
            if name not in _SIZES:
                raise ValueError
            values[name] = (
                value if name == "arch" else tuple(map(int, value.split("/"))) if name == "windows" else int(value)
            )
        step = Step(**values)
    except (TypeError, ValueError):
        raise ValueError(f"step: {text!r} is not PHASE MODEL LAYERS/DEPTH NAME=SIZE ...") from None
    counts = [getattr(step, name) for name in _SIZES if name not in ("arch", "windows")]
    if phase not in PHASES or step.arch not in ARCHITECTURES or str(step) != text:
        raise ValueError(f"step: {text!r}: an unknown phase or architecture, or words that attnbench does not write")
    if not 1 <= step.layers <= step.depth or min(counts) < 0 or min(step.hidden, step.intermediate, step.vocab) < 1:
        raise ValueError(f"step: {text!r}: sizes must be positive, and the kept layers no more than the model's")
    if step.depth > MOST_LAYERS or len(step.windows) > step.depth or max(*counts, *step.windows) > LARGEST:
        raise ValueError(f"step: {shortened(repr(text))}: more layers, or a larger size, than a model can have")
    if any(window < 0 for window in step.windows) or bool(step.experts) != bool(step.taken):
        raise ValueError(f"step: {text!r}: windows must be at least 0, and with experts each token must take some")
    return step
