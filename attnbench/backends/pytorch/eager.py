"""`eager`: the "standard attention" of the papers: matmul, mask, softmax, matmul, each a pass over the score matrix.

As in flash-attention's benchmarks (attention_pytorch), the scale is applied by the first matmul (baddbmm's alpha) and
the mask is built in `prepare`. The query heads of a key head become its rows, so K and V are not expanded. Softcap,
ALiBi and dropout are torch's operators, each with one or two more passes. A ragged batch is computed one sequence after
the other; neighbours of one length are computed together. Keys and values in pages are gathered first, within the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import BackendBase, autograd_prepared, scores_workspace
from attnbench.backends.limits import TORCH_LIMITS, has_empty_rows
from attnbench.backends.paste import BHSD, Paste
from attnbench.backends.shared.masks import alibi_bias, has_mask, mask_plan, visibility_mask
from attnbench.core import pages
from attnbench.core.backend import Prepared, Signature, Workspace
from attnbench.core.case import Case, Sequences
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs


CODE = """\
def attention(q, k, v, hidden=None, scale=None):  # hidden: True where a query does not see a key
    k, v = (t.repeat_interleave(q.size(1) // t.size(1), dim=1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * (scale or q.size(-1) ** -0.5)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


out = attention(q, k, v{options})"""
ALL = "torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device)"


def eager_paste(decorator: str = "") -> Paste:
    """Return eager attention as a function."""
    return Paste(
        ("import torch",),
        {"dense": f"{BHSD}{decorator}{CODE}"},
        causal=f"hidden={ALL}.triu(1 + k.size(-2) - q.size(-2))",
        scale="scale={scale}",
        deterministic="",
    )


def eager_signature(case: Case, device: Device) -> Signature:
    """Return the kernels of eager attention: a separate softmax kernel, and no fused attention.

    On a CPU the operator of the matrix product is required too, because its name shows the dtype. On a GPU the kernel
    that gathers pages can take so long that softmax has less than a hundredth of the time.
    """
    product = "mm<float>" if case.dtype == "fp32" else "mm<c10::"
    on_gpu = ("(?i)gather|index",) if case.is_paged else ()
    runs = ("(?i)softmax", product) if device.kind == "cpu" else ("(?i)softmax", *on_gpu)
    return Signature(runs, never=("flash|fmha|sdpa|scaled_dot_product",))


class Eager(BackendBase):
    name = "eager"
    order = "bhsd"
    paste = eager_paste()
    efficiency = 0.5
    limits: ClassVar = replace(
        TORCH_LIMITS,
        window=True,
        softcap=True,
        dropout=True,
        sink=True,
        alibi=True,
        deterministic=True,
        masks=True,
        own_masks=True,
        chosen=True,
        ragged=True,
        page_sizes=(1,),
        cache_dtypes=("fp8",),
        append=True,
        latent=True,
    )

    def workspace(self, case: Case) -> Workspace:
        # Score matrices alive at the peak, measured on an H200. Forward: scores and probabilities. Backward: the kept
        # probabilities, their gradient twice, the gradient of the scores, and one more for masked_fill's backward. Not
        # measured but counted: softcap keeps its tanh, dropout its result and a mask of one byte per element.
        masked = has_mask(case)
        more = (1 if case.softcap else 0) + (1.5 if case.dropout_p else 0)
        more += 1 / case.shape.batch if case.alibi else 0  # the bias has no batch dimension
        return scores_workspace(case, copies_fwd=2 + more, copies_bwd=(5 if masked else 4) + more)

    def signature(self, case: Case, device: Device) -> Signature:
        return eager_signature(case, device)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        if case.is_paged:
            return _prepare_paged(case, inputs)
        if case.is_ragged:
            return autograd_prepared(case, inputs, _packed_attention(case, inputs.q.device), "thd", strided=True)
        attention = _attention(case, inputs.q.device)
        return autograd_prepared(case, inputs, attention, self.order, strided=True, **mask_plan(case, inputs.q.device))


def _prepare_paged(case: Case, inputs: Inputs) -> Prepared:
    """Return the call of a paged case, which gathers the keys and values and then computes attention."""
    assert inputs.page_table is not None
    plan = functools.partial(pages.key_places, case, inputs.page_table)
    places, attention = plan().flatten(), _packed_attention(case, inputs.q.device)

    append = pages.appender(case, inputs)

    def read(cache: Tensor, factor: float) -> Tensor:
        rows = pages.gather(cache, places)
        return rows if rows.dtype == inputs.q.dtype else rows.to(inputs.q.dtype) * factor

    def launch() -> Tensor:
        append()
        k = read(inputs.k, inputs.descale[0])
        v = k[..., : case.shape.headdim_v] if case.latent else read(inputs.v, inputs.descale[1])
        sink = () if inputs.sink is None else (inputs.sink,)
        return attention(inputs.q.flatten(0, 1), k, v, *sink).view(*inputs.q.shape[:3], case.shape.headdim_v)

    return Prepared(launch, lambda out: {"out": out}, plan=plan)


def _packed_attention(case: Case, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention of packed tensors (total, nheads, headdim)."""
    import torch

    parts = [_attention(_dense(case, of), device) for of in case.sequences]

    def attention(q: Tensor, k: Tensor, v: Tensor, *sink: Tensor) -> Tensor:
        outs, at_q, at_k = [], 0, 0
        for part, (count, seqlen_q, seqlen_k) in zip(parts, case.sequences, strict=True):
            end_q, end_k = at_q + count * seqlen_q, at_k + count * seqlen_k
            ours = (q[at_q:end_q], k[at_k:end_k], v[at_k:end_k])
            by_heads = (t.unflatten(0, (count, -1)).transpose(1, 2) for t in ours)
            outs.append(part(*by_heads, *sink).transpose(1, 2).flatten(0, 1))
            at_q, at_k = end_q, end_k
        return torch.cat(outs)

    return attention


def _dense(case: Case, of: Sequences) -> Case:
    """Return the dense case of sequences of one length, without pages."""
    shape = replace(case.shape, batch=of.number, seqlen_q=of.seqlen_q, seqlen_k=of.seqlen_k)
    return replace(case, shape=shape, lengths=(), page_size=0, shared_prefix=0, append=False, cache_dtype="same")


def _attention(case: Case, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention of tensors (batch, nheads, seqlen, headdim) of a dense case."""
    import torch

    s = case.shape
    group = s.nheads // s.nheads_k
    seen = visibility_mask(case, device)
    hidden = None if seen is None else seen.logical_not_()
    bias = alibi_bias(case, device) if case.alibi else None
    empty_rows = hidden.all(-1, keepdim=True) if hidden is not None and has_empty_rows(case) else None

    def attention(q: Tensor, k: Tensor, v: Tensor, *sink: Tensor) -> Tensor:
        q = q.reshape(s.batch * s.nheads_k, group * s.seqlen_q, s.headdim)
        k = k.reshape(s.batch * s.nheads_k, s.seqlen_k, s.headdim)
        v = v.reshape(s.batch * s.nheads_k, s.seqlen_k, s.headdim_v)
        unread = torch.empty((), dtype=q.dtype, device=q.device).expand(q.shape[0], q.shape[1], s.seqlen_k)
        scores = torch.baddbmm(unread, q, k.transpose(1, 2), beta=0, alpha=case.softmax_scale)
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        if bias is not None:
            scores.view(s.batch, *bias.shape).sub_(bias)
        if hidden is not None:
            scores.view(-1, s.seqlen_q, s.seqlen_k).masked_fill_(hidden, float("-inf"))
        if sink:  # the sink is one more score of each query, without a value
            beside = sink[0].view(s.nheads_k, group, 1).expand(s.batch, s.nheads_k, group, s.seqlen_q)
            scores = torch.cat([scores, beside.reshape(*scores.shape[:2], 1)], dim=-1)
        probabilities = torch.softmax(scores, dim=-1)
        if sink:
            probabilities = probabilities[..., :-1]
        if empty_rows is not None and not sink:  # with a sink the probabilities of empty rows are 0 already
            probabilities = probabilities.view(-1, s.seqlen_q, s.seqlen_k).masked_fill(empty_rows, 0.0)
            probabilities = probabilities.view(scores.shape)
        if case.dropout_p:
            probabilities = torch.nn.functional.dropout(probabilities, case.dropout_p)
        return torch.bmm(probabilities, v).view(s.batch, s.nheads, s.seqlen_q, s.headdim_v)

    return attention
