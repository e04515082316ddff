"""The work of commands on many run files grows with the number of files, counted in calls, not in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from attnbench.commands.command_line import command_line
from attnbench.results import run_file
from builders import case, ok, run

FEW, MANY = 12, 36
CELLS = [(case(causal=causal), backend) for causal in (False, True) for backend in ("eager", "triton")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the files of nightly runs of the same cells, without a change."""
    folder = tmp_path_factory.mktemp("nights")
    made = [folder / f"night-{night:02}.jsonl" for night in range(MANY)]
    for night, path in enumerate(made):
        tflops = 100 + night % 3  # runs differ by a little
        records = [ok(of, backend, tflops, round=number) for of, backend in CELLS for number in range(2)]
        path.write_bytes(run_file.encoded(run(records, started=f"2026-{1 + night // 28:02}-{1 + night % 28:02}")))
    return made


def command(*words: str) -> Callable[[Sequence[Path]], None]:
    def called(files: Sequence[Path]) -> None:
        done = CliRunner().invoke(command_line(words[0]), [*words, *map(str, files)])
        assert done.exit_code == 0, done.output

    return called


@pytest.mark.parametrize("name", ["report", "history", "compare", "recommend"])
def test_what_is_called_grows_as_the_files_do(files: Sequence[Path], name: str) -> None:
    asked = command(name)
    asked(files[:FEW])  # imports, and fills caches for all runs
    few, many = (calls(asked, files[:number]) for number in (FEW, MANY))
    assert many < 1.25 * MANY / FEW * few


def test_what_a_gate_calls_grows_as_the_cells_do(tmp_path: Path) -> None:
    def gate(files: Sequence[Path]) -> None:
        CliRunner().invoke(command_line("gate"), ["gate", *map(str, files)])

    counted = []
    for cells in (FEW, FEW, MANY):  # the first call imports
        names = [f"backend-{number}" for number in range(cells)]
        files = [tmp_path / f"{cells}-{tflops}.jsonl" for tflops in (100, 90)]
        for path, tflops in zip(files, (100, 90), strict=True):
            records = [ok(case(), name, tflops, round=number) for name in names for number in range(3)]
            path.write_bytes(run_file.encoded(run(records)))
        counted.append(calls(gate, files))
    assert counted[2] < 1.25 * MANY / FEW * counted[1]


def calls(of: Callable[[Sequence[Path]], None], files: Sequence[Path]) -> int:
    """Return the number of calls of attnbench's functions."""
    counted = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal counted
        counted += event == "call" and "attnbench" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        of(files)
    finally:
        sys.setprofile(None)
    return counted
