"""One rank of a case at the limit of memory, for `attnbench capacity --ranks`.

Every rank takes the steps of worker/fit_cell.py, on its part of the inputs. Some whole heads are checked, gathered to
rank 0. The memory and the seconds of a launch are the largest of any rank. A limit of memory is for the calls of each
rank, not for the check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.core.record import Accuracy
from attnbench.judge import ResultCheck
from attnbench.judge.heads import draw_heads, head_case
from attnbench.worker import failures, fit_cell
from attnbench.worker.cell import Fields
from attnbench.worker.fit_cell import LeanCell
from attnbench.worker.ranks.rank_cell import RankCell

if TYPE_CHECKING:
    from torch import Tensor


class LeanRankCell(LeanCell):
    """One case on one rank, near the limit of its memory: its part of the inputs, and one whole head at a time."""

    def make_inputs(self) -> Fields | None:
        self._rank = rank = RankCell(self.instruments, self.backend, self.case, self.policy)
        if flawed := rank.make_part():
            return flawed
        rank.heads = rank.group.first(draw_heads(self.case))
        self._checks: dict[int, ResultCheck] = {}  # by head; rank 0 only
        rank.given = fit_cell.in_order_of(self.backend, self.case, rank.given)
        for head in rank.heads:
            if rank.group.rank:
                rank.put(head, None)
                continue
            check = ResultCheck(head_case(self.case), rank.make_head(head), self.policy.seed, lean=True)
            rank.put(head, check.inputs)
            check.move_reference("cpu")
            del check.inputs
            self._checks[head] = check
        self.given, self.notes = rank.given, [rank.how_checked]
        del rank.given
        return None

    def forget_inputs(self) -> None:
        del self.given

    def measure_launch(self, launch: Callable[[], Any]) -> tuple[dict[str, int], Any]:
        can_fill = all(self.all(self._can_fill()))  # all ranks or none, as launches are collective
        found, _, raw = self.instruments.memory.measure_peak(launch, self._rank.part, fill=can_fill)
        self.notes += [] if can_fill else [fit_cell.NOT_FILLED]
        return found, raw

    def check(self, results: Mapping[str, Tensor]) -> Accuracy:
        for check in self._checks.values():
            check.move_reference(str(self.instruments.device))
        return self._rank.checked(results, lambda head, whole: self._checks[head].check_first(whole))

    def all(self, value: Any) -> list[Any]:
        return self._rank.group.all(value)

    def _can_fill(self) -> bool:
        memory = self.instruments.memory
        try:
            memory.fill_with_nan(self._rank.part)
        except Exception as error:
            if not failures.is_out_of_memory(error):
                raise
            return False
        finally:
            memory.empty_cache()
        return True
