"""The table of where the time of a run went."""

from __future__ import annotations

from attnbench.analysis.report.document import document
from attnbench.analysis.report.phases import phases
from attnbench.results.cells import cells
from builders import case, ok, run


def test_the_phases_of_all_jobs_by_backend() -> None:
    records = [
        ok(case(1024), "eager", 30.0, seconds=2.0, phases={"timing": 1.0, "check": 0.5}),
        ok(case(2048), "eager", 30.0, seconds=1.0, phases={"timing": 1.0}),
        ok(case(1024), "triton", 300.0, seconds=4.0, phases={"first call": 4.0}),
    ]
    (table,) = phases(cells([run(records)]))
    assert [column.heading for column in table.columns] == ["phase", "eager", "triton", "all", ""]
    assert table.rows == (
        ("first call", "0.0s", "4.0s", "4.0s", "57%"),
        ("timing", "2.0s", "0.0s", "2.0s", "29%"),
        ("check", "0.5s", "0.0s", "0.5s", "7%"),
        ("other", "0.5s", "0.0s", "0.5s", "7%"),
    )
    assert "Where 7.0s of jobs went" in table.title


def test_it_comes_with_the_seconds_only() -> None:
    measured = cells([run([ok(case(), "eager", 30.0, phases={"timing": 1.0})])])
    assert "phases" not in {getattr(b, "name", "") for b in document(measured, [measured[0].run]).blocks}
    blocks = document(measured, [measured[0].run], metrics=["seconds"]).blocks
    assert [b.name for b in blocks if hasattr(b, "name")] == ["phases"]
    assert phases(cells([run([ok(case(), "eager", 30.0)])])) == []  # a file of an older attnbench
