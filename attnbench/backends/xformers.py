"""`xformers*`: xFormers' memory_efficient_attention, with its own choice of operator (`xformers`) or a forced one.

Checked against 0.0.35. Its operator `fa2` runs the installed flash-attn 2, else torch's copy of it ("fa2F@...-pt").
`fa3` runs the installed flash-attn 3 (module flash_attn_3._C) if its operators have the arguments that xFormers
expects; wheels up to 0.0.34 have a copy. Masks are attn_bias objects, aligned bottom-right, and block-diagonal for
ragged batches. Grouped heads are forward only, as 5-dimensional tensors (batch, seqlen, nheads_k, group, headdim) with
the keys expanded, not copied. For cases within these limits the operator's own not_supported_reasons are the reason of
a skip. `splitk` reads a cache of pages, with a paged mask. ALiBi and masks by name are a tensor of biases, -inf where a
query does not see a key, which only the CUTLASS operator takes.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.flash_attn.fa3 import FlashAttention3, build_refusal
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, Paste
from attnbench.backends.shared.libraries import Library, probe_of_failed_import, reason_of_failed_import
from attnbench.backends.shared.masks import alibi_bias, effective_window, mask_plan, visibility_mask
from attnbench.core.backend import Prepared, Probe, Unsupported, Workspace, torch_dtype
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

INSTALLED_FA3 = "@pip_pkg"  # part of the name of an operator that runs the installed flash-attn 3, not xFormers' copy
MOST_CAUSAL = 16  # most queries of each sequence over pages with a causal mask
SPLITK_HEADDIMS = tuple((d, d) for d in (16, 32, 64, 128, 256))


GROUPS = "# with grouped heads all three: (batch, seqlen, nheads_k, nheads // nheads_k, headdim), k and v expanded\n"


def xformers_paste(operator: str = "", backward: bool = True) -> Paste:
    """Return the code that calls xFormers, with a module of xformers.ops.fmha forced if `operator` names one."""
    forced = f", op=(fmha.{operator}.FwOp, {f'fmha.{operator}.BwOp' if backward else None})" if operator else ""
    local = "fmha.attn_bias.LowerTriangularFromBottomRightLocalAttentionMask({keys})"
    return Paste(
        ("from xformers.ops import fmha", "from xformers.ops import memory_efficient_attention"),
        {"dense": f"{BSHD}{GROUPS}out = memory_efficient_attention(q, k, v{forced}{{options}})"},
        causal="attn_bias=fmha.attn_bias.LowerTriangularFromBottomRightMask()",
        window=f"attn_bias={local}",
        dropout="p={dropout}",
        scale="scale={scale}",
    )


class XFormers(Library):
    name = "xformers"
    paste = xformers_paste()
    engine_names: ClassVar = {"diffusers": "xformers"}
    efficiency = 0.45
    runtime_checker = "xFormers"
    operator_install = "python -m xformers.info says what is there"
    operator = ""  # module of xformers.ops.fmha with FwOp and perhaps BwOp; "" if xFormers chooses
    module = "xformers.ops"
    distributions: ClassVar = ("xformers",)
    uses: ClassVar = ("flash-attn", *FlashAttention3.distributions)
    install = "pip install xformers  # its wheel is for CUDA 12; beside a CUDA 13 torch: attnbench env create xformers"
    min_version = "0.0.28"
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"),
        headdim_v=True,
        window=True,
        dropout=True,
        gqa_backward=False,
        empty_rows=False,
        alibi=True,
        masks=True,
        ragged=True,
    )
    forward_kernels = "fmha_cutlassF|flash_fwd|FlashAttnFwd|splitK"
    backward_kernels = "fmha_cutlassB|flash_bwd|FlashAttnBwd"

    def probe(self) -> Probe:
        found = super().probe()
        if found.reason and "flash_attn_interface" in found.reason:
            reason = "xformers.ops fails at import beside flash-attn-4 without flash-attn 2 (it imports the latter)"
            return Probe(
                reason=reason,
                install="pip uninstall flash-attn-4 here and attnbench env create fa4; or --python xformers=PATH",
            )
        if not found.usable:
            return found
        extension: Any = getattr(importlib.import_module("xformers"), "_cpp_lib", None)
        if broken := getattr(extension, "_cpp_library_load_exception", None):  # without it no operator works
            return probe_of_failed_import("xformers", _root_cause(broken), self.install, self.distributions)
        if not self.operator:
            return found
        module = f"xformers.ops.fmha.{self.operator}"
        try:
            forward = importlib.import_module(module).FwOp
        except Exception as error:  # importing an operator imports its library, which may raise any error
            return probe_of_failed_import(module, error, self.install, self.distributions)
        if not forward.is_available():
            said = ": ".join(filter(None, (f"its operator {forward.NAME} is not available", self._why_unavailable())))
            return Probe(reason=said, install=self.operator_install)
        return Probe(version=f"{found.version}, {forward.NAME}")

    def _why_unavailable(self) -> str | None:
        """Return why the operator is not available; None where it is not known."""
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        plan = functools.partial(self._bias, case, inputs.q.device)
        bias, op = plan(), self._op(case)
        call = _attention(case, attn_bias=bias, p=case.dropout_p, op=op)
        if op is not None and case.has_backward:
            self._check_backward(op[1], case, inputs, bias)
        planned: dict[str, Any] = {"plan": plan} if case.is_ragged else {}
        if case.mask:
            planned = mask_plan(case, inputs.q.device) | {"plan": plan}
        return autograd_prepared(case, inputs, call, strided=True, **planned)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or _ragged_refusal(case)

    def workspace(self, case: Case) -> Workspace:
        if not (case.alibi or case.mask):
            return super().workspace(case)
        # A bias of each head and the float32 tensors from which ALiBi is made, or one bias for all heads and the bool
        # mask.
        s, size = case.shape, ITEMSIZE[case.dtype]
        bytes_of_pair = s.nheads * (size + 2 * ITEMSIZE["fp32"]) if case.alibi else size + 1
        return Workspace(nbytes=s.seqlen_q * s.seqlen_k * bytes_of_pair, what="bias", passes=1.0, dense=True)

    def _bias(self, case: Case, device: torch.device) -> Any:
        if case.alibi or case.mask:
            return _tensor_bias(case, device)
        return _block_diagonal(case, device) if case.is_ragged else _bias(case)

    def _op(self, case: Case) -> tuple[Any, Any] | None:
        if not self.operator:
            return None
        operator = importlib.import_module(f"xformers.ops.fmha.{self.operator}")
        return operator.FwOp, operator.BwOp if case.has_backward else None

    def _check_backward(self, backward: Any, case: Case, inputs: Inputs, bias: Any) -> None:
        """Raise Unsupported where the forced backward refuses; memory_efficient_attention checks the forward only."""
        from xformers.ops import fmha

        given = fmha.Inputs(inputs.q, inputs.k, inputs.v, attn_bias=bias, p=case.dropout_p, scale=case.softmax_scale)
        if reasons := backward.not_supported_reasons(given):
            raise Unsupported(f"{backward.NAME}: {'; '.join(' '.join(r.split()) for r in reasons)}")


class Cutlass(XFormers):
    name = "xformers-cutlass"
    paste = xformers_paste("cutlass")
    efficiency = 0.18
    operator = "cutlass"
    limits: ClassVar = replace(
        XFormers.limits, capability=(5, 0), capability_below=(9, 1), bf16_capability=(8, 0), headdim=(8, 65536)
    )
    forward_kernels = "fmha_cutlassF"
    backward_kernels = "fmha_cutlassB"
    other_kernels: ClassVar = ("flash",)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if case.mask or case.alibi:
            return None  # the bias includes the window
        if case.window_size != (None, None) and (not case.causal or case.has_backward):
            return "sliding windows are causal and forward only"
        return None


class Fa2(XFormers):
    name = "xformers-fa2"
    paste = xformers_paste("flash")
    operator = "flash"
    limits: ClassVar = Limits(window=True, dropout=True, gqa_backward=False, ragged=True)
    forward_kernels = "flash_fwd"
    backward_kernels = "flash_bwd"
    other_kernels: ClassVar = ("fmha_cutlass",)


class Fa3(XFormers):
    name = "xformers-fa3"
    paste = xformers_paste("flash3")
    efficiency = 0.75
    operator = "flash3"
    operator_install = (
        "attnbench env create fa3 builds flash-attn 3 as a wheel; pip install --no-deps that wheel beside xformers"
    )
    limits: ClassVar = replace(
        Fa2.limits, capability=(9, 0), capability_below=(9, 1), headdim=(32, 256), headdim_v=True, dropout=False
    )
    forward_kernels = FlashAttention3.forward_kernels
    backward_kernels = FlashAttention3.backward_kernels
    left_out: frozenset[str] = frozenset()  # features that the build lacks, as in FlashAttention3

    def probe(self) -> Probe:
        found = super().probe()
        if not found.usable or INSTALLED_FA3 not in str(found.version):
            return found
        library = FlashAttention3()
        version = library.probe().version
        self.left_out = library.left_out
        return replace(found, version=f"{found.version}, {version}" if version else found.version)

    def _why_unavailable(self) -> str | None:
        try:
            importlib.import_module("flash_attn_3._C")
        except Exception as error:
            return reason_of_failed_import("flash_attn_3._C", error)
        operator = importlib.import_module("xformers.ops.fmha.flash3")
        check = getattr(operator, "_flash_attention3_incompatible_reason", None)
        return f"xFormers takes another version of flash-attn 3 than the installed one ({check()})" if check else None

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or build_refusal(case, self.left_out)


class SplitK(XFormers):
    """xFormers' decode kernel, written in Triton. It takes any number of queries and is fast for few."""

    name = "xformers-splitk"
    compiles = 0.8
    paste = xformers_paste("triton_splitk", backward=False)
    operator = "triton_splitk"
    limits: ClassVar = Limits(headdim_pairs=SPLITK_HEADDIMS, backward=False, ragged=True, page_sizes=(64,))
    forward_kernels = "splitK"

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if case.is_paged:
            return _page_refusal(case)
        if effective_window(case) != (None, None):
            return "causal for a single query only (else it takes padded block-diagonal batches)"
        return None

    def _bias(self, case: Case, device: torch.device) -> Any:
        """Return the mask. For a ragged batch it is the only kind with packed keys that this operator takes."""
        if not case.is_ragged:
            return None
        from xformers.ops.fmha import attn_bias

        queries, keys = _lengths(case)
        starts = list(itertools.accumulate(keys, initial=0))
        return attn_bias.BlockDiagonalGappyKeysMask.from_seqlens(queries, starts, keys).to(device)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        if not case.is_paged:
            return super().prepare(case, inputs)
        assert inputs.page_table is not None
        plan = functools.partial(_paged_mask, case, inputs.page_table)
        packed = (t.flatten(0, 1)[None] for t in (inputs.q, inputs.k, inputs.v))
        launch = functools.partial(_attention(case, attn_bias=plan(), op=self._op(case)), *packed)
        return Prepared(launch, lambda out: {"out": out.view(inputs.q.shape)}, plan=plan)


