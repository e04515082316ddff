"""The limits of cases, as data: values of axes that exclude each other, and rules for one axis or several.

Each limit has one sentence, which names the option, and says what is impossible and what to do. `Case` evaluates all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnbench.core import masks
from attnbench.core import step as steps
from attnbench.core.errors import UserError

Case = Any  # core/case.py, which imports this file
MOST_RANKS = 64


class NotOfCacheError(ValueError):
    """A case that is impossible with a cache of pages, latent rows, or a kind of attention other than softmax.

    A product of axes leaves such cases out.
    """


class Trait(NamedTuple):
    """A value of an axis, which may exclude values of other axes."""

    of: Callable[[Case], Any]  # whether a case has this value
    option: str
    noun: str
    given: str = ""  # the option with the case's value; "" for the option's name alone


TRAITS: Mapping[str, Trait] = {
    "lengths": Trait(lambda c: c.lengths, "lengths", "a ragged batch"),
    "page_size": Trait(lambda c: c.is_paged, "page-size", "a cache of pages", "page-size {c.page_size}"),
    "cache_dtype": Trait(
        lambda c: c.cache_dtype != "same", "cache-dtype", "a cache of another dtype", "cache-dtype {c.cache_dtype}"
    ),
    "append": Trait(lambda c: c.append, "append", "appended keys and values"),
    "latent": Trait(lambda c: c.latent, "latent", "latent rows"),
    "shared_prefix": Trait(
        lambda c: c.shared_prefix, "shared-prefix", "a shared prefix", "shared-prefix {c.shared_prefix}"
    ),
    "sink": Trait(lambda c: c.sink, "sink", "an attention sink"),
    "alibi": Trait(lambda c: c.alibi, "alibi", "ALiBi"),
    "deterministic": Trait(lambda c: c.deterministic, "deterministic", "a deterministic variant"),
    "mask": Trait(lambda c: c.mask and not c.is_indexer, "mask", "a mask by name", "mask {c.mask}"),
    "other_mask": Trait(
        lambda c: c.mask and not masks.chooses(c.mask), "mask", "a mask other than topk", "mask {c.mask}"
    ),
    "softcap": Trait(lambda c: c.softcap, "softcap", "softcap", "softcap {c.softcap:g}"),
    "dropout": Trait(lambda c: c.dropout_p, "dropout", "dropout", "dropout {c.dropout_p:g}"),
    "layout": Trait(lambda c: c.layout != "native", "layout", "a layout", "layout {c.layout}"),
    "data": Trait(lambda c: c.data != "normal", "data", "other data", "data {c.data}"),
    "decaying": Trait(lambda c: c.data == "decaying", "data", "decaying inputs", "data decaying"),
    "fp8": Trait(lambda c: c.dtype == "fp8", "dtype", "fp8", "fp8"),
    "ranks": Trait(lambda c: c.ranks > 1, "ranks", "several devices", "ranks {c.ranks}"),
    "step": Trait(lambda c: c.step, "step", "a step of a model"),
    "window": Trait(lambda c: c.window_size != (None, None), "window", "a window"),
    "delta": Trait(lambda c: c.is_delta, "kind", "a delta rule", "kind {c.kind}"),
    "indexer": Trait(lambda c: c.is_indexer, "kind", "an indexer", "kind {c.kind}"),
}

# trait -> the traits that it excludes
EXCLUDES: Mapping[str, tuple[str, ...]] = {
    "lengths": ("dropout", "layout"),
    "page_size": ("dropout", "layout"),
    "latent": ("dropout", "layout"),
    "sink": ("dropout", "fp8"),
    "alibi": ("dropout", "softcap", "latent", "fp8"),
    "deterministic": ("page_size", "latent", "ranks", "step"),
    "mask": ("dropout", "fp8", "lengths"),
    "other_mask": ("page_size", "latent"),
    "shared_prefix": ("mask",),
    "ranks": ("dropout", "sink", "alibi", "page_size", "latent", "fp8", "lengths", "mask", "layout", "step"),
    "decaying": ("lengths", "page_size", "latent"),
    "step": ("dropout", "alibi", "page_size", "latent", "fp8", "lengths", "mask", "layout", "data"),
    "cache_dtype": ("fp8", "append"),
    "append": ("latent",),
    "delta": tuple(name for name in TRAITS if name not in ("delta", "other_mask", "decaying")),
    "indexer": tuple(name for name in TRAITS if name not in ("indexer", "mask", "fp8", "decaying")),
}


def _mask(c: Case) -> str:
    try:
        if c.is_indexer:
            masks.find(c.mask)
            return ""
        return masks.problem(c.mask, c.shape.seqlen_k, causal=c.causal, window=c.window_size)
    except UserError as error:
        return str(error).removeprefix("mask: ")


def _step(c: Case) -> str:
    """Return why a case does not fit its step, "" where it does. Raises ValueError where the step cannot be read."""
    of, s, left = steps.parse(c.step), c.shape, c.window_size[0]
    if c.direction != ("fwd_bwd" if of.phase == "train" else "fwd"):
        return f"{of.phase} is not {c.direction}"
    if s.seqlen_q != (1 if of.phase == "decode" else s.seqlen_k) or s.seqlen_k < 2 or not c.causal:
        return "a step is causal, has two tokens or more, and in decode one query per sequence"
    if of.windows and of.windows[0] != (0 if left is None else left + 1):
        return "the window of the case must be the window of the first layer"
    return ""


def _indexer(c: Case) -> str:
    s = c.shape
    if not c.mask.startswith("topk:"):
        return "an indexer chooses a number of keys; give --mask topk:2k, or leave it out"
    if s.nheads_k != 1:
        return f"all heads of an indexer share one key; leave out --nheads-k {s.nheads_k}"
    if s.headdim_v != s.headdim:
        return f"an indexer has no values; give --headdim {s.headdim}"
    return "the scale of an indexer is in its weights; leave out --softmax-scale" if c.scale else ""


def _lengths(c: Case) -> str:
    s = c.shape
    if any(len(of) != 3 or min(of) < 1 for of in c.lengths):
        return "each entry must be (number, seqlen_q, seqlen_k), all at least 1"
    if len({of[1:] for of in c.lengths}) == 1:
        return "all sequences have the same length; leave lengths out for a dense batch"
    numbers, queries, keys = zip(*c.lengths, strict=True)
    found = sum(numbers), max(queries), max(keys)
    return "" if found == (s.batch, s.seqlen_q, s.seqlen_k) else f"{found} is not batch, seqlen_q and seqlen_k of {s}"


def _prefix(c: Case) -> str:
    if c.shared_prefix < 0:
        return f"{c.shared_prefix} is not at least 0"
    if not c.is_paged:
        return "sequences share pages of a cache; give --page-size too"
    if c.shared_prefix % c.page_size:
        return f"{c.shared_prefix} tokens are no whole pages of {c.page_size}; give a multiple of --page-size"
    return ""


def _split(c: Case) -> str:
    s = c.shape
    if c.ranks > MOST_RANKS:
        return f"{c.ranks}; at most {MOST_RANKS}, all on one machine"
    if s.seqlen_q != s.seqlen_k:
        return f"a split sequence needs as many queries as keys, not {s.seqlen_q} and {s.seqlen_k}"
    if s.seqlen_k % c.ranks:
        return f"{s.seqlen_k} tokens are not a multiple of {c.ranks}; give other lengths, or 2, 4 or 8 ranks"
    return ""


class Rule(NamedTuple):
    """A condition on cases, with the sentence for a case that breaks it."""

    option: str
    problem: Callable[[Case], Any]  # the fault of a case; a false value where there is none
    sentence: str = "{problem}"  # {problem} is the fault, {c} the case


RULES = (
    Rule("softmax-scale", lambda c: not 0 <= c.scale < math.inf, "{c.scale} is not positive"),
    Rule("ranks", lambda c: c.ranks < 1, "{c.ranks} is not at least 1"),
    Rule("page-size", lambda c: c.page_size < 0, "{c.page_size} is not at least 1"),
    Rule("lengths", lambda c: c.lengths and _lengths(c)),
    Rule("ranks", lambda c: c.ranks > 1 and _split(c)),
    Rule(
        "mask", lambda c: c.mask and _mask(c), "{problem}; change --seqlen, --causal or --window, or give another mask"
    ),
    Rule(
        "mask",
        # With pages or latent rows `check` raises NotOfCacheError, by which a product leaves the case out.
        lambda c: c.mask and c.shape.seqlen_q > c.shape.seqlen_k and not (c.is_paged or c.latent),
        "{c.mask} takes at most as many queries as keys; give a smaller --seqlen-q",
    ),
    Rule("step", lambda c: c.step and _step(c)),
    Rule(
        "kind",
        lambda c: c.is_delta and c.shape.seqlen_q != c.shape.seqlen_k,
        "{c.kind} has a state in place of earlier keys; leave out --seqlen-q (--seqlen 1 is decoding)",
    ),
    Rule("kind", lambda c: c.is_indexer and _indexer(c)),
    Rule(
        "cache-dtype",
        lambda c: c.cache_dtype != "same" and not c.is_paged,
        "only a cache of pages has a dtype of its own; give --page-size too",
    ),
    Rule(
        "append",
        lambda c: c.append and not c.is_paged,
        "keys and values are appended to a cache of pages; give --page-size too",
    ),
    Rule("shared-prefix", lambda c: c.shared_prefix and _prefix(c)),
    Rule(
        "latent",
        lambda c: c.latent and c.shape.nheads_k != 1,
        "all query heads share one row per token; leave out --nheads-k {c.shape.nheads_k}",
    ),
    Rule(
        "latent",
        lambda c: c.latent and c.shape.headdim_v > c.shape.headdim,
        "the values are a part of the keys; give --headdim 576-512, or leave it out",
    ),
)


def check(case: Case) -> None:
    """Raise ValueError, with one sentence, for an impossible case; NotOfCacheError where a product leaves it out."""
    for name, others in EXCLUDES.items():
        trait = TRAITS[name]
        other = next((TRAITS[of] for of in others if TRAITS[of].of(case)), None) if trait.of(case) else None
        if other:
            given = (other.given or other.option).format(c=case)
            raise ValueError(f"{trait.option}: {given} with {trait.noun} cannot be measured; leave out one of them")
    for rule in RULES:
        if problem := rule.problem(case):
            raise ValueError(f"{rule.option}: {rule.sentence.format(c=case, problem=problem)}")
    if case.is_indexer and case.has_backward:
        raise NotOfCacheError("kind: indexer is forward only; give --pass fwd")
    if not (case.is_softmax or case.causal):
        raise NotOfCacheError(f"kind: {case.kind} is causal; give --causal")
    if case.is_paged or case.latent:
        option = "page-size" if case.is_paged else "latent"
        if case.has_backward:
            raise NotOfCacheError(f"{option}: forward only; give --pass fwd")
        if any(of.seqlen_q > of.seqlen_k for of in case.sequences):
            raise NotOfCacheError(f"{option}: the queries are the last of their sequence; give at most as many as keys")
        prefix = case.shared_prefix
        if short := next((of for of in case.sequences if prefix and of.seqlen_k - of.seqlen_q < prefix), None):
            raise NotOfCacheError(
                f"shared-prefix: the queries come after the {prefix} tokens that all sequences share, but a sequence "
                f"of {short.seqlen_k} tokens has {short.seqlen_q} for queries; give a longer --seqlen, or a smaller "
                "--seqlen-q or --shared-prefix"
            )
