"""`sage` and `sage2`: attention with q k^T in int8 (Zhang et al., "SageAttention" and "SageAttention2").

q and k are rounded to int8, k after its mean over the tokens is subtracted, which changes no probability. Both are
forward only, and the time of a call includes the rounding. Their causal masks are aligned top-left. Checked against
1.0.6 and 2.2.0 (`sage`), and the source of 2.2.0 at d1a57a5 (`sage2`).

`sage` (arXiv 2410.02367) is the Triton kernel that all versions have, in 2.x under another name. There is one scale for
each block of 64 keys and of 128 queries. Probabilities and v are fp16, and their products are summed in fp16 within a
block of keys. 1.0.6 would subtract the mean from the caller's k in place, so the backend subtracts it first. Without a
causal mask it does not mask the keys behind the last one, so the keys must be whole blocks.

`sage2` (arXiv 2411.10958) is the CUDA kernel for Hopper, which `sageattn` calls there. 2 queries of 16, and 32 keys of
128, share a scale: those that one thread of the kernel has. Probabilities and v are e4m3. At the tag 2.2.0 a second
function of the same name replaces the one that launches the kernel, so that the call returns memory that was never
written (issue 320). Later commits, of the same version, have the second function under `required_name`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.approximate.base import Approximate, in_blocks, positions
from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnbench.core.backend import Inputs

KERNEL_OF_2 = "sageattn_qk_int8_pv_fp16_triton"
MOST_E4M3 = 448.0
BLOCK_E4M3 = 128  # keys whose exponentials have one maximum, the largest score up to them

# Tokens with one scale: a block of tokens as (parts, scales, tokens in succession), the parts having the same scales
Block = tuple[int, int, int]


def rounded(t: Tensor, block: Block) -> Tensor:
    """Return t (..., seqlen, headdim) rounded to int8 and back, with float32 scales."""
    import torch

    tokens = block[0] * block[1] * block[2]
    blocks = in_blocks(t.to(torch.promote_types(t.dtype, torch.float32)), tokens).unflatten(-2, block)
    scale = blocks.abs().amax((-4, -2, -1), keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
    whole = torch.trunc(blocks / scale + 0.5 * blocks.sign())
    near: Tensor = (whole * scale).flatten(-5, -2)[..., : t.shape[-2], :].to(t.dtype)
    return near


def in_e4m3(v: Tensor, most: float) -> Tensor:
    """Return v (seqlen, headdim) rounded to e4m3 and back, each column scaled to have `most` as its largest value."""
    import torch

    wide = v.to(torch.promote_types(v.dtype, torch.float32))
    scale = wide.abs().amax(0).clamp(min=torch.finfo(torch.float32).tiny) / most
    near: Tensor = ((wide / scale).to(torch.float8_e4m3fn).to(wide.dtype) * scale).to(v.dtype)
    return near


class InE4m3(Approximate):
    """A method whose probabilities are e4m3 when they multiply v.

    The exponentials of a block of keys are scaled to have 448 at the largest score up to this block. Their sums are not
    rounded.
    """

    rounds = True

    def unrounded(self) -> Approximate | None:
        method = copy.copy(self)
        method.rounds = False
        return method

    def weighted(self, scores: Tensor, v: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import pad

        wide = torch.promote_types(scores.dtype, torch.float32)
        blocks = pad(scores, (0, -len(v) % BLOCK_E4M3), value=float("-inf")).unflatten(-1, (-1, BLOCK_E4M3))
        largest = blocks.amax(-1, keepdim=True).cummax(-2).values.clamp(min=torch.finfo(scores.dtype).min)
        exponentials = (blocks - largest).exp() * MOST_E4M3
        shrunk = (largest - largest[..., -1:, :]).exp().to(wide)
        share = shrunk / (exponentials.to(wide) * shrunk).sum((-2, -1), keepdim=True)
        p = (exponentials.to(torch.float8_e4m3fn) if self.rounds else exponentials).to(wide) * share
        out: Tensor = p.flatten(-2)[..., : len(v)].to(v.dtype) @ v
        return out


class Sage(Approximate, Library):
    name = "sage"
    what = "attention with q and k rounded to int8, a scale for each block of tokens"
    module = "sageattention"
    distributions: ClassVar = ("sageattention",)
    install = "pip install sageattention"
    min_version = "1.0.6"
    forward_kernels = "_attn_fwd"
    limits: ClassVar = Limits(
        headdim_pairs=((64, 64), (128, 128)), backward=False, unequal_causal=False, empty_rows=False
    )
    of_q: ClassVar[Block] = (128, 1, 1)
    of_k: ClassVar[Block] = (64, 1, 1)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if not (case.causal and case.shape.seqlen_q > 1) and case.shape.seqlen_k % self.of_k[0]:
            return f"without a causal mask the keys must be whole blocks of {self.of_k[0]}"
        return None

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        nbytes = s.batch * (s.nheads * s.seqlen_q + 3 * s.nheads_k * s.seqlen_k) * s.headdim
        return Workspace(nbytes, "q, k and v in int8 and fp16", passes=2.0)

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        return super().definition(case, rounded(q, self.of_q), rounded(k - k.mean(0), self.of_k), v, selected)

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        import torch

        keys = torch.arange(len(k), device=k.device)
        last: Tensor = positions(case, rows) if case.causal else torch.full_like(rows, len(k) - 1)
        return keys <= last[..., None]

    def function(self) -> Callable[..., Any]:
        """Return the function of q, k, v (batch, seqlen, nheads, headdim) and the options that all versions have."""
        import sageattention

        def of_1(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
            return sageattention.sageattn(q, k - k.mean(1, keepdim=True), v, smooth_k=False, **options)

        of_2: Callable[..., Any] | None = getattr(sageattention, KERNEL_OF_2, None)
        return of_2 or of_1

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        function = self.function()
        causal = case.causal and case.shape.seqlen_q > 1  # its causal kernel takes as many queries as keys
        options = {"tensor_layout": "NHD", "is_causal": causal, "sm_scale": case.softmax_scale}

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, seqlen, nheads, headdim)
            out: Tensor = function(q, k, v, **options)
            return out

        return autograd_prepared(case, inputs, call, strided=True)


class Sage2(InE4m3, Sage):
    name = "sage2"
    what = "attention with q and k rounded to int8, probabilities and v to e4m3"
    module = "sageattention.sm90_compile"
    required_name = "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf_fake_impl"
    install = "pip install --no-build-isolation git+https://github.com/thu-ml/SageAttention@d1a57a5"
    min_version = "2.2.0"
    forward_kernels = "qk_int8_sv_f8_attn_kernel"
    limits: ClassVar = Limits(
        capability=(9, 0),
        capability_below=(10, 0),
        amd=False,
        headdim=(8, 128),
        backward=False,
        unequal_causal=False,
        empty_rows=False,
    )
    of_q: ClassVar[Block] = (2, 8, 1)
    of_k: ClassVar[Block] = (16, 4, 2)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.limits.refusal(case, device)

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        copies = 2 + 3 * ITEMSIZE[case.dtype]  # k and v in 8 bits; k less its mean, v padded, v transposed
        nbytes = s.batch * (s.nheads * s.seqlen_q + copies * s.nheads_k * s.seqlen_k) * s.headdim
        return Workspace(nbytes, "q, k and v in 8 bits", passes=2.0)

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        return super().definition(case, q, k, in_e4m3(v, MOST_E4M3), selected)

    def function(self) -> Callable[..., Any]:
        import sageattention

        found: Callable[..., Any] = sageattention.sageattn
        return found
