"""The reader of handwritten YAML files."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from attnbench.core.errors import UserError
from attnbench.run import yaml_file


def test_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("base: &base {a: 1, b: 2}\nown: {<<: *base, b: 3}\n1: [x, {y: true}, {<<: *base}]\n")
    base = {"a": 1, "b": 2}
    assert yaml_file.read_yaml(file) == {"base": base, "own": {"a": 1, "b": 3}, 1: ["x", {"y": True}, base]}
    file.write_text("")
    assert yaml_file.read_yaml(file) is None


ALIASES = [*itertools.pairwise("abcdefghi")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb:\n  x *: {c: 1%}\n  x *: {c: 9%}\n", "{}:4: not readable as YAML: x * is there twice"),
        ("a: 1\nb:\n- {c: 1, c: 1}\n", "{}:3: not readable as YAML: c is there twice"),
        ("a: [1\n", "{}:2: not readable as YAML: expected ',' or ']'"),
        ("a: 1\n? [1]\n: 2\n", "{}:2: not readable as YAML: found unhashable key"),
        ("\x07", "{}: not readable as YAML: unacceptable character #x0007"),
        ("b: 1\na: 2026-02-30\n", "{}:2: not readable as YAML: '2026-02-30' is no timestamp"),
        ("a: !!timestamp x\n", "{}:1: not readable as YAML: 'x' is no timestamp"),
        (
            'a: 1\nb: ["./a\\0b.py:f"]\n',
            "{}:2: not readable as YAML: './a\\x00b.py:f' has a character",
        ),
        ('b: "\\ud800.py:f"\n', "{}:1: not readable as YAML: '\\ud800.py:f' has a character that no text has"),
        ("a: !!int ''\n", "{}:1: not readable as YAML: '' is no int"),
        (
            f"a: &a {{{', '.join(f'k{i}: 1' for i in range(500))}}}\nb: {{<<: [{', '.join(['*a'] * 500)}]}}\n",
            "{}:2: not readable as YAML: its aliases stand for too many values",
        ),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{c}: &{c} [{', '.join(['*' + b] * 9)}]\n" for b, c in ALIASES),
            "{}:6: not readable as YAML: its aliases stand for too many values",
        ),
        (
            f"a: [&a {'x' * 60_000}{', *a' * 300}]\n",
            "{}:1: not readable as YAML: its aliases stand for too many values",
        ),
        (
            "a: &a [1, *a]\n",
            "{}:1: not readable as YAML: its aliases stand for too many values",
        ),
    ],
)
def test_mistakes_are_one_line_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        yaml_file.read_yaml(file)
    assert str(error.value).startswith(said.format(file))
    assert "\n" not in str(error.value)


def test_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is not text"):
        yaml_file.read_yaml(file)
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        yaml_file.read_yaml(tmp_path)
