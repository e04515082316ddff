"""A report names the parts of a folder that this user may not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.commands.shared import read_runs
from attnbench.core.errors import UserError
from attnbench.results import run_file
from builders import case, ok, run
from denied import deny


def test_what_is_left_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in ("one", "two"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "a.jsonl").write_bytes(run_file.encoded(run([ok(case(), "eager", 1.0)], started=day)))
    deny(monkeypatch, tmp_path / "two")
    assert [head.started for _, head in read_runs([tmp_path])[0]] == ["one"]
    assert f"left out: {tmp_path}/two: Permission denied" in capsys.readouterr().err
    (tmp_path / "one" / "b.jsonl").symlink_to("nowhere")
    read_runs([tmp_path / "one"])
    assert "one/b.jsonl: No such file" in capsys.readouterr().err
    with pytest.raises(UserError, match="two: Permission denied"):
        read_runs([tmp_path / "two"])
