"""The attention problem of one call: checks of the inputs, and the arguments of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.backends.triton.named_mask import NamedMask

LOG2_E = 1.4426950408889634

MIN_HEADDIM = 16  # least size of a tensor core's matmul
MAX_HEADDIM = 256  # larger accumulators would not fit the registers
MAX_HEADDIM_LATENT = 1024  # columns of a latent row, of which v, and so an accumulator, has 512 at most
FLOAT8 = torch.float8_e4m3fn
SHORT_SEQLEN = 2048  # keys up to which the longest sequence of a ragged batch counts as short
DTYPES = (torch.bfloat16, torch.float16, torch.float32, FLOAT8)

Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Problem:
    """The arguments of the kernels besides q, k and v, which are (batch, seqlen, nheads, headdim).

    With `cu_seqlens_q` and `cu_seqlens_k`, int32 of batch + 1 values, all sequences are packed in the seqlen dimension
    of tensors whose first dimension is 1: sequence b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1.
    `seqlen_q` and `seqlen_k` are then the lengths of the longest sequence.

    Query i sees the keys from i + seqlen_k - seqlen_q - left to i + seqlen_k - seqlen_q + right; None for a side
    without a limit.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    softmax_scale: float
    left: int | None = None
    right: int | None = None
    softcap: float = 0.0
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    descale: tuple[Tensor, Tensor, Tensor] | None = None  # for fp8: one fp32 on the device for each of q, k and v
    sink: Tensor | None = None  # an additional score of each query head, (nheads,) fp32, natural logarithm
    alibi_slopes: Tensor | None = None  # ALiBi's slope of each query head, (nheads,) fp32
    named_mask: NamedMask | None = None

    @property
    def varlen(self) -> bool:
        """Whether the sequences differ in length."""
        return self.cu_seqlens_q is not None

    @property
    def scales(self) -> tuple[float, float]:
        """(scale_tanh, scale_log2), the factors before the tanh of the softcap and before exp2.

        With softcap the argument of exp2 is scale_log2 * tanh(scale_tanh * q k^T), without it scale_log2 * q k^T.
        """
        if self.softcap:
            return self.softmax_scale / self.softcap, self.softcap * LOG2_E
        return 0.0, self.softmax_scale * LOG2_E

    @property
    def window(self) -> tuple[int, int]:
        """(left, right) as kernel arguments, 0 for a side that the kernel does not read."""
        return self.left or 0, self.right or 0

    @property
    def mask_kind(self) -> str:
        """The kind of mask, by which block sizes are chosen.

        It is "full", "causal", "window" or "named"; for ragged batches it is "varlen" or, where no sequence has more
        than SHORT_SEQLEN keys, "varlen short".
        """
        if self.varlen:
            return "varlen short" if self.seqlen_k <= SHORT_SEQLEN else "varlen"
        if self.named_mask:
            return "named"
        return "window" if self.left is not None else "full" if self.right is None else "causal"

    @property
    def features(self) -> dict[str, bool]:
        """The compile-time constants of the mask and the layout. With all off a kernel is fastest."""
        return {
            "LEFT": self.left is not None,
            "RIGHT": self.right is not None,
            "SOFTCAP": self.softcap > 0,
            "VARLEN": self.varlen,
            "ALIBI": self.alibi_slopes is not None,
        }

    @property
    def named_constants(self) -> dict[str, int]:
        """The compile-time constants of the mask by name."""
        return self.named_mask.constants if self.named_mask else {"KIND": 0, "NUMBER": 0}

    def blocks_of_queries(self, q: Tensor, size: int) -> int:
        """Return the number of blocks of `size` queries: of a sequence, or of all sequences of a ragged batch.

        The number for all is an upper bound, because only the device has the lengths: each sequence can have a block
        that is not full (device_functions.py, sequence_of_block).
        """
        return q.shape[1] // size + self.batch if self.varlen else -(-self.seqlen_q // size)

    def blocks_of_keys(self, k: Tensor, size: int) -> int:
        """Return the number of blocks of `size` keys, as blocks_of_queries counts them."""
        return k.shape[1] // size + self.batch if self.varlen else -(-self.seqlen_k // size)

    def heads_in_order(self, nheads: int) -> int:
        """Return the number of heads in a kernel's grid for each block of blocks_of_queries or blocks_of_keys.

        Each block of a ragged batch belongs to one sequence and has `nheads` heads. In a dense batch the blocks i of
        all sequences count as one block, with batch * nheads heads.
        """
        return nheads if self.varlen else self.batch * nheads

    def strides(self, *tensors: Tensor) -> tuple[int, ...]:
        """Return the strides of batch, seqlen and nheads of each tensor."""
        return tuple(n for t in tensors for n in (0 if self.varlen else t.stride(0), t.stride(1), t.stride(2)))

    def lse_strides(self, lse: Tensor) -> tuple[int, int]:
        """Return the strides of batch and nheads of a (batch, nheads, seqlen_q) tensor."""
        return 0 if self.varlen else lse.stride(0), lse.stride(1)


