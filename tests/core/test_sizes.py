"""Sizes, head dims, windows and durations: parsing, error lines, and formatting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.core.errors import UserError
from attnbench.core.sizes import (
    LARGEST,
    format_bytes,
    format_duration,
    format_size,
    parse_duration,
    parse_headdims,
    parse_numbers,
    parse_size,
    parse_sizes,
    parse_windows,
)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("4096", 4096), ("4k", 4096), ("3K", 3072), ("1m", 2**20), (" 8k ", 8192), (64, 64)]
)
def test_parse_size(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "x", "8x", "8kk", "k", "1.5k", "8 k", "0x10", "8e3", "-"])
def test_text_that_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match=r"seqlen: .* is not a size"):
        parse_size(text, "seqlen")


@pytest.mark.parametrize("text", ["0", "-1", "-4k", "0m"])
def test_sizes_start_at_one(text: str) -> None:
    with pytest.raises(UserError, match=f"{text} is not at least 1"):
        parse_size(text)


def test_the_largest_size() -> None:
    assert parse_size(str(LARGEST)) == parse_size("128m") == LARGEST
    with pytest.raises(UserError, match="largest: 128m"):
        parse_size(str(LARGEST + 1))
    with pytest.raises(UserError, match="beyond"):
        parse_size("9" * 400 + "m")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1k", (1024,)),
        ("1k-4k:1k", (1024, 2048, 3072, 4096)),
        ("100-350:100", (100, 200, 300)),
        ("8k,1k,3000", (8192, 1024, 3000)),
        ("1k-2k, 2k-4k,1k", (1024, 2048, 4096)),
        ("1-128m", tuple(2**i for i in range(28))),
    ],
)
def test_lists_and_ranges(text: str, values: tuple[int, ...]) -> None:
    assert parse_sizes(text) == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8k-1k", "descends; write 1k-8k"),
        ("1025-2047", "no power of two in 1025-2047; give a step"),
        ("1k-3k", "1k-3k is a range of powers of two and leaves out 3k; write 1k-2k, or 1k-2k,3k"),
        ("3000-4k", "leaves out 3000; write 4k, or 3000,4k"),
        ("1000-5000", "leaves out 1000 and 5000; write 1k-4k, or 1000,1k-4k,5000"),
        ("1k-4k:0", "0 is not at least 1"),
        ("1k-", "is not a size; write 4k, a list with commas, 1k,3000,8k, or a range with both its ends, 1k-64k or"),
        ("1k 4k", "'1k 4k' is not a size; write 4k, a list with commas"),
        ("1k-2k-4k", "is not a size"),
    ],
)
def test_errors_in_lists_and_ranges(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_sizes(text, "seqlen")
    assert str(error.value).startswith("seqlen: ")
    assert said in str(error.value)


def test_headdims() -> None:
    assert parse_headdims("64") == ((64, 64),)
    assert parse_headdims("64, 128,192-128,64") == ((64, 64), (128, 128), (192, 128))
    for text in ("64-x", "192-128-64", "-64", "4096", "64-4096"):
        with pytest.raises(UserError, match=r"^headdim: "):
            parse_headdims(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), (" 10 m ", 600), (45, 45), ("3m20s", 200)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10d", "-5s", "0", "0s", "1h30", "30m1h", "1m2m", "1e3", "inf", "nan"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(UserError, match=r"time_limit: .* is not a duration; write 90s, 10m or 1h30m"):
        parse_duration(text, "time_limit")
    with pytest.raises(UserError, match=r"^time_limit: .{1,200} is longer than a year$"):
        parse_duration("9" * 400, "time_limit")


@given(st.integers(1, LARGEST))
def test_format_size_can_be_parsed(n: int) -> None:
    assert parse_size(format_size(n)) == n
    assert len(format_size(n)) <= len(str(n))


def test_format_bytes_and_durations() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 24 * 2**20, 1.5 * 2**30, 137 * 2**30)] == [
        "0 B", "1023 B", "1.0 KiB", "24 MiB", "1.5 GiB", "137 GiB",
    ]  # fmt: skip
    assert [format_duration(s) for s in (0.04, 0.4, 9.94, 12.4, 59.4, 59.6, 185, 3599.6, 3720)] == [
        "0.0s", "0.4s", "9.9s", "12s", "59s", "1m00s", "3m05s", "1h00m", "1h02m",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1k", ((1024, 1024),)),
        ("none,0/0, 512/open ,open/0", (None, (0, 0), (512, None), (None, 0))),
        ("open/open,none", (None,)),
        ("1024,1k/1k", ((1024, 1024),)),
    ],
)
def test_windows(text: str, found: object) -> None:
    assert parse_windows(text) == found


@pytest.mark.parametrize("text", ["1024:0", "1/2/3", "open", "-1", "1k/", "/0", "", "0", "1.5", "none/0"])
def test_text_that_is_no_window(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a window; write 1024"):
        parse_windows(text)


def test_numbers() -> None:
    assert parse_numbers("none,30, 0.5,0", "softcap") == (0.0, 30.0, 0.5)
    for text in ("", "a", "-1", "inf", "nan", "1e999"):
        with pytest.raises(UserError, match="softcap: "):
            parse_numbers(text, "softcap")
