"""The grid of `attnbench tune` for models and for a person's own shapes."""

from __future__ import annotations

from typing import Any

import pytest

from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.run.suite import parse_options, resolve
from attnbench.run.tune import tune_suite, without_model


def cases(kind: str = "cuda", *, variants: bool = False, **options: Any) -> tuple[Case, ...]:
    given = parse_options(options)
    return resolve(tune_suite(given, kind, variants=variants), kind, without_model(given)).cases


def sizes(found: tuple[Case, ...]) -> list[tuple[int, int]]:
    return sorted({(case.shape.batch, case.shape.seqlen_k) for case in found})


def test_given_lengths_are_measured_where_a_call_has_no_more_tokens_than_the_grid() -> None:
    found = cases(axes={"seqlen": "2k,8k,64k", "nheads": "32"})
    assert sizes(found) == [(1, 2048), (1, 8192), (1, 65536), (4, 2048), (4, 8192), (16, 2048)]
    assert sizes(cases(axes={"seqlen": "8k,64k", "batch": "8"})) == [(8, 8192), (8, 65536)]
    decode = cases(models=["llama-3.1-8b"], phase="decode", axes={"seqlen": "32k"})
    assert sizes(decode) == [(1, 32768), (16, 32768)]
    assert {case.page_size for case in decode} == {0, 16}


def test_a_model_of_a_fixed_length_is_measured_around_it_unless_a_length_is_given() -> None:
    model = {"models": ["wan-2.1-t2v-14b"], "phase": "prefill"}
    assert sizes(cases(**model)) == [(1, 8190), (1, 16380), (1, 32760)]
    assert sizes(cases(**model, axes={"seqlen": "4k"})) == [(1, 4096), (4, 4096)]


def test_deterministic_variants_are_measured_in_training_alone() -> None:
    found = cases(models=["llama-3.1-8b"], variants=True)
    of_variants = [case for case in found if case.deterministic]
    assert {case.direction for case in of_variants} == {"fwd", "bwd"}
    plain = [case for case in found if case.direction == "bwd" and not case.deterministic]
    assert sizes(tuple(plain)) == sizes(tuple(of_variants))
    assert not any(case.deterministic for case in cases(models=["llama-3.1-8b"]))


def test_a_cpu_has_a_small_grid_in_fp32() -> None:
    found = cases("cpu", models=["llama-3.1-8b"])
    assert {case.dtype for case in found} == {"fp32"}
    assert max(case.shape.seqlen_k for case in found) <= 512


def test_axes_of_a_model_are_refused() -> None:
    with pytest.raises(UserError, match="--model sets this"):
        cases(models=["llama-3.1-8b"], axes={"nheads": "4"})
