"""A case: one attention problem to measure, independent of the backend that computes it."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from json import dumps  # bound here, so that no kernel can replace it
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from attnbench.core import masks, rules
from attnbench.core import step as steps
from attnbench.core.text import count

Dtype = Literal["bf16", "fp16", "fp32", "fp8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

Direction = Literal["fwd", "bwd", "fwd_bwd"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

Layout = Literal["native", "bshd", "bhsd", "packed"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

CacheDtype = Literal["same", "fp8"]
CACHE_DTYPES: tuple[CacheDtype, ...] = get_args(CacheDtype)

Data = Literal["normal", "outliers", "uniform", "zeros", "decaying"]
DATA: tuple[Data, ...] = get_args(Data)

Kind = Literal["softmax", "gdn", "kda", "indexer"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Bytes of one element of q, k and v, by dtype.
ITEMSIZE: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
# Bytes of one element of out and of the gradients, by dtype. A result of an fp8 case is bf16.
RESULT_ITEMSIZE: Mapping[str, int] = {**ITEMSIZE, "fp8": 2}


MOST_DECODED = 16  # most queries of a sequence in a decode step: one, and the proposals of a draft model


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention call.

    q is (batch, seqlen_q, nheads, headdim), k is (batch, seqlen_k, nheads_k, headdim), v is (batch, seqlen_k, nheads_k,
    headdim_v), out is (batch, seqlen_q, nheads, headdim_v). Delta rules (`Case.kind`) have nheads_k heads of q and of
    k, and nheads heads of v; an indexer has nheads heads of q, one of k, and no v. For a ragged batch (`Case.lengths`)
    batch is the number of its sequences, and seqlen_q and seqlen_k are the largest lengths.

    With nheads_k < nheads (grouped heads, GQA; MQA where it is 1), query head h uses key head h // (nheads //
    nheads_k).

    Raises ValueError for a size below 1, and where nheads is not a multiple of nheads_k.
    """

    strict: ClassVar[bool] = True  # an unknown field would make it another shape: core/json.py

    batch: int  # sequences
    seqlen_q: int  # tokens
    seqlen_k: int  # tokens
    nheads: int  # query heads
    nheads_k: int  # key and value heads
    headdim: int  # elements of one head of q and k
    headdim_v: int  # elements of one head of v and out

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.nheads % self.nheads_k:
            own = f"{count(self.nheads, 'query head')} (headdim {self.headdim}) {'is' if self.nheads == 1 else 'are'}"
            raise ValueError(
                f"nheads-k: {own} not a multiple of {self.nheads_k} key heads; choose a divisor, or give --nheads too"
            )


class Sequences(NamedTuple):
    """Sequences of one length that follow each other in a batch."""

    number: int
    seqlen_q: int
    seqlen_k: int


def sizes_of(lengths: tuple[tuple[int, ...], ...]) -> tuple[int, int, int]:
    """Return batch, seqlen_q and seqlen_k of the shape of a ragged batch."""
    numbers, queries, keys = zip(*lengths, strict=True)
    return sum(numbers), max(queries), max(keys)


