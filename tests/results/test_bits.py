"""The verdicts on bits: what several rounds, launches, processes and a sequence alone show."""

from __future__ import annotations

from typing import Any

import pytest

from attnbench.core.record import Bitwise
from attnbench.results.bits import batch_invariant, deterministic, differences, untried


def bits(**more: Any) -> Bitwise:
    return Bitwise(**{"launches": 8, "differing": {"dq": 0, "dk": 0}, "digests": {"dq": "1"}, "no_process": "", **more})


@pytest.mark.parametrize(
    ("rounds", "verdicts", "said"),
    [
        ([], (None, None), ""),
        ([bits()], (True, True), ""),
        ([bits(no_process="hung")], (None, True), ""),
        ([bits(no_process="hung")] * 2, (True, True), ""),
        ([bits(), bits(digests={"dq": "2"})], (False, True), "dq differs between processes"),
        ([bits(process=("dq", "dk"))], (False, True), "dq and dk differ between processes"),
        ([bits(not_alone="one sequence")], (True, None), ""),
        ([bits(alone=("dk",))], (True, False), "dk differs with the batch"),
        # a result that differs between launches differs alone too
        ([bits(differing={"dq": 3, "dk": 0}, alone=("dq",))], (False, None), "dq differs in 3 of 7 further launches"),
        (
            [bits(differing={"dq": 3, "dk": 0}, alone=("dq", "dk"))],
            (False, False),
            "dq differs in 3 of 7 further launches; dk differs with the batch",
        ),
    ],
)
def test_verdicts(rounds: list[Bitwise], verdicts: tuple[bool | None, bool | None], said: str) -> None:
    assert (deterministic(rounds), batch_invariant(rounds)) == verdicts
    assert differences(rounds) == said


def test_why_something_was_not_compared() -> None:
    assert untried([bits(no_process="hung", not_alone="one")]) == "no sequence alone: one; no other process: hung"
    assert untried([bits(not_alone="one"), bits()]) == ""
