"""What makes a device unfit to measure, and who is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from healthy_h200 import HOST

from attnbench.analysis.doctor.checks import findings_of_machine
from attnbench.core.other_work import is_too_busy, refusal
from builders import CPU, H200, environment


def test_a_gpu_is_refused_and_a_cpu_is_not() -> None:
    assert refusal(replace(H200, busy=0.02)) == ""
    assert refusal(H200) == ""
    assert refusal(replace(CPU, busy=3.0)) == ""
    assert refusal(replace(H200, busy=0.97, users=("train (pid 7)",))) == (
        "another process uses cuda:0 (97% of its time: train (pid 7)), so that no figure could be believed; wait for "
        "its end, choose another GPU with --device cuda:N, or measure all the same with --allow-busy"
    )


@pytest.mark.parametrize("load", [0.2, 0.5, 0.74, 0.76, 2.0])
def test_a_cpu_is_loaded_where_the_doctor_calls_it_unfit(load: float) -> None:
    host = {**HOST, "cores": 10, "load": 10 * load}
    found = findings_of_machine(environment(CPU), {"asked": "cpu", "host": host})
    (finding,) = [one for one in found if one.check == "load"]
    assert is_too_busy(replace(CPU, busy=load)) == (finding.level == "unfit")
