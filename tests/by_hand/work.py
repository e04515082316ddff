"""FLOPs and bytes of a case, counted over the rows of its scores (docs/paged.md).

Query i of a sequence has the position of key i + seqlen_k - seqlen_q. It sees the keys from `left` before to `right`
after this key, none after it if causal. tests/core counts masks by name and steps of whole models.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .raw import Case

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}


def pairs(case: Case) -> int:
    """Return the number of visible pairs of query and key, for one head over the whole batch."""
    assert case.mask == case.step == "", "no definition here"
    assert case.kind == "softmax", "tests/core counts delta rules"
    return sum(number * seen(case, q, k)[0] for number, q, k in case.sequences)


def passes(case: Case) -> int:
    return 2 if case.direction == "fwd_bwd" else 1


def flops(case: Case) -> float:
    """Return the FLOPs of a call, 2 a product: q k and p v forward; q k, dout v, dq, dk and dv backward."""
    d, dv = case.headdim, case.headdim_v
    forward, backward = 2 * (d + dv), 2 * (3 * d + 2 * dv)
    each = {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[case.direction]
    return float(each * pairs(case) * case.nheads)


def ideal_bytes(case: Case) -> int:
    """Return the least bytes of a call: in each pass once every operand that a visible pair needs."""
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
