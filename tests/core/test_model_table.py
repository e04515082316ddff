"""The table of models is complete, and its figures have sources."""

from __future__ import annotations

import re

import pytest

from attnbench.core.errors import UserError
from attnbench.core.models import MODELS, find


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
