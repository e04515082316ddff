"""`sdpa`, `sdpa-*`: torch.nn.functional.scaled_dot_product_attention, as torch chooses and with its backend forced.

Each backend runs in its own process, so `prepare` sets torch.backends.cuda.enable_*_sdp for the whole process, and no
context manager is part of the timed call. `sdpa` leaves these switches alone, as a model does that only calls the
function. The names of its kernels show what torch chose. When torch refuses a case, its warnings are the reason of the
skip.

SDPA's is_causal is aligned top-left; attnbench's causal is bottom-right. They agree when seqlen_q == seqlen_k, and a
single query sees every key. Otherwise flash gets torch.nn.attention.bias.causal_lower_right (its kernel has this
alignment), `sdpa`, math and efficient get an explicit mask, and cuDNN is skipped. Masks by name are explicit masks.

Ragged batches are nested tensors (nested.py). On a CPU only math computes them. In each call math splits them and
assembles padded tensors, which waits for the GPU.

Checked against torch 2.11 (CUDA) and 2.13 (CPU). The limits of the fused kernels are the part of torch's own checks
(aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) that all versions of torch share.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from attnbench.backends.base import BackendBase, autograd_prepared, mask_workspace, scores_workspace
from attnbench.backends.limits import TORCH_LIMITS, Limits
from attnbench.backends.paste import BHSD, THD, Paste
from attnbench.backends.pytorch.nested import nested_prepared, nested_refusal
from attnbench.backends.shared.masks import effective_window, mask_plan, visibility_mask
from attnbench.core.backend import Prepared, Unsupported, Workspace
from attnbench.core.captured_stderr import captured_stderr
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

T = TypeVar("T")
# Messages of several versions of torch where the forced backend refuses a case.
REFUSAL_MESSAGES = ("No available kernel", "No viable backend", "Invalid backend")
# Regular expressions for the kernels of each fused backend
FLASH_KERNELS, EFFICIENT_KERNELS, CUDNN_KERNELS = "pytorch_flash", "fmha_cutlass", "cudnn.*sdpa"
# The matrix products of math, in float32 too. Fused kernels have such words in their template parameters.
PRODUCTS = "^(?!.*(?:flash|fmha|sdpa)).*(?:gem[mv]|nvjet|cutlass|aten::bmm)"
# NAME in torch.backends.cuda.enable_NAME_sdp
SWITCHES = ("math", "mem_efficient", "flash", "cudnn")


# Unequal lengths, where SDPA's causal mask is aligned top-left
MASK = "attn_mask=torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril(k.size(-2) - q.size(-2))"
LOWER_RIGHT = "attn_mask=causal_lower_right(q.size(-2), k.size(-2))"
DETERMINISTIC = (
    "torch.use_deterministic_algorithms(True)\n"
    + "torch.utils.deterministic.fill_uninitialized_memory = False  # filling takes time\n"
)
CALL = "out = scaled_dot_product_attention(q, k, v{options})"
NESTED = (
    f"{THD}q = torch.nested.nested_tensor_from_jagged(q, cu_seqlens_q).transpose(1, 2)\n"
    "k, v = (torch.nested.nested_tensor_from_jagged(t, cu_seqlens_k).transpose(1, 2) for t in (k, v))\n"
)


def force(backend: str) -> None:
    """Switch all backends of SDPA off in this process except `backend`, a name in SWITCHES; "" changes nothing."""
    import torch

    for name in SWITCHES if backend else ():
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == backend)


def sdpa_paste(forced: str = "", unequal: str = MASK, before: str = "", *imports: str) -> Paste:
    """Return the code that calls SDPA, with an SDPBackend forced if `forced` names one."""
    call = f"{before}with sdpa_kernel(SDPBackend.{forced}):\n    {CALL}" if forced else CALL
    return Paste(
        (
            "import torch",
            *imports,
            "from torch.nn.attention import SDPBackend",
            "from torch.nn.attention import sdpa_kernel",
            "from torch.nn.attention.bias import causal_lower_right",
            "from torch.nn.functional import scaled_dot_product_attention",
        ),
        {"dense": BHSD + call, "ragged": NESTED + call},
        causal="is_causal=True",
        unequal=unequal,
        grouped="enable_gqa=True",
        dropout="dropout_p={dropout}",
        scale="scale={scale}",
        deterministic="" if forced == "MATH" else DETERMINISTIC,
    )


def with_deterministic_algorithms(call: Callable[[], T]) -> Callable[[], T]:
    """Return a call during which torch has its deterministic algorithms only.

    With a warning in place of the error, the fused backwards would keep their usual algorithms. The call raises
    Unsupported where torch has no such algorithm.
    """
    import torch

    switch = torch.set_deterministic_debug_mode

    def launch() -> T:
        switch("error")
        try:
            return call()
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise Unsupported(f"torch refuses: {' '.join(str(error).split())[:400]}") from None
        finally:
            switch("default")

    return launch


class Sdpa(BackendBase):
    """SDPA with one backend forced, or with the backend that torch chooses."""

    switch = ""  # torch's name of the backend; "" where torch chooses
    order = "bhsd"
    limits: ClassVar[Limits] = TORCH_LIMITS
    cpu_limits: ClassVar[Limits | None] = None  # limits of its kernel on a CPU, where they differ

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device.kind == "cpu" and self.cpu_limits:
            return self.cpu_limits.refusal(case, device)
        limits = replace(self.limits, window=True) if case.mask else self.limits  # the mask includes the window
        return limits.refusal(case, device) or nested_refusal(case)

    def workspace(self, case: Case) -> Workspace:
        return mask_workspace(case) if case.mask else super().workspace(case)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        if not case.deterministic or self.switch == "math":  # math adds in one order
            return self._prepare(case, inputs)
        import torch

        # else torch fills new memory, to find reads of it, which takes time
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        prepared = with_deterministic_algorithms(lambda: self._prepare(case, inputs))()
        forward = prepared.forward and with_deterministic_algorithms(prepared.forward)
        return replace(prepared, launch=with_deterministic_algorithms(prepared.launch), forward=forward)

    def _prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        force(self.switch)
        options: dict[str, Any] = {
            "dropout_p": case.dropout_p,
            "scale": case.softmax_scale,
            "enable_gqa": case.shape.nheads != case.shape.nheads_k,
        }
        if case.is_ragged:
            options["is_causal"] = effective_window(case) != (None, None)
        else:
            options.update(self._mask(case, inputs))

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            try:
                return sdpa(q, k, v, **options)
            except RuntimeError as error:
                if not any(message in str(error) for message in REFUSAL_MESSAGES):
                    raise
                with warnings.catch_warnings(record=True) as caught, contextlib.suppress(RuntimeError):
                    warnings.simplefilter("always")
                    sdpa(q, k, v, **options)  # called again, to collect the warnings
                messages = [str(w.message) for w in caught]
                messages += [] if case.is_ragged else self._objections(inputs, options)
                raise Unsupported(_reason(messages, self.switch) or f"torch refuses: {error}") from None

        if case.is_ragged:
            return nested_prepared(case, inputs, attention)
        return autograd_prepared(case, inputs, attention, self.order, strided=True, **mask_plan(case, inputs.q.device))

    def _objections(self, inputs: Inputs, options: dict[str, Any]) -> list[str]:
        """Return the objections of torch's own check of a fused CUDA kernel, read from the process's stderr."""
        import torch

        check = getattr(torch.backends.cuda, f"can_use_{self.switch.removeprefix('mem_')}_attention", None)
        if check is None or inputs.q.device.type != "cuda":
            return []
        q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
        mask, causal = options.get("attn_mask"), options.get("is_causal", False)
        parameters = torch.backends.cuda.SDPAParams(q, k, v, mask, options["dropout_p"], causal, options["enable_gqa"])
        with captured_stderr() as said:
            check(parameters, debug=True)
        return re.findall(r"Warning: (.*)", said[0])

    def _mask(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        s = case.shape
        if effective_window(case) == (None, None) and not case.mask:
            return {}
        if s.seqlen_q == s.seqlen_k and not case.mask:
            return {"is_causal": True}
        if self.switch == "flash":
            from torch.nn.attention.bias import causal_lower_right

            return {"attn_mask": causal_lower_right(s.seqlen_q, s.seqlen_k)}
        return {"attn_mask": visibility_mask(case, inputs.q.device)}


class Math(Sdpa):
    """SDPA's math backend: matmuls and a softmax, in float32 for inputs of half precision."""

    name = "sdpa-math"
    switch = "math"
    paste = sdpa_paste("MATH")
    engine_names: ClassVar = {"sdpa": "MATH", "diffusers": "_native_math"}
    efficiency = 0.2
    limits: ClassVar = replace(
        TORCH_LIMITS, dropout=True, deterministic=True, masks=True, empty_rows=False, ragged=True
    )
    forward_kernels = backward_kernels = PRODUCTS
    other_kernels: ClassVar = (FLASH_KERNELS, EFFICIENT_KERNELS, CUDNN_KERNELS)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or _causal_refusal(case)

    def workspace(self, case: Case) -> Workspace:
        widen = 1 if case.dtype == "fp32" else 2  # scores are float32 for inputs of any dtype
        return scores_workspace(case, copies_fwd=2.4 * widen, copies_bwd=4.1 * widen)  # measured on an H200


