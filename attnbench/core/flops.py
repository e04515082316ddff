"""The exact work of a case: unmasked pairs, floating-point operations, ideal bytes, and the roofline.

They depend on the case alone, whatever backend computes it.

**Pairs.** Attention computes one score for each (query, key) pair that the mask leaves. With
offset = seqlen_k - seqlen_q the mask is a band of diagonals: query i sees key j where lo <= j - i <= hi, with
hi = offset + right and lo = offset - left. Causal limits `right` to 0 (flash-attn's bottom-right alignment).

A mask by name (core/masks.py) adds pairs to the band or keeps some of it.

For a ragged batch, pairs, FLOPs and bytes are sums over its sequences.

**FLOPs.** One pair costs, for each query head and batch entry, one multiply and one add per element of each product:

    forward    S = q k^T (headdim), out = P v (headdim_v)                     2 (headdim + headdim_v)
    backward   S = q k^T, dq = dS k, dk = dS^T q (headdim each),
               dP = dout v^T, dv = P^T dout (headdim_v each)                  2 (3 headdim + 2 headdim_v)

With headdim = headdim_v = d and no mask, forward is 4 s^2 d per head and backward 2.5 times that. This is the count of
the FlashAttention-2 paper (Dao 2023, arXiv 2307.08691, section 4.1: "4 * seqlen^2 * head dimension * number of heads";
backward is 2.5 times the forward because it has 5 products instead of 2, with the scores recomputed). That paper
divides by 2 for causal, which is `convention="fa"` here. The softmax is not counted, as is usual. Keys that several
query heads share do not change the count.

**Delta rules** (`Case.kind`). The recurrence of core/delta.py has three products of headdim x headdim_v multiplies and
adds for each token and value head: k' S, the outer product with k, and q' S. So a forward is 6 headdim headdim_v, and a
backward twice that, because each product has two gradients; states that a backward computes again are not counted. The
matrix products of a chunked kernel are more than that, as much as its chunks are long. Papers have no convention.

**Indexers** (`Case.kind`). One product, q k^T, over all keys that a query sees: 2 headdim for each head and pair. The
sum over heads and the choice of the highest scores are not counted. The scores are no operand: a fused kernel need not
write them.

**Bytes.** The least that must cross the memory bus: each operand one time, whatever the size of the caches. An
implementation may move more (a second pass over k and v, workspaces), so bytes over time is a lower bound of the
bandwidth that it used.

**Steps of a model** (`Case.step`). The FLOPs are model FLOPs (core/step.py). The bytes are the weights in products,
once, or three times in training (forward, backward, gradients), and the ideal bytes of each layer's attention.

**Roofline** (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009): no implementation takes less time than
max(FLOPs / peak, bytes / bandwidth), with exact FLOPs and ideal bytes. The larger term bounds the case. With a warm L2
the bytes need not cross the bus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from attnbench.core import delta, kinds, masks
from attnbench.core.band import diagonals, visible_pairs
from attnbench.core.case import ITEMSIZE, RESULT_ITEMSIZE, Case
from attnbench.core.step import Heads, Step

Bound = Literal["compute", "memory", "exp"]  # the resource that limits a call
Convention = Literal["exact", "fa"]
CONVENTIONS: Mapping[Convention, str] = {"exact": "FLOPs: exact", "fa": "FLOPs: fa, causal counts half"}


@cache
def pairs(case: Case) -> int:
    """Return the number of (query, key) pairs that the mask of a case leaves, for one head over all sequences.

    An indexer, whose mask is its result, has all pairs that causal leaves.
    """
    band = case.causal, case.window_size
    if case.mask and not case.is_indexer:
        return case.shape.batch * masks.count_pairs(case.mask, case.shape.seqlen_q, case.shape.seqlen_k, *band)
    return sum(of.number * visible_pairs(of.seqlen_q, of.seqlen_k, *band) for of in case.sequences)


@cache
def flops(case: Case, convention: Convention = "exact") -> float:
    """Return the floating-point operations of one call of the case. The module's docstring has the derivation.

    "exact" counts the pairs that the mask leaves. "fa" is the convention of papers: with a causal mask, half of all
    seqlen_q * seqlen_k pairs, whatever the lengths and the window; without one, or with a mask by name, the exact
    count. With "fa" a causal decode step therefore shows half its true rate, and a causal sliding window a rate that is
    far too high.

    Raises ValueError for an unknown convention.
    """
    s = case.shape
    if convention not in CONVENTIONS:
        raise ValueError(f'unknown FLOPs convention "{convention}"; known: {", ".join(CONVENTIONS)}')
    if case.is_delta:
        passes = case.has_forward + 2 * case.has_backward
        return 6.0 * passes * s.batch * s.seqlen_k * s.nheads * s.headdim * s.headdim_v
    if case.model_step:
        return _step_flops(case, case.model_step, convention)
    found: float = pairs(case)
    if case.is_indexer:
        return 2.0 * s.headdim * found * s.nheads
    if convention == "fa" and case.causal and not case.mask:
        found = sum(count * seqlen_q * seqlen_k / 2 for count, seqlen_q, seqlen_k in case.sequences)
    per_pair = 0
    if case.has_forward:
        per_pair += 2 * (s.headdim + s.headdim_v)
    if case.has_backward:
        per_pair += 2 * (3 * s.headdim + 2 * s.headdim_v)
    return per_pair * found * s.nheads


def exps(case: Case) -> int:
    """Return the exponentials of one call: one for each pair and head in a forward, and again in a backward.

    A delta rule has one for each element of its gate, an indexer has none.
    """
    if case.is_indexer:
        return 0
    if case.is_delta:
        return (case.has_forward + case.has_backward) * math.prod(delta.shapes(case)["gate"])
    return (case.has_forward + case.has_backward) * pairs(case) * case.shape.nheads


def input_bytes(case: Case) -> int:
    """Return the bytes of a call's inputs: q, k, v and, for a backward, dout; for fp8 they are given in bf16.

    The inputs of a step are the model's weights and, in decode, its cache.
    """
    if case.model_step:
        return _step_input_bytes(case, case.model_step)
    if not case.is_softmax:
        return kinds.nbytes(case, kinds.input_names(case))
    s, size = case.extent, RESULT_ITEMSIZE[case.dtype]
    of_q = s.batch * s.seqlen_q * s.nheads * (s.headdim + (s.headdim_v if case.has_backward else 0))
    keys = case.used_pages * case.page_size if case.is_paged else s.batch * s.seqlen_k
    of_k = keys * s.nheads_k * (s.headdim if case.latent else s.headdim + s.headdim_v)
    return of_q * size + of_k * (case.cache_itemsize if case.is_paged else size)


@cache
def ideal_bytes(case: Case) -> int:
    """Return the least bytes that one call of the case moves, with each operand moved one time.

    Forward reads q, k, v and writes out. Backward reads q, k, v, out, dout and writes dq, dk, dv. fwd_bwd is the sum.
    k, v and their gradients have nheads_k heads. Results are written in full, zeros too. Rows of an input that are in
    no unmasked pair (such as keys older than the window of a decode step) need not be read and are not counted. The
    log-sum-exp is not counted: whether and how to keep it is the implementation's choice. For fp8, q, k, v and dout
    have one byte per element, out and gradients two. v of a latent case is a part of k; a page table is not counted.
    Rows appended to a cache count twice: they are read as operands and written to the cache. Where a mask keeps some
    keys of the band, the keys of a single query are counted exactly; for more queries, all keys of the band are
    counted. Keys of a shared prefix count one time for all sequences.
    """
    if case.model_step:
        return _step_bytes(case, case.model_step)
    if not case.is_softmax:
        given = kinds.input_names(case)
        again = given[:-1] if case.direction == "fwd_bwd" else ()
        written = (name for name in kinds.result_shapes(case) if name != "out" or case.has_forward)
        return kinds.nbytes(case, (*given, *again, *written))
    s = case.extent
    seen_q = seen_k = of_prefix = 0
    for count, seqlen_q, seqlen_k in case.sequences:
        lo, hi = diagonals(seqlen_q, seqlen_k, case.causal, case.window_size)
        seen_q += count * s.nheads * _columns_touched(-hi, -lo, seqlen_k, seqlen_q)  # queries that see a key
        touched = _columns_touched(lo, hi, seqlen_q, seqlen_k)
        if case.mask:
            touched = masks.count_keys(case.mask, seqlen_q, seqlen_k, case.causal, case.window_size, touched)
        shared = max(0, case.shared_prefix - max(0, lo))  # its last keys, if any, are seen
        seen_k += count * s.nheads_k * (touched - shared)  # keys that a query sees
        of_prefix = max(of_prefix, s.nheads_k * shared)
    rows_q, rows_k = s.batch * s.nheads * s.seqlen_q, s.batch * s.nheads_k * s.seqlen_k
    d, dv = s.headdim, s.headdim_v
    of_q, of_k = seen_q * d, (seen_k + of_prefix) * (d if case.latent else d + dv)  # q, and k with v, in each pass
    passes = case.has_forward + case.has_backward
    results = 0
    if case.has_forward:
        results += rows_q * dv  # out
    if case.append:
        results += s.batch * s.seqlen_q * s.nheads_k * (d + dv)
    if case.has_backward:
        results += seen_q * dv  # out
        results += rows_q * d + rows_k * (d + dv)  # dq, dk, dv
    operands = of_q * ITEMSIZE[case.dtype] + of_k * case.cache_itemsize
    of_dout = seen_q * dv * ITEMSIZE[case.dtype] if case.has_backward else 0
    return passes * operands + of_dout + results * RESULT_ITEMSIZE[case.dtype]


def heads_of(case: Case) -> Heads:
    """Return the sizes of the attention of a step's layers."""
    s = case.shape
    return Heads(s.nheads, s.nheads_k, s.headdim, s.headdim_v)


