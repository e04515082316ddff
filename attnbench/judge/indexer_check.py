"""The check of indexers (core/indexer.py): the form of every selection, and the exact scores of sampled query rows.

In every row the indices must be keys that the query sees, each once, as many as it sees or as the case chooses. Which
of two keys with nearly equal scores is chosen depends on rounding, so indices are not compared. In a sampled row no
chosen key may have an exact score below the N-th largest, and no other key one above it, by more than a tolerance.

The definition in the dtype rounds the product q[s, h]' k[t] of each head, to bf16 for fp8, and adds the weighted
products in float32. The standard deviation of a score's error is then one rounding (rounding.py) of sqrt(sum over h of
(weights[s, h] relu(q[s, h]' k[t]))^2); the largest of the keys that the query sees stands for all. Of a distance, the
difference of two scores, it is sqrt(2) times as large. DEVIATIONS_LARGEST of these are allowed, and the errors of
float32 sums over heads and headdim in both scores. indexer-torch, which rounds in this way, needs a quarter of it.

Hard inputs and the search for wrong rows belong to a softmax, and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core import masks
from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, TensorError
from attnbench.core.renewed_inputs import Renewal
from attnbench.judge.exact_attention import reference_dtype
from attnbench.judge.plain_torch import plain_torch
from attnbench.judge.result_check import SECOND_SHARE, ResultCheck, moved
from attnbench.judge.rounding import rms_of_one_rounding
from attnbench.judge.row_sample import draw_seed
from attnbench.judge.tolerance import DEVIATIONS_LARGEST, FLOAT32_UNIT, check_form

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCORES = {"cuda": 2**26, "cpu": 2**18}  # most scores of a check
MIN_ROWS = 16  # least number of query rows, where there are as many
TOGETHER = 2**24  # most elements of a tensor that are computed at once


@dataclass(frozen=True)
class ExactScores:
    """The exact scores of sampled query rows, which are numbered over the batch, and the tolerance of each row."""

    rows: Tensor  # (rows,) int64: batch entry * seqlen_q + query
    scores: Tensor  # (rows, seqlen_k), -inf where the query does not see the key
    allowed: Tensor  # (rows,); the largest distance of a wrong key's score from the N-th largest
    seed: int | None  # of the sample; None where all rows are there


class IndexerResultCheck(ResultCheck):
    """The check of an indexer's selection: on the case's inputs, on renewed inputs, and on the case's inputs again."""

    hard = False
    is_screened = False

    def __init__(self, case: Case, given: Inputs, seed: int) -> None:
        """Compute the exact scores."""
        self.case, self.seed, self.inputs, self.dout_masked = case, seed, given, False
        self._exact = exact_scores(case, given)
        self._of_renewed: tuple[Renewal, ExactScores] | None = None

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        return compare_selection(self.case, self._exact, results)

    def check_renewed(self, renewal: Renewal, fresh: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        return compare_selection(self.case, self.prepare_renewed(renewal, fresh), results)

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        return compare_selection(self.case, self._exact, results)

    def prepare_renewed(self, renewal: Renewal, fresh: Inputs) -> Any:
        if self._of_renewed is None or self._of_renewed[0] != renewal:
            self._of_renewed = renewal, exact_scores(self.case, fresh, SECOND_SHARE)
        return self._of_renewed[1]

    def operands_problem(self, accuracy: Accuracy) -> str | None:
        """Return None: the inputs themselves have 8 bits, and a selection shows no dtype of operands."""

    def move_reference(self, device: str) -> None:
        self._exact = moved(self._exact, device)


def choose_query_rows(case: Case, device: torch.device, share: float = 1.0) -> tuple[Tensor, int | None]:
    """Return the query rows to compare, numbered over the batch, and the seed of their draw.

    These are all rows, or as many as `share` of SCORES allows: the first, the last, and one of each section between.
    """
    import torch

    s = case.shape
    total = s.batch * s.seqlen_q
    count = min(total, max(MIN_ROWS, int(share * SCORES["cpu" if device.type == "cpu" else "cuda"]) // s.seqlen_k))
    if count == total:
        return torch.arange(total, device=device), None
    seed = draw_seed()
    edges = torch.arange(count + 1) * total // count
    drawn = edges[:-1] + (torch.rand(count, generator=torch.Generator().manual_seed(seed)) * edges.diff()).long()
    drawn[0], drawn[-1] = 0, total - 1
    return drawn.to(device), seed


def exact_scores(case: Case, given: Inputs, share: float = 1.0) -> ExactScores:
    """Compute the exact scores of sampled query rows, and the allowed distances."""
    import torch

    s, precise = case.shape, reference_dtype(case, given.q.device)
    rows, seed = choose_query_rows(case, given.q.device, share)
    q, weights = (t.flatten(0, 1) for t in (given.q, given.weights) if t is not None)
    found, allowed = [], []
    with plain_torch():
        for entry in (rows // s.seqlen_q).unique().tolist():
            k = given.k[entry].to(precise)
            if given.k_scale is not None:
                k = k * given.k_scale[entry].to(precise)[:, None]
            mine = rows[rows // s.seqlen_q == entry]
            for part in mine.split(max(1, TOGETHER // (s.nheads * s.seqlen_k))):
                terms = torch.einsum("rhd,td->rht", q[part].to(precise), k).relu_()
                terms *= weights[part].to(precise)[..., None]
                hidden = torch.arange(s.seqlen_k, device=k.device) > _places(case, part)[:, None]
                found.append(terms.sum(1).masked_fill_(hidden, float("-inf")))
                allowed.append(_allowed_distance(case, terms, hidden))
    return ExactScores(rows, torch.cat(found), torch.cat(allowed), seed)


def _places(case: Case, rows: Tensor) -> Tensor:
    """Return the last key that each query row sees."""
    s = case.shape
    return rows % s.seqlen_q + s.seqlen_k - s.seqlen_q


def _allowed_distance(case: Case, terms: Tensor, hidden: Tensor) -> Tensor:
    """Return how far a wrong key's score may be from the N-th largest (rows,), from all terms (rows, heads, keys)."""
    deviation = rms_of_one_rounding(torch_dtype(case)) * terms.square().sum(1).sqrt()
    of_sums = 4 * FLOAT32_UNIT * math.sqrt(case.shape.nheads + case.shape.headdim) * terms.abs().sum(1)
    distance = math.sqrt(2) * DEVIATIONS_LARGEST * deviation + 2 * of_sums
    return distance.masked_fill_(hidden, 0.0).amax(1)


def compare_selection(case: Case, exact: ExactScores, results: Mapping[str, Tensor]) -> Accuracy:
    """Compare a selection with the exact scores. Raises ValueError where it has another shape or dtype than the case's.

    The error is the largest distance of a wrong key's exact score from the N-th largest, in the row where it is largest
    relative to its tolerance.
    """
    import torch

    check_form(case, "indices", results)
    indices = results["indices"]
    rows, heads = len(exact.rows), case.shape.nheads
    if flaws := find_flaws(case, indices):
        return Accuracy({}, rows, heads, flaws=flaws, seed=exact.seed)
    chosen, keys = masks.chosen(case.mask), case.shape.seqlen_k
    distances, sizes = [], []
    selected = indices.flatten(0, 1)
    parts = torch.arange(rows, device=indices.device).split(max(1, TOGETHER // keys))
    for part in parts:
        scores, some = exact.scores[part], selected[exact.rows[part]].long()
        taken = torch.zeros(len(part), keys + 1, dtype=torch.bool, device=indices.device)
        taken = taken.scatter_(1, torch.where(some < 0, keys, some), True)[:, :keys]
        nth = scores.topk(min(chosen, keys), dim=1).values[:, -1:]
        wrong = torch.where(taken, nth - scores, scores - nth)  # NaN, and all keys are chosen, where nth is -inf
        distances.append(wrong.nan_to_num(0.0, posinf=0.0, neginf=0.0).amax(1).clamp(min=0.0))
        sizes.append(scores.masked_fill(scores.isinf(), 0.0).square().mean(1).sqrt())
    distance, tolerance = torch.cat(distances), exact.allowed
    at = int((distance / tolerance.clamp(min=math.ulp(0.0))).argmax())
    worst, most, size = (float(t[at]) for t in (distance, tolerance, torch.cat(sizes)))
    failed = int((distance > tolerance).sum())
    where = f"by score, in {failed} of {rows} query rows compared, most {_named(case, int(exact.rows[at]))}"
    error = TensorError(worst, most, most, worst / size if size else worst, where if failed else "")
    return Accuracy({"indices": error}, rows, heads, seed=exact.seed)


def find_flaws(case: Case, indices: Tensor) -> tuple[str, ...]:
    """Return the faults in the form of a selection (batch, seqlen_q, N), one sentence each; () where there are none."""
    import torch

    s, start, found = case.shape, 0, dict[str, list[int]]()
    for some in indices.flatten(0, 1).split(max(1, TOGETHER // indices.shape[2])):
        rows = torch.arange(start, start := start + len(some), device=indices.device)
        last = _places(case, rows)
        ordered = some.sort(1).values
        faults = {
            "an index of no key": ((some < -1) | (some >= s.seqlen_k)).any(1),
            "a key that it does not see": ((some > last[:, None]) & (some < s.seqlen_k)).any(1),
            "a key twice": ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1),
            "another number of keys than it must have": (some >= 0).sum(1) != (last + 1).clamp(max=some.shape[1]),
        }
        for name, of in faults.items():
            found.setdefault(name, []).extend(rows[of].tolist())
    return tuple(f"{_named(case, of[0])} has {name}, as have {len(of)} in all" for name, of in found.items() if of)


def _named(case: Case, row: int) -> str:
    return f"query row {row % case.shape.seqlen_q} of sequence {row // case.shape.seqlen_q}"
