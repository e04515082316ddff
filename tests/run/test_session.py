"""The recording of a run in a new file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from attnbench.core.record import Run
from attnbench.run import session
from builders import run


@pytest.mark.parametrize("endings", [("",), ("-a", "-b")])
def test_a_name_that_another_run_of_the_same_second_took_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endings: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    choose, chosen = session.new_run_paths, []

    def while_another_begins(planned: Run, endings: Sequence[str]) -> list[Path]:
        chosen.extend(paths := choose(planned, endings))
        if len(chosen) == len(endings):
            session.create(planned, paths[0]).close()
        return paths

    monkeypatch.setattr(session, "new_run_paths", while_another_begins)
    with session.create(run([]), None, endings) as recording:
        assert recording.path == chosen[-len(endings)] != chosen[0]
