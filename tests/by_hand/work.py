"""FLOPs and bytes of a case, counted over the rows of its scores (docs/paged.md).

Query i of a sequence has the position of key i + seqlen_k - seqlen_q. It sees the keys from `left` before to `right`
after this key, none after it if causal; with the mask topk:N it sees N of them. Delta rules and indexers are counted by
the formulas of docs/delta-rules.md and docs/indexer.md. tests/core counts the other masks by name, and steps of whole
models.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .raw import Case

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}


def pairs(case: Case) -> int:
    """Return the number of visible pairs of query and key, for one head over the whole batch."""
    assert case.step == "", "no definition here"
    return sum(number * seen(case, q, k)[0] for number, q, k in case.sequences)


def passes(case: Case) -> int:
    return 2 if case.direction == "fwd_bwd" else 1


def flops(case: Case) -> float:
    """Return the FLOPs of a call, 2 a product: q k and p v forward; q k, dout v, dq, dk and dv backward."""
    d, dv = case.headdim, case.headdim_v
    forward, backward, number = 2 * (d + dv), 2 * (3 * d + 2 * dv), 0
    if case.kind == "indexer":
        forward = 2 * d
    elif case.kind != "softmax":  # k' S, k times the row that is added, q' S, for each token
        forward, number = 6 * d * dv, case.batch * case.seqlen_k
        backward = 2 * forward
    each = {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[case.direction]
    return float(each * (number or pairs(case)) * case.nheads)


def ideal_bytes(case: Case) -> int:
    """Return the least bytes of a call: in each pass once every operand that a visible pair needs."""
    if case.kind != "softmax":
        return _bytes_of_indexer(case) if case.kind == "indexer" else _bytes_of_delta(case)
    of_q = of_k = rows_q = rows_k = 0
    of_prefix = 0  # keys of a shared prefix that some sequence needs: those that the longest reach needs
    for number, q, k in case.sequences:
        _, queries, keys, shared = seen(case, q, k)
        of_q, of_k = of_q + number * queries * case.nheads, of_k + number * (keys - shared) * case.nheads_k
        of_prefix = max(of_prefix, shared * case.nheads_k)
        rows_q, rows_k = rows_q + number * q * case.nheads, rows_k + number * k * case.nheads_k
    of_k += of_prefix
    d, dv, size = case.headdim, case.headdim_v, ITEMSIZE[case.dtype]
    of_cache = ITEMSIZE[case.dtype if case.cache_dtype == "same" else case.cache_dtype]
    of_result = 2 if case.dtype == "fp8" else size
    found = passes(case) * (of_q * d * size + of_k * (d if case.latent else d + dv) * of_cache)
    if case.direction != "bwd":
        found += rows_q * dv * of_result  # out
    if case.append:  # writes of the queries' keys and values
        found += sum(number * q for number, q, _ in case.sequences) * case.nheads_k * (d + dv) * of_result
    if case.direction != "fwd":
        found += of_q * dv * (size + of_result)  # dout and out
        found += (rows_q * d + rows_k * (d + dv)) * of_result  # dq, dk and dv
    return int(found)


def _bytes_of_indexer(case: Case) -> int:
    """Return the bytes of q, k, weights and indices, in fp8 also those of a scale for each key."""
    size, queries = ITEMSIZE[case.dtype], case.batch * case.seqlen_q
    of_query = case.nheads * case.headdim * size + case.nheads * 4 + _number_of(case.mask) * 4
    of_key = case.headdim * size + (4 if case.dtype == "fp8" else 0)
    return int(queries * of_query + case.batch * case.seqlen_k * of_key)


def _bytes_of_delta(case: Case) -> int:
    """Return the bytes of a forward of a delta rule: q, k, v, gate, beta and out of each token, and two states."""
    assert case.direction == "fwd", "no run file has a backward"
    size, gates = ITEMSIZE[case.dtype], case.headdim if case.kind == "kda" else 1
    of_heads = (2 * case.headdim_v + 1) * size + gates * 4  # v and out, beta; the gate is float32, as states are
    of_token = 2 * case.nheads_k * case.headdim * size + case.nheads * of_heads
    states = 2 * case.nheads * case.headdim * case.headdim_v * 4
    return int(case.batch * (case.seqlen_k * of_token + states))


def _number_of(mask: str) -> int:
    """Return the number of keys of topk:N or topk_recent:N, such as 2048 of topk:2k."""
    name, _, text = mask.partition(":")
    assert name in ("topk", "topk_recent"), "no definition here"
    return int(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)


def limit(case: Case, top: float | None, rate: float | None) -> str:
    """Return what limits a case at the datasheet's FLOP/s and bytes/s; by its kind where one of them is unknown."""
    if not top or not rate:
        return "memory" if case.is_decode else "compute"
    computing, moving = flops(case) / top, ideal_bytes(case) / rate
    if max(computing, moving) / case.ranks < 2e-6:
        return "launch"
    return "memory" if moving > computing else "compute"


def seen(case: Case, seqlen_q: int, seqlen_k: int) -> tuple[int, int, int, int]:
    """Return the visible pairs of one sequence, its queries that see a key, and its keys that a query sees.

    The last number are the visible keys of the shared prefix.
    """
    left, right = case.window_size
    if case.mask and case.kind == "softmax":
        number, places = _number_of(case.mask), np.arange(seqlen_k - seqlen_q, seqlen_k)
        rows = int(np.clip(places + 1, None, number).sum())
        return rows, seqlen_q, rows if seqlen_q == 1 else seqlen_k, 0
    return _seen(seqlen_q, seqlen_k, left, 0 if case.causal else right, case.shared_prefix)


@cache
def _seen(seqlen_q: int, seqlen_k: int, left: int | None, right: int | None, prefix: int) -> tuple[int, int, int, int]:
    place, key = np.arange(seqlen_k - seqlen_q, seqlen_k), np.arange(seqlen_k)
    first = np.zeros_like(place) if left is None else np.clip(place - left, 0, None)
    last = np.full_like(place, seqlen_k - 1) if right is None else np.clip(place + right, None, seqlen_k - 1)
    rows = np.clip(last - first + 1, 0, None)
    behind = place[0] if right is None else np.clip(key - right, place[0], None)  # the first query that sees the key
    before = place[-1] if left is None else np.clip(key + left, None, place[-1])
    columns = np.broadcast_to(before - behind + 1, key.shape)
    return int(rows.sum()), int((rows > 0).sum()), int((columns > 0).sum()), int((columns[:prefix] > 0).sum())
