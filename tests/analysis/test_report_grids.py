"""Cells laid out as grids: rows, columns, titles, marks, and omissions."""

from __future__ import annotations

from dataclasses import replace

from report_text import shown

from attnbench.analysis.report.grids import FRAME, grids
from attnbench.results.cells import cells
from builders import H200, SIX, case, decode, ok, run


def test_latencies_tie_within_their_uncertainty() -> None:
    """Latencies tie within their uncertainty: 0.67 % each on an H200, so 0.94 % of a difference."""

    def row(*speeds: float) -> str:
        records = [ok(case(), name, t) for name, t in zip(SIX, speeds, strict=False)]
        return next(line for line in shown([run(records)]).splitlines() if line.startswith("    1k"))

    assert row(300.2, 298.0, 200.0, 100.0).count("*") == 2
    assert row(300.2, 297.0, 200.0, 100.0).count("*") == 1
    assert row(300.2, 298.0).count("*") == 2
    assert row(300.0).count("*") == 0


def test_a_grid_with_several_limits_names_the_unit_of_a_row_or_column() -> None:
    """Of causal cases of 16k tokens, the short ones wait for memory: their figures are in GB/s, as their labels say."""
    lengths = [case(256 * n, causal=True, batch=64 // n) for n in (1, 4, 16)]
    records = [ok(c, name, 300) for c in lengths for name in SIX[:2]]
    (rows, *_) = grids(cells([run(records)]))
    labels = [label for label, _ in rows.grids[0].rows]
    assert [label.endswith("GB/s") for label in labels] == [True, False, False]
    (columns, *_) = grids(cells([run(records)]), by="seqlen")
    assert [label.endswith("GB/s") for label in columns.grids[0].columns] == [True, False, False]
    (named, *_) = grids(cells([run(records)]), ("tflops",))
    assert not any(label.endswith("GB/s") for label, _ in named.grids[0].rows)


def test_watts_tie_within_the_uncertainty_of_the_energy() -> None:
    def stars(*watts: float) -> int:
        records = [
            ok(case(), name, 300, sustained=[1e-3], sustained_power=[w], sustained_power_error=[0.02])
            for name, w in zip(SIX, watts, strict=False)
        ]
        lines = shown([run(records)], metrics=("sustained_power",)).splitlines()
        return next(line for line in lines if line.startswith("    1k")).count("*")

    assert stars(600, 606, 700) == 2
    assert stars(600, 640, 700) == 1


def test_a_figure_that_is_hardly_known_has_a_mark_and_no_star() -> None:
    """A latency that is hardly known has a mark; where it may be the best, no latency has a star."""
    scattered = ok(case(), "fa2", 100.0, time=[1e-3 * n for n in (0.5, 0.7, 1, 1, 1.4, 2)])
    records = [ok(case(), "triton", 300.0), scattered, ok(case(), "eager", 50.0)]
    (line,) = [line for line in shown([run(records)]).splitlines() if line.startswith("    1k")]
    assert line.split() == ["1k", "50.0", "5%", "*300", "30%", "137?", "14%"]
    best = ok(case(), "fa2", 100.0, time=[1e-9, 1e-5, 3e-2])
    (line,) = [line for line in shown([run([records[0], best])]).splitlines() if line.startswith("    1k")]
    assert "*" not in line
    assert line.count("?") == 1


def test_other_figures_tie_as_they_are_written_and_a_star_on_most_is_none() -> None:
    def stars(*mib: float) -> int:
        records = [ok(case(), name, 300, memory_peak=2**20 * n) for name, n in zip(SIX, mib, strict=False)]
        shown_rows = shown([run(records)], metrics=("memory_peak",)).splitlines()
        return next(line for line in shown_rows if line.startswith("    1k")).count("*")

    assert stars(64, 64, 80, 90) == 2
    assert stars(64, 64, 80) == 0


def test_where_memory_bounds_the_share_is_of_the_roofline() -> None:
    records = [
        ok(case(16384), "sdpa-flash", 300.0),
        ok(case(16384), "triton", 350.0),
        decode(16384, "sdpa-flash", 9.0),
        decode(16384, "triton", 12.0),
    ]
    text = shown([run(records)], 140, metrics=("tflops",))
    # With 4 query heads a key head there are 4 FLOPs a byte: 12 TFLOP/s move 3 TB/s.
    assert "   16k     9.00 47%m    *12.0 63%m\n" in text
    assert "   16k   300    30%    *350   35%\n" in text
    assert "roofline" not in shown([run(records[:2])])
    unknown = shown([run(records, device=replace(H200, name="GPU of tomorrow"))])
    assert "roofline" not in unknown


def test_cells_whose_clock_was_held_down_are_marked() -> None:
    records = [
        ok(case(1024), "eager", 32.1, clock_held=1.98e9, memory_peak=2**20),
        ok(case(1024), "triton", 300.0, clock_held=1.6e9, memory_peak=2**20),
        ok(case(2048), "eager", 32.15, clock_held=1.7e9, memory_peak=2**20),
        ok(case(2048), "triton", 301.0, clock_held=1.97e9, memory_peak=2**20),
    ]
    text = shown([run(records)], 120)
    assert "* best of its row, ~ clock held down" in text
    assert "    1k   32.1  3%   *300~ 30%\n    2k   32.1~ 3%   *301  30%\n" in text
    assert "1.00 MiB~" not in text
    assert "Clock held down in 2 of 4 cells, SM clock 1600-1700 of 1980 MHz." in text


def test_tables_end_where_nobody_would_read_on() -> None:
    """The grids of a metric end after a number of lines, but the first grid is always shown."""
    records = [ok(case(batch=batch), "triton", 300.0) for batch in range(1, 41)]
    found = cells([run(records)])
    (every,) = grids(found)
    assert len(every.grids) == 40
    assert every.more == ""
    (some,) = grids(found, lines=10 * (1 + FRAME))
    assert some.grids == every.grids[:10]
    assert some.more.startswith("30 more tables not shown: attnbench report --all shows every table")
    (first,) = grids(found, lines=1)
    assert len(first.grids) == 1


def test_a_metric_that_no_cell_has_is_shown_only_where_it_was_asked_for() -> None:
    found = cells([run([ok(case(), "triton", 300.0)])])
    assert [g.heading.partition(",")[0] for g in grids(found)] == ["Throughput"]
    (asked,) = grids(found, ("memory_peak",))
    assert (asked.heading, asked.grids) == ("Peak memory added by one call", ())


def test_compiling_is_said_above_first_calls() -> None:
    kept = run([ok(case(), "triton", 300.0, first_call=2.0)])
    fresh = replace(kept, policy=replace(kept.policy, caches="fresh"))
    (found,) = grids(cells([fresh]), ("first_call",))
    assert found.heading == "First call (each in a new process, no kernel compiled before)"
    (found,) = grids(cells([fresh, replace(kept, started="2026-07-02")]), ("first_call",))
    assert "in other runs kernels that were compiled before may be reused" in found.heading