def _attention(case: Case, **options: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return memory_efficient_attention for q, k and v (batch, seqlen, nheads, headdim), with grouped heads too."""
    from xformers.ops import memory_efficient_attention

    s = case.shape
    group = s.nheads // s.nheads_k

    def grouped(t: Tensor) -> Tensor:
        if group == 1:
            return t
        return t.view(*t.shape[:2], s.nheads_k, -1, t.shape[-1]).expand(-1, -1, -1, group, -1)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        try:
            out: Tensor = memory_efficient_attention(
                grouped(q), grouped(k), grouped(v), scale=case.softmax_scale, **options
            )
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(reason_of_refusal(str(error))) from None
        except RuntimeError as error:  # xFormers does not check which features a build of flash-attn 3 lacks
            if lacking := re.search(r"This flash attention build does not support [^.\n]*", str(error)):
                raise Unsupported(f"it chose flash-attn 3, which says: {lacking[0]}") from None
            raise
        return out.flatten(2, 3) if group > 1 else out

    return call


def _paged_mask(case: Case, page_table: Tensor) -> Any:
    """Return the mask of a paged case, with its page table; a causal mask is aligned bottom-right."""
    from xformers.ops.fmha import attn_bias

    causal = effective_window(case) != (None, None)
    of = (
        attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
        if causal
        else attn_bias.PagedBlockDiagonalPaddedKeysMask
    )
    return of.from_seqlens(*_lengths(case), page_table, case.page_size, device=page_table.device)


def _page_refusal(case: Case) -> str | None:
    if effective_window(case) == (None, None):
        return None
    if not case.has_like_queries:
        return "causal over pages needs the same number of queries in each sequence"
    if case.shape.seqlen_q > MOST_CAUSAL:
        return f"causal over pages with at most {MOST_CAUSAL} queries in each sequence"
    return None


def _root_cause(error: Exception) -> Exception:
    """Return the first error of a chain of errors, which names the missing library."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def reason_of_refusal(message: str) -> str:
    """Return the reasons in a message of xFormers, in one line.

    The message has "`fa2F` is not supported because:" for each operator, then one reason a line.
    """
    found = re.findall(r"`([^`\n]+)` is not supported because:((?:\n +[^\n]*)*)", message)
    if not found:
        return f"xFormers refuses: {' '.join(message.split())[:300]}"
    reasons = (f"{name}: {', '.join(map(str.strip, lines.strip().splitlines()))}" for name, lines in found)
    return f"xFormers refuses; {'; '.join(reasons)}"


def _ragged_refusal(case: Case) -> str | None:
    """Return why a ragged batch is refused. Windows of xFormers' block-diagonal masks are causal."""
    if not case.is_ragged:
        return None
    if case.alibi:
        return "no ALiBi of ragged batches"
    if case.window_size != (None, None) and not case.causal:
        return "windows of ragged batches must be causal"
    if case.causal and any(of.seqlen_q > of.seqlen_k for of in case.sequences):
        return "a causal mask of a ragged batch needs seqlen_q <= seqlen_k in each sequence"
    return None


def _lengths(case: Case) -> tuple[list[int], list[int]]:
    """Return seqlen_q and seqlen_k of each sequence."""
    return (
        [of.seqlen_q for of in case.sequences for _ in range(of.number)],
        [of.seqlen_k for of in case.sequences for _ in range(of.number)],
    )


def _block_diagonal(case: Case, device: torch.device) -> Any:
    """Return the mask of a ragged batch, aligned bottom-right in each sequence."""
    from xformers.ops.fmha import attn_bias

    mask: Any = attn_bias.BlockDiagonalMask.from_seqlens(*_lengths(case)).to(device)
    if not case.causal:
        return mask
    left = case.window_size[0]
    if left is None:
        return mask.make_causal_from_bottomright()
    return mask.make_local_attention_from_bottomright(left + 1)


def _tensor_bias(case: Case, device: torch.device) -> Tensor:
    """Return ALiBi and the mask as a bias, (batch, nheads, seqlen_q, seqlen_k), with one more dimension for groups.

    Its rows are aligned to 8 elements, as the operator requires. Without ALiBi all heads share one bias.
    """
    import torch

    s = case.shape
    heads, padded = s.nheads if case.alibi else 1, -(-s.seqlen_k // 8) * 8
    rows = torch.zeros(heads, s.seqlen_q, padded, dtype=torch_dtype(case), device=device)
    bias = rows[..., : s.seqlen_k]
    if case.alibi:
        bias.copy_(alibi_bias(case, device)).neg_()
    seen = visibility_mask(case, device)
    if seen is not None:
        bias.masked_fill_(~seen, float("-inf"))
    bias = bias.expand(s.batch, s.nheads, -1, -1)
    return bias if s.nheads == s.nheads_k else bias.unflatten(1, (s.nheads_k, -1))


def _bias(case: Case) -> Any:
    """Return the mask as xFormers takes it; None where every query sees every key."""
    from xformers.ops.fmha import attn_bias

    left, right = effective_window(case)
    if left is None and right is None:
        return None
    if left is None and right == 0:
        return attn_bias.LowerTriangularFromBottomRightMask()
    if left is not None and right == 0 and case.causal:
        return attn_bias.LowerTriangularFromBottomRightLocalAttentionMask(left + 1)
    far = case.shape.seqlen_q + case.shape.seqlen_k
    return attn_bias.LocalAttentionFromBottomRightMask(
        window_left=far if left is None else left, window_right=far if right is None else right
    )