def attention_of(case: Case, layer: int) -> Case:
    """Return the attention of one layer of a step as a case of its own."""
    assert case.model_step
    window = case.model_step.window(layer)
    sizes = ((window - 1, 0) if window else (None, None)) if case.model_step.windows else case.window_size
    return replace(case, step="", window_size=sizes)


def _attention_layers(case: Case, step: Step) -> Iterator[tuple[int, Case]]:
    """Yield (number of layers, their attention) for each kind of layer of a step."""
    turn = max(1, len(step.windows))
    return (
        (len(range(first, step.layers, turn)), attention_of(case, first)) for first in range(min(turn, step.layers))
    )


def products(case: Case) -> int:
    """Return the FLOPs of the products with weights in the forward of a step: all FLOPs but attention's."""
    step = case.model_step
    assert step
    tokens = case.shape.batch * case.shape.seqlen_q
    logits = tokens if step.phase == "train" else case.shape.batch
    return int(step.products(heads_of(case), tokens, logits))


def weight_bytes(case: Case) -> int:
    """Return the bytes of the weights that a step of a model reads, each one time; of experts those that are taken.

    The number of experts is the expected one of `Step.experts_of`.
    """
    step = case.model_step
    assert step
    experts = step.experts_of(case.shape.batch * case.shape.seqlen_q)
    return round(step.weights(heads_of(case), experts=experts) + step.hidden * step.vocab) * ITEMSIZE[case.dtype]


