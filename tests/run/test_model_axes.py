"""The axes --model, --tp and --phase."""

from __future__ import annotations

from typing import Any

import pytest

from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.models import MODELS, PHASES, find
from attnbench.run.suite import load_suite, parse_options, resolve


def cases(**given: Any) -> tuple[Case, ...]:
    axes = {"seqlen": "4k", **given.pop("axes", {})}
    return resolve(load_suite("quick"), "cuda", parse_options({**given, "axes": axes})).cases


def test_a_model_sets_its_heads_and_masks() -> None:
    (one,) = cases(models="llama-3.1-8b")
    s = one.shape
    assert (s.nheads, s.nheads_k, s.headdim, s.headdim_v) == (32, 8, 128, 128)
    assert (s.seqlen_q, s.seqlen_k, one.causal, one.direction, one.window_size) == (
        4096,
        4096,
        True,
        "fwd",
        (None, None),
    )


def test_each_kind_of_layers_is_a_case() -> None:
    local, everywhere = cases(models="gemma-3-27b", axes={"seqlen": "8k"})
    assert local.window_size == (1023, 0)
    assert everywhere.window_size == (None, None)
    assert local.softmax_scale == everywhere.softmax_scale == pytest.approx(168**-0.5)
    assert {case.softcap for case in cases(models="gemma-2-9b")} == {50.0}


def test_tensor_parallel_shares_divide_heads() -> None:
    (one,) = cases(models="llama-3.1-70b", tp=16)
    assert (one.shape.nheads, one.shape.nheads_k) == (4, 1)


def test_phases() -> None:
    (decode,) = cases(models="llama-3.1-8b", phase="decode", axes={"page_size": "16"})
    assert (decode.shape.batch, decode.shape.seqlen_q, decode.page_size) == (1, 1, 16)
    (mixed,) = cases(models="llama-3.1-8b", phase="mixed", axes={"batch": "8", "page_size": "16"})
    assert mixed.lengths == ((1, 2048, 4096), (7, 1, 4096))
    train = cases(models="llama-3.1-8b", phase="train")
    assert [case.direction for case in train] == ["fwd", "bwd"]


def test_mla_decodes_latent_rows_and_prefills_heads() -> None:
    (prefill,), (decode,) = cases(models="deepseek-v3"), cases(models="deepseek-v3", phase="decode", tp=8)
    assert (prefill.shape.headdim, prefill.shape.headdim_v, prefill.shape.nheads_k, prefill.latent) == (
        192,
        128,
        128,
        False,
    )
    assert (decode.shape.headdim, decode.shape.headdim_v, decode.shape.nheads_k, decode.latent) == (576, 512, 1, True)
    assert decode.shape.nheads == 16
    assert prefill.softmax_scale == decode.softmax_scale == pytest.approx(192**-0.5 * 1.8738, rel=1e-4)


def test_several_phases_have_the_cases_of_each() -> None:
    of_each = [case for phase in ("prefill", "decode") for case in cases(models="deepseek-v3.2", phase=phase)]
    assert {*cases(models="deepseek-v3.2", phase="decode, prefill")} == {*of_each}
    train = cases(models="llama-3.1-8b", phase="prefill,train")
    assert [case.direction for case in train] == ["fwd", "bwd"]


def test_sinks_of_gpt_oss() -> None:
    found = cases(models="gpt-oss-20b", phase="decode")
    assert {case.window_size for case in found} == {(127, 0), (None, None)}
    assert all(case.sink for case in found)
    assert not any(case.sink for case in cases(models="llama-3.1-8b"))


def test_a_model_of_images_has_its_own_length() -> None:
    (own,) = resolve(load_suite("quick"), "cuda", parse_options({"models": "vit-l-16-224"})).cases
    assert (own.shape.seqlen_k, own.causal) == (197, False)
    (given,) = cases(models="vit-l-16-224")
    assert given.shape.seqlen_k == 4096


@pytest.mark.parametrize("name", MODELS)
def test_every_model_resolves_in_every_phase_it_has(name: str) -> None:
    model = find(name)
    for phase in PHASES:
        given = {"models": name, "phase": phase, "axes": {"batch": "4"}}
        if model.lacks(phase):
            with pytest.raises(UserError, match=r"no decode|no mixed|cannot measure --phase"):
                cases(**given)
        else:
            found = cases(**given)
            assert {case.direction for case in found} == ({"fwd", "bwd"} if phase == "train" else {"fwd"})
            kinds = {(case.window_size, case.kind) for case in found}
            assert len(kinds) == len((*model.layers, *model.indexers))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"models": "llama-3.1-8"}, 'did you mean "llama-3.1-8b"?'),
        ({"models": "llama-3.1-8b", "tp": 3}, "3 does not divide the 32 query and 8 key heads"),
        ({"models": "llama-3.1-8b", "tp": 0}, "--tp: 0 is not at least 1"),
        ({"models": "llama-3.1-8b", "phase": "decod"}, "unknown phase 'decod'"),
        ({"models": "llama-3.1-8b", "axes": {"nheads": "4"}}, "--nheads: --model sets this"),
        ({"models": "llama-3.1-8b", "axes": {"seqlen_q": "4"}}, "--seqlen-q: --phase sets this"),
        ({"models": "llama-3.1-8b", "phase": "mixed", "axes": {"batch": "1"}}, "needs --batch 2 or more"),
        ({"tp": 2}, "--tp needs a model"),
        ({"models": "gpt-oss-20b", "axes": {"sink": False}}, "--sink/--no-sink: --model sets this"),
        ({"models": "deepseek-v3.2", "axes": {"mask": "topk:4k"}}, "--mask: deepseek-v3.2 sets this"),
        ({"models": "deepseek-v3", "phase": "mixed"}, "--nheads 128 --nheads-k 128 --headdim 192-128 --causal"),
        ({"models": "hunyuan-video", "phase": "decode"}, "give --phase prefill"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as told:
        cases(**given)
    assert said in str(told.value)
    assert "\n" not in str(told.value)
