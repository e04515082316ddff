"""`flex`, `flex-flash`, `compile`: attention compiled by torch.compile, as FlexAttention and as plain eager attention.

Checked against torch 2.11 and 2.13. Attention is compiled for the one shape of the case (dynamic=False); the compile
time is in the first call. The names of Inductor's Triton kernels show what ran: FlexAttention's template is
"triton_tem"; an uncompiled FlexAttention runs no such kernel, and if Inductor rewrote eager attention into SDPA, a
flash kernel would run. torch's PagedAttention (torch.nn.attention.experimental) reads a cache of pages, with a mask
whose blocks are pages.

`flex-flash` is FlexAttention with flash-attn 4's kernels (kernel_options BACKEND="FLASH";
torch/_inductor/kernel/flex/flex_flash_attention.py): Inductor writes the score_mod and the mask_mod in CuTe DSL. As for
`fa4`, blocks must have the size of the kernels' tiles. It has no sink: the kernels have no gradient of the log-sum-exp,
and torch 2.11 returns the log-sum-exp in another base.
"""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import BackendBase, autograd_prepared, scores_workspace
from attnbench.backends.flash_attn.fa4 import FlashAttention4, hopper_refusal
from attnbench.backends.limits import TORCH_LIMITS, Limits, has_empty_rows
from attnbench.backends.paste import BHSD, Paste
from attnbench.backends.pytorch.eager import eager_paste
from attnbench.backends.shared.libraries import probe_of_both
from attnbench.backends.shared.masks import (
    BLOCK_Q,
    block_mask,
    block_mask_workspace,
    has_mask,
    mask_plan,
    paged_block_mask,
    paged_block_mask_workspace,
    pairs_of_blocks,
    places,
    slopes,
    visibility_mask,
)
from attnbench.core import masks
from attnbench.core.backend import Prepared, Probe, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.pages import queries

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs


MASK = (
    "block_mask=create_block_mask(\n        lambda b, h, i, j: {},\n"
    "        None, None, q.size(-2), k.size(-2), device=q.device,\n    )"
)

FLEX_PASTE = Paste(
    (
        "import torch",
        "from torch.nn.attention.flex_attention import create_block_mask",
        "from torch.nn.attention.flex_attention import flex_attention",
    ),
    {"dense": f"{BHSD}attention = torch.compile(flex_attention)\nout = attention(q, k, v{{options}})"},
    causal=MASK.format("i + k.size(-2) - q.size(-2) >= j"),
    window=MASK.format("(i - {left} <= j - k.size(-2) + q.size(-2)) & (j - k.size(-2) + q.size(-2) <= i + {right})"),
    open_side="(1 << 30)",
    softcap="score_mod=lambda s, b, h, i, j: {softcap} * torch.tanh(s / {softcap})",
    alibi="score_mod=lambda s, b, h, i, j: s - alibi_slopes[h] * (i + k.size(-2) - q.size(-2) - j).abs()",
    grouped="enable_gqa=True",
    scale="scale={scale}",
)
FLASH = ', kernel_options={"BACKEND": "FLASH"}{options}'


class Compiled(BackendBase):
    """Base of the backends that torch.compile compiles."""

    order = "bhsd"
    compiles = 3.4

    _last: Case | None = None

    def probe(self) -> Probe:
        """Return the probe, and import Inductor, so that a first call does not include the 1.5 s of this import."""
        found = super().probe()
        if found.usable:
            import torch._inductor.config  # noqa: F401
        return found

    def installed(self) -> Probe | None:
        return BackendBase.probe(self)

    def reset_for(self, case: Case) -> None:
        """Discard the compiled code of other cases, and set the options of torch.compile for this case.

        After a few shapes torch.compile would compile for any shape, or stop compiling. A timed backward runs many
        times over one graph, so the buffers of the graph must not be reused.
        """
        import torch._dynamo
        import torch._functorch.config

        if case != self._last:
            torch._dynamo.reset()
        self._last = case
        torch._functorch.config.donated_buffer = case.direction != "bwd"