@dataclass(frozen=True)
class Case:
    """One attention problem to measure: sizes, dtype, direction and mask.

    A ragged batch has sequences of unlike `lengths`. Its tensors hold the sequences one after the other, as one batch
    entry: `extent` has the sizes of the tensors. A query sees keys of its own sequence only.

    Query i stands at key position i + seqlen_k - seqlen_q (masks are aligned bottom-right). It sees the keys from
    `window_size[0]` positions before that to `window_size[1]` positions after it, and with `causal` none after it. A
    query that sees no key has output 0. core/fp8.py says which tensors of an fp8 case have 8 bits.

    With a `page_size` k and v lie in a cache of pages, as a server keeps them (core/pages.py): the queries are the last
    of each sequence. With a `cache_dtype` the cache has values of that dtype, and one factor for k and one for v by
    which they must be multiplied; the exact answer is computed from these values, and q and results have the `dtype`.

    With a `shared_prefix` all sequences begin with the same tokens and share the pages of these: their rows of the page
    table begin alike. The queries come after these tokens.

    With a `sink` each query head has a learnt logit, which joins the softmax of each of its queries and has no value:
    probabilities add up to less than 1 (gpt-oss, arXiv 2508.10925, section 2.3).

    With `alibi` the score of a query for a key falls with their distance, by a slope of each head (core/alibi.py).

    A `mask` adds keys to the ones that causal and window leave a query, or keeps some of them (core/masks.py).

    A `latent` case is MLA with absorbed weights (DeepSeek-V2, arXiv 2405.04434, section 2.1): all query heads share one
    row per token, which is the key, and v is its first headdim_v columns.

    With `ranks` above 1 the sequence is split over that many devices; sizes, FLOPs and bytes are for the whole
    sequence.

    With a `step` the case is a step of a whole model, whose layers have this attention (core/step.py): `direction` is
    fwd, or fwd_bwd for training.

    A `kind` other than softmax is a gated delta rule, linear attention with a state instead of a softmax over keys
    (core/delta.py), or the indexer of sparse attention, which chooses the keys of its `mask` (core/indexer.py).

    Raises ValueError, with a sentence for a person, for a case that cannot be: core/rules.py.
    """

    strict: ClassVar[bool] = True  # an unknown field would make it another case: core/json.py

    shape: Shape
    dtype: Dtype  # dtype of q, k, v and results; results of fp8 are bf16
    direction: Direction  # the work of one timed call: forward, backward, or both in turn
    causal: bool = False  # a query sees no key after its position
    window_size: tuple[int | None, int | None] = (None, None)  # keys to the left and right; None: no limit
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: off
    dropout_p: float = 0.0  # probability that an attention weight is dropped; 0: off
    layout: Layout = "native"  # how q, k and v lie in memory: core/layouts.py
    data: Data = "normal"  # the values of q, k, v and dout: judge/inputs.py
    lengths: tuple[tuple[int, ...], ...] = ()  # of a ragged batch: (number, seqlen_q, seqlen_k), ...
    page_size: int = 0  # tokens of one page of the cache in which k and v lie; 0: no cache, contiguous
    scale: float = 0.0  # the factor on q k^T before the softmax; 0: 1 / sqrt(headdim)
    cache_dtype: CacheDtype = "same"  # dtype of a cache of pages; "same": as q
    latent: bool = False  # MLA: v is the first headdim_v columns of k
    sink: bool = False  # each query head has a learnt logit beside its scores, which takes probability and has no value
    alibi: bool = False  # scores fall with the distance of query and key, by a slope of each head: core/alibi.py
    mask: str = ""  # a mask beside causal and window, such as "prefix:1k": core/masks.py
    append: bool = False  # one call writes the keys and values of its queries into the cache of pages first
    ranks: int = 1  # devices over which the sequence is split
    step: str = ""  # a step of a whole model: phase, layers and sizes, as core/step.py spells them
    kind: Kind = "softmax"  # softmax attention, or a gated delta rule or an indexer: core/delta.py, core/indexer.py
    shared_prefix: int = 0  # tokens at the beginning of all sequences, whose pages of a cache they share
    deterministic: bool = False  # the library's variant that gives the same bits in each launch

    def __post_init__(self) -> None:
        rules.check(self)

    @cached_property
    def key(self) -> str:
        """The stable identity of this case: 16 hexadecimal digits.

        A hash of the shape, dtype, direction and the fields that differ from their default. A field that is added later
        therefore changes no key, and no stored baseline is lost. The folder of a person's own mask is left out.
        """
        fields: dict[str, Any] = {"shape": vars(self.shape), "dtype": self.dtype, "direction": self.direction}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.default is not dataclasses.MISSING and value != f.default:
                fields[f.name] = float(value) if isinstance(f.default, float) else value  # 30 and 30.0 are one case
        if self.mask:
            fields["mask"] = masks.without_folder(self.mask)
        return hashlib.sha256(dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        """Return whether two cases are one problem; the folder of a person's own mask makes no difference."""
        return self is other or (isinstance(other, Case) and self.key == other.key)

    @cached_property
    def _hash(self) -> int:
        return int(self.key, 16)

    def __hash__(self) -> int:
        """Return a hash that is the same in every process, computed once: a report looks cases up very often."""
        return self._hash

    @property
    def is_ragged(self) -> bool:
        """Whether its sequences have unlike lengths."""
        return bool(self.lengths)

    @cached_property
    def sequences(self) -> tuple[Sequences, ...]:
        """The sequences of the batch in their order; neighbours of one length are one `Sequences`."""
        s = self.shape
        return tuple(Sequences(*of) for of in self.lengths) or (Sequences(s.batch, s.seqlen_q, s.seqlen_k),)

    @property
    def has_like_queries(self) -> bool:
        """Whether its sequences have the same number of queries."""
        return len({of.seqlen_q for of in self.sequences}) == 1

    @property
    def has_equal_lengths(self) -> bool:
        """Whether each of its sequences has as many queries as keys."""
        return all(of.seqlen_q == of.seqlen_k for of in self.sequences)

    @cached_property
    def extent(self) -> Shape:
        """The sizes of the tensors: `shape`, or one batch entry that holds all sequences of a ragged batch."""
        if not self.lengths:
            return self.shape
        total_q, total_k = (sum(of.number * of[i] for of in self.sequences) for i in (1, 2))
        return dataclasses.replace(self.shape, batch=1, seqlen_q=total_q, seqlen_k=total_k)

    @property
    def mean_seqlens(self) -> tuple[int, int]:
        """seqlen_q and seqlen_k; for a ragged batch the means over its sequences, rounded down."""
        entries = self.shape.batch // self.extent.batch  # sequences in one batch entry of the tensors
        return self.extent.seqlen_q // entries, self.extent.seqlen_k // entries

    @property
    def is_decode(self) -> bool:
        """Whether the case is a step of generation: a forward of few queries in each sequence, on more keys or a state.

        Its time is the reading of k and v, or of the state; arithmetic takes next to none.
        """
        seqlen_q, seqlen_k = self.mean_seqlens
        return self.direction == "fwd" and seqlen_q <= MOST_DECODED and (self.is_delta or seqlen_k > MOST_DECODED)

    @property
    def is_softmax(self) -> bool:
        """Whether the case is softmax attention, the usual kind."""
        return self.kind == "softmax"

    @property
    def is_delta(self) -> bool:
        """Whether the case is a gated delta rule."""
        return self.kind in ("gdn", "kda")

    @property
    def is_indexer(self) -> bool:
        """Whether the case is the indexer of sparse attention."""
        return self.kind == "indexer"

    @property
    def is_paged(self) -> bool:
        """Whether k and v lie in a cache of pages."""
        return self.page_size > 0

    @property
    def pages(self) -> tuple[int, ...]:
        """The number of pages that each sequence of a paged case takes, in the order of the batch."""
        return tuple(pages for number, pages in self._pages for _ in range(number))

    @property
    def used_pages(self) -> int:
        """The number of pages that all sequences of a paged case take together, with those of a shared prefix once."""
        return sum(number * pages for number, pages in self._pages) - (self.shape.batch - 1) * self.shared_pages

    @property
    def shared_pages(self) -> int:
        """The number of pages of the shared prefix of a paged case."""
        return self.shared_prefix // self.page_size

    @property
    def _pages(self) -> list[tuple[int, int]]:
        return [(of.number, -(-of.seqlen_k // self.page_size)) for of in self.sequences]

    @property
    def cache_itemsize(self) -> int:
        """Bytes of one element of k and v."""
        return ITEMSIZE[self.dtype if self.cache_dtype == "same" else self.cache_dtype]

    @property
    def softmax_scale(self) -> float:
        """The factor on q k^T before the softmax: `scale`, or 1 / sqrt(headdim)."""
        return self.scale or 1 / math.sqrt(self.shape.headdim)

    @cached_property
    def model_step(self) -> steps.Step | None:
        """The parsed `step`; None where the case is attention alone."""
        return steps.parse(self.step) if self.step else None

    @property
    def has_forward(self) -> bool:
        """Whether one timed call computes the forward."""
        return self.direction != "bwd"

    @property
    def has_backward(self) -> bool:
        """Whether one timed call computes the backward."""
        return self.direction != "fwd"
