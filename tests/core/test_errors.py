"""The suggestion of a known word in the error line for an unknown one."""

from __future__ import annotations

import pytest

from attnbench.core.errors import nearest

DTYPES = ("bf16", "fp16", "fp32", "fp8")


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("sped", ("throughput", "speedup", "spread"), ["speedup"]),  # the beginning of a word counts as a match
        ("llama", ("llama-3.1-8b", "gemma-2-9b"), ["llama-3.1-8b"]),
        ("bf15", DTYPES, ["bf16"]),
        ("fp64", DTYPES, []),  # a word with another number is no match
        ("nope", ("hopper", "ampere"), []),
        ("Page_Size", ("page-size", "batch"), ["page-size"]),
        ("sbhd", ("bshd", "bhsd", "packed"), ["bshd", "bhsd"]),
        ("", DTYPES, []),
    ],
)
def test_only_words_that_are_near_are_suggested(word: str, known: tuple[str, ...], found: list[str]) -> None:
    assert nearest(word, known) == found
