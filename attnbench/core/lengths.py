"""The lengths of a ragged batch as people write them: a pattern, a list, or vLLM's grammar.

- a pattern, `uniform`: as many tokens as the dense batch of that seqlen and batch has, in sequences of unlike length.
  Lengths are quantiles of a distribution, not random draws, in an order that is shuffled the same way each time.
  `longtail/ascending` and `/descending` sort them, which matters to schedulers. The patterns:

    uniform     from half of the mean to one and a half
    longtail    log-normal; the logarithm has standard deviation 1: a tenth of the sequences hold 39 % of the tokens
    bimodal     three quarters of them short, a quarter of the mean; the others long, 3.25 times the mean
    zipf        the i-th longest is 1 / i of the longest, as in FlashInfer's paper (Ye et al., arXiv 2501.01005)
    documents   log-normal; the logarithm has standard deviation 1.5: a model of documents packed for training, not data

- a list, `4k+2*1k+1x16k`: lengths, each with its number of sequences before `*`, or QUERIESxKEYS for fewer queries
- vLLM's grammar (vllm-project/vllm, benchmarks/attention_benchmarks), `2q2k_32q1s16k`: 2 sequences of 2k, and 32 of one
  query on 16k keys
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.sizes import format_size, parse_size

Lengths = tuple[tuple[int, ...], ...]  # the form of Case.lengths
ORDERS = ("shuffled", "ascending", "descending")
MOST_SEQUENCES = 4096
MOST_SPELLED = 6  # the most groups of equal lengths that a name spells out
_GROUP = re.compile(r"(\d*)q(\d+[km]?)(?:s(\d+[km]?))?", re.IGNORECASE)
_ENTRY = re.compile(r"(?:(\d+)\*)?(\d+[km]?)(?:x(\d+[km]?))?", re.IGNORECASE)


def _normal(sigma: float) -> Callable[[float], float]:
    return lambda p: math.exp(sigma * NormalDist().inv_cdf(p))


# pattern -> the quantile function of lengths, in any unit
_QUANTILES: Mapping[str, Callable[[float], float]] = {
    "uniform": lambda p: 0.5 + p,
    "longtail": _normal(1.0),
    "bimodal": lambda p: 0.25 if p < 0.75 else 3.25,
    "documents": _normal(1.5),
}
PATTERNS = (*_QUANTILES, "zipf")


@dataclass(frozen=True)
class RaggedLengths:
    """The requested lengths of a batch: a fixed list, or a pattern that needs a batch and a mean length."""

    text: str
    fixed: Lengths = ()  # the lengths of a list
    pattern: str = ""
    order: str = "shuffled"

    def resolve(self, batch: int, mean: int, seqlen_q: int | None = None) -> Lengths:
        """Return the lengths, as `Case.lengths`; () where they are all equal. A list ignores the arguments.

        Each sequence has as many queries as keys, or at most `seqlen_q`.
        """
        if self.fixed:
            return self.fixed
        each = _drawn(self.pattern, batch, mean)
        if self.order == "shuffled":
            random.Random(self.pattern).shuffle(each)
        else:
            each.sort(reverse=self.order == "descending")
        return run_lengths([(min(seqlen_q or length, length), length) for length in each])

    def matches(self, case: Case) -> bool:
        """Whether a case has these lengths; a pattern needs two sequences."""
        if self.pattern and case.shape.batch < 2:
            return False
        return case.lengths in self._of(case.shape.batch, case.mean_seqlens[1], case.shape.seqlen_q)

    def _of(self, batch: int, mean: int, most_queries: int) -> tuple[Lengths, ...]:
        """Return two variants of the lengths: with as many queries as keys, and with at most `most_queries` queries."""
        return self.resolve(batch, mean), self.resolve(batch, mean, most_queries)


def parse_lengths(text: str) -> tuple[RaggedLengths | None, ...]:
    """Return the lengths of a comma-separated text; None stands for "none", a dense batch. Raises UserError."""
    return tuple(dict.fromkeys(_parse(part.strip()) for part in str(text).split(",")))


def is_pattern(text: str) -> bool:
    """Whether a text of lengths names a pattern."""
    return text.partition("/")[0] in PATTERNS


@cache
def describe(lengths: Lengths) -> str:
    """Return the lengths of a batch in a few words: "longtail", "2*2k+32*1x16k", or "40 of 17 to 8k #3fa2".

    The text after "#" is a hash, since many batches have the same extremes. Different lengths with the same batch, mean
    and largest number of queries get different texts.
    """
    count, tokens = sum(of[0] for of in lengths), sum(of[0] * of[2] for of in lengths)
    queries = max(of[1] for of in lengths)
    if count <= MOST_SEQUENCES and tokens % count == 0:
        keys = sorted(k for number, _, k in lengths for _ in range(number))
        fitting = [pattern for pattern in PATTERNS if sorted(_drawn(pattern, count, tokens // count)) == keys]
        for pattern, order in itertools.product(fitting, ORDERS):
            if lengths in RaggedLengths("", (), pattern, order)._of(count, tokens // count, queries):
                return pattern if order == ORDERS[0] else f"{pattern}/{order}"
    if len(lengths) <= MOST_SPELLED:
        return spell(lengths)
    shortest, longest = (format_size(of(k for _, _, k in lengths)) for of in (min, max))
    return f"{count} of {shortest} to {longest} #{hashlib.sha256(spell(lengths).encode()).hexdigest()[:4]}"


def spell(lengths: Lengths) -> str:
    """Return lengths as a list that `parse_lengths` reads; "" for none."""
    return "+".join(
        ("" if number == 1 else f"{number}*") + ("" if q == k else f"{format_size(q)}x") + format_size(k)
        for number, q, k in lengths
    )


def run_lengths(pairs: Sequence[tuple[int, int]]) -> Lengths:
    """Return the (seqlen_q, seqlen_k) of all sequences in the form of `Case.lengths`; () where they are all equal."""
    coded = tuple((len(list(group)), *pair) for pair, group in itertools.groupby(pairs))
    return coded if len(coded) > 1 else ()


def _parse(part: str) -> RaggedLengths | None:
    if part == "none":
        return None
    pattern, _, order = part.partition("/")
    if pattern in PATTERNS:
        if order and order not in ORDERS:
            raise UserError(f"lengths: {part!r}: an order is one of {', '.join(ORDERS)}{did_you_mean(order, ORDERS)}")
        return RaggedLengths(part, pattern=pattern, order=order or "shuffled")
    groups = [_GROUP.fullmatch(group) for group in part.split("_")]
    entries = [_ENTRY.fullmatch(entry) for entry in part.split("+")]
    if all(groups):
        found = [(m[1] or "1", m[2], m[3] or m[2]) for m in groups if m]
    elif all(entries) and (len(entries) > 1 or "*" in part):
        found = [(m[1] or "1", m[2], m[3] or m[2]) for m in entries if m]
    else:
        raise UserError(
            f"lengths: {part!r} is none of {', '.join(PATTERNS)}, a list such as 4k+2*1k+1x16k, or vLLM's "
            f"2q2k_32q1s16k{did_you_mean(pattern, PATTERNS)}"
        )
    counts = [parse_size(count, "lengths") for count, _, _ in found]
    if sum(counts) > MOST_SEQUENCES:
        raise UserError(f"lengths: {part}: {sum(counts)} sequences; at most {MOST_SEQUENCES} in a batch")
    pairs = [(parse_size(q, "lengths"), parse_size(k, "lengths")) for _, q, k in found]
    each = [pair for number, pair in zip(counts, pairs, strict=True) for _ in range(number)]
    fixed = run_lengths(each)
    if not fixed:
        q, k = each[0]
        queries = f" --seqlen-q {q}" if q != k else ""
        raise UserError(f"lengths: {part} is a dense batch; give --batch {len(each)} --seqlen {k}{queries}")
    return RaggedLengths(part, fixed=fixed)


def _drawn(pattern: str, batch: int, mean: int) -> list[int]:
    """Return `batch` lengths of a pattern, the longest last, each at least 1, with `batch * mean` tokens in all."""
    if pattern == "zipf":
        wanted = [1 / (batch - i) for i in range(batch)]
    else:
        wanted = [_QUANTILES[pattern]((i + 0.5) / batch) for i in range(batch)]
    total = batch * mean
    scale = (total - batch) / sum(wanted)
    ends = [round(scale * along) for along in itertools.accumulate(wanted)]
    return [1 + end - start for start, end in zip([0, *ends], ends, strict=False)]
