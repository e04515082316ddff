"""Reports of many records: the same figures as of few, in time that grows with the records and no faster."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from multiplied import multiply
from rich.console import Console

import attnbench
from attnbench.analysis.compare import compare as comparing
from attnbench.analysis.compare import write_terminal as comparison
from attnbench.analysis.gate.gate import Request, judge
from attnbench.analysis.gate.margins import DEFAULT
from attnbench.analysis.summary import tables
from attnbench.analysis.summary.contents import contents
from attnbench.core import stats
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.report import markdown, terminal
from attnbench.report.export import flat_rows
from attnbench.report.html import html_page
from attnbench.results import apart, batch, derive, run_file
from attnbench.results.cells import cells
from attnbench.results.columns import COMPARE, ERRORS, REPORT
from attnbench.results.metrics import METRICS, value
from builders import case, ended, measurements, ok, run

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))
SIZES = (500, 2000)
PACKAGE = str(Path(attnbench.__file__).parent)
SOURCE = next(path for path in RESULTS if "default" in path.stem)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """many-500.jsonl and many-2000.jsonl."""
    where = tmp_path_factory.mktemp("many")
    for records in SIZES:
        multiply(SOURCE, where / f"many-{records}.jsonl", records, rounds=2)
    return where


def table(run: Run) -> None:
    terminal.render(Console(file=io.StringIO(), width=120), contents([run]))


REPORTS: dict[str, Callable[[Run], object]] = {
    "table": table,
    "csv": lambda run: flat_rows.csv([run]),
    "gate": lambda run: judge(run, run, Request(DEFAULT)),
}


def lines_run(what: Callable[[], object]) -> int:
    """Lines of attnbench's Python that it executes, each turn of a loop or comprehension anew: no other work on the
    machine changes that."""
    count = 0

    def line(frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG001
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG001
        return line if PACKAGE in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        what()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("report", REPORTS)
def test_work_grows_with_the_records_and_no_faster(folder: Path, report: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FEW", 0)

    def work(records: int) -> int:
        return lines_run(lambda: REPORTS[report](run_file.read(folder / f"many-{records}.jsonl")[0]))

    work(SIZES[1])  # what is kept of cases is no matter of size
    assert work(SIZES[1]) < 1.1 * SIZES[1] / SIZES[0] * work(SIZES[0])


# Lines of attnbench's Python that a command may execute for each record, the rest being in libraries. Before
# records were read by column these were 372, 227 and 633.
COMMANDS: dict[str, tuple[int, Callable[[Path, Path], object]]] = {
    "gate": (80, lambda a, b: judge(*(run_file.read(p, batch.ahead_of(DEFAULT))[0] for p in (a, b)), Request(DEFAULT))),
    "compare": (118, lambda a, b: compared([a, b], [run_file.read(p, COMPARE)[0] for p in (a, b)])),
    "report": (305, lambda a, b: [table(run_file.read(p, REPORT)[0]) for p in (a, b)]),
}


def compared(paths: Sequence[Path], runs: Sequence[Run]) -> None:
    comparison.render(Console(file=io.StringIO(), width=120), comparing.compare(paths, runs, comparing.Request()))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_costs_few_steps(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """speed_of_commands.py has the seconds, which other work on a machine changes."""
    monkeypatch.setattr(batch, "FEW", 0)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for seed, path in enumerate(paths):
        multiply(SOURCE, path, SIZES[1], rounds=2, seed=seed)
    most, run_it = COMMANDS[command]
    run_it(*paths)  # what is kept of cases is no matter of records
    assert lines_run(lambda: run_it(*paths)) < most * 2 * SIZES[1]


def test_reading_costs_less_than_parsing_as_the_standard_library_does(folder: Path) -> None:
    path = folder / "many-2000.jsonl"
    content = path.read_bytes().splitlines()

    def spent(what: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            what()
            times.append(time.process_time() - start)
        return min(times)

    assert spent(lambda: run_file.read(path)) < spent(lambda: [json.loads(line) for line in content])


def figures(of: Run, names: Sequence[str]) -> list[tuple[object, ...]]:
    """Everything that is computed for all records at once, and what follows from it."""
    found = cells([of])
    each = [(c.key, c.status, c.reason, c.held_down, c.spans, *(c.value(name) for name in names)) for c in found]
    columns, rows = found[0].columns, [i for c in found for i in c.rows]
    over = [batch.clocks(columns, rows), sorted(batch.spreads("latency", columns, [c.rows for c in found]))]
    return [*each, *over, *(c.rounds(name) for c in found for name in names if name in batch.FORMULAS)]


OF_LATENCY = [name for name, metric in METRICS.items() if isinstance(metric.derive, derive.OfLatency)]
NAMES = (*batch.FORMULAS, "error", *OF_LATENCY)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("names", [(), batch.ahead_of(NAMES), (*REPORT, ERRORS)], ids=["later", "ahead", "report"])
def test_many_at_once_have_the_figures_of_one_by_one(
    path: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: of Records one by one, and of a file by column, whatever is read ahead."""
    run, _ = run_file.read(path)
    one_by_one = figures(replace(run, records=tuple(run.records)), NAMES)
    monkeypatch.setattr(batch, "FEW", 0)
    assert figures(run_file.read(path, names)[0], NAMES) == one_by_one


