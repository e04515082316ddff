"""Find wrong rows of out outside the sample: choose suspects by another kernel, then check them exactly.

A fused kernel of torch's SDPA that is not the backend's own computes the forward once. The ROWS rows of out where the
two kernels differ most, relative to the size of the row, are recomputed exactly. Neither kernel is trusted: the
backend's rows are compared with the exact rows, and errors of the other kernel only make it choose right rows. So a
wrong tile of 64 rows in one head is found wherever it is, if its error exceeds the difference of two right kernels, and
if the other kernel is wrong in fewer rows than are chosen.

The rows are chosen for their differences, so the allowance for chance in a mean square (tolerance.py) does not hold for
them: both errors may be twice eager's, plus one rounding. Rows are compared with rows of their own size, within a
factor of two, because large rows of a causal mask would hide errors in small ones.

A case with a window, a softcap, a mask by name, a sink, ALiBi, dropout or fp8 is not searched, nor a case that torch's
kernel refuses or has no memory for. Gradients are not searched, because a fused backward costs three times as much, and
dout is masked where out is checked first.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core import pages
from attnbench.core.backend import Inputs, Signature
from attnbench.core.case import Case
from attnbench.core.record import Accuracy
from attnbench.judge.exact_attention import compute_reference
from attnbench.judge.row_sample import FULL_FLOPS, SCORE_BUDGET, RowSample, choose_rows
from attnbench.judge.tolerance import compare

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROWS = 64  # number of rows to recompute, in all query heads of a key head
TIMES_EAGER = 2.0
# torch's fused kernels by their name in torch.nn.attention.SDPBackend, each with its names in a trace
KERNELS = {
    "EFFICIENT_ATTENTION": "fmha_cutlassF AttentionKernel fmha_cutlassB AttentionBackwardKernel",
    "FLASH_ATTENTION": "pytorch_flash flash_fwd flash_bwd flash_attention_for_cpu flash_attention_for_cpu_backward",
}


class Refused(Exception):
    """Raised where torch's kernel cannot compute a case."""


def is_screened(case: Case, device: torch.device) -> bool:
    """Return whether the check of a case samples rows, and torch's fused kernels can compute the case."""
    more = case.softcap or case.dropout_p or case.sink or case.alibi or case.mask or case.dtype == "fp8"
    plain = case.window_size == (None, None) and not more
    unequal = [of for of in case.sequences if case.causal and 1 < of.seqlen_q != of.seqlen_k]
    on_cpu = device.type == "cpu"  # torch's kernel for CPUs aligns its mask top-left
    if not plain or (unequal and (on_cpu or any(of.seqlen_q > of.seqlen_k for of in unequal))):
        return False
    return not choose_rows(case, device, full_flops=FULL_FLOPS[device.type]).whole


def other_kernels(device: torch.device, signature: Signature) -> list[str]:
    """Return the KERNELS that are not the backend's own by its signature, in the order in which to try them.

    Flash is the faster kernel on a GPU, and the only one on a CPU. For a backend without declared kernels it comes
    last, because a function that calls torch's attention often runs it.
    """
    own = [name for name, traces in KERNELS.items() if any(re.search(p, traces) for p in signature.runs)]
    order = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION"] if signature.runs else list(KERNELS)
    return [name for name in order if name not in own and (device.type != "cpu" or name == "FLASH_ATTENTION")]