def dense_problem(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: Window, **options: Any) -> Problem:
    """Return the problem for (batch, seqlen, nheads, headdim) tensors. Raises ValueError for unsupported inputs."""
    _check_tensors(q, k, v, dim=4)
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"q and k must share the batch, theirs are {q.shape[0]} and {k.shape[0]}")
    return _make_problem(q, (q.shape[0], q.shape[1], k.shape[1]), causal, window_size, **options)


def varlen_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: tuple[Tensor, Tensor],
    max_seqlens: tuple[int, int],
    causal: bool,
    window_size: Window,
    **options: Any,
) -> Problem:
    """Return the problem for packed (total, nheads, headdim) tensors. Raises ValueError for unsupported inputs.

    The values of cu_seqlens must rise from 0 to at most the total, each by at most max_seqlen. They are not checked,
    because a read would wait for the device.
    """
    _check_tensors(q, k, v, dim=3)
    for name, cu in zip(("cu_seqlens_q", "cu_seqlens_k"), cu_seqlens, strict=True):
        if cu.dtype != torch.int32 or cu.dim() != 1 or cu.numel() < 2 or not cu.is_contiguous():
            raise ValueError(f"{name} must be contiguous int32 of batch + 1 numbers, got {cu.dtype} {tuple(cu.shape)}")
        if cu.device != q.device:
            raise ValueError(f"{name} must be on {q.device}, it is on {cu.device}")
    if cu_seqlens[0].numel() != cu_seqlens[1].numel():
        raise ValueError(
            f"cu_seqlens_q and cu_seqlens_k differ in length: {cu_seqlens[0].numel()} and {cu_seqlens[1].numel()}"
        )
    sizes = (cu_seqlens[0].numel() - 1, *max_seqlens)
    options |= {"cu_seqlens_q": cu_seqlens[0], "cu_seqlens_k": cu_seqlens[1]}
    return _make_problem(q, sizes, causal, window_size, **options)


def paged_problem(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    sequences: tuple[Tensor, Tensor, Tensor],
    max_seqlens: tuple[int, int],
    causal: bool,
    window_size: Window,
    *,
    has_descale: bool,
    latent: bool,
    **options: Any,
) -> Problem:
    """Return the problem for a cache of pages. Raises ValueError for unsupported inputs.

    q is (total, nheads, headdim), the caches are (pages, page_size, nheads_k, d); `sequences` are page_table, seqlens_k
    and cu_seqlens_q, whose values are not checked. With `latent` v_cache is a part of k_cache.
    """
    most = MAX_HEADDIM_LATENT if latent else MAX_HEADDIM
    page_table, seqlens_k, cu_seqlens_q = sequences
    is_e4m3 = k_cache.dtype == v_cache.dtype == FLOAT8
    if is_e4m3 != has_descale:
        raise ValueError(f"descale goes with {FLOAT8} caches and only with them, these are {k_cache.dtype}")
    for name, x, dim in (("q", q, 3), ("k_cache", k_cache, 4), ("v_cache", v_cache, 4)):
        if x.dim() != dim or 0 in x.shape or x.stride(-1) != 1:
            raise ValueError(f"{name} must have {dim} dimensions, the last contiguous, got {tuple(x.shape)}")
        if x.device != q.device or (x.dtype != q.dtype and not (is_e4m3 and name != "q")):
            raise ValueError(f"{name} must be {q.dtype} on {q.device}, it is {x.dtype} on {x.device}")
        if not MIN_HEADDIM <= x.shape[-1] <= most:
            raise ValueError(f"{name}'s headdim must be {MIN_HEADDIM} to {most}, got {x.shape[-1]}")
    if latent and (k_cache.data_ptr() != v_cache.data_ptr() or v_cache.shape[3] > k_cache.shape[3]):
        raise ValueError("latent: v_cache must be the first columns of k_cache")
    if k_cache.shape[:3] != v_cache.shape[:3] or k_cache.shape[3] != q.shape[2] or q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, caches {tuple(k_cache.shape)}, {tuple(v_cache.shape)}"
        )
    for name, x in (("page_table", page_table), ("seqlens_k", seqlens_k), ("cu_seqlens_q", cu_seqlens_q)):
        if x.dtype != torch.int32 or x.device != q.device or x.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous int32 on {q.device}, it is {x.dtype} on {x.device}")
    batch = len(seqlens_k)
    if page_table.shape[0] != batch or len(cu_seqlens_q) != batch + 1:
        raise ValueError(f"{batch} seqlens_k, {len(cu_seqlens_q)} cu_seqlens_q and {page_table.shape[0]} rows of pages")
    options |= {"cu_seqlens_q": cu_seqlens_q, "descale": None}
    return _make_problem(q, (batch, *max_seqlens), causal, window_size, **options)


