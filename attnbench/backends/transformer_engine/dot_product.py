"""`transformer-engine*`: NVIDIA Transformer Engine's DotProductAttention, with its own choice and with each backend.

Checked against the source of 2.20.0.dev0 (commit d0067d0) and 2.20.2. It has three backends: FusedAttention (cuDNN),
FlashAttention (the installed flash-attn 2, 3 or 4) and an unfused one, which is eager attention and is switched off.
On Hopper and newer its own choice is FusedAttention for every case that FusedAttention takes. The environment variables
NVTE_*_ATTN switch backends off; they are read at import and at each choice. Its mask "causal" is aligned top-left,
"causal_bottom_right" bottom-right. It returns the output as (batch, seqlen, nheads * headdim_v). A ragged batch has the
format "thd" with "padding" masks, and each call gets the lengths.

With softmax_type "learnable" (2.8) the module has a parameter `softmax_offset`, (nheads,) in float32, which the backend
sets to the sink; FlashAttention has none. ALiBi has the slopes of the paper: FusedAttention runs cuDNN's ALiBi, which
is causal and aligned top-left, and FlashAttention runs flash-attn 2's.

FusedAttention 2.20.2 reads views of (batch, nheads, seqlen, headdim) tensors as if they were contiguous, so the call
copies them. fp8.py has the backend for fp8.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Order, autograd_prepared
from attnbench.backends.cudnn.graphs import alibi_refusal
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, Paste
from attnbench.backends.shared.libraries import Library, installed_version
from attnbench.backends.shared.masks import flash_window
from attnbench.core.backend import Prepared, Probe, Unsupported, cu_seqlens
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

CHOICE = "transformer_engine.pytorch.attention.dot_product_attention"  # module that chooses among the backends
FLASH_FORWARD = "flash_fwd|FlashAttnFwd|FlashAttentionForward"
FLASH_BACKWARD = "flash_bwd|FlashAttnBwd|FlashAttentionBackward"
UNFUSED_KERNELS = "scaled_\\w*softmax"


CALL = """\
attention = DotProductAttention(
    q.size(-2), (q.size(-1), v.size(-1)), num_gqa_groups=k.size(-2), qkv_format="bshd"{options}
)
out = attention(q, k, v)  # (batch, seqlen, nheads * headdim)"""


def te_paste(*switched_off: str) -> Paste:
    """Return the code that calls DotProductAttention, with some of its backends switched off."""
    switches = "".join(f'os.environ["NVTE_{name}_ATTN"] = "0"  # before the import\n' for name in switched_off)
    from_te = "from transformer_engine.pytorch import DotProductAttention\n\n"
    return Paste(
        ("import os",),
        {"dense": switches + from_te + BSHD + CALL},
        full='attn_mask_type="no_mask"',
        causal='attn_mask_type="causal"',
        unequal='attn_mask_type="causal_bottom_right"',
        window='attn_mask_type="causal_bottom_right", window_size=({left}, 0)',
        dropout="attention_dropout={dropout}",
        scale="softmax_scale={scale}",
        sink='softmax_type="learnable"',
    )