def _step_flops(case: Case, step: Step, convention: Convention) -> float:
    attention = sum(n * flops(replace(of, direction="fwd"), convention) for n, of in _attention_layers(case, step))
    return (products(case) + attention) * (3 if step.phase == "train" else 1)


def _step_bytes(case: Case, step: Step) -> int:
    passes = 3 if step.phase == "train" else 1
    return passes * weight_bytes(case) + sum(n * ideal_bytes(of) for n, of in _attention_layers(case, step))


def _step_input_bytes(case: Case, step: Step) -> int:
    s = case.shape
    found = int(step.weights(heads_of(case))) + step.outside
    if step.phase == "decode":
        widths = step.k_rank + step.rope if step.k_rank else s.nheads_k * (s.headdim + s.headdim_v)
        lefts = ((n, of.window_size[0]) for n, of in _attention_layers(case, step))
        keys = sum(n * (s.seqlen_k if left is None else min(left + 1, s.seqlen_k)) for n, left in lefts)
        found += s.batch * widths * keys
    return found * ITEMSIZE[case.dtype]


@dataclass(frozen=True)
class Roofline:
    """The least time that a case can take, from its work and a machine's rates.

    Products, memory traffic and exponentials run side by side at best, so the least time is the longest of the three.
    """

    flops: float  # FLOPs of one call
    nbytes: float  # ideal bytes of one call
    peak: float  # FLOP/s
    bandwidth: float  # bytes/s
    source: str = ""  # where the two rates come from
    datasheet: bool = False  # the rates are a datasheet's; a kernel may exceed measured rates
    exps: int = 0  # exponentials of one call; 0 where their rate is unknown
    exp_rate: float = 0.0  # exponentials per second, measured; 0: unknown, and no limit

    @classmethod
    def of(
        cls,
        case: Case,
        peak: float,
        bandwidth: float,
        source: str = "",
        *,
        datasheet: bool = False,
        exp_rate: float = 0.0,
    ) -> Roofline:
        """Return the roofline of a case at the rates given, in FLOP/s, bytes/s and exponentials per second."""
        return cls(
            flops(case), ideal_bytes(case), peak, bandwidth, source, datasheet, exps(case) if exp_rate else 0, exp_rate
        )

    @property
    def intensity(self) -> float:
        """The case's FLOPs per ideal byte."""
        return self.flops / self.nbytes

    @property
    def ridge(self) -> float:
        """The intensity, in FLOP per byte, above which compute is the limit."""
        return self.peak / self.bandwidth

    @property
    def compute_seconds(self) -> float:
        """Least seconds for the arithmetic."""
        return self.flops / self.peak

    @property
    def memory_seconds(self) -> float:
        """Least seconds for the memory traffic."""
        return self.nbytes / self.bandwidth

    @property
    def seconds(self) -> float:
        """Least seconds for the call."""
        return max(self.compute_seconds, self.memory_seconds, self.exp_seconds)

    @property
    def exp_seconds(self) -> float:
        """Least seconds for the exponentials of the softmax, 0 where their rate is not known."""
        return self.exps / self.exp_rate if self.exp_rate else 0.0

    @property
    def bound(self) -> Bound:
        """What limits the call: whichever takes longest at its peak rate.

        "compute" stands for the FLOPs, "memory" for the memory traffic, "exp" for the exponentials.
        """
        if self.exp_seconds > max(self.compute_seconds, self.memory_seconds):
            return "exp"
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


def _columns_touched(lo: int, hi: int, rows: int, columns: int) -> int:
    """Return how many of `columns` hold an entry of the band lo <= column - row <= hi over `rows`.

    These columns are contiguous.
    """
    if lo > hi:
        return 0
    return max(0, min(columns - 1, rows - 1 + hi) - max(0, lo) + 1)
