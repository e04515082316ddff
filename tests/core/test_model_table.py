"""The table of models: complete, and as transformers' configurations are where their defaults are that model's."""

from __future__ import annotations

import importlib
import re

import pytest

from attnbench.core.errors import UserError
from attnbench.core.models import MODELS, find

# Configurations of transformers whose defaults are a model of the table.
DEFAULTS = {
    "gpt-oss-120b": ("gpt_oss", "GptOssConfig"),
    "phi-3-mini": ("phi3", "Phi3Config"),
    "deepseek-v3": ("deepseek_v3", "DeepseekV3Config"),
}


def test_every_model_names_its_source_and_when_it_was_read() -> None:
    for model in MODELS.values():
        assert model.source.startswith("https://")
        assert model.read
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", model.date)
        assert model.depth == sum(layers.count for layers in model.layers)
        assert model.nheads % model.nheads_k == 0
        assert 1 in model.shares
        assert model.name == model.name.lower()


def test_the_model_of_steps_only_is_told_so() -> None:
    with pytest.raises(UserError, match="only attnbench step has it: attnbench step tiny"):
        find("Tiny")


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_model_is_that_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    folder, kind = DEFAULTS[name]
    config = getattr(importlib.import_module(f"transformers.models.{folder}.configuration_{folder}"), kind)()
    model = MODELS[name]
    assert model.nheads == config.num_attention_heads
    assert model.depth == config.num_hidden_layers
    if model.latent:
        assert model.latent == (config.kv_lora_rank, config.qk_rope_head_dim)
        assert model.headdim == config.qk_nope_head_dim + config.qk_rope_head_dim
        assert model.headdim_v == config.v_head_dim
    else:
        assert model.headdim == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    windows = {layers.window for layers in model.layers if layers.window}
    if getattr(config, "sliding_window", None):
        assert windows == {config.sliding_window}
