"""Text for terminals and CI's runners, and the selection of names by patterns."""

from __future__ import annotations

import time

import pytest

from attnbench.core.text import LONGEST, fits, no_command, one_line, printable, without_long_words
from hostile.live import in_log


@pytest.mark.parametrize("text", ["::error::x", "  ::error::x", "a ##[error]x", "##vso[task.x]y", "###[error]x"])
def test_no_line_is_a_command_to_a_runner(text: str) -> None:
    assert in_log(text)
    assert not in_log(no_command(text))
    assert not in_log(no_command(f"a,b\n{text}\nc"))


@pytest.mark.parametrize("text", ["a::b", "mine.py:attention", "# x", "## [x]", "", "a: :b"])
def test_what_is_no_command_stays_as_it_is(text: str) -> None:
    assert no_command(text) == printable(text) == text


def test_what_cannot_be_seen_is_a_space() -> None:
    assert printable("a\x1b[31mb\x1b]0;c\x07d") == "abd"
    assert printable("a\u202eb\nc\x9bd\x00") == "a b c "  # \x9bd is an escape sequence too
    assert printable("naïve ü 漢 🙂") == "naïve ü 漢 🙂"


@pytest.mark.parametrize(
    ("name", "pattern", "is_fit"),
    [
        ("fa2", "fa*", True),
        ("f[m=64]", "f[m=64]", True),  # as a glob it would match one letter
        ("f[m=64]", "f*", True),
        ("fm", "f[m=64]", True),
        ("f[m=128]", "f[m=64]", False),
    ],
)
def test_a_name_fits_itself_and_globs(name: str, pattern: str, is_fit: bool) -> None:
    assert fits(name, pattern) == is_fit


def test_a_message_that_quotes_a_whole_file_is_short() -> None:
    path = f"/{'folder/' * 40}run.jsonl"
    assert without_long_words(f"cannot read {path}: no such file") == f"cannot read {path}: no such file"
    word = without_long_words(f"no backend '{'x' * 10**5}'; known: eager")
    assert len(word) < 400
    assert word.startswith("no backend 'xxx")
    assert word.endswith("xxx'; known: eager")
    assert len(without_long_words("a word " * 10**5 + "the end")) == LONGEST


@pytest.mark.parametrize("character", ["\x9d", "\x1b]", "\n"])
def test_a_text_of_one_control_character_takes_no_time(character: str) -> None:
    began = time.process_time()
    for clean in (printable, no_command, one_line):
        clean(character * 200_000)
    assert time.process_time() - began < 5
