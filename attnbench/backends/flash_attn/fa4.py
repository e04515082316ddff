"""`fa4`: flash-attn-4 (flash_attn.cute), written in CuTe DSL. Checked against 4.0.0b36.

It compiles on the first call. It shares the namespace `flash_attn` with flash-attn 2; without flash-attn 2 beside it,
`import xformers.ops` fails. An open side of a window is None, as in attnbench, its causal mask is aligned
bottom-right, and it returns (out, lse). Its call for variable lengths reads a cache of pages, too. The backend does not
split the keys of a sequence (num_splits is 1), because Hopper has no kernel for it. `learnable_sink` is a natural
logarithm that softmax_scale does not multiply (softmax.py, apply_learnable_sink). ALiBi is a function of scores, and a
mask by name is a function of pairs beside lists of blocks (fa4_compiled.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Order, autograd_prepared
from attnbench.backends.flash_attn.fa4_compiled import mask_mod, mask_options, pairs_of_lists, score_mods
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, FLASH, PAGES, PAGES_THD, THD, Paste
from attnbench.backends.shared.libraries import VARLEN, Library, deterministic_option, varlen_options
from attnbench.backends.shared.masks import slopes
from attnbench.core import masks
from attnbench.core.backend import Prepared, cu_seqlens
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.pages import queries, seqlens_k

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

HOPPER = 9
CACHED = (
    "out, _ = flash_attn_varlen_func(\n    q, k_cache, v_cache, seqused_k=seqlens_k, max_seqlen_k=max_seqlen_k, "
    "page_table=page_table"
)
PAGED_HEADDIMS = ((64, 64), (128, 128))


class FlashAttention4(Library):
    name = "fa4"
    paste = Paste(
        ("from flash_attn.cute import flash_attn_func", "from flash_attn.cute import flash_attn_varlen_func"),
        {
            "dense": f"{BSHD}out, _ = flash_attn_func(q, k, v{{options}})",
            "ragged": f"{THD}out, _ = {VARLEN}",
            "paged": f"{PAGES}{CACHED}{{options}}\n)",
            "unlike": f"{PAGES_THD}{CACHED},\n    cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q{{options}}\n)",
        },
        **FLASH,
        open_side="None",
        sink="learnable_sink=sink",
        deterministic="deterministic=True",
    )
    engine_names: ClassVar = {
        "transformers": "flash_attention_4",
        "vllm": "FLASH_ATTN flash_attn_version=4",
        "sglang": "fa4",
        "diffusers": "flash_4_hub",  # the only FlashAttention-4 of diffusers, another build of these kernels
    }
    efficiency = 0.75
    compiles = 2.5
    module = "flash_attn.cute"
    distributions: ClassVar = ("flash-attn-4",)
    uses: ClassVar = ("nvidia-cutlass-dsl",)
    required_name = "flash_attn_func"
    install = "pip install --pre 'flash-attn-4[cu13]'  # without [cu13] for CUDA 12"
    limits: ClassVar = Limits(
        capability=(9, 0),
        headdim_v=True,
        window=True,
        softcap=True,
        sink=True,
        alibi=True,
        deterministic=True,
        masks=True,
        ragged=True,
        page_sizes=(1,),
    )
    forward_kernels = "FlashAttentionForward|flash_fwd_sm"
    backward_kernels = "FlashAttentionBackward|flash_bwd_sm"
    other_kernels: ClassVar = ("pytorch_flash",)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if masks.is_own(case.mask):
            return "its mask_mod must be a function in CuTe DSL, not of tensors"
        refusal = super().unsupported(case, device) or hopper_refusal(case, device) or _blackwell_refusal(case, device)
        return refusal or (_page_refusal(case, device) if case.is_paged else None)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

        attention = flash_attn_varlen_func if case.is_ragged else flash_attn_func
        options: dict[str, Any] = {
            "softmax_scale": case.softmax_scale,
            "causal": case.causal,
            "window_size": case.window_size,
            "softcap": case.softcap,
            **deterministic_option(case, attention),
        }
        if case.alibi:
            score_mod, score_mod_bwd = score_mods()
            options |= {"score_mod": score_mod, "score_mod_bwd": score_mod_bwd}
            options["aux_tensors"] = [slopes(case, inputs.q.device)]
        if case.is_paged:
            return _prepare_paged(case, inputs, options)
        make = varlen_options if case.is_ragged else mask_options if case.mask else None
        plan = functools.partial(make, case, inputs.q.device) if make else None
        planned = plan() if plan else {}
        pairs = None
        if case.mask:
            tables = [*options.get("aux_tensors", ()), *planned.pop("aux_tensors", ())]  # score_mod's comes first
            options |= {"causal": False, "window_size": (None, None), "mask_mod": mask_mod(case)}
            options["aux_tensors"] = tables or None
            pairs = functools.partial(pairs_of_lists, planned["block_sparse_tensors"])
        options |= planned

        def call(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None) -> Tensor:
            out: Tensor
            out, _ = attention(q, k, v, learnable_sink=sink, **options)
            return out

        order: Order = "thd" if case.is_ragged else "bshd"
        return autograd_prepared(case, inputs, call, order, strided=True, plan=plan, pairs=pairs)


def _prepare_paged(case: Case, inputs: Inputs, options: dict[str, Any]) -> Prepared:
    from flash_attn.cute import flash_attn_varlen_func

    q = queries(case, inputs.q) if case.has_like_queries else inputs.q[0]
    plan = functools.partial(_lengths, case, q.device)
    options |= {"page_table": inputs.page_table, "learnable_sink": inputs.sink, **plan()}
    attention = functools.partial(flash_attn_varlen_func, q, inputs.k, inputs.v, **options)
    return Prepared(lambda: attention()[0], lambda out: {"out": out.view(*inputs.q.shape[:3], -1)}, plan=plan)


def _lengths(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the lengths of a paged case; the queries have offsets where their number differs between sequences."""
    lengths = {"seqused_k": seqlens_k(case, device), "max_seqlen_k": case.shape.seqlen_k}
    if not case.has_like_queries:
        lengths |= {"cu_seqlens_q": cu_seqlens(case, device)[0], "max_seqlen_q": case.shape.seqlen_q}
    return lengths


