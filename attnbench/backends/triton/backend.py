"""The backend `triton`: the cases that attention.py takes on each device, and the prepared call.

Checked against Triton 3.6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, FLASH, THD, Paste
from attnbench.backends.shared.libraries import (
    OwnKernels,
    is_interpreted,
    padded_queries,
    refusal_of_interpreter,
    refusal_when_interpreted,
)
from attnbench.backends.shared.masks import slopes
from attnbench.core.backend import Prepared, Signature, Workspace, cu_seqlens
from attnbench.core.case import DTYPES, Case
from attnbench.core.fp8 import quantize_inputs
from attnbench.core.machine import Device
from attnbench.core.pages import appender, seqlens_k

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.triton.named_mask import NamedMask
    from attnbench.core.backend import Inputs

MIN_CAPABILITY_FP8 = (8, 9)
MAX_LATENT = 512  # most columns of v in latent rows
# Most keys with parts of dk and dv in fp32, where the query heads of a key head are split: 8 programs of 128 keys for
# each of 148 multiprocessors (B200), or 16 programs of 64 keys (block_sizes.query_splits).
MAX_SPLIT_KEYS = 8 * 148 * 128


class Triton(OwnKernels):
    name = "triton"
    compiles = 1.1
    install = "pip install 'triton>=3.4'"
    min_version = "3.4"  # the first version with tensor descriptors made on the host
    kernel_folders: ClassVar = ("triton",)
    paste = Paste(
        (
            "from attnbench.backends.triton.attention import attention",
            "from attnbench.backends.triton.attention import attention_varlen",
            "from attnbench.backends.triton.paged import attention_paged",
        ),
        {
            "dense": f"{BSHD}out = attention(q, k, v{{options}})",
            "ragged": f"{THD}out = attention_varlen(\n    q, k, v, cu_seqlens_q, cu_seqlens_k, "
            "max_seqlen_q, max_seqlen_k{options}\n)",
            "paged": "# q: (total, nheads, headdim); k_cache, v_cache: (pages, page_size, nheads_k, headdim)\n"
            "out = attention_paged(\n    q, k_cache, v_cache, page_table, seqlens_k, cu_seqlens_q, max_seqlen_q, "
            "max_seqlen_k{options}\n)",
            "latent": "# q: (total, nheads, headdim); cache: (pages, page_size, 1, headdim)\nout = attention_paged(\n"
            "    q, cache, cache[..., :headdim_v], page_table, seqlens_k, cu_seqlens_q, max_seqlen_q, max_seqlen_k,\n"
            "    latent=True{options}\n)",
        },
        **FLASH,
        deterministic="",
    )
    # Compute capability 8.0 has asynchronous copies and bf16 matmuls. The capability of an AMD GPU is its gfx number,
    # above 8.0 for all AMD GPUs that torch supports.
    limits: ClassVar = Limits(
        dtypes=DTYPES,
        capability=(8, 0),
        headdim=(16, 256),
        headdim_multiple=1,
        headdim_v=True,
        window=True,
        softcap=True,
        sink=True,
        alibi=True,
        deterministic=True,  # no atomics
        masks=True,
        ragged=True,
        page_sizes=(1,),
        cache_dtypes=("fp8",),
        append=True,
        latent=True,
        on_cpu=True,
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        reason = interpreter_refusal(case, device) or _latent_refusal(case) or super().unsupported(case, device)
        return fp8_refusal(case, device) if reason is None and "fp8" in (case.dtype, case.cache_dtype) else reason

    def workspace(self, case: Case) -> Workspace:
        s = case.extent
        row = 4 * s.batch * s.nheads * s.seqlen_q  # bytes of one float32 for each query
        if not case.has_backward:
            return Workspace(nbytes=row, what="log-sum-exp", passes=2.0)
        # A backward allocates a padded copy of the log-sum-exp, and delta; and parts of dk and dv, if the query heads
        # of a key head are split because too few programs would run.
        keys = s.batch * s.nheads_k * s.seqlen_k
        splits = min(s.nheads // s.nheads_k, MAX_SPLIT_KEYS // keys)
        parts = splits * keys * 4 * (s.headdim + s.headdim_v) if splits > 1 else 0
        padded = 4 * s.batch * s.nheads * padded_queries(s.seqlen_q)
        return Workspace(nbytes=row + 2 * padded + parts, what="log-sum-exp, delta and parts of dk and dv", passes=2.0)

    def signature(self, case: Case, device: Device) -> Signature:
        if device.kind == "cpu":
            return Signature()  # Triton's interpreter calls no operators of torch
        if case.is_paged:
            return Signature(("^_paged$",))
        forward = ("^_(forward|decode)$",) if case.has_forward else ()  # _decode: few queries share a key head
        return Signature(forward + (("^_delta$", "^_dk_dv$", "^_dq$") if case.has_backward else ()))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from attnbench.backends.triton.attention import attention, attention_varlen

        options: dict[str, Any] = {
            "causal": case.causal,
            "window_size": case.window_size,
            "softcap": case.softcap,
            "softmax_scale": case.softmax_scale,
            "alibi_slopes": slopes(case, inputs.q.device),
        }
        if case.is_paged:
            return _prepare_paged(case, inputs, options)
        if case.is_ragged:
            s = case.shape
            plan = functools.partial(cu_seqlens, case, inputs.q.device)
            cu_q, cu_k = plan()

            def ragged(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None) -> Tensor:
                out: Tensor = attention_varlen(q, k, v, cu_q, cu_k, s.seqlen_q, s.seqlen_k, sink=sink, **options)
                return out

            return autograd_prepared(case, inputs, ragged, "thd", strided=True, plan=plan)
        fn: Callable[..., Any] = functools.partial(attention, **options)
        if case.dtype == "fp8":
            operands, descale = quantize_inputs(inputs)
            if case.layout == "native":
                operands["v"] = _by_keys(operands["v"])
            scaled = functools.partial(fn, descale=(descale["q"], descale["k"], descale["v"]))

            def launch() -> Tensor:
                v = operands["v"] if case.layout == "native" else _by_keys(operands["v"])
                out: Tensor = scaled(operands["q"], operands["k"], v)
                return out

            return Prepared(launch, lambda out: {"out": out}, reads=operands)

        mask = _named_mask(case, inputs)

        def dense(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None) -> Tensor:
            out: Tensor = fn(q, k, v, sink=sink, named_mask=mask)
            return out

        if mask is None:
            return autograd_prepared(case, inputs, dense, strided=True)
        return autograd_prepared(case, inputs, dense, strided=True, plan=mask.rebuild, pairs=lambda: mask.pairs)


def _named_mask(case: Case, inputs: Inputs) -> NamedMask | None:
    from attnbench.backends.triton.named_mask import NamedMask, make_lists

    if not case.mask:
        return None
    q, lengths = inputs.q, (case.shape.seqlen_q, case.shape.seqlen_k)
    mask = NamedMask(case.mask, *lengths, q.device, causal=case.causal, window_size=case.window_size)
    make_lists(mask, q, inputs.k, inputs.v, backward=case.has_backward)
    return mask


def _prepare_paged(case: Case, inputs: Inputs, options: Mapping[str, Any]) -> Prepared:
    from attnbench.backends.triton.paged import attention_paged

    assert inputs.page_table is not None
    device, longest = inputs.q.device, (case.shape.seqlen_q, case.shape.seqlen_k)
    sequences = (inputs.page_table, seqlens_k(case, device), cu_seqlens(case, device)[0])
    descale = inputs.descale if case.cache_dtype == "fp8" else None
    options = {**options, "descale": descale, "latent": case.latent, "sink": inputs.sink}

    append = appender(case, inputs)  # torch appends; the package has no kernel for it

    def launch() -> Tensor:
        append()
        out: Tensor = attention_paged(inputs.q.flatten(0, 1), inputs.k, inputs.v, *sequences, *longest, **options)
        return out.view(*inputs.q.shape[:3], -1)

    return Prepared(launch, lambda out: {"out": out})


def _by_keys(v: Tensor) -> Tensor:
    """Return v with its keys contiguous in memory, as tensor cores need it in e4m3."""
    return v.transpose(1, 3).contiguous().transpose(1, 3)


def interpreter_refusal(case: Case, device: Device) -> str | None:
    """Return why the device excludes the case, with or without TRITON_INTERPRET=1 (Triton on a CPU, in Python)."""
    if device.kind != "cpu":
        return refusal_of_interpreter(device)
    if not is_interpreted():
        return "Triton kernels need a GPU; the interpreter is for tests"
    return refusal_when_interpreted(case)


def _latent_refusal(case: Case) -> str | None:
    if not case.latent:
        return None
    if not case.is_paged:
        return "latent rows only in a cache of pages"
    if not 16 <= case.shape.headdim_v <= MAX_LATENT or case.shape.headdim > 2 * MAX_LATENT:
        return f"latent rows only with a headdim_v of 16 to {MAX_LATENT} and a headdim up to {2 * MAX_LATENT}"
    return None


def fp8_refusal(case: Case, device: Device) -> str | None:
    if case.dtype == "fp8" and (case.is_ragged or case.is_paged):
        return f"fp8 of {'pages' if case.is_paged else 'ragged batches'} is not wired up"
    if device.kind == "cpu":
        return None
    if case.has_backward:
        return "fp8 is forward only"
    if device.is_amd:
        return "no fp8 on AMD GPUs: the e4m3 of CDNA3 is another format (fnuz), and newer GPUs are not wired up"
    if device.capability is not None and device.capability < MIN_CAPABILITY_FP8:
        return f"fp8 needs compute capability 8.9 or newer, this GPU has {'.'.join(map(str, device.capability))}"
    return None
