"""FLOPs and bytes of a case, counted over the rows of its scores (docs/masks.md, docs/paged.md, docs/step.md).

Query i of a sequence stands at key i + seqlen_k - seqlen_q. It sees the keys from `left` before to `right` after that,
none after it if causal. A mask by name adds keys to this band, or leaves some of it.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np

from .raw import Case

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
BLOCK = 128  # tokens of a block of random:P


def pairs(case: Case) -> int:
    """Return the pairs of a query and a key that the mask leaves, of one head over the whole batch."""
    return sum(number * seen(case, q, k)[0] for number, q, k in case.sequences)


def passes(case: Case) -> int:
    return 2 if case.direction == "fwd_bwd" else 1


def flops(case: Case) -> float:
    """Return the FLOPs of a call: q k and p v forward; q k, dout v, dq, dk and dv backward. 2 for each product."""
    if case.step:
        return step_flops(case)
    d, dv = case.headdim, case.headdim_v
    forward, backward = 2 * (d + dv), 2 * (3 * d + 2 * dv)
    each = {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[case.direction]
    return float(each * pairs(case) * case.nheads)


def exponentials(case: Case) -> int:
    """Return the exponentials of a call: one a pair and head, in the backward again."""
    return passes(case) * pairs(case) * int(case.nheads)


def ideal_bytes(case: Case) -> int:
    """Return the least bytes of a call: each operand that some query sees or is seen by once in each pass."""
    if case.step:
        return step_bytes(case)
    return attention_bytes(case)


def attention_bytes(case: Case) -> int:
    of_q = of_k = rows_q = rows_k = 0
    for number, q, k in case.sequences:
        _, queries, keys = seen(case, q, k)
        of_q, of_k = of_q + number * queries * case.nheads, of_k + number * keys * case.nheads_k
        rows_q, rows_k = rows_q + number * q * case.nheads, rows_k + number * k * case.nheads_k
    d, dv, size = case.headdim, case.headdim_v, ITEMSIZE[case.dtype]
    of_cache = ITEMSIZE[case.dtype if case.cache_dtype == "same" else case.cache_dtype]
    of_result = 2 if case.dtype == "fp8" else size
    found = passes(case) * (of_q * d * size + of_k * (d if case.latent else d + dv) * of_cache)
    if case.direction != "bwd":
        found += rows_q * dv * of_result  # out
    if case.append:  # keys and values of the queries are written
        found += sum(number * q for number, q, _ in case.sequences) * case.nheads_k * (d + dv) * of_result
    if case.direction != "fwd":
        found += of_q * dv * (size + of_result)  # dout and out
        found += (rows_q * d + rows_k * (d + dv)) * of_result  # dq, dk and dv
    return int(found)


def seen(case: Case, seqlen_q: int, seqlen_k: int) -> tuple[int, int, int]:
    """Return of one sequence the pairs, the queries that see a key, and the keys that a query sees."""
    left, right = case.window_size
    return _seen(seqlen_q, seqlen_k, left, 0 if case.causal else right, case.mask)


@cache
def _seen(seqlen_q: int, seqlen_k: int, left: int | None, right: int | None, mask: str) -> tuple[int, int, int]:
    place, key = np.arange(seqlen_k - seqlen_q, seqlen_k), np.arange(seqlen_k)
    first = np.zeros_like(place) if left is None else np.clip(place - left, 0, None)
    last = np.full_like(place, seqlen_k - 1) if right is None else np.clip(place + right, None, seqlen_k - 1)
    name, _, text = mask.partition(":")
    size = 0 if name in ("", "random") else int(text[:-1]) * 1024 if text.endswith("k") else int(text)
    if name == "random":
        return _in_blocks(first, last, place, seqlen_k, _kept_blocks(float(text), -(-seqlen_k // BLOCK)))
    if name in ("prefix", "sink_tokens"):  # keys 0 to `end` beside the band, which is causal
        end = np.clip(place + 1, None, size) if name == "sink_tokens" else np.full_like(place, min(size, seqlen_k))
        rows = last - first + 1 + np.minimum(end, first) + np.clip(end - last - 1, 0, None)
        return int(rows.sum()), seqlen_q, int(min(size, seqlen_k) + (key >= max(size, first[0])).sum())
    # What is left depends on how far apart query and key are.
    apart = np.arange(-seqlen_q - seqlen_k, seqlen_q + seqlen_k + 1)
    rules = {"": apart == apart, "strided": (abs(apart) < size) | (apart % (size or 1) == 0)}
    kept = {**rules, "dilated": apart % (size or 1) == 0}[name]
    rows = _between(kept, place - last, place - first)
    behind = place[0] if right is None else np.clip(key - right, place[0], None)  # the first query that sees the key
    before = place[-1] if left is None else np.clip(key + left, None, place[-1])
    columns = _between(kept, behind - key, before - key)
    return int(rows.sum()), int((rows > 0).sum()), int((columns > 0).sum())


def _between(kept: Any, least: Any, most: Any) -> Any:
    """Return how many distances from `least` to `most` are kept."""
    up_to = np.concatenate([[0], kept.cumsum()])
    middle = len(kept) // 2
    return np.where(least <= most, up_to[middle + most + 1] - up_to[middle + least], 0)


def _in_blocks(first: Any, last: Any, place: Any, seqlen_k: int, blocks: Any) -> tuple[int, int, int]:
    """Return what `seen` does of a mask that leaves some blocks of the band."""
    number = queries = 0
    touched = np.zeros(seqlen_k, bool)
    for row in np.unique(place // BLOCK):
        kept = np.repeat(blocks[row], BLOCK)[:seqlen_k]
        up_to = np.concatenate([[0], kept.cumsum()])
        own = place // BLOCK == row
        found = up_to[last[own] + 1] - up_to[first[own]]
        number, queries = number + int(found.sum()), queries + int((found > 0).sum())
        seen_here = slice(first[own].min(), last[own].max() + 1)
        touched[seen_here] |= kept[seen_here]
    return number, queries, int(touched.sum())


@cache
def _kept_blocks(share: float, blocks: int) -> Any:
    """Return which blocks random:P keeps: drawn with the number of their row as the seed, and those of the diagonal."""
    rows = [random.Random(row) for row in range(blocks)]
    return np.array([[of.random() < share for _ in range(blocks)] for of in rows]) | np.eye(blocks, dtype=bool)


def step_flops(case: Case) -> float:
    """Return the model FLOPs of a step of a dense model: 2 x weights x tokens and attention, in training three times.

    Prefill and decode compute the logits of the last position of each sequence alone.
    """
    kept, layer, head, train = _dense_step(case)
    tokens = case.batch * case.seqlen_q
    logits = head * (tokens if train else case.batch)
    attention = 2 * (case.headdim + case.headdim_v) * pairs(case) * case.nheads
    return float((2 * (kept * layer * tokens + logits) + kept * attention) * (3 if train else 1))


def step_bytes(case: Case) -> int:
    """Return the least bytes of a step: its weights once, in training three times, and those of attention."""
    kept, layer, head, train = _dense_step(case)
    return (3 if train else 1) * (kept * layer + head) * ITEMSIZE[case.dtype] + kept * attention_bytes(case)


def _dense_step(case: Case) -> tuple[int, int, int, bool]:
    """Return the layers that are kept, the weights of each and of the logits, and whether the step trains."""
    phase, _, layers, *said = case.step.split()
    sizes = dict(size.split("=") for size in said)
    assert not sizes.keys() - {"arch", "hidden", "intermediate", "vocab"}, f"no definition of {case.step} here"
    hidden, heads = int(sizes["hidden"]), case.nheads * case.headdim + case.nheads_k * (case.headdim + case.headdim_v)
    layer = hidden * (heads + case.nheads * case.headdim_v + 3 * int(sizes["intermediate"]))
    return int(layers.split("/")[0]), layer, hidden * int(sizes["vocab"]), phase == "train"