def _page_refusal(case: Case, device: Device) -> str | None:
    """Return why a cache of pages is refused: interface.py refuses it, or the library does not test the head dims."""
    major = device.capability[0] if device.capability else HOPPER
    if major == 12:
        return "no cache of pages on compute capability 12"
    tested = PAGED_HEADDIMS if major == HOPPER else (*PAGED_HEADDIMS, (192, 128))
    pair = (case.shape.headdim, case.shape.headdim_v)
    known = ", ".join(str(d) if d == d_v else f"{d}-{d_v}" for d, d_v in tested)
    return None if pair in tested else f"pages with headdim {pair[0]} and headdim_v {pair[1]}: it tests {known} only"


def hopper_refusal(case: Case, device: Device) -> str | None:
    """Return why Hopper refuses the case (flash_bwd_sm90.py). Grouped heads get other head numbers in its score_mod."""
    s = case.shape
    grouped = s.nheads != s.nheads_k
    if device.capability is None or device.capability[0] != HOPPER or not case.has_backward or not grouped:
        return None
    if s.headdim != s.headdim_v:
        return "its backward of grouped heads needs headdim_v equal to headdim"
    if case.alibi:
        return "no backward with ALiBi for grouped heads on Hopper: it takes the slopes of other heads (4.0.0b36)"
    return None


def _blackwell_refusal(case: Case, device: Device) -> str | None:
    """Return why a GPU newer than Hopper refuses the case (interface.py, _validate_head_dims and _flash_attn_bwd)."""
    if device.capability is None or device.capability[0] == HOPPER:
        return None
    d, d_v = case.shape.headdim, case.shape.headdim_v
    if case.mask and device.capability[0] == 12:
        return "no block sparsity on compute capability 12"
    if case.mask and max(d, d_v) > 128:
        return f"headdim {max(d, d_v)} with a mask by name: on Blackwell up to 128"
    if max(d, d_v) > 128 and (d, d_v) not in ((192, 128), (256, 256)):
        return f"headdim {d} with headdim_v {d_v}: on Blackwell up to 128, 192-128 or 256"
    if case.sink and device.capability[0] == 12:
        return "no attention sink on compute capability 12"
    if case.sink and case.has_backward and (d, d_v) == (256, 256):
        return "no backward with an attention sink for headdim 256 on Blackwell"
    if device.capability[0] == 12 and max(d, d_v) > 192:
        return f"headdim {max(d, d_v)}: its tiles exceed the shared memory of compute capability 12"
    if (case.softcap or case.alibi) and case.has_backward and ((d, d_v) == (256, 256) or device.capability[0] == 12):
        changed = "ALiBi" if case.alibi else "softcap"
        return f"no backward with {changed} for headdim 256 or compute capability 12"
    return None
