"""What the cases of a check that are not right have in common."""

from __future__ import annotations

from itertools import product

import pytest

from attnbench.analysis.check.common_factor import common_factor
from attnbench.core.case import Case
from builders import case

EVERY = [
    case(seqlen, dtype=dtype, direction=direction, causal=causal)
    for seqlen, dtype, direction, causal in product((1024, 4096), ("bf16", "fp16"), ("fwd", "bwd"), (False, True))
]


def said(*bad: Case) -> str:
    return common_factor(bad, [one for one in EVERY if one not in bad])


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"causal": True}, "all 8 that are causal, none of the 8 others"),
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
