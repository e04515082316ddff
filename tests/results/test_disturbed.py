"""Other processes on the device: found before a run, during it, or in its figures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from attnbench.analysis.report.document import document
from attnbench.core.machine import Device
from attnbench.core.record import Measurement, Record, Run
from attnbench.results.cells import cells
from attnbench.results.disturbed import disturbance, doubt
from attnbench.results.export_rows import table_rows
from builders import CPU, H200, case, measurements, ok, run

TRAIN = ("train (pid 7)",)
IDLE = replace(H200, busy=0.0, matmul={"bf16": 750e12})
NONE = "Nothing here can be believed: "


def records(**of_the_last: Any) -> list[Record]:
    """Return records of two backends on two lengths, the last record with changes."""
    found = [ok(case(n), name, 300.0 + i) for n in (1024, 2048) for i, name in enumerate(("eager", "triton"))]
    return [*found[:-1], replace(found[-1], **of_the_last)]


def with_reading(name: str, unit: str, value: float, **more: Any) -> list[Record]:
    measured = {**records()[-1].measurements, name: Measurement(unit, (value,) * 3)}
    return records(measurements=measured, **more)


def said(found: Iterable[Record], device: Device = IDLE) -> str:
    return " ".join(doubt([run(found, device=device)]))


@pytest.mark.parametrize(
    ("found", "device", "why"),
    [
        (
            records(),
            replace(H200, busy=0.98, users=TRAIN),
            "when this began (98% of its time: train (pid 7))",
        ),
        (records(), replace(H200, busy=0.6), "a process that cannot be named here, as in a container"),
        (with_reading("busy", "", 0.9, others=TRAIN), IDLE, "90% of its time between cells: train (pid 7)"),
        (with_reading("busy", "", 0.9), H200, "90% of its time between cells)"),
        (
            [replace(one, others=TRAIN) for one in records()],
            IDLE,
            "another process used the GPU meanwhile (train (pid 7))",
        ),
        (with_reading("ceiling_matmul", "FLOP/s", 262e12), IDLE, "262 TFLOP/s, of 750 when this began"),
        (with_reading("ceiling_matmul", "FLOP/s", 262e12), H200, "262 TFLOP/s, of a peak of 989"),
    ],
)
def test_nothing_of_a_disturbed_run_wins(found: list[Record], device: Device, why: str) -> None:
    made = run(found, device=device)
    whole = cells([made])
    first, *others = document(whole, [made]).answer
    assert first.startswith(NONE)
    assert why in first
    assert first.endswith(" Measure again on a free GPU.")
    assert not any("triton" in sentence for sentence in others if "Fastest" in sentence)
    assert not any(figure.best for grid in document(whole, [made]).blocks for figure in getattr(grid, "figures", []))
    assert [cell.half_interval("latency") for cell in whole] == [None] * 4
    rows = list(table_rows(whole))
    assert all(row["disturbed"] and row["ci"] is None for row in rows)


@pytest.mark.parametrize(
    ("found", "device"),
    [
        (records(), H200),
        (records(), replace(H200, busy=0.01)),  # a desktop
        (with_reading("busy", "", 0.0), IDLE),
        (with_reading("ceiling_matmul", "FLOP/s", 700e12), IDLE),
        (with_reading("ceiling_matmul", "FLOP/s", 400e12, limits=("thermal",)), IDLE),  # the limit explains it
        (
            with_reading("ceiling_matmul", "FLOP/s", 390e12),
            replace(H200, busy=0.0),
        ),  # a locked clock
        (with_reading("ceiling_matmul", "FLOP/s", 1e12), replace(CPU, matmul={"bf16": 9e12})),
        ([replace(one, others=TRAIN) for one in with_reading("busy", "", 0.0)], IDLE),  # they hold memory throughout
        (records(), replace(CPU, busy=0.7)),
    ],
)
def test_a_quiet_run_is_not_accused(found: list[Record], device: Device) -> None:
    made = run(found, device=device)
    assert doubt([made]) == ()
    assert not any(cell.is_disturbed for cell in cells([made]))
    assert {row["disturbed"] for row in table_rows(cells([made]))} == {""}


def test_a_visitor_costs_the_cells_beside_which_it_was() -> None:
    found = records(others=TRAIN)
    assert said(found) == (
        "1 of 4 figures cannot be believed: another process used the GPU meanwhile (train (pid 7)). "
        "Measure again on a free GPU."
    )
    assert [cell.is_disturbed for cell in cells([run(found, device=IDLE)])] == [False, False, False, True]


def test_of_several_runs_those_are_counted() -> None:
    runs = [run(records(), device=IDLE), run(records(), device=replace(H200, busy=0.5))]
    (first,) = doubt(runs)
    assert first.startswith("Nothing of 1 run of 2 can be believed (2026-07-01 10:00): another process used cuda:0")


def test_a_loaded_cpu_is_said_and_its_figures_still_count() -> None:
    made = run(records(), device=replace(CPU, busy=1.4))
    assert doubt([made]) == (
        "Figures here are doubtful: other work loaded the CPU when this began (work for 140% of its cores).",
    )
    assert disturbance(made) == ""


def test_what_computes_several_times_as_fast_as_a_matmul_wins_nothing() -> None:
    ceiling = {"ceiling_matmul": [100e12]}
    stored, right = ok(case(), "triton", 300.0, n=20, **ceiling), ok(case(), "eager", 90.0, n=20)
    made = run([stored, right], device=CPU)
    other = ok(case(), "sdpa", 80.0, n=20)
    made = replace(made, records=(*made.records, other))
    fastest, left_out = document(cells([made]), [made]).answer[1:]
    assert fastest.startswith("Fastest of 1 case: eager")  # among the others
    assert left_out.startswith("Left out of every comparison: triton 1k d128 full fwd (3.00x as fast as a large")
    fast = replace(stored, measurements=ok(case(), "triton", 150.0, n=20, **ceiling).measurements)
    assert cells([run([fast, right])])[0].is_ranked


def test_what_is_slower_on_new_inputs_wins_nothing() -> None:
    pairs = {"new_inputs": [0.02] * 5, "same_inputs": [0.01] * 5}
    stored, right = ok(case(), "triton", 90.0, n=20), ok(case(), "eager", 30.0, n=20)
    stored = replace(stored, measurements={**stored.measurements, **measurements(**pairs)})
    made = run([stored, right, ok(case(), "sdpa", 29.0, n=20)], device=CPU)
    fastest, left_out = document(cells([made]), [made]).answer[1:]
    assert "triton" not in fastest
    assert "a call on new inputs takes 2.00x as long as the next: results are probably stored" in left_out
    assert not any(one.is_ranked for one in cells([made]) if one.backend == "triton")
    missed = replace(made, records=(replace(stored, measurements=right.measurements), right), started="2026-11-02")
    assert [one.is_ranked for one in cells([missed])] == [True, True]
    found = [one for one in cells([made, missed]) if one.backend == "triton"]
    assert len(found) == 2
    assert not any(one.is_ranked for one in found), "what one run shows holds in the others"


def test_cores_that_others_took_from_a_cpu_are_a_part_of_the_uncertainty() -> None:
    def found(*left: float) -> Run:
        """Return runs of a backend, one for each number of cores left to torch's 4 threads."""
        pairs = zip(("triton", "eager"), left, strict=False)
        timed = [ok(case(), name, 300.0, n=20, cores_left=[n]) for name, n in pairs]
        return run(timed, device=replace(CPU, threads=4))

    quiet, none_waits, little, much = (cells([found(n)])[0].half_interval("latency") for n in (8.0, 4.0, 3.8, 2.9))
    assert quiet == none_waits != 0.0
    assert little == pytest.approx(math.hypot(quiet, math.log(4 / 3.8)))
    assert much is None, "threads wait for one another: nobody knows by how much it is too slow"
    assert doubt([found(8.0, 3.8)]) == ()
    assert doubt([found(8.0, 2.9)]) == (
        "1 of 2 figures is hardly known: other work took cores from the kernels while they were timed. "
        "Measure again on a quieter machine.",
    )