class Efficient(Sdpa):
    name = "sdpa-efficient"
    switch = "mem_efficient"
    paste = sdpa_paste("EFFICIENT_ATTENTION")
    engine_names: ClassVar = {"sdpa": "EFFICIENT_ATTENTION", "diffusers": "_native_efficient"}
    efficiency = 0.18
    runtime_checker = "torch"
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"),
        capability=(5, 0),
        bf16_capability=(8, 0),
        gqa=False,  # torch 2.11 refuses grouped heads
        headdim=(4, 65536),
        headdim_multiple=4,
        headdim_v=True,
        dropout=True,
        deterministic=True,
        masks=True,
        empty_rows=False,
        ragged=True,
    )
    forward_kernels = "fmha_cutlassF|AttentionKernel"
    backward_kernels = "fmha_cutlassB|AttentionBackwardKernel"
    other_kernels: ClassVar = (FLASH_KERNELS, CUDNN_KERNELS)


class Flash(Sdpa):
    name = "sdpa-flash"
    switch = "flash"
    paste = sdpa_paste("FLASH_ATTENTION", LOWER_RIGHT)
    engine_names: ClassVar = {"sdpa": "FLASH_ATTENTION", "diffusers": "_native_flash"}
    runtime_checker = "torch"
    limits: ClassVar = Limits(  # causal_lower_right gives NaN for query rows that see no key
        capability_below=(12, 2),
        headdim=(1, 256),
        headdim_multiple=1,
        dropout=True,
        deterministic=True,
        empty_rows=False,
        ragged=True,
    )
    cpu_limits: ClassVar[Limits | None] = replace(TORCH_LIMITS, deterministic=True, unequal_causal=False)
    forward_kernels = "flash_fwd|flash_attention_for_cpu"
    backward_kernels = "flash_bwd|flash_attention_for_cpu_backward"
    other_kernels: ClassVar = (EFFICIENT_KERNELS, CUDNN_KERNELS)