class Flex(Compiled):
    name = "flex"
    paste = FLEX_PASTE
    # vLLM calls it with blocks of other sizes, SGLang for each sequence, diffusers uncompiled.
    engine_names: ClassVar = {"transformers": "flex_attention"}
    efficiency = 0.5
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"),
        headdim=(16, 256),
        headdim_multiple=1,
        headdim_v=True,
        window=True,
        softcap=True,
        sink=True,
        alibi=True,
        masks=True,
        own_masks=True,
        ragged=True,
        page_sizes=(16,),
    )
    forward_kernels = backward_kernels = "triton_tem"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or (_page_refusal(case) if case.is_paged else None)

    def workspace(self, case: Case) -> Workspace:
        return paged_block_mask_workspace(case) if case.is_paged else block_mask_workspace(case)

    def kernel_options(self, case: Case) -> dict[str, Any]:
        """Return the option of flex_attention that forces a kernel; empty where torch chooses."""
        if case.is_ragged and not case.is_paged and case.extent.seqlen_q < BLOCK_Q:
            # In torch 2.11 the kernel for few queries takes no mask that reads tensors by the query.
            return {"kernel_options": {"FORCE_USE_FLEX_ATTENTION": True}}
        return {}

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        self.reset_for(case)
        plan: Callable[[], Any] = functools.partial(block_mask, case, inputs.q.device)
        if inputs.page_table is not None:
            plan = functools.partial(paged_block_mask, case, inputs.page_table)
        options: dict[str, Any] = {
            "score_mod": _score_mod(case, inputs.q.device),
            "block_mask": plan(),
            "scale": case.softmax_scale,
            "enable_gqa": case.shape.nheads != case.shape.nheads_k,
        }
        options |= self.kernel_options(case)
        compile_whole = functools.partial(torch.compile, dynamic=False, fullgraph=True)
        if case.sink:
            attention = compile_whole(_with_sink(functools.partial(flex_attention, return_lse=True, **options)))
        else:
            attention = functools.partial(compile_whole(flex_attention), **options)
        if case.is_paged:
            q = queries(case, inputs.q).transpose(1, 2)
            k, v = (cache.flatten(0, 1)[None].transpose(1, 2) for cache in (inputs.k, inputs.v))
            launch = functools.partial(attention, q, k, v)
            return Prepared(launch, lambda out: {"out": _as_queries(case, out)}, plan=plan)
        return autograd_prepared(
            case,
            inputs,
            attention,
            self.order,
            strided=True,
            plan=plan if case.is_ragged or case.mask else None,
            pairs=functools.partial(pairs_of_blocks, options["block_mask"]) if case.mask else None,
        )


class FlexFlash(Flex):
    name = "flex-flash"
    paste = replace(FLEX_PASTE, calls={"dense": FLEX_PASTE.calls["dense"].replace("{options}", FLASH)})
    efficiency = 0.65
    uses: ClassVar = (*FlashAttention4.distributions, *FlashAttention4.uses)
    probe_imports = True
    limits: ClassVar = replace(
        Flex.limits, dtypes=("bf16", "fp16"), capability=(9, 0), capability_below=(10, 0), sink=False, page_sizes=()
    )
    forward_kernels = FlashAttention4.forward_kernels
    backward_kernels = FlashAttention4.backward_kernels
    other_kernels: ClassVar = ("triton_tem", "pytorch_flash")

    def probe(self) -> Probe:
        library = FlashAttention4().probe()
        if not library.usable:  # checked first, because torch may be missing too
            return library
        known = typing.get_args(getattr(importlib.import_module("torch.nn.attention.flex_attention"), "_Backend", None))
        if "FLASH" not in known:
            reason = "this torch's flex_attention has no BACKEND='FLASH'"
            return Probe(reason=reason, install="pip install 'torch>=2.11'")
        return probe_of_both(super().probe(), library)

    def installed(self) -> Probe | None:
        return probe_of_both(BackendBase.probe(self), FlashAttention4().installed())

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.sink:
            return "no attention sink: its log-sum-exp has no gradient, and in torch 2.11 another base"
        if reason := super().unsupported(case, device) or hopper_refusal(case, device):
            return reason
        reads = case.is_ragged or masks.is_own(case.mask) or case.mask.startswith("random")
        if reads and case.extent.seqlen_q % BLOCK_Q:  # over several blocks, mask.py bounds no index
            return f"a mask that reads tensors needs seqlen_q to be a multiple of {BLOCK_Q}"
        most = max(case.shape.headdim, case.shape.headdim_v)
        if most > 128 and has_mask(case):
            return f"headdim {most} with a mask: its kernels take blocks of 128 keys up to headdim 128"
        return None

    def kernel_options(self, case: Case) -> dict[str, Any]:
        return {"kernel_options": {"BACKEND": "FLASH"}}


