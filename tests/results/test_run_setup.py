"""Differences between the setups of two runs, and labels that distinguish runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench.core.policy import Policy
from attnbench.core.record import Run
from attnbench.results.run_setup import differences, setup_texts, unique_labels
from builders import H200, environment, run


def a_run(policy: Policy | None = None, **changes: Any) -> Run:
    return run([], environment=environment(**changes), policy=policy or Policy())


def test_runs_of_one_setup_have_no_differences() -> None:
    assert differences(a_run(), a_run()) == []
    elsewhere = replace(H200, free=5, matmul={"bf16": 1.0}, copy=2.0, uuid="x")
    assert differences(a_run(), a_run(git="1234", device=elsewhere)) == []  # these vary without a change of the setup


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "2.12"}, ["torch was 2.11.0+cu130 and is 2.12"]),
        ({"driver": None}, ["driver was 580.82 and is not there"]),
        ({"cuda": "12.9"}, ["cuda was 13.0 and is 12.9"]),
        ({"power_limit_w": 600.0}, ["power_limit_w was 700.0 and is 600.0"]),
        ({"device": replace(H200, name="NVIDIA H100")}, ["device name was NVIDIA H200 and is NVIDIA H100"]),
        ({"device": replace(H200, memory=1)}, ["device memory was 140 GiB and is 1.00 B"]),
        ({"cpu": "x", "torch": "y"}, ["torch was 2.11.0+cu130 and is y", "cpu was Intel Xeon and is x"]),
        ({"variables": {"LD_PRELOAD": "x" * 99}}, [f"variable LD_PRELOAD was not there and is {'x' * 40}..."]),
        ({"policy": Policy(timer="cupti", l2="warm")}, ["timer was events and is cupti", "l2 was cold and is warm"]),
    ],
)
def test_differences_are_named(change: dict[str, Any], said: list[str]) -> None:
    assert differences(a_run(), a_run(**change)) == said


def test_each_library_is_a_difference_of_its_own() -> None:
    ours = a_run(packages={"triton": "3.6.0", "xformers": "0.0.30"})
    newer = a_run(packages={"triton": "3.7.0", "xformers": "0.0.30"})
    assert differences(ours, newer) == ["triton was 3.6.0 and is 3.7.0"]
    assert differences(ours, a_run(packages={"triton": "3.6.0"})) == ["xformers was 0.0.30 and is not there"]


def labels(*runs: Run) -> list[str]:
    return unique_labels(["H200"] * len(runs), [[*setup_texts(run).values()] for run in runs])


def test_labels_say_only_what_tells_runs_apart() -> None:
    assert labels(a_run()) == ["H200"]
    assert labels(a_run(), a_run(power_limit_w=500.0)) == ["H200 700 W", "H200 500 W"]
    assert labels(a_run(), a_run(power_limit_w=None)) == ["H200 700 W", "H200"]
    assert labels(a_run(), a_run(policy=Policy(l2="warm"))) == ["H200 L2 cold", "H200 L2 warm"]
    assert labels(a_run(), a_run(variables={"A": "1", "B": "2"})) == ["H200", "H200 A=1 B=2"]
    assert labels(a_run(), a_run(cpu="AMD")) == ["H200 #1", "H200 #2"]
    assert unique_labels(["A", "A", "B"], [["x", "1"], ["x", "2"], ["y", "3"]], "{} ({})") == ["A (1)", "A (2)", "B"]
