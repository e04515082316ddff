"""A step of a whole model: its text form, FLOPs and bytes by hand, and invalid steps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.flops import attention_of, flops, ideal_bytes, input_bytes
from attnbench.core.json import from_json, to_json
from attnbench.core.step import Heads, parse
from attnbench.run.axes import expand
from attnbench.run.step_axes import heads, models, step_blocks, whole_step

SMALL = "{} tiny 2/2 arch=llama hidden=128 intermediate=256 vocab=512"
HEADS = Heads(4, 2, 32, 32)


def case(phase: str = "prefill", text: str = SMALL, seqlen: int = 64, **rest: Any) -> Case:
    shape = Shape(3, 1 if phase == "decode" else seqlen, seqlen, 4, 2, 32, 32)
    return Case(shape, "bf16", "fwd_bwd" if phase == "train" else "fwd", True, step=text.format(phase), **rest)


@pytest.mark.parametrize("name", models())
def test_a_model_is_spelled_so_that_it_reads_back(name: str) -> None:
    step = whole_step(models()[name])
    assert parse(str(step)) == step
    assert from_json(Case, to_json(case())) == case()


@pytest.mark.parametrize(
    "text",
    [
        "prefill tiny 2/2",
        "prefill tiny two arch=llama hidden=1 intermediate=1 vocab=1",
        SMALL.format("serve"),
        SMALL.format("prefill").replace("2/2", "3/2"),
        SMALL.format("prefill").replace("llama", "nothing"),
        SMALL.format("prefill") + " heads=3",
        SMALL.format("prefill") + " taken=2",
        " " + SMALL.format("prefill"),
        SMALL.format("prefill").replace("2/2", "1/1000000000000"),  # a loop over layers would not end
        SMALL.format("prefill") + f" experts={10**400} taken=1",
        SMALL.format("prefill") + f" windows={10**400}",
    ],
)
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="step: "):
        parse(text)


def test_a_case_is_as_its_phase() -> None:
    with pytest.raises(ValueError, match="train is not fwd"):
        replace(case(), step=SMALL.format("train"))
    with pytest.raises(ValueError, match="in decode one query per sequence"):
        replace(case(), step=SMALL.format("decode"))
    with pytest.raises(ValueError, match="the first layer"):
        replace(case(), step=SMALL.format("prefill") + " windows=16/0")


def test_flops_of_a_dense_model_by_hand() -> None:
    tokens, pairs = 3 * 64, 3 * 64 * 65 // 2
    layer = 128 * 4 * 32 + 2 * 128 * 2 * 32 + 4 * 32 * 128 + 3 * 128 * 256
    attention = 2 * 4 * (32 + 32) * pairs
    assert flops(case()) == 2 * (2 * layer * tokens + attention) + 2 * 128 * 512 * 3
    training = 3 * (2 * (2 * layer * tokens + attention) + 2 * 128 * 512 * tokens)
    assert flops(case("train")) == training
    assert flops(case("decode")) == 2 * (2 * layer * 3 + 2 * 4 * 64 * 3 * 64) + 2 * 128 * 512 * 3


def test_of_experts_those_count_that_a_token_takes() -> None:
    moe = parse(SMALL.format("prefill") + " experts=8 taken=2 shared=1 expert=64 dense=1")
    dense, active = (moe.layer_weights(layer, HEADS, 2) for layer in (0, 1))
    assert active - dense == 3 * 128 * (3 * 64 - 256) + 128 * 8
    assert moe.layer_weights(1, HEADS, 8) - active == 3 * 128 * 64 * 6


def test_each_layer_has_its_own_window() -> None:
    windows = case(text=SMALL + " windows=16/0", window_size=(15, 0))
    assert [attention_of(windows, layer).window_size for layer in (0, 1)] == [(15, 0), (None, None)]
    assert flops(attention_of(windows, 0)) < flops(attention_of(windows, 1)) == flops(attention_of(case(), 0))


def test_bytes_are_those_of_weights_and_cache() -> None:
    weights = parse(SMALL.format("prefill")).weights(HEADS)
    assert input_bytes(case()) == 2 * (weights + 2 * 128 * 512)
    assert input_bytes(case("decode")) - input_bytes(case()) == 2 * 2 * 3 * 64 * 2 * (32 + 32)
    assert ideal_bytes(case()) > 2 * (weights + 128 * 512)


def test_published_sizes_give_the_published_parameters() -> None:
    """Published sizes give the published parameters in 1e9: all, and those that a token uses, with its embedding."""
    published = {
        "llama-3.1-8b": (8.03, 8.03),
        "deepseek-v3": (671.0, 37.5),
        "gpt-oss-20b": (20.9, 4.2),
        "gpt-oss-120b": (116.8, 5.7),
        "mixtral-8x7b": (46.7, 12.9),
        "qwen3-30b-a3b": (30.5, 3.35),
        "qwen3-235b-a22b": (235.1, 22.2),
    }
    for name, billions in published.items():
        step, of = whole_step(models()[name]), heads(models()[name])
        found = [(step.weights(of, experts=experts) + step.outside) / 1e9 for experts in (step.experts, step.taken)]
        assert found == pytest.approx(billions, rel=0.01), name


def test_the_experts_that_tokens_take_are_as_many_as_in_trials() -> None:
    """One token takes its own; thousands take all; between, the mean of random choices without replacement."""
    step, chance = parse(SMALL.format("decode") + " experts=8 taken=2"), random.Random(1)
    trials = [len({one for _ in range(5) for one in chance.sample(range(8), 2)}) for _ in range(4000)]
    assert step.experts_of(1) == pytest.approx(2)
    assert step.experts_of(5) == pytest.approx(sum(trials) / len(trials), rel=0.01)
    assert step.experts_of(4096) == pytest.approx(8)


def test_layers_are_cut_to_a_budget_or_to_what_is_asked() -> None:
    def kept(name: str, layers: int | None) -> str:
        (block,) = step_blocks([name], ["prefill"], "1k", "1", "bf16", layers)
        (found,) = expand(block, None, None)
        assert found.model_step
        return found.model_step.cut

    assert kept("llama-3.1-8b", None) == "13 of 32 layers"
    assert kept("gpt-oss-20b", None) == "2 of 24 layers"  # one of each kind
    assert kept("llama-3.1-8b", 32) == "all 32 layers"
