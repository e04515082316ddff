"""Check the results of one case: a method for each comparison that a run or a profile makes.

This runs on the measured device: in the judge's process (judge/service.py), or in the worker where memory cannot be
shared (worker/judging.py). It gets tensors by name, without the code that computed them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.core import pages
from attnbench.core.backend import ApproximateBackend, Inputs, Signature
from attnbench.core.case import Case
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import Renewal
from attnbench.judge import inputs, make_check
from attnbench.judge.dialog import LaunchesOfWorker
from attnbench.judge.hard_inputs import HardInputsCheck
from attnbench.judge.row_sample import draw_seed
from attnbench.judge.screen import find_wrong_rows

if TYPE_CHECKING:
    from torch import Tensor

Results = Mapping[str, "Tensor"]


class CaseJudge:
    """The inputs of one case and their right results.

    `check` has the reference. `original` are the inputs in memory to which no backend has access.
    """

    original: Inputs

    def __init__(
        self,
        case: Case,
        given: Inputs,
        seed: int,
        method: ApproximateBackend | None = None,
        launches: LaunchesOfWorker | None = None,
    ) -> None:
        """Compute the reference for inputs that were made from a seed.

        `method` is an approximate backend, with its definition. With `launches`, a check with dropout launches the
        kernel in another process.
        """
        self.case = case
        self.launches = launches
        self.check = make_check(case, given, seed, method, launches)
        self.renewal_seed = draw_seed()
        self._device = given.q.device
        self._hard: HardInputsCheck | None = None
        self._screened: tuple[Renewal | None, dict[str, Tensor]] = None, {}  # screen.py's results for one renewal

    @property
    def hard(self) -> HardInputsCheck:
        """The check of a launch on hard inputs, made at first use."""
        if self._hard is None:
            self._hard = HardInputsCheck(self.case, self._device)
        return self._hard

    def compute_all(self) -> None:
        """Compute ahead the references for hard inputs and for the first renewal, which every right kernel needs."""
        if self.check.hard:
            self.hard  # noqa: B018
        renewal = Renewal(self.renewal_seed, 1)
        with renewal.of(self.case, self.original) as fresh:
            self.check.prepare_renewed(renewal, fresh)

    def forget_hard(self) -> None:
        """Free the memory of the hard inputs and their reference."""
        self._hard = None

    def first_changed(self, launched: Inputs) -> str | None:
        """Return the name of an input that a backend's launches have changed; None where there is none."""
        with pages.appended(self.case, self.original):  # the launches too append the new keys
            return inputs.first_changed(launched, self.original)

    def check_renewed(self, renewal: Renewal, results: Results) -> Accuracy:
        """Return the accuracy of a launch on renewed inputs."""
        with renewal.of(self.case, self.original) as fresh:
            return self.check.check_renewed(renewal, fresh, results)

    def find_wrong_rows(self, renewal: Renewal, results: Results, signature: Signature) -> Accuracy | None:
        """Return the accuracy of rows of out that are wrong on renewed inputs; None where none are."""
        if not self.check.is_screened:
            return None
        with renewal.of(self.case, self.original) as fresh:
            if self._screened[0] != renewal:
                self._screened = renewal, {}
            return find_wrong_rows(self.case, fresh, results["out"], signature, self._screened[1])

    def check_calls(self, calls: Calls) -> tuple[Accuracy, int]:
        """Return the accuracy and the number of a wrong call; of the first call where none is wrong."""
        found = [
            (calls.of_first if number == 0 and calls.of_first else self.check.check_restored(results), number)
            for number, results in calls.to_compare
        ]
        return next((one for one in found if not one[0].ok), found[0])


@dataclass
class Calls:
    """The first of several calls, and the one whose results are furthest from it.

    A result with the same bits as the first is right if the first is. Of the other results, which a kernel without a
    fixed order of sums may give, the one furthest from the first is compared.
    """

    first: Results | None = None
    of_first: Accuracy | None = None  # the accuracy of the first call, where it is known
    furthest: tuple[float, int, Results] | None = None

    def add(self, number: int, results: Results) -> None:
        """Take the results of one more call; calls are numbered from 0."""
        if number == 0:
            self.begin(copied(results))
            return
        assert self.first is not None
        if has_same_bits(results, self.first):
            return
        far = max(distance(results[name], t) for name, t in self.first.items())
        if self.furthest is None or far >= self.furthest[0]:
            self.furthest = far, number, copied(results)

    def begin(self, first: Results, accuracy: Accuracy | None = None) -> None:
        """Keep the results of the first call, and their accuracy where it is known."""
        self.first, self.of_first, self.furthest = first, accuracy, None

    @property
    def to_compare(self) -> list[tuple[int, Results]]:
        """The results to compare with the reference, with the numbers of their calls."""
        assert self.first is not None
        return [(0, self.first), *([self.furthest[1:]] if self.furthest else [])]

    def distances(self, results: Results) -> dict[str, float]:
        """Return the distance of each result from the first call's, by name."""
        assert self.first is not None
        return {name: distance(t, self.first[name]) for name, t in results.items()}


def copied(results: Results) -> Results:
    """Return results in memory of their own."""
    return {name: t.clone() for name, t in results.items()}


def has_same_bits(results: Results, others: Results) -> bool:
    """Return whether two sets of results have the same names and the same bits."""
    return results.keys() == others.keys() and all(_is_equal(results[name], t) for name, t in others.items())


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors over the largest value; infinite for a NaN."""
    difference = float((one.float() - other.float()).abs().max() / other.float().abs().max().clamp_min(1e-30))
    return difference if math.isfinite(difference) else math.inf


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    import torch

    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    return one.dtype == other.dtype and torch.equal(one.view(bits), other.view(bits))