def _with_sink(attention: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return attention with a sink, made from a function that returns out and the log-sum-exp.

    FlexAttention has no sink, so the output is multiplied by the share of the keys in the softmax.
    """

    def call(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        out, lse = attention(q, k, v)
        result: Tensor = out * (lse - sink[:, None]).sigmoid()[..., None].to(out.dtype)
        return result

    return call


def _as_queries(case: Case, out: Tensor) -> Tensor:
    """Return results (sequences, nheads, seqlen_q, headdim_v) with the dimensions and order of the case's queries."""
    out = out.transpose(1, 2)
    return out.flatten(0, 1)[None] if case.is_ragged else out


def _page_refusal(case: Case) -> str | None:
    """Return why a cache of pages is refused. Pages are the blocks of the mask, which the kernels divide further.

    The kernel for few queries (flex_decoding) takes blocks of up to 64 keys, the other one of up to 128.
    """
    s = case.shape
    if case.sink or case.alibi:
        return f"{'an attention sink' if case.sink else 'ALiBi'} over its pages is not wired up"
    if not case.has_like_queries:
        return "its pages need the same number of queries in each sequence"
    group = s.nheads // s.nheads_k
    decodes = s.seqlen_q < BLOCK_Q and group & (group - 1) == 0
    if case.page_size % BLOCK_Q == 0 or (decodes and (case.page_size in (16, 32) or case.page_size % 64 == 0)):
        return None
    return (
        f"pages of {case.page_size} tokens: 16, 32 or multiples of 64, and of {BLOCK_Q} for {BLOCK_Q} queries and more"
    )


class Compile(Compiled):
    name = "compile"
    paste = eager_paste("@torch.compile\n")
    efficiency = 0.5
    limits: ClassVar = replace(
        TORCH_LIMITS, capability=(7, 0), window=True, masks=True, own_masks=True, softcap=True, on_cpu=False
    )
    forward_kernels = backward_kernels = "triton_(per|red|poi)_fused"
    other_kernels: ClassVar = ("flash|fmha|sdpa|scaled_dot_product",)

    def workspace(self, case: Case) -> Workspace:
        return scores_workspace(case, copies_fwd=2, copies_bwd=4)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        self.reset_for(case)
        attention = torch.compile(eager, dynamic=False, fullgraph=True)
        s = case.shape
        seen = visibility_mask(case, inputs.q.device)
        if seen is not None:
            seen = seen.repeat(s.nheads // s.nheads_k, 1)
        empty_rows = ~seen.any(-1, keepdim=True) if seen is not None and has_empty_rows(case) else None

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows = q.reshape(s.batch * s.nheads_k, -1, s.headdim)  # the query heads of a key head become its rows
            keys, values = k.flatten(0, 1), v.flatten(0, 1)
            out: Tensor = attention(rows, keys, values, seen, empty_rows, case.softmax_scale, case.softcap)
            return out.view(s.batch, s.nheads, s.seqlen_q, s.headdim_v)

        return autograd_prepared(case, inputs, call, self.order, strided=True, **mask_plan(case, inputs.q.device))


def eager(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, empty_rows: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Return softmax(scale * q k^T) v for tensors (batch * nheads_k, rows, headdim).

    `seen` is (rows, keys), True where a query sees a key; None where all are seen. `empty_rows` is (rows, 1), True
    where a query sees no key and the output is 0; None where there is no such row.
    """
    import torch

    scores = torch.bmm(q, k.transpose(1, 2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    probabilities = torch.softmax(scores, dim=-1)
    if empty_rows is not None:
        probabilities = probabilities.masked_fill(empty_rows, 0.0)
    return torch.bmm(probabilities, v)


def _score_mod(case: Case, device: torch.device) -> Callable[..., Tensor] | None:
    """Return FlexAttention's score_mod for softcap or ALiBi; None without either."""
    import torch

    if case.softcap:
        cap = case.softcap

        def soft_capped(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
            return cap * torch.tanh(score / cap)

        return soft_capped
    if not case.alibi:
        return None
    of_head, middle = slopes(case, device), case.shape.seqlen_k - case.shape.seqlen_q
    assert of_head is not None
    place = places(case, device)[2] if case.is_ragged else None

    def with_alibi(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
        distance = j - (i + middle if place is None else place[i])
        return score - of_head[head] * distance.abs()

    return with_alibi
