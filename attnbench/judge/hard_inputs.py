"""Make hard inputs, on which some kernels fail that are right on standard normal ones, and check a launch on them.

Standard normal inputs have scores of a few units and results of about zero mean. On them a softmax that does not
subtract its maximum is right, a kernel that ignores a softcap of 50 is nearly right, and sums in few bits lose little,
because their terms have both signs. Hard inputs have, in addition to standard normal values:

- Column 0 of k is the same in all keys, 28, as in the outlier channels of trained models' keys (Hooper et al.,
  "KVQuant", 2024, section 3.1; Liu et al., "KIVI", 2024, section 3.1).
- Seven keys, key 0 first, have larger values there, in steps up to 56. They take all attention of some queries, as the
  sinks of trained models (Xiao et al., "Efficient streaming language models with attention sinks", 2023; Sun et al.,
  "Massive activations in large language models", 2024). Since they grow along the sequence, a running maximum must be
  renewed.
- Column 0 of q is 0, positive or negative, by sections of the sequence. So all scores of a query are shifted by 0, by
  SHIFT and more, or by -SHIFT; with a softcap by as much as makes its tanh flat. exp(SHIFT) is beyond float32,
  exp(-SHIFT) is 0.
- v has a mean of V_MEAN, so that sums along the keys grow. In fp8 it has none: Hopper's tensor cores keep about 14
  bits of a sum of e4m3 products, whatever the kernel (docs/backends.md).

The values of column 0 of k are exact in every dtype: in bf16, fp16, and in e4m3 with one scale for the tensor. Where q
is not shifted, and where one key takes all attention, eager attention is nearly as exact as on other data, so that its
error is a useful bound; each of eight sections of the sequence has its own tolerance (tolerance.py).

Sums over very many keys are too small on tensor cores (truncation.py), and where v has a mean, all of out is too small
by about the same share. Each row of out is compared with the exact row made smaller by the share that truncation
explains.

A fused backward takes dout out' for the row sums of P dP, and in dq column 0 of k multiplies the error of out: on an
H200, in fp16 with 256k keys, an out off by 0.1 % gave a dq off by 22 to 28 %. So dq, dk and the gradient of the sinks
may be right for the exact out or for the kernel's own out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.core import pages
from attnbench.core.backend import Inputs, Prepared, torch_dtype
from attnbench.core.case import Case
from attnbench.core.layouts import lay_out
from attnbench.core.record import Accuracy
from attnbench.judge.exact_attention import compute_reference
from attnbench.judge.row_sample import check_inputs, choose_rows, draw_seed
from attnbench.judge.tolerance import SECTIONS, compare, result_values
from attnbench.judge.truncation import with_out_cut_off

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHIFT = 112.0  # exp(88.8) is infinite in float32, exp(-103.9) is 0
V_MEAN = 1.0
KEY_LEVEL, KEY_STEP = 28.0, 4.0  # column 0 of keys; step from one sink to the next
SINKS = 7
OUTLIER_SCORE = 10.0  # score that column 0 adds in a case of outliers; twice as much for key 0
LARGEST_PRODUCT = 15000.0  # largest q k' before scaling; eager attention keeps it in the dtype, and fp16 ends at 65504
SHARE = 0.25  # share of row_sample.SCORE_BUDGET for this check
FROM_ROW_SUMS = ("dq", "dk", "dsink")  # results that a fused backward computes from dout out'


class HardInputsCheck:
    """The check of one launch on hard inputs: the inputs, seeded by the operating system, and the comparison."""

    notes: tuple[str, ...] = ()  # expected errors of a right result, with their cause, one sentence each

    def __init__(self, case: Case, device: torch.device) -> None:
        self.seed = draw_seed()
        sample = choose_rows(case, device, self.seed, share=SHARE)
        self.inputs = check_inputs(case, make_hard(case, device, self.seed), sample)
        self.reference = compute_reference(case, self.inputs, sample, hard=True)

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        """Return the launch to call where its results are to be checked."""
        return prepared.launch

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on `inputs`. On a GPU out may be off by twice eager's error.

        A wrong out is compared again with truncated sums of tensor cores allowed. If out is right then and
        FROM_ROW_SUMS are not, these are compared with a right backward of the kernel's own out, computed from inputs
        that are made again, because the launch may have written to its own. `notes` reports both.
        """
        self.notes = ()
        case, sample, device = self.reference.case, self.reference.sample, self.inputs.q.device
        wide = None if device.type == "cpu" else {"out": 2.0}
        accuracy = compare(self.reference, results, wide=wide)
        if accuracy.ok or accuracy.unwritten:
            return accuracy
        out, errors = result_values("out", results), dict(accuracy.errors)
        if not errors["out"].ok:
            again = compare(with_out_cut_off(self.reference, out), results, ("out",), wide=wide)
            if again.ok:
                errors |= again.errors
                self.notes += ("on hard inputs out is too small, by no more than long sums on tensor cores explain",)
        if errors["out"].ok and not all(errors[name].ok for name in FROM_ROW_SUMS if name in errors):
            inputs = check_inputs(case, make_hard(case, device, self.seed), sample)
            with_own_out = compute_reference(case, inputs, sample, out=out)
            again = compare(self.reference.with_exact_of(with_own_out), results, FROM_ROW_SUMS)
            if again.ok:
                errors |= again.errors
                self.notes += ("on hard inputs gradients are right for the kernel's own out, not for the exact one",)
        return replace(accuracy, errors=errors)