class Cudnn(Sdpa):
    name = "sdpa-cudnn"
    switch = "cudnn"
    paste = sdpa_paste("CUDNN_ATTENTION")
    engine_names: ClassVar = {"sdpa": "CUDNN_ATTENTION", "diffusers": "_native_cudnn"}
    efficiency = 0.6
    compiles = 1.1
    runtime_checker = "torch"
    # Above headdim 128 support depends on the version of cuDNN.
    limits: ClassVar = Limits(
        capability_below=(12, 2), headdim_v=True, dropout=True, deterministic=True, unequal_causal=False, ragged=True
    )
    forward_kernels = "cudnn.*fprop"
    backward_kernels = "cudnn.*bprop"
    other_kernels: ClassVar = (FLASH_KERNELS, EFFICIENT_KERNELS)

    def unsupported(self, case: Case, device: Device) -> str | None:
        reason = super().unsupported(case, device)
        if reason is None and case.is_ragged and case.has_backward:
            return "its dq and dk of nested tensors are wrong (torch 2.11 on an H100)"
        return reason


FORCED: Mapping[str, type[Sdpa]] = {"flash": Flash, "efficient": Efficient, "cudnn": Cudnn, "math": Math}


class Choice(Sdpa):
    """SDPA with the backend that torch chooses for the case: a fused kernel, or math's products and softmax."""

    name = "sdpa"
    compiles = 0.8
    paste = sdpa_paste()
    engine_names: ClassVar = {"transformers": "sdpa", "diffusers": "native"}
    runtime_checker = "torch"
    limits: ClassVar = Math.limits
    forward_kernels = "|".join(forced.forward_kernels for forced in FORCED.values())
    backward_kernels = "|".join(forced.backward_kernels for forced in FORCED.values())
    choices: ClassVar = {name: f"{forced.forward_kernels}|{forced.backward_kernels}" for name, forced in FORCED.items()}

    def unsupported(self, case: Case, device: Device) -> str | None:
        on_cpu = device.kind == "cpu"  # on a CPU only math takes nested tensors
        return super().unsupported(case, device) or (_causal_refusal(case) if on_cpu else None)


def _causal_refusal(case: Case) -> str | None:
    """Return why math cannot run a case that other backends of SDPA take; None where it can."""
    causal = case.is_ragged and case.causal and case.shape.seqlen_q > 1
    return "math has no causal mask of nested tensors" if causal else None


def _reason(messages: list[str], switch: str) -> str:
    """Return why torch refuses the forced backend, from its warnings; "" where none of them concerns it.

    Source positions and warnings about other backends are left out.
    """
    own = []
    for message in messages:
        text = re.sub(r"\s*\((Triggered internally at .*?|function .*)\)", "", message).strip().rstrip(".")
        if "not used because" in text or "runtime disabled" in text or "not compiled" in text:
            continue  # a heading, or a warning about a backend that `prepare` switched off
        if text and text not in own:
            own.append(text)
    return f"torch refuses {f'sdpa {switch}'.strip()}: {'; '.join(own)}" if own else ""
