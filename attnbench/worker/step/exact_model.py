"""The exact answer of a step, and the tolerance of an implementation.

The model's attention is replaced by plain matrix products and a softmax, with the mask, scale, softcap and sink of the
case and not of transformers' arguments. It takes blocks of queries, so that the scores of all queries never have to fit
in memory. With the weights in float32 (float64 for fp32 cases) it gives the answer; with the weights in the case's
dtype it is eager attention, whose error is the tolerance. `errors` has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import torch_dtype
from attnbench.core.case import Case
from attnbench.core.flops import attention_of
from attnbench.core.record import TensorError
from attnbench.worker.step.model import StepModel

if TYPE_CHECKING:
    from torch import Tensor

EXACT = "attnbench_exact"  # its name in transformers, which makes no mask for a name that is not its own
SCORES = 2**26  # most scores of one block
SUM = 4.0  # times the expected error of a sum in float32, as in judge/tolerance.py
SMALLEST = 0.05  # share of the usual norm of a row; errors of smaller rows are relative to this


def attend(of: Case, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, rows: Tensor) -> Tensor:
    """Return attention of the queries `rows`, (batch, rows, nheads, headdim_v), in the dtype of q.

    q, k and v are (batch, heads, seqlen, headdim), as in transformers; a cache may have dropped the first keys.
    """
    import torch

    batch, heads, seqlen_q, _ = q.shape
    seqlen_k, groups = k.shape[2], heads // k.shape[1]
    grouped = q[:, :, rows].unflatten(1, (k.shape[1], groups)).flatten(2, 3)
    scores = (grouped @ k.transpose(2, 3) * of.softmax_scale).view(batch, heads, len(rows), seqlen_k)
    if of.softcap:
        scores = of.softcap * torch.tanh(scores / of.softcap)
    place, keys = rows[:, None] + seqlen_k - seqlen_q, torch.arange(seqlen_k, device=q.device)
    hidden = keys > place
    if of.window_size[0] is not None:
        hidden = hidden | (keys < place - of.window_size[0])
    scores = scores.masked_fill(hidden, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.to(q.dtype).view(1, -1, 1, 1).expand(batch, -1, len(rows), 1)], dim=-1)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype)[..., :seqlen_k]
    out = weights.unflatten(1, (k.shape[1], groups)).flatten(2, 3) @ v
    found: Tensor = out.view(batch, heads, len(rows), v.shape[3]).transpose(1, 2)
    return found


def attend_all(of: Case, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Tensor:
    """Return attention of all queries, in blocks that a backward recomputes."""
    import torch
    from torch.utils.checkpoint import checkpoint

    block = max(1, SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    parts = torch.arange(q.shape[2], device=q.device).split(block)
    if not q.requires_grad:
        return torch.cat([attend(of, q, k, v, sink, rows) for rows in parts], dim=1)
    return torch.cat([checkpoint(attend, of, q, k, v, sink, rows, use_reentrant=False) for rows in parts], dim=1)


def gradients(of: Case, qkv: Sequence[Tensor], sink: Tensor | None, dout: Tensor) -> tuple[Tensor, ...]:
    """Return dq, dk and dv of attention in the dtype of q."""
    import torch

    leaves = q, k, v = [t.detach().requires_grad_() for t in qkv]
    with torch.enable_grad():
        out = attend_all(of, q, k, v, None if sink is None else sink.detach())
        return torch.autograd.grad(out, leaves, dout.to(q.dtype))


def use_exact_attention(model: StepModel) -> None:
    """Let `attend_all` compute the model's attention."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def exact(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        of, sink = attention_of(model.case, module.layer_idx), getattr(module, "sinks", None)
        return attend_all(of, q, k, v, sink), None

    ALL_ATTENTION_FUNCTIONS[EXACT] = exact
    model.use(EXACT)


@dataclass(frozen=True)
class Answer:
    """The results of a step: logits (batch, positions, vocab) and, in training, a sample of each weight's gradient."""

    logits: Tensor
    gradients: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: StepModel) -> Answer:
        """Return the results of the model's step, with the experts that each token took in the first step."""
        with model.same_experts():
            return cls(model.launch().float(), model.gradients())


def exact_answers(model: StepModel) -> tuple[Answer, Answer]:
    """Return the exact answer of a step, and eager attention's in the case's dtype. It fills a decode's cache."""
    import torch

    use_exact_attention(model)
    model.fill_cache()
    end = model.saving_memory()
    with model.plain_experts():
        eager = Answer.of(model)
        model.convert(torch.float64 if model.case.dtype == "fp32" else torch.float32)
        exact = Answer.of(model)
        model.convert(None)
    end()
    return exact, eager


def errors(case: Case, found: Answer, exact: Answer, eager: Answer) -> dict[str, TensorError]:
    """Return the errors of an answer: of the logits at each position, and of the gradient of each weight.

    The error of a position, or of a weight, is the norm of its differences over the norm of the exact values. The
    largest error may be twice eager's largest plus half a step of the dtype.
    """
    compared = {"logits": row_error(case, found.logits, exact.logits, eager.logits, what="position", largest=True)}
    if exact.gradients:
        names = list(exact.gradients)
        triples = [(found.gradients[n][None], exact.gradients[n][None], eager.gradients[n][None]) for n in names]
        each = [row_error(case, *triple, what="weight") for triple in triples]
        worst = max(range(len(each)), key=lambda i: excess(each[i].max_error))
        allowed = max(e.tolerance for e in each)
        where = "" if each[worst].max_error <= allowed else f"of {names[worst]}"
        eager_error = max(e.eager_error for e in each)
        relative = sum(e.relative for e in each) / len(each)
        compared["gradients"] = TensorError(each[worst].max_error, eager_error, allowed, relative, where)
    return compared


def row_error(
    case: Case, found: Tensor, exact: Tensor, eager: Tensor, *, what: str, largest: bool = False
) -> TensorError:
    """Return the error of the row that exceeds its tolerance most; rows are all dimensions but the last.

    The tolerance of a row is twice eager's error in that row or, if larger, in the median row (with `largest`: in the
    row where it is largest), plus half a step of the dtype, plus the error of a sum in float32. It is relative to the
    row's norm, or to SMALLEST times the usual norm.
    """
    import torch

    wide = exact.double()
    norms = wide.norm(dim=-1).flatten()
    norms = norms.clamp(min=max(SMALLEST * float(norms.square().mean().sqrt()), torch.finfo(torch.float32).tiny))
    off, usual = (((t.double() - wide).norm(dim=-1).flatten() / norms) for t in (found, eager))
    rounding = torch.finfo(torch_dtype(case)).eps / 2 + SUM * math.sqrt(case.shape.seqlen_k) * 2.0**-24
    allowed = 2 * usual.clamp(min=float(usual.max() if largest else usual.median())) + rounding
    excess = torch.nan_to_num(off / allowed, nan=float("inf"))
    row = int(excess.argmax())
    relative = float((found.double() - wide).norm() / wide.norm())
    where = f"at {what} {row}" if float(excess[row]) > 1 else ""
    return TensorError(float(off[row]), float(usual[row]), float(allowed[row]), relative, where)


def excess(value: float) -> float:
    """Return an error as a number to compare: NaN counts as the largest."""
    return value if value == value else float("inf")