def make_hard(case: Case, device: torch.device, seed: int) -> Inputs:
    """Return hard inputs of a case on a device, in its layout, from a seed; dout is standard normal."""
    import torch

    s, dtype = case.extent, torch_dtype(case)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=dtype)

    keys = pages.key_dims(case)
    q, k = normal(s.batch, s.seqlen_q, s.nheads, s.headdim), normal(*keys, s.nheads_k, s.headdim)
    mean = 0.0 if case.dtype == "fp8" else V_MEAN
    v = k[..., : s.headdim_v] if case.latent else normal(*keys, s.nheads_k, s.headdim_v) + mean
    dout = normal(s.batch, s.seqlen_q, s.nheads, s.headdim_v) if case.has_backward else None
    sink = normal(s.nheads) + sink_level(case) if case.sink else None
    if sink is not None:
        sink[1::3] += _shift(case)  # raises some sinks as the scores are raised
    given, count = pages.with_page_table(case, Inputs(q, k, v, dout, sink=sink), seed), min(SINKS, s.seqlen_k)
    sinks = torch.arange(count) * s.seqlen_k // count
    set_outliers(case, given, _signs(case, device) * (_shift(case) / (KEY_LEVEL * case.softmax_scale)), sinks)
    return lay_out(case.layout, pages.without_new_keys(case, pages.in_cache_dtype(case, given)))


def set_outliers(case: Case, given: Inputs, in_q: float | Tensor, sinks: Tensor) -> None:
    """Set the outlier channel, column 0: `in_q` in q, KEY_LEVEL in k, and larger values in the keys `sinks`, in steps.

    The values in k are exact in every dtype: in bf16, fp16, and in e4m3 with one scale for the tensor.
    """
    import torch

    sinks = sinks.to(given.k.device)
    levels = (KEY_LEVEL + KEY_STEP * torch.arange(1, len(sinks) + 1)).to(given.k)[:, None]
    given.q[..., 0] = in_q
    given.k[..., 0] = KEY_LEVEL
    if given.page_table is None:
        given.k[:, sinks, :, 0] = levels
    else:
        given.k.flatten(0, 1)[pages.key_places(case, given.page_table)[:, sinks], :, 0] = levels


def set_sinks(case: Case, given: Inputs) -> None:
    """Change standard normal inputs to `Case.data` "outliers": an outlier channel, and sinks in the first keys."""
    import torch

    sinks = torch.arange(min(SINKS, case.shape.seqlen_k)).flip(0)
    set_outliers(case, given, OUTLIER_SCORE / (KEY_LEVEL * case.softmax_scale), sinks)


def sink_level(case: Case) -> float:
    """Return the logit at which a sink takes about as much probability as all keys of a sequence together."""
    return math.log(case.mean_seqlens[1])


def _shift(case: Case) -> float:
    """Return the shift of a query's scores: SHIFT, more with a softcap, and no more than LARGEST_PRODUCT allows."""
    return min(max(SHIFT, 2.5 * case.softcap), LARGEST_PRODUCT * case.softmax_scale)


def _signs(case: Case, device: torch.device) -> Tensor:
    """Return the sign of each query's shift, (seqlen_q, nheads): 0, 1 or -1, all three in the last section."""
    import torch

    s = case.extent
    row = torch.arange(s.seqlen_q, device=device)[:, None]
    head = torch.arange(s.nheads, device=device)
    section = row * SECTIONS // s.seqlen_q
    mixed = (section == SECTIONS - 1) | torch.tensor(s.seqlen_q < 16 * SECTIONS, device=device)
    kind = torch.where(mixed, row + head, section) % 3
    return torch.where(kind == 2, -1, kind).to(torch.float32)