class TransformerEngine(Library):
    name = "transformer-engine"
    paste = te_paste()
    efficiency = 0.65
    runtime_checker = "Transformer Engine"
    module = "transformer_engine.pytorch"
    distributions: ClassVar = ("transformer-engine",)
    uses: ClassVar = ("flash-attn", "flash-attn-3", "flash-attn-4", "nvidia-cudnn-frontend")
    install = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
    min_version = "2.3"  # older versions have the module CHOICE elsewhere
    limits: ClassVar = Limits(
        headdim_v=True, window=True, dropout=True, empty_rows=False, sink=True, alibi=True, ragged=True
    )
    forward_kernels = f"cudnn.*fprop|{FLASH_FORWARD}"
    backward_kernels = f"cudnn.*bprop|{FLASH_BACKWARD}"
    other_kernels: ClassVar[tuple[str, ...]] = (UNFUSED_KERNELS,)
    switched_off: ClassVar[tuple[str, ...]] = ("UNFUSED",)  # backends that NVTE_*_ATTN switches off
    takes_views_of_bhsd: ClassVar[bool] = False

    def probe(self) -> Probe:
        for backend in ("UNFUSED", "FUSED", "FLASH"):
            os.environ[f"NVTE_{backend}_ATTN"] = str(int(backend not in self.switched_off))
        if importlib.util.find_spec("torch") and installed_version(self.distributions):
            _load_cudnn_of_torch()
        return super().probe()

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        left, right = flash_window(case)
        if not _causal(case) and (left < 0) != (right < 0):
            return "its window must have both sides, or be causal"
        if case.sink and case.shape.seqlen_q == 1:
            return "cuDNN has no attention sink for one query a sequence"
        return self._alibi_refusal(case, device) if case.alibi else None

    def _alibi_refusal(self, case: Case, device: Device) -> str | None:
        """Return why FusedAttention, the default, refuses ALiBi (fused_attn.cpp: nvte_get_fused_attn_backend)."""
        if device.capability is not None and device.capability < (9, 0):
            return "ALiBi of FusedAttention needs compute capability 9.0 or newer"
        return "no ALiBi of ragged batches in FusedAttention" if case.is_ragged else alibi_refusal(case)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from torch.func import functional_call

        s = case.shape
        plan, lengths = None, dict[str, Any]()
        if case.is_ragged:
            plan = functools.partial(cu_seqlens, case, inputs.q.device)
            lengths = dict(zip(("cu_seqlens_q", "cu_seqlens_kv"), plan(), strict=True))
            lengths |= {"max_seqlen_q": s.seqlen_q, "max_seqlen_kv": s.seqlen_k}
        attention = dot_product_attention(case)
        if case.alibi:
            lengths["core_attention_bias_type"] = "alibi"

        def attend(q: Tensor, k: Tensor, v: Tensor, *sink: Tensor) -> Tensor:
            found: Tensor
            if sink:
                found = functional_call(attention, {"softmax_offset": sink[0]}, (q, k, v), lengths)
            else:
                found = attention(q, k, v, **lengths)
            return found

        def call(*given: Tensor) -> Tensor:
            return call_module(case, attend, *given)

        order: Order = "thd" if case.is_ragged else "bshd"
        views = case.layout != "bhsd" or self.takes_views_of_bhsd
        return autograd_prepared(case, inputs, call, order, strided=views, plan=plan)


def dot_product_attention(case: Case) -> Any:
    """Return the module that computes a case, on (batch, seqlen, nheads, headdim) tensors, or ragged "thd" ones."""
    from transformer_engine.pytorch import DotProductAttention

    s = case.shape
    left, right = flash_window(case)
    causal = _causal(case)
    mask = "no_mask" if not causal else "causal" if case.has_equal_lengths else "causal_bottom_right"
    if case.is_ragged:
        mask = f"padding_{mask}" if causal else "padding"
    attention = DotProductAttention(
        num_attention_heads=s.nheads,
        kv_channels=(s.headdim, s.headdim_v),
        num_gqa_groups=s.nheads_k,
        attention_dropout=case.dropout_p,
        qkv_format="thd" if case.is_ragged else "bshd",
        attn_mask_type=mask,
        window_size=(left, 0 if causal else right),
        softmax_scale=case.softmax_scale,
        **({"softmax_type": "learnable"} if case.sink else {}),
    )
    attention.train(case.has_backward or case.dropout_p > 0)
    return attention


