"""The expected outputs of golden.py, one test each."""

from __future__ import annotations

import pytest

from golden import COMMANDS, EXPECTED, FILES, REPORTED, in_the_root, output, run


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_for_a_real_run(name: str) -> None:
    assert output(name) == (EXPECTED / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*FILES} - {*REPORTED}))
def test_every_other_run_is_reported(name: str) -> None:
    with in_the_root():
        assert len(run(["report", FILES[name], "-f", "md"]).splitlines()) > 20


def test_every_expected_output_is_asked_for() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == {*COMMANDS}
