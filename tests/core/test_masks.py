"""Masks by name: definitions by hand, counts against brute force, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.core import masks
from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.core.flops import flops, ideal_bytes


def keys_seen(text: str, place: int, seqlen_k: int, right: int | None = 0, left: int | None = None) -> list[int]:
    """Return the keys that a query at position `place` sees."""
    mask = masks.find(text)
    blocks = mask.kept_blocks(seqlen_k)
    return [
        key
        for key in range(seqlen_k)
        if masks.sees(
            mask,
            (right is None or key <= place + right) and (left is None or key >= place - left),
            place,
            key,
            blocks,
        )
    ]


@pytest.mark.parametrize(
    ("text", "place", "band", "keys"),
    [
        ("prefix:4", 1, {}, [0, 1, 2, 3]),
        ("prefix:4", 6, {}, [0, 1, 2, 3, 4, 5, 6]),
        ("sink_tokens:2", 7, {"left": 2}, [0, 1, 5, 6, 7]),
        ("sink_tokens:4", 1, {"left": 0}, [0, 1]),
        ("strided:3", 9, {}, [0, 3, 6, 7, 8, 9]),
        ("strided:3", 4, {"right": None}, [1, 2, 3, 4, 5, 6, 7, 10]),
        ("dilated:2", 7, {}, [1, 3, 5, 7]),
        ("dilated:3", 7, {"left": 5, "right": 3}, [4, 7, 10]),
        ("topk_recent:3", 7, {}, [5, 6, 7]),
        ("topk_recent:3", 1, {}, [0, 1]),
        ("topk:3", 2, {}, [0, 1, 2]),
    ],
)
def test_definitions(text: str, place: int, band: dict[str, int | None], keys: list[int]) -> None:
    assert keys_seen(text, place, 12, **band) == keys


def test_random_blocks_are_whole_and_have_the_diagonal() -> None:
    blocks = masks.find("random:0.25").kept_blocks(128 * 64)
    assert blocks is not None
    assert all(blocks[row][row] for row in range(64))
    kept = sum(map(sum, blocks)) - 64
    assert pytest.approx(kept / (64 * 63), abs=0.03) == 0.25
    seen = keys_seen("random:0.25", 1000, 128 * 64, right=None)
    assert seen == [key for key in range(128 * 64) if blocks[1000 // 128][key // 128]]
    longer = masks.find("random:0.25").kept_blocks(128 * 80)
    assert longer is not None
    assert [row[:64] for row in longer[:64]] == blocks


@given(
    st.sampled_from(
        [
            *("prefix:3", "prefix:300", "sink_tokens:2", "sink_tokens:40", "strided:7", "dilated:5", "random:0.4"),
            *("topk:16", "topk:300", "topk_recent:16"),
        ]
    ),
    st.integers(1, 40),
    st.integers(0, 300),
    st.none() | st.integers(0, 200),
    st.booleans(),
)
def test_counts_match_brute_force(text: str, seqlen_q: int, more: int, left: int | None, causal: bool) -> None:
    seqlen_k = seqlen_q + more
    if text.startswith("sink"):
        left, causal = left or 0, True
    if text.startswith(("prefix", "topk")):
        left, causal = None, True
    window = (left, 0) if left is not None and causal else (left, None)
    right = 0 if causal else None
    places = range(seqlen_k - seqlen_q, seqlen_k)
    seen = [keys_seen(text, place, seqlen_k, right, left) for place in places]
    assert masks.count_pairs(text, seqlen_q, seqlen_k, causal, window) == sum(map(len, seen))


def test_counting_takes_no_time_that_grows_with_the_keys() -> None:
    """The time to count does not grow with the keys, of which a stored case may have any number."""
    n = 2**40
    pairs = n * (n + 1) // 2
    assert masks.count_pairs("dilated:2", n, n, True, (None, None)) == pairs - n * n // 4
    assert masks.count_pairs("prefix:1", n, n, True, (None, None)) == pairs
    with pytest.raises(ValueError, match="random blocks need at most 256k keys"):
        Case(Shape(1, n, n, 1, 1, 16, 16), "bf16", "fwd", mask="random:0.5")


@pytest.mark.parametrize("text", ["prefix:9", "sink_tokens:3", "strided:5", "dilated:3", "random:0.5", "topk:64"])
def test_tensors_and_numbers_agree(text: str) -> None:
    mask, seqlen_k = masks.find(text), 300
    place, keys = torch.arange(200, 300)[:, None], torch.arange(seqlen_k)
    band = keys <= place
    seen = masks.sees(mask, band, place, keys, masks.kept_blocks(text, seqlen_k, torch.device("cpu")))
    assert [row.nonzero().flatten().tolist() for row in seen] == [keys_seen(text, p, seqlen_k) for p in range(200, 300)]


@pytest.mark.parametrize("text", ["topk:64", "topk_recent:64"])
def test_the_lists_of_chosen_keys_are_the_keys_that_the_mask_keeps(text: str) -> None:
    """Each query has as many chosen keys as asked for, none twice; where fewer are there, all and -1."""
    for place in (0, 10, 63, 64, 100, 299):
        chosen = masks.chosen_keys(text, torch.tensor(place)).tolist()
        count = min(64, place + 1)
        assert chosen == keys_seen(text, place, 300) + [-1] * (64 - count)
        assert len({*chosen[:count]}) == count


def test_chosen_keys_lie_apart_and_differ_from_query_to_query() -> None:
    """The choice is of all keys alike: kernels in 32 bits agree with it, and each key is some query's."""
    place = torch.arange(2**20 - 64, 2**20)
    keys = masks.chosen_keys("topk:2k", place)
    assert torch.equal(keys, masks.chosen_keys("topk:2k", place.int()))
    gaps = keys.diff()
    assert gaps.min() >= 1
    assert gaps.max() < 2 * 513
    assert len(keys.unique()) > 0.8 * keys.numel()


