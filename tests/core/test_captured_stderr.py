"""Output to file descriptor 2 is captured, even if the captured code fails."""

from __future__ import annotations

import os

import pytest

from attnbench.core.captured_stderr import captured_stderr


def test_it_is_kept_and_shown_again_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr() as said:
        os.write(2, b"meanwhile\n")
    os.write(2, b"afterwards\n")
    assert (said, capfd.readouterr().err) == (["meanwhile\n"], "afterwards\n")


def test_it_is_there_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        os.write(2, b"why\n")
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"), captured_stderr() as said:
        refuse()
    assert (said, capfd.readouterr().err) == (["why\n"], "")
