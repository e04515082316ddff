"""The document of a check: its verdict, the error of each result, and the common traits of the wrong cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from attnbench.analysis.check.common_factor import common_factor
from attnbench.analysis.check.document import _tracebacks, document, worst_error
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, Record, TensorError
from attnbench.render import terminal
from builders import case, ended, ok, run


@pytest.mark.parametrize(
    ("statuses", "verdict", "code"),
    [
        (["ok", "skipped"], "mine is RIGHT in 1 case, 1 not supported", 0),
        (["ok", "wrong"], "mine is WRONG in 1 of 2 cases", 5),
        (["oom", "timeout", "ok"], "mine FAILS in 2 of 3 cases", 1),
        (
            ["wrong", "wrong-kernel", "failed"],
            "mine is WRONG in 1, runs WRONG KERNELS in 1 and FAILS in 1 of 3 cases",
            5,
        ),
        (["skipped"], "mine: nothing could be checked", 1),
    ],
)
def test_verdicts_and_exit_codes(statuses: list[str], verdict: str, code: int) -> None:
    records = [
        ok(case(2**i), "mine", 1.0) if status == "ok" else ended(case(2**i), "mine", status, "why")
        for i, status in enumerate(statuses)
    ]
    checked = run(records)
    shown = document(checked).verdict
    assert shown is not None
    assert shown.text == verdict
    assert document(checked).exit_code == code


def test_a_check_that_was_interrupted_says_so() -> None:
    records = [ok(case(), "mine", 1.0)]
    whole = run([*records, ok(case(2), "mine", 1.0), ok(case(4), "mine", 1.0)])
    verdict = document(replace(whole, records=tuple(records))).verdict
    assert verdict is not None
    assert (verdict.text, verdict.level) == ("mine is RIGHT in 1 case; interrupted, 2 cases not checked", "warning")


def test_the_worst_error_is_the_largest_share_of_what_is_allowed() -> None:
    errors = {
        "out": TensorError(0.5, 0.1, 1.0, 0.1),
        "dq": TensorError(0.03, 0.01, 0.02, 0.1),
        "dk": TensorError(0.0, 0.0, 0.0, 0.0),
    }
    record = replace(ended(case(), "mine", "wrong", "why"), accuracy=Accuracy(errors, 1, 1))
    found = worst_error(record)
    assert found is not None
    assert found[0] == "dq"
    assert "WRONG 150%" in terminal.text(document(run([record])))
    errors["out"] = TensorError(float("nan"), 0.1, 1.0, float("nan"))
    assert "WRONG NaN" in terminal.text(document(run([replace(record, accuracy=Accuracy(errors, 1, 1))])))


def wrong_by(share: float, which: Case, **more: Any) -> Record:
    accuracy = Accuracy({"dq": TensorError(share * 0.002, 0.001, 0.002, 0.1)}, 1, 1, **more)
    return replace(ended(which, "mine", "wrong", accuracy.problem()), accuracy=accuracy)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([wrong_by(1.28, case(dtype="bf16"))], "28% over the limit: more likely rounding than a bug; in fp32 (--dtype"),
        ([wrong_by(1.28, case(dtype="bf16")), ok(case(dtype="fp32"), "mine", 1.0)], "than a bug; in fp32 it is right"),
        ([wrong_by(1.28, case(dtype="bf16")), wrong_by(1.5, case(2))], "mine is WRONG in 2 of 2 cases"),
        ([wrong_by(1.28, case(dtype="bf16"), flaws=("a row is stale",))], "mine is WRONG in 1 of 1 case"),
    ],
)
def test_what_is_little_over_the_limit_is_said_to_be_more_likely_rounding(records: list[Record], said: str) -> None:
    verdict = document(run(records)).verdict
    assert verdict is not None
    assert said in verdict.text
    assert ("rounding" in verdict.text) == ("rounding" in said or "fp32" in said)


def test_an_error_and_its_limit_are_told_apart() -> None:
    shown = " ".join(terminal.text(document(run([wrong_by(1.0002, case())]))).split())
    assert "WRONG 100.02%" in shown
    assert "dq is off by 0.0020004 where 0.002 is allowed" in shown


SERVE = '  File "/opt/attnbench/worker/serve.py", line 1, in run\n    measure()\n'
CALL = '  File "/opt/attnbench/backends/shared/function.py", line 2, in launch\n    function(q)\n'
MINE = '  File "/home/me/mine.py", line 3, in f\n    attention(q)\n'
KERNEL = '  File "/opt/attnbench/backends/triton/attention.py", line 4, in attention\n    raise ValueError\n'


@pytest.mark.parametrize(
    ("frames", "shown"),
    [
        (SERVE + CALL + MINE + KERNEL, MINE + KERNEL),  # attnbench's own kernel in a person's function
        (SERVE + CALL, ""),
        (MINE, "Traceback (most recent call last):\n" + MINE),
    ],
)
def test_the_frames_that_tell_something(frames: str, shown: str) -> None:
    stderr = f"Traceback (most recent call last):\n{frames}ValueError: headdim 96\n"
    (code,) = _tracebacks([replace(ended(case(), "mine", "failed", "ValueError"), stderr=stderr)])
    assert code.text == f"{shown}ValueError: headdim 96"


EVERY = [
    case(seqlen, dtype=dtype, direction=direction, causal=causal)
    for seqlen, dtype, direction, causal in product((1024, 4096), ("bf16", "fp16"), ("fwd", "bwd"), (False, True))
]


def said(*bad: Case) -> str:
    return common_factor(bad, [one for one in EVERY if one not in bad])


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"causal": False}, "all 8 that are not causal, none of the 8 others"),
        ({"direction": "bwd"}, "all 8 that are bwd, none of the 8 others"),
        ({"causal": True, "dtype": "fp16"}, "all 4 that are causal and fp16, none of the 12 others"),
        ({"shape": case(4096).shape}, "all 8 that are of 4k keys, none of the 8 others"),
    ],
)
def test_a_property_of_all_bad_cases_that_no_right_case_has_is_named(properties: dict[str, object], text: str) -> None:
    bad = [one for one in EVERY if all(getattr(one, name) == value for name, value in properties.items())]
    assert said(*bad) == text


def test_right_cases_with_the_property_are_counted_and_most_of_them_deny_it() -> None:
    causal = [one for one in EVERY if one.causal]
    spread = [one for one in causal if one != causal[0]]
    assert said(*spread) == "7 of the 8 that are causal, none of the 8 others"
    assert said(causal[0], causal[-1]) == ""


def test_few_cases_and_cases_without_anything_in_common_have_no_factor() -> None:
    assert said() == ""
    assert said(EVERY[0]) == ""
    assert said(*EVERY) == ""
    assert said(*EVERY[1:]) == ""
    assert said(EVERY[0], EVERY[-1]) == ""
