"""The check of a cell with dropout: exact where the mask can be read, else by statistics.

Every checked launch starts from the same state of torch's random numbers, so it draws the mask that dropout_mask.py
reads. The timed calls continue from the current state, and each call must draw another mask than the last.

The mask cannot be read where a library does not draw it from torch's random numbers, or where a forward has more keys
than LAUNCHES launches can show. Then a probing launch, which shows its own mask, is compared exactly instead, and the
other results are compared by statistics. Over many rows out = (P * D) v has

    mean P v      variance p / (1 - p) sum_j P_ij^2 v_j^2

and dk and dv agree with out and dq as without dropout, because both sides contain the same D (checksums.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, TensorError
from attnbench.core.renewed_inputs import Renewal
from attnbench.judge import dropout_mask
from attnbench.judge.checksums import compare_checksums
from attnbench.judge.dialog import LaunchesOfWorker
from attnbench.judge.exact_attention import (
    CHUNK,
    ROW_RESULTS,
    Reference,
    compute_reference,
    probabilities,
    reference_dtype,
    scaled_scores,
)
from attnbench.judge.plain_torch import plain_torch
from attnbench.judge.result_check import SECOND_SHARE, ResultCheck
from attnbench.judge.row_sample import RowSample, check_inputs, draw_seed, rows_of
from attnbench.judge.tolerance import compare, expected_results

if TYPE_CHECKING:
    from torch import Tensor

MIN_ROWS = 32  # least number of rows for statistics of the output
BY_STATISTICS = "dropout: its mask is not known ({}), so results were checked by statistics"


class DropoutResultCheck(ResultCheck):
    """The check of a case with dropout, with the comparisons of ResultCheck."""

    hard = False

    def __init__(self, case: Case, given: Inputs, seed: int, launches: LaunchesOfWorker | None = None) -> None:
        """Take the inputs and, where the check launches the kernel in another process, `launches`."""
        import torch

        self.case = case
        self.seed = seed
        self._given = given
        self._sample = dropout_mask.readable_sample(case, given.q.device, draw_seed())
        self.inputs = check_inputs(case, given, self._sample)
        self.dout_masked = self.inputs is not given
        torch.manual_seed(seed)
        self._state: Any = launches or dropout_mask.RandomState(case, given.q.device)
        self._reads = self.inputs
        self._prepared: Prepared | None = None
        self._kept: Tensor | None = None  # the mask of the prepared launch in the sample, once read
        self._flaws: tuple[str, ...] = ()

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        if prepared is not self._prepared:
            self._prepared, self._kept = prepared, None
            self._masks = dropout_mask.MaskReader(self.case, prepared, self._reads, self._state)

        def launch() -> Any:
            self._state.restore()
            return prepared.launch()

        return launch

    def launched_on(self, reads: Inputs) -> None:
        """Replace the inputs that launches read."""
        self._reads, self._prepared = reads, None

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        return self._accuracy_of(results, self.inputs, self._sample)

    def drop_masked_dout(self) -> None:
        if self.dout_masked:
            self._reads = self._given
            del self.inputs

    def check_renewed(self, renewal: Renewal, fresh: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        sample = dropout_mask.readable_sample(self.case, fresh.q.device, draw_seed(), share=SECOND_SHARE)
        return self._accuracy_of(results, fresh, sample, dense=not sample.whole)

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        return self._accuracy_of(results, self._given, self._sample, dense=self.dout_masked)

    def _accuracy_of(
        self, results: Mapping[str, Tensor], inputs: Inputs, sample: RowSample, *, dense: bool = False
    ) -> Accuracy:
        """Compare the results of a launch on `inputs`.

        With `dense`, dout is not 0 outside the sample, and dk and dv are compared by their checksums.
        """
        results = {
            name: t.clone() for name, t in results.items()
        }  # copies, because the launches that read the mask may write to the same memory
        if self._kept is None and self.case.has_forward and not self.notes:
            self._find_mask_source()
        if self.notes:
            return self._by_statistics(results, inputs, sample)
        reference = self._with_mask(inputs, sample)
        if dense and self.case.has_backward:
            by_row = compare(reference, results, ROW_RESULTS)
            accuracy = replace(by_row, errors={**by_row.errors, **compare_checksums(reference, inputs, results)})
        else:
            accuracy = compare(reference, results)
        return replace(accuracy, flaws=self._flaws)

    def _with_mask(self, inputs: Inputs, sample: RowSample) -> Reference:
        """Return the reference with the mask of the checked launches."""
        if sample is not self._sample:
            return compute_reference(self.case, inputs, sample, kept=self._masks.read(sample))
        if self._kept is None:
            self._kept = self._masks.read(sample)
            self._flaws += dropout_mask.find_mask_flaws(
                self.case, sample.rows, dropout_mask.visible_in_sample(self.case, sample), self._kept
            )
        return compute_reference(self.case, inputs, sample, kept=self._kept)

    def _find_mask_source(self) -> None:
        """Determine whether the mask can be read, and whether the next call draws another mask."""
        first, following, again = self._masks.read_repeats(self._sample)
        needed = len(dropout_mask.launch_parts(self.case, self._sample))
        if bool((first != again).any()):
            self.notes = (BY_STATISTICS.format("it does not come from torch's random numbers"),)
        elif needed > dropout_mask.LAUNCHES:
            self.notes = (BY_STATISTICS.format(f"reading it takes {needed} launches"),)
        elif dropout_mask.is_same_mask(self.case, first, following):
            self._flaws = ("dropout drops the same probabilities in every call",)

    def _by_statistics(self, results: Mapping[str, Tensor], inputs: Inputs, sample: RowSample) -> Accuracy:
        found = self._probe_accuracy(inputs, sample)
        errors: dict[str, TensorError] = dict(found.errors)
        if self.case.has_backward:
            errors |= compare_checksums(compute_reference(self.case, inputs, sample), inputs, results)
        unwritten = tuple(name for name in expected_results(self.case) if not bool(results[name].isfinite().all()))
        flaws = (*found.flaws, *find_statistics_flaws(self.case, inputs, sample, results["out"]))
        return replace(found, errors=errors, unwritten=unwritten, flaws=flaws)

    def _probe_accuracy(self, inputs: Inputs, sample: RowSample) -> Accuracy:
        """Compare a probing launch with the exact results for its mask, as far as the launch shows the mask."""
        s = self.case.shape
        if self.case.has_backward:
            rows = s.headdim_v * s.nheads_k // s.nheads
            if not rows:
                return Accuracy({}, 0, 0)  # nothing is shown: a key head has more query heads than v has columns
            sample = replace(sample, rows=sample.rows[:, -rows:], all_rows=False)
        given, kept, results = self._masks.probe_launch(inputs, sample)
        part = dropout_mask.best_part(self.case, sample)
        seen = dropout_mask.visible_in_sample(self.case, sample)
        if not self.case.has_backward:
            seen, shown = seen[..., part], kept[..., part]
        reference = compute_reference(self.case, given, sample, kept=kept)
        accuracy = compare(reference, results)
        flaws = dropout_mask.find_mask_flaws(self.case, sample.rows, seen, kept if self.case.has_backward else shown)
        return replace(accuracy, flaws=flaws)


def find_statistics_flaws(case: Case, inputs: Inputs, sample: RowSample, out: Tensor) -> tuple[str, ...]:
    """Return flaws in the mean or the variance of `out` over the sample's rows, one sentence each.

    For each row, the error out - P v is taken in units of the standard deviation that dropout gives each element. Two
    values are tested: its part along P v, which is zero for the right mean, and its mean square, which is one for the
    right variance. Both may be off by SIGMAS standard errors over the rows, and by the effect of an error of QUANTUM in
    the kept share.
    """
    along, expected_square, square = _row_moments(case, inputs, sample, out)
    n = len(square)
    if n < MIN_ROWS:
        return ()
    p, step = case.dropout_p, dropout_mask.QUANTUM / (1 - case.dropout_p)
    found = []
    size = float(expected_square.sum())
    slope, error = float(along.sum()) / size, float(along.square().sum().sqrt()) / size
    if not abs(slope) <= step + dropout_mask.SIGMAS * error:
        found.append(f"out is {1 + slope:.4g} times what it should be on average")
    spread, error = float(square.mean()), float(square.std()) / math.sqrt(n)
    shares = [min(1.0, max(0.0, 1 - p + sign * dropout_mask.QUANTUM)) for sign in (1, -1)]
    low, high = sorted(share * (1 - share) / (p * (1 - p)) for share in shares)
    slack = dropout_mask.SIGMAS * error
    if not low - slack <= spread <= high + step**2 * size / n + slack:
        found.append(f"out varies by {math.sqrt(spread):.4g} times the standard deviation that dropout gives it")
    return tuple(found)


@plain_torch()
def _row_moments(case: Case, inputs: Inputs, sample: RowSample, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each row with variance: error times mean, mean squared, and error squared, over the variance.

    Each is averaged over headdim_v, in float64, as (rows,).
    """
    import torch

    s, precise = case.shape, reference_dtype(case, inputs.q.device)
    odds = case.dropout_p / (1 - case.dropout_p)
    group, count = s.nheads // s.nheads_k, sample.rows.shape[1]
    step = max(1, CHUNK // (group * s.seqlen_k * count))
    found = []
    for pairs in torch.arange(len(sample.batch), device=sample.batch.device).split(step):
        at = sample.batch[pairs], sample.head[pairs], sample.rows[pairs]
        k, v = (t[at[0], :, at[1]].to(precise) for t in (inputs.k, inputs.v))
        for start in range(0, count, max(1, CHUNK // (group * s.seqlen_k))):
            rows = at[2][:, start : start + max(1, CHUNK // (group * s.seqlen_k))]
            q, found_out = (rows_of(case, t, at[0], at[1], rows).to(precise) for t in (inputs.q, out))
            scores = scaled_scores(case, torch.einsum("pcgd,pkd->pcgk", q, k))
            p = probabilities(case, rows, scores)
            mean = torch.einsum("pcgk,pkd->pcgd", p, v)
            variance = odds * torch.einsum("pcgk,pkd->pcgd", p.square(), v.square())
            kept = (variance > 0).all(-1)
            mean, variance, error = mean[kept], variance[kept], (found_out[kept] - mean[kept])
            found.append(torch.stack([(t / variance).mean(-1).double() for t in (error * mean, mean**2, error**2)]))
    along, expected_square, square = torch.cat(found, dim=1)
    return along, expected_square, square
