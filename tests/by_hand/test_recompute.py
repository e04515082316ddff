"""The output of attnbench on some run files, recomputed without attnbench; recompute.py has more files."""

from __future__ import annotations

import pytest

from by_hand import comparison, device, ranking, recompute
from by_hand.audit import Audit

DELTA_RULES = ("20261129-161458-default-nvidia-h200", "20261129-161832-default-nvidia-h200")  # prompts, tokens


@pytest.mark.parametrize("name", ["20261123-141732-sustained-nvidia-h200", "ci-experiment/shipped", *DELTA_RULES])
def test_charts_and_recommendation(name: str) -> None:
    audit = Audit()
    recompute.check_file(audit, recompute.path_of(name))
    assert audit.compared
    assert not audit.differing


@pytest.mark.parametrize("of", ["several-gpus", "serving", "sustained"])
def test_comparison(of: str) -> None:
    (files,) = [files for files in recompute.COMPARED if f"-{of}-" in files[0]]
    audit = Audit()
    comparison.check(audit, [*map(recompute.path_of, files)])
    assert audit.compared
    assert not audit.differing


def test_a_figure_that_is_off_by_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.PROCESSES, "NVIDIA H200", 0.003401)
    audit = Audit()
    ranking.check(audit, recompute.path_of("20261123-141732-sustained-nvidia-h200"))
    assert {line.split(": ")[2] for line in audit.differing} == {"ci"}