def _make_problem(
    q: Tensor,
    sizes: tuple[int, int, int],
    causal: bool,
    window_size: Window,
    *,
    softcap: float,
    softmax_scale: float | None,
    descale: tuple[Tensor, Tensor, Tensor] | None = None,
    sink: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    named_mask: NamedMask | None = None,
    **sequences: Tensor,
) -> Problem:
    batch, seqlen_q, seqlen_k = sizes
    if min(seqlen_q, seqlen_k) < 1:
        raise ValueError(f"max_seqlen_q and max_seqlen_k must be at least 1, got {seqlen_q} and {seqlen_k}")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    if not scale > 0:
        # The kernels take the maximum of a row before the scale, which is right for a positive factor only.
        raise ValueError(f"softmax_scale must be positive, got {scale}")
    if not softcap >= 0:
        raise ValueError(f"softcap must be positive, or 0 for none, got {softcap}")
    if (descale is not None) != (q.dtype == FLOAT8):
        raise ValueError(f"descale goes with {FLOAT8} inputs and only with them, these are {q.dtype}")
    for factor in descale or ():
        if factor.dtype != torch.float32 or factor.numel() != 1 or factor.device != q.device:
            raise ValueError(
                f"each descale must be one float32 on {q.device}, got {factor.numel()} of {factor.dtype} on "
                f"{factor.device}"
            )
    if sink is not None and (sink.shape != q.shape[-2:-1] or sink.device != q.device or q.dtype == FLOAT8):
        raise ValueError(f"sink must be ({q.shape[-2]},) on {q.device}, and not with {FLOAT8}; got {tuple(sink.shape)}")
    if alibi_slopes is not None:
        if softcap or q.dtype == FLOAT8:
            raise ValueError(f"alibi_slopes goes without softcap, and without {FLOAT8} inputs")
        found = (tuple(alibi_slopes.shape), alibi_slopes.dtype, alibi_slopes.device)
        if found != (tuple(q.shape[-2:-1]), torch.float32, q.device):
            raise ValueError(f"alibi_slopes must be ({q.shape[-2]},) torch.float32 on {q.device}, got {found}")
    if named_mask is not None and (named_mask.lengths != (seqlen_q, seqlen_k) or q.dtype == FLOAT8):
        raise ValueError(
            f"named_mask must be for {seqlen_q} queries and {seqlen_k} keys, and not with {FLOAT8}; it is for "
            f"{named_mask.lengths[0]} and {named_mask.lengths[1]}"
        )
    left, right = _effective_window(window_size, causal, seqlen_q, seqlen_k)
    return Problem(
        batch,
        seqlen_q,
        seqlen_k,
        scale,
        left,
        right,
        softcap,
        descale=descale,
        sink=sink,
        alibi_slopes=alibi_slopes,
        named_mask=named_mask,
        **sequences,
    )


def _effective_window(window_size: Window, causal: bool, seqlen_q: int, seqlen_k: int) -> Window:
    """Return (left, right) with causal included, None for a side that hides no key from any query.

    The kernel is then compiled without a mask on this side, and sums of positions and limits stay within 32 bits.
    """
    left, right = (None if side == -1 else side for side in window_size)  # -1 is open in flash-attn's interface
    if (left or 0) < 0 or (right or 0) < 0:
        raise ValueError(f"window_size must be (left, right), each None, -1 or at least 0, got {window_size}")
    if causal:
        right = 0
    left = None if left is None or left >= seqlen_k - 1 else left
    return left, None if right is None or right >= seqlen_q - 1 else right


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, dim: int) -> None:
    """Raise ValueError for inputs with which a kernel would read out of bounds or give a wrong result."""
    layout = "(batch, seqlen, nheads, headdim)" if dim == 4 else "(total, nheads, headdim)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != dim:
            raise ValueError(f"{name} must be {layout}, got {tuple(x.shape)}")
        by_keys = name == "v" and x.dtype == FLOAT8
        if x.stride(-3 if by_keys else -1) != 1:
            which = "seqlen (fp8 only)" if by_keys else "last dimension"
            raise ValueError(f"{name}'s {which} must be contiguous, its strides are {x.stride()}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"q, k and v must share dtype and device; q is {q.dtype} on {q.device}, {name} is "
                f"{x.dtype} on {x.device}"
            )
        if not MIN_HEADDIM <= x.shape[-1] <= MAX_HEADDIM:
            raise ValueError(f"{name}'s headdim must be {MIN_HEADDIM} to {MAX_HEADDIM}, got {x.shape[-1]}")
        if 0 in x.shape:
            raise ValueError(f"{name} is empty: {tuple(x.shape)}")
    if q.dtype not in DTYPES:
        raise ValueError(f"dtype must be bfloat16, float16, float32 or float8_e4m3fn, got {q.dtype}")
    if q.dtype == FLOAT8:
        _check_float8(q, k, v)
    if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if q.shape[-2] % k.shape[-2]:
        raise ValueError(f"nheads ({q.shape[-2]}) must be a multiple of nheads_k ({k.shape[-2]})")


def _check_float8(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError for fp8 inputs that need a gradient, and for a GPU without fp8 matmuls."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        raise ValueError(f"{FLOAT8} inputs have no backward here: detach them")
    if q.is_cuda and torch.version.hip is None and (found := torch.cuda.get_device_capability(q.device)) < (8, 9):
        raise ValueError(f"{FLOAT8} needs compute capability 8.9 or newer, this GPU has {found[0]}.{found[1]}")
