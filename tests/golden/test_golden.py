"""Each expected output of golden.py is unchanged, and the last run of every kind in results/ can be reported."""

from __future__ import annotations

import pytest

from attnbench.results import run_file
from golden import COMMANDS, EXPECTED, FIGURES, FILES, REPORTED, ROOT, in_the_root, output, run


@pytest.mark.parametrize("name", [*COMMANDS, FIGURES])
def test_what_is_printed_for_a_real_run(name: str) -> None:
    assert output(name) == (EXPECTED / name).read_text(encoding="utf-8")


LAST = {name.partition("-")[2].partition("-")[2]: name for name in sorted(FILES)}  # of each kind and GPU


@pytest.mark.parametrize("name", sorted({*LAST.values()} - {*REPORTED}))
def test_every_other_kind_of_run_is_reported(name: str) -> None:
    with in_the_root():
        cells = ["-m", "tflops"] if "-claims-" in name else []  # else the claims that it has figures of
        found = run(["report", FILES[name], "-f", "md", *cells]).replace("\\_", "_")
    backends = {record.backend for record in run_file.read(ROOT / FILES[name])[0].records}
    assert backends
    assert {backend for backend in backends if backend not in found} == set()


def test_every_expected_output_is_asked_for() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == {*COMMANDS, FIGURES}
