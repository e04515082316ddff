"""The lightning indexer of DeepSeek sparse attention (DSA): definition, inputs, results (`Case.kind` "indexer").

It chooses the keys to which sparse attention attends (DeepSeek-V3.2, arXiv 2512.02556, section 2.1). All heads share
one key of each token, and the score of key t for query s is

    score[s, t] = sum over heads h of weights[s, h] * relu(q[s, h]' k[t])

The query sees keys as in causal attention. Its result are the indices of the N keys with the highest scores, in any
order; -1 stands after the last one where it sees fewer than N keys. N is the number of the case's mask, topk:N.

    q          (batch, seqlen_q, nheads, headdim)
    k          (batch, seqlen_k, headdim)
    weights    (batch, seqlen_q, nheads), float32
    k_scale    (batch, seqlen_k), float32 and positive: with fp8 key t is k_scale[t] * k[t], and q and k are e4m3; the
               scales of q are in the weights
    indices    (batch, seqlen_q, N), int32
"""

from __future__ import annotations

from collections.abc import Mapping

from attnbench.core import masks
from attnbench.core.case import Case

DTYPES: Mapping[str, str] = {"weights": "float32", "k_scale": "float32", "indices": "int32"}


def shapes(case: Case) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the inputs of an indexer by name."""
    s = case.shape
    found: dict[str, tuple[int, ...]] = {
        "q": (s.batch, s.seqlen_q, s.nheads, s.headdim),
        "k": (s.batch, s.seqlen_k, s.headdim),
        "weights": (s.batch, s.seqlen_q, s.nheads),
    }
    return {**found, "k_scale": (s.batch, s.seqlen_k)} if case.dtype == "fp8" else found


def result_shapes(case: Case) -> Mapping[str, tuple[int, ...]]:
    """Return the name of the result of an indexer, with its shape."""
    return {"indices": (case.shape.batch, case.shape.seqlen_q, masks.chosen(case.mask))}


def input_names(case: Case) -> tuple[str, ...]:
    """Return the names of the tensors that an indexer reads."""
    return (*shapes(case),)
