"""`torch-varlen`: torch.nn.attention.varlen.varlen_attn, torch's interface to flash-attn 2 for ragged batches.

Checked against torch 2.11 (CUDA) and 2.13. Causal is the window (-1, 0), aligned bottom-right in each sequence. Up to
2.11 it has no option for grouped heads, but its kernel takes them. It has no softcap and no dropout. In 2.13 it reads a
cache of pages whose sizes are multiples of 256.
`sdpa-flash` calls the same kernels through nested tensors, without windows and grouped heads. As in `fa1`, a dense
batch is passed as a batch of equal lengths.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.paste import PAGES_THD, THD, Paste
from attnbench.backends.pytorch.sdpa import CUDNN_KERNELS, EFFICIENT_KERNELS
from attnbench.backends.shared.libraries import flash_workspace, version_numbers
from attnbench.backends.shared.masks import flash_window
from attnbench.core.backend import Prepared, Probe, Unsupported, Workspace, cu_seqlens
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

MIN_TORCH = (2, 11)  # the first torch with window_size


CALL = "out = varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k{options})"


PAGED_CALL = (
    "out = varlen_attn(\n    q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,\n"
    "    seqused_k=seqlens_k, block_table=page_table, enable_gqa=True{options}\n)"
)


class TorchVarlen(BackendBase):
    name = "torch-varlen"
    paste = Paste(
        ("from torch.nn.attention.varlen import varlen_attn",),
        {"ragged": THD + CALL, "dense": THD + CALL, "paged": PAGES_THD + PAGED_CALL},
        causal="window_size=(-1, 0)",
        window="window_size=({left}, {right})",
        scale="scale={scale}",
    )
    efficiency = 0.45
    runtime_checker = "torch"
    limits: ClassVar = Limits(capability_below=(12, 2), window=True, empty_rows=False, ragged=True, page_sizes=(256,))
    forward_kernels = "flash_fwd"
    backward_kernels = "flash_bwd"
    other_kernels: ClassVar = (EFFICIENT_KERNELS, CUDNN_KERNELS)

    def probe(self) -> Probe:
        found = super().probe()
        if found.version and version_numbers(found.version.removeprefix("torch ")) < MIN_TORCH:
            reason = f"varlen_attn takes windows in torch 2.11 and newer, this is {found.version}"
            return replace(found, reason=reason, install="pip install 'torch>=2.11'")
        return found

    def installed(self) -> Probe | None:
        return self.probe()

    def workspace(self, case: Case) -> Workspace:
        return flash_workspace(case)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from torch.nn.attention.varlen import varlen_attn

        known = inspect.signature(varlen_attn).parameters
        left, right = flash_window(case)
        plan = functools.partial(_lengths, case, inputs.q.device)
        options: dict[str, Any] = {
            **plan(),
            "max_q": case.shape.seqlen_q,
            "max_k": case.shape.seqlen_k,
            "scale": case.softmax_scale,
            "window_size": (left, 0 if case.causal else right),  # a causal mask is a window that ends at the query
        }
        if "enable_gqa" in known:
            options["enable_gqa"] = case.shape.nheads != case.shape.nheads_k
        if case.is_paged:
            if "block_table" not in known:
                raise Unsupported("varlen_attn of this torch reads no pages; torch 2.13 does")
            launch = functools.partial(
                varlen_attn, inputs.q.flatten(0, 1), inputs.k, inputs.v, block_table=inputs.page_table, **options
            )
            return Prepared(launch, lambda out: {"out": out.view(inputs.q.shape)}, plan=plan)
        attention: Callable[..., Any] = functools.partial(varlen_attn, **options)
        return autograd_prepared(case, inputs, attention, "thd", strided=True, plan=plan if case.is_ragged else None)


def _lengths(case: Case, device: torch.device) -> dict[str, Tensor]:
    """Return the offsets of the sequences; with pages also the number of keys of each."""
    cu_seq_q, cu_seq_k = cu_seqlens(case, device)
    offsets = {"cu_seq_q": cu_seq_q, "cu_seq_k": cu_seq_k}
    return offsets | {"seqused_k": cu_seq_k.diff()} if case.is_paged else offsets