def test_odd_records_have_the_same_figures_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No samples, few, all zero or alike, infinite, spans, fp8, dropout, failures between rounds."""
    dice = random.Random(1)
    records = []
    for which in (case(dtype="bf16"), case(dtype="fp8"), case(dropout_p=0.1), case(window_size=(255, 0), softcap=30.0)):
        for backend, i in itertools.product(("eager", "triton"), range(40)):
            if not i % 9:
                records.append(ended(which, backend, "oom", "out of memory", round=i))
                continue
            n = dice.choice((0, 1, 2, 5, 6, 7, 20, 101))
            times = dice.choice(
                ([0.0] * n, [1e-5] * n, [dice.uniform(1e-6, 3e-4) for _ in range(n)], [*range(n)], [1.0, math.inf])
            )
            some = {
                "time": times,
                "span": [t * 0.9 for t in times[: n // 2]],
                "enqueue": [dice.uniform(1e-6, 1e-5) for _ in range(i % 4)],
                "memory_peak": [dice.randrange(2**30) for _ in range(i % 3)],
                "clock_held": [dice.uniform(1e9, 2e9) for _ in range(i % 5)],
            }
            taken = measurements(**{name: found for name, found in some.items() if dice.random() < 0.8})
            timer = dice.choice(("events", "cupti"))
            limits = dice.choice(((), ("power",)))
            records.append(replace(ok(which, backend, 1.0, round=i, timer=timer, limits=limits), measurements=taken))
    of_one = run(records)
    path = tmp_path / "odd.jsonl"
    path.write_bytes(run_file.encoded(of_one))
    one_by_one = figures(of_one, NAMES)
    monkeypatch.setattr(batch, "FEW", 0)
    assert figures(run(map(replace, records)), NAMES) == one_by_one
    for ahead in ((), REPORT, batch.ahead_of(NAMES)):
        assert figures(run_file.read(path, ahead)[0], NAMES) == one_by_one


def test_what_derives_from_the_latency_alone_is_that_of_whole_records() -> None:
    of_one, _ = run_file.read(SOURCE)
    odd = ok(case(), "triton", 1.0)
    endless = replace(odd, measurements=measurements(time=[1.0, math.inf]), round=1)
    for cell in cells([of_one, run([odd, endless])]):
        for name in OF_LATENCY if cell.status == "ok" else ():
            found = [value(name, r, cell.context(r.round)) for r in cell.records]
            known = [v for v in found if v is not None]
            assert cell.value(name) == (stats.median(known) if known else None)


def test_tables_end_where_nobody_would_read_on(folder: Path) -> None:
    run, _ = run_file.read(folder / "many-2000.jsonl")
    short, long = (markdown.render(contents([run], lines=lines)) for lines in (100, math.inf))
    assert "more tables not shown: attnbench report --all" in short
    assert "not shown" not in long
    assert short.count("\n") < long.count("\n") - 100
    some, every = (tables.sections(cells([run]), lines=lines)[0] for lines in (100, float("inf")))
    assert 0 < len(some.tables) == len(every.tables) - some.left


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The processes that apart.py has begun: of three that there can be at a time."""
    if sys.platform != "linux":
        pytest.skip("elsewhere one process does all")
    found: list[object] = []
    begin = apart._begin
    monkeypatch.setattr(apart, "processes", lambda: 3)
    monkeypatch.setattr(apart, "_begin", lambda *given: found.append(given) or begin(*given))
    return found


def test_two_processes_make_the_contents_that_one_makes(monkeypatch: pytest.MonkeyPatch, begun: list[object]) -> None:
    runs = [run_file.read(path)[0] for path in RESULTS if "default" in path.stem or "fp8" in path.stem]
    here = contents(runs, metrics=("tflops", "latency"))
    assert not begun
    monkeypatch.setattr("attnbench.analysis.summary.contents.MANY", 1)
    assert contents(runs, metrics=("tflops", "latency")) == here
    assert len(begun) == 1
    assert here.notes
    assert here.cautions
    with pytest.raises(UserError, match='no metric "speed"'):
        contents(runs, metrics=("speed",))


@pytest.mark.parametrize("write", [flat_rows.csv, flat_rows.json_text])
def test_three_processes_write_the_rows_that_one_writes(
    write: Callable[[Sequence[Run]], str], monkeypatch: pytest.MonkeyPatch, begun: list[object], folder: Path
) -> None:
    runs = [run_file.read(folder / f"many-{SIZES[0]}.jsonl")[0]]
    here = write(runs)
    assert not begun
    monkeypatch.setattr(flat_rows, "LEAST", 20)
    assert write(runs) == here
    assert len(begun) == 2
    assert write([replace(runs[0], records=())]) == write([])


def test_a_page_of_too_many_cells_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = run_file.read(folder / "many-2000.jsonl")
    monkeypatch.setattr(html_page, "MOST", 100)
    with pytest.raises(UserError, match=r"^--html: a page of \d+ cells would be too slow to use \(100 at most\)"):
        html_page.page([run], [folder])