def test_work_is_that_of_the_pairs_that_are_seen() -> None:
    plain = Case(Shape(2, 64, 64, 3, 1, 16, 16), "bf16", "fwd", causal=True)
    dilated = Case(plain.shape, "bf16", "fwd", causal=True, mask="dilated:2")
    assert flops(plain) / flops(dilated) == (64 * 65 / 2) / (32 * 33)
    assert flops(dilated, "fa") == flops(dilated)
    step = Case(Shape(1, 1, 64, 1, 1, 16, 16), "bf16", "fwd", mask="dilated:2")
    assert ideal_bytes(step) == 2 * 16 * (1 + 2 * 32 + 1)
    last = Case(Shape(1, 2, 64, 1, 1, 16, 16), "bf16", "fwd", causal=True, window_size=(3, 0), mask="sink_tokens:4")
    assert ideal_bytes(last) == 2 * 16 * (2 + 2 * (5 + 4) + 2)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("none,prefix:1024, prefix:1k", ("", "prefix:1k")),
        ("dilated,strided:100", ("dilated:2", "strided:100")),
        ("random:.10", ("random:0.1",)),
    ],
)
def test_one_text_for_one_mask(text: str, parsed: tuple[str, ...]) -> None:
    assert masks.parse_masks(text) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefx:1k", 'did you mean "prefix"'),
        ("prefix", "needs a number"),
        ("random", "needs the share"),
        ("random:1.5", "below 1"),
        ("strided:1", "keeps every key"),
        ("strided:x", "not a size"),
    ],
)
def test_what_is_no_mask(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        masks.parse_masks(text)


@pytest.mark.parametrize(("name", "why"), [("zero.py", "it is not a plain file"), ("\ud800.py", "a file cannot have")])
def test_a_mask_in_what_is_no_file(tmp_path: Path, name: str, why: str) -> None:
    """A mask in a path that is no regular file is refused, for example a link to a device, which has no end."""
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"cannot read .*: {why}"):
        masks.parse_masks(f"{tmp_path / name}:f")


def test_a_mask_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.py").write_text("def f(): ...")
    assert masks.parse_masks("~/mine.py:f")[0].startswith(f"{tmp_path}/mine.py:f@")


def test_a_mask_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask is named by its whole path, so that a run can resume in any folder; special characters are allowed."""
    (folder := tmp_path / "a@b:c").mkdir()
    (folder / "mine.py").write_text("def f(): ...")
    monkeypatch.chdir(folder)
    texts = ("mine.py:f", "./mine.py:f", "../a@b:c/mine.py:f", f"{folder}/mine.py:f")
    (text,) = {text for each in texts for text in masks.parse_masks(each)}
    assert text.startswith(f"{folder}/mine.py:f@")
    assert masks.parse_masks(text) == (text,)
    monkeypatch.chdir(tmp_path)
    (own,) = masks.own_of([text])
    own.check()