def call_module(case: Case, attend: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Call the module, and return out with heads as a dimension and with a backward that may run repeatedly.

    Raises Unsupported, with the reasons in Transformer Engine's log, where none of its backends takes the case.
    """
    try:
        out = attend(*given)
    except ValueError as error:
        if "No dot product attention backend" not in str(error):
            raise
        raise Unsupported(_refusal(lambda: attend(*given))) from None
    if case.direction == "bwd":
        _keep_for_each_backward(out)
    return out.view(*given[0].shape[:-1], case.shape.headdim_v)


class Fused(TransformerEngine):
    """Transformer Engine's FusedAttention, which is cuDNN."""

    name = "transformer-engine-fused"
    compiles = 0.3
    paste = te_paste("UNFUSED", "FLASH")
    switched_off: ClassVar = ("UNFUSED", "FLASH")
    forward_kernels = "cudnn.*fprop"
    backward_kernels = "cudnn.*bprop"
    other_kernels: ClassVar = (UNFUSED_KERNELS, FLASH_FORWARD, FLASH_BACKWARD)


class Flash(TransformerEngine):
    """Transformer Engine's FlashAttention, with the newest installed flash-attn that takes the case."""

    limits: ClassVar = replace(TransformerEngine.limits, sink=False)
    takes_views_of_bhsd = True

    name = "transformer-engine-flash"
    paste = te_paste("UNFUSED", "FUSED")
    switched_off: ClassVar = ("UNFUSED", "FUSED")
    forward_kernels = FLASH_FORWARD
    backward_kernels = FLASH_BACKWARD
    other_kernels: ClassVar = (UNFUSED_KERNELS, "cudnn.*(fprop|bprop)")

    def _alibi_refusal(self, case: Case, device: Device) -> str | None:
        return None  # flash-attn 2 computes ALiBi, which FusedAttention may refuse

    def probe(self) -> Probe:
        found = super().probe()
        if not found.usable:
            return found
        flash = getattr(importlib.import_module(f"{CHOICE}.utils"), "FlashAttentionUtils", None)
        names = {"is_installed": "version", "v3_is_installed": "fa3_version", "v4_is_installed": "fa4_version"}
        there = [str(getattr(flash, version)) for is_there, version in names.items() if getattr(flash, is_there, False)]
        if not there:
            reason = "it finds no flash-attn that it takes (2.1.1 to 2.8.3, 3 or 4)"
            return Probe(reason=reason, install="pip install 'flash-attn>=2.6,<2.8.4' --no-build-isolation")
        return Probe(version=f"{found.version}, flash-attn {' and '.join(there)}")


def _keep_for_each_backward(out: Tensor) -> None:
    """Let FusedAttention's backward run repeatedly over one graph.

    A backward drops the objects that it keeps beside the saved tensors (2.20: FusedAttnFunc, and the functions of
    context_parallel.py), even with retain_graph, so a second one fails. A hook restores them before each backward.
    """
    kept = ("backward_objects", "tensor_objects")
    node = out.grad_fn
    while node is not None and not any(hasattr(node, name) for name in kept):  # skips views of the result
        node = next((before for before, _ in node.next_functions if before is not None), None)
    if node is None:
        return
    objects = {name: getattr(node, name) for name in kept if hasattr(node, name)}

    def put_back(_: Tensor) -> None:
        for name, value in objects.items():
            setattr(node, name, copy.copy(value))

    out.register_hook(put_back)


def _causal(case: Case) -> bool:
    """Return whether a causal mask must be passed; a single query sees every key without one."""
    return case.causal and case.shape.seqlen_q > 1


def _load_cudnn_of_torch() -> None:
    """Load torch's own cuDNN, NVRTC and cuRAND, if pip installed them, before Transformer Engine searches for them.

    It would take the system's first, a second cuDNN in the process, and otherwise search beside its own package only,
    which is another folder in an environment of `attnbench env create`. Its core library needs all parts of cuDNN
    loaded, and has no path to them (transformer_engine/common/__init__.py).
    """
    torch = importlib.import_module("torch")
    root = Path(str(torch.__file__)).parent.with_name("nvidia")  # of the imported torch, where several are installed
    for name in ("cudnn", "nvrtc", "curand"):
        if found := sorted(root.glob(f"*/lib/lib{name}.so.*")):
            os.environ.setdefault(f"{name.upper()}_HOME", str(found[0].parents[1]))
    for part in sorted(root.glob("cudnn/lib/libcudnn*.so.*")):
        with contextlib.suppress(OSError):  # a missing library: Transformer Engine's import reports it
            ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)


def _refusal(again: Callable[[], object]) -> str:
    """Return why Transformer Engine refuses with each of its backends, from its log of the call `again`."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("DotProductAttention"), Collect()
    choice: Any = importlib.import_module(f"{CHOICE}.dot_product_attention")
    log: Any = importlib.import_module(f"{CHOICE}.utils").AttentionLogging
    level, log._log_level = log._log_level, logging.DEBUG
    logger.addHandler(handler)
    try:
        choice._attention_backends["backend_selection_requires_update"] = True
        again()
    except ValueError:
        pass
    finally:
        log._log_level = level
        logger.removeHandler(handler)
    said = [" ".join(text.split()) for text in messages]  # cuDNN's messages have several lines
    found = [text.removeprefix("Disabling ").rstrip(". ") for text in said if text.startswith("Disabling ")]
    own = [text for text in dict.fromkeys(found) if "due to NVTE_" not in text]
    return f"Transformer Engine takes no backend: {'; '.join(own)[:400] or 'it does not say why'}"