def find_wrong_rows(
    case: Case, inputs: Inputs, out: Tensor, signature: Signature, known: dict[str, Tensor] | None = None
) -> Accuracy | None:
    """Return the accuracy of rows of `out` that are wrong on `inputs`; None where none are, or nothing is screened.

    `known` is a cache of kernels' results for these inputs, (batch, seqlen_q, nheads, headdim_v).

    It takes the memory of some four results of one batch entry, and with grouped heads of k and v for each query head.
    """
    import torch

    if not is_screened(case, out.device):
        return None
    for kernel in other_kernels(out.device, signature):
        with contextlib.suppress(Refused, torch.OutOfMemoryError), pages.appended(case, inputs):
            difference, size = _differences(case, inputs, out, kernel, {} if known is None else known)
            break
    else:
        return None
    s = case.extent
    affordable = SCORE_BUDGET["cuda"] // (s.seqlen_k * s.nheads // s.nheads_k)
    at = difference.flatten().topk(min(difference.numel(), ROWS, max(1, affordable))).indices
    batch, row, head = torch.unravel_index(at, difference.shape)
    scale = size.flatten()[at].log2().floor()
    rows = row[:, None, None].expand(-1, -1, s.nheads // s.nheads_k)
    forward, given = replace(case, direction="fwd"), replace(inputs, dout=None)
    for value in scale.unique():
        these = scale == value
        sample = RowSample(batch[these], head[these], rows[these], all_pairs=False, all_rows=False)
        reference = compute_reference(forward, given, sample)
        accuracy = compare(reference, {"out": out}, wide={"out": TIMES_EAGER})
        if not accuracy.ok:
            return accuracy
    return None


def _differences(
    case: Case, inputs: Inputs, out: Tensor, kernel: str, known: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the difference of `out` and the kernel's out over the size of the row, and the size.

    Both are (batch, seqlen_q, nheads_k) in float32: the largest absolute element of a row in all query heads of a key
    head.
    """
    import torch

    found = []
    for i in range(case.extent.batch):
        name = f"{kernel} {i}"
        if name not in known:
            known[name] = _attend_fused(case, inputs, i, kernel)
        ours, theirs = out[i], known[name]
        size = torch.maximum(_largest(ours), _largest(theirs))
        apart = _largest(theirs - ours) / size
        found.append(torch.stack([apart.nan_to_num(0.0), size]).unflatten(2, (case.shape.nheads_k, -1)).amax(3))
    difference, size = torch.stack(found, dim=1)
    return difference, size


def _largest(t: Tensor) -> Tensor:
    """Return the largest absolute value of each row, in float32."""
    return t.abs().amax(-1).float()


def _attend_fused(case: Case, inputs: Inputs, entry: int, kernel: str) -> Tensor:
    """Return out of one batch entry by one of torch's fused kernels, (seqlen_q, nheads, headdim_v).

    A ragged batch is one entry; its sequences are computed one after the other. Raises Refused where the kernel cannot
    compute the case.
    """
    import torch

    q = inputs.q[entry]
    if inputs.page_table is None:
        k, v = inputs.k[entry], inputs.v[entry]
    else:
        at = pages.key_places(case, inputs.page_table)[entry]
        k, v = pages.gather(inputs.k, at), pages.gather(inputs.v, at)
        if case.cache_dtype != "same":
            k, v = ((t.float() * factor).to(q.dtype) for t, factor in zip((k, v), inputs.descale, strict=True))
    lengths = case.sequences if case.is_ragged else ((1, len(q), len(k)),)
    outs, at_q, at_k = [], 0, 0
    for number, seqlen_q, seqlen_k in lengths:
        end_q, end_k = at_q + number * seqlen_q, at_k + number * seqlen_k
        ours = (q[at_q:end_q], k[at_k:end_k], v[at_k:end_k])
        one, two, three = (t.unflatten(0, (number, -1)).transpose(1, 2) for t in ours)
        outs.append(_attend(case, one, two, three, kernel).transpose(1, 2).flatten(0, 1))
        at_q, at_k = end_q, end_k
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def _attend(case: Case, q: Tensor, k: Tensor, v: Tensor, kernel: str) -> Tensor:
    """Return attention of tensors (batch, heads, seqlen, headdim) with sequences of one length and the case's mask."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    if q.shape[1] != k.shape[1]:  # not all kernels take grouped heads
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    masked = case.causal and seqlen_q > 1
    equal = seqlen_q == seqlen_k
    mask = None
    if masked and not equal:
        from torch.nn.attention.bias import causal_lower_right  # imported here, because it takes two seconds

        mask = causal_lower_right(seqlen_q, seqlen_k)
    with sdpa_kernel(getattr(SDPBackend, kernel)), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # refusals are warnings too
        try:
            out: Tensor = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=masked and equal, scale=case.softmax_scale
            )
        except RuntimeError as error:
            raise Refused(str(error)) from None
    return out
