"""Results, measured now or read from run files, and the documents that commands make of them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from attnbench.api.arguments import NONE, SWITCH, TEXT, check_types, has_items, margin_of, path_of, texts_of
from attnbench.api.shown import Plot, Shown, Verdict
from attnbench.core.errors import UserError, one_of
from attnbench.core.files import GONE, RUN_FILES, working_folder, write_file
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.render.document import Document, with_damage
from attnbench.results import export_rows, run_file
from attnbench.results.cells import Cell
from attnbench.results.cells import cells as cells_of
from attnbench.results.given_again import without_copies

if TYPE_CHECKING:
    import pandas

Other: TypeAlias = "Results | str | Path | Iterable[str | Path]"  # results, or run files


@dataclass(frozen=True)
class Results:
    """The results of `measure`, or of some run files.

    runs: each once, with its records and their raw samples, in seconds, bytes and hertz.
    cells: each case on each backend and device, with all its rounds; `cell.value("tflops")` is a metric's median over
        the rounds, `cell.rows[0].samples` are seconds of single calls.
    problems: faults of single lines of the files, which were left out.
    files: the run file of each run, where it is known.

    >>> import attnbench
    >>> found = attnbench.measure("fake", device="fake", seqlen=1024, causal=True, out="doc.jsonl", progress=False)
    >>> found
    <Results: 4 cells of 1 run>
    >>> sorted({cell.status for cell in found.cells})
    ['ok']
    >>> str(found).splitlines()[0]
    '4 cells: 4 measured.'
    >>> found.cells[0].name
    'fake 1k d64 causal fwd'
    >>> len(found.table()), found.table().attrs["units"]["latency"]
    (4, 's')
    >>> print(found.recommend())  # doctest: +ELLIPSIS
    On Simulated GPU, of 4 cases: fake alone was right in 4: no choice...
    >>> found.plot("latency", panel="d128")
    <Plot: Latency; Simulated GPU, bf16>
    >>> before = attnbench.load(found.save("before.jsonl"))
    >>> found.gate(before, margin="5%", inconclusive="pass").exit_code
    0
    >>> again = attnbench.measure("fake", device="fake", seqlen=1024, causal=True, out="again.jsonl", progress=False)
    >>> print(found.compare(again))  # doctest: +ELLIPSIS
    These are 2 runs of one model and setup...
    >>> found.to_csv("found.csv").partition(",")[0]
    'device'
    """

    runs: tuple[Run, ...]
    cells: tuple[Cell, ...]
    problems: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        damaged = f", {count(len(self.problems), 'problem')}" if self.problems else ""
        return f"<Results: {count(len(self.cells), 'cell')} of {count(len(self.runs), 'run')}{damaged}>"

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return self.report()._repr_mimebundle_()

    def table(self) -> pandas.DataFrame:
        """Return one row for each cell and round: the case's fields, how it ended, and every metric in its unit.

        `table().attrs["units"]` maps each metric to its unit, "" for a ratio. `attnbench report -m help` explains them.
        """
        return export_rows.dataframe(self.cells)

    def report(self, *metrics: str, by: str | None = None) -> Shown:
        """Return what `attnbench report` shows: the fastest backends, a table by length, and cautions.

        `metrics`: in place of TFLOP/s, by name, as "latency" or "memory_peak"; `by`: the axis of the columns, as
        "dtype". Raises UserError for unknown ones.
        """
        from attnbench.analysis.report.document import document
        from attnbench.analysis.report.grids import BY, BY_OPTION
        from attnbench.results.metrics import METRICS

        for metric in metrics:
            one_of("metric", metric, METRICS)
        check_types({"by": by}, {"by": (TEXT, NONE)})
        axis = None if by is None else one_of("by", BY_OPTION.get(by, by), BY)
        return self._shown(document(self.cells, self.runs, metrics=metrics, by=axis, files=self.files))

    def compare(self, *others: Other, to: str | None = None, price: Sequence[str] = ()) -> Shown:
        """Return what `attnbench compare` shows of the machines of these and other results, which may be run files.

        `to`: the machine that the others are compared with; `price`: as "h200=3.40/h". Raises UserError.
        """
        from attnbench.analysis.compare.document import document
        from attnbench.analysis.compare.findings import compare

        check_types({"to": to}, {"to": (TEXT, NONE)})
        every = [self, *map(results_of, others)]
        found = without_copies(pair for one in every for pair in zip(one._names(), one.runs, strict=True))
        files, runs = [file for file, _ in found], [run for _, run in found]
        return self._shown(document(compare(files, runs, to, (), texts_of("price", price), None, None, None)))

    def gate(
        self,
        baseline: Other,
        *,
        metrics: str | Sequence[str] = (),
        margin: float | str | Sequence[str] = (),
        expect: str | Sequence[str] = (),
        inconclusive: Literal["pass", "fail"] = "fail",
        missing: Literal["pass", "fail"] = "fail",
        allow_wrong: bool = False,
    ) -> Verdict:
        """Judge these results, of one run, against a baseline, cell by cell, as `attnbench gate` does.

        `baseline`: results, run files, or the name of a saved baseline; `margin`: the change that matters, as "3%" (of
        latency; also 0.03) or "memory_peak=5%"; `expect`: differences that are meant, as "torch". Raises UserError.
        """
        from attnbench.analysis.baseline.baseline_files import pick
        from attnbench.analysis.gate.document import document_of
        from attnbench.analysis.gate.findings import CHOICES, Request, judge
        from attnbench.analysis.gate.margins import DEFAULT, RULES, margins

        check_types({"allow_wrong": allow_wrong}, {"allow_wrong": (SWITCH,)})
        if len(self.runs) != 1:
            raise UserError(f"gate judges the results of one run; these are of {len(self.runs)}")
        if isinstance(baseline, (str, Path)):
            path_of(baseline, "baseline")
            baseline = pick(Path(baseline), self.runs[0])
        earlier = results_of(baseline)
        before = earlier.runs
        if lost := earlier._lost():
            raise UserError(f"{lost[0]}, and the baseline lacks what is lost; restore the file, or measure again")
        if not before:
            raise UserError("baseline: these results hold no run to compare with")
        asked = Request(
            tuple(one_of("metric", one, RULES) for one in texts_of("metrics", metrics)) or DEFAULT,
            margins([f"{margin_of(margin):%}"] if isinstance(margin, Real) else texts_of("margin", margin)),
            tuple(texts_of("expect", expect)),
            one_of("inconclusive", inconclusive, CHOICES),
            one_of("missing", missing, CHOICES),
            allow_wrong,
        )
        judgement = judge(before[0], self.runs[0], asked, before[1:])
        judgement.check_whole(self.problems[0] if self.problems else "", is_cut_off=not self._lost())
        return Verdict(document_of(judgement), judgement)

    def recommend(self) -> Shown:
        """Return what `attnbench recommend` shows: the fastest right backend of each case, its gain, code to paste."""
        from attnbench.analysis.recommend.asked_for import competing
        from attnbench.analysis.recommend.document import document

        return self._shown(document(list(cells_of(self.runs, by_machine=True)), competing(None), every=True))

    def plot(self, figure: str = "throughput", panel: str = "") -> Plot:
        """Return a figure of the page: throughput, utilization, speedup, latency, memory, ...

        `panel`: words of the titles of panels, as "d128 causal", to draw those alone. Raises UserError.
        """
        from attnbench.render.html import image
        from attnbench.render.html.charts import charts

        check_types({"figure": figure, "panel": panel}, {"figure": (TEXT,), "panel": (TEXT,)})
        return Plot(image.figure(charts(self.cells), figure, panel))

    def save(self, path: str | Path) -> Path:
        """Write the run, of which there must be one, as a run file, and return its path. Raises UserError."""
        path = path_of(path)
        if len(self.runs) != 1:
            raise UserError(f"a run file holds one run; these are {len(self.runs)}")
        if lost := self._lost():
            raise UserError(f"{lost[0]}; restore the file, or measure again, before it is saved")
        if path.suffix != ".jsonl":
            raise UserError(f"{path}: the name of a run file ends with .jsonl")
        if path.exists():
            raise UserError(f"{path} is there already and is not overwritten; choose another name")
        return write_file(path, run_file.encoded(self.runs[0]))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return one row for each cell and round as CSV, every metric in its unit; with a path write it there too."""
        return self._put(path, lambda: self._complete("csv").to_csv())

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the rows of `to_csv` as JSON; with a path write it there too."""
        return self._put(path, lambda: self._complete("json").to_json())

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Return the report as Markdown; with a path write it there too."""
        return self._put(path, lambda: self.report().to_markdown())

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the report as a page with figures and a table to filter; with a path write it there too."""
        return self._put(path, lambda: self._complete("html").to_html())

    def to_parquet(self, path: str | Path) -> Path:
        """Write the rows of `to_csv` as Parquet (needs pyarrow), and return the path. Raises UserError."""
        from attnbench.render.export import trackers

        return write_file(self._export(path), trackers.content("parquet", self.cells))

    def to_tracker(self, format: str, path: str | Path | None = None) -> str:
        """Return the results in another tool's format: "pytest-benchmark", "bmf" (Bencher), "github-action-benchmark".

        With a path write it there too. Raises UserError for another format, and without a measured cell.
        """
        from attnbench.render.export import trackers

        one_of("format", format, trackers.JSON_FORMATS)
        return self._put(path, lambda: str(trackers.content(format, self.cells)))

    def _lost(self) -> list[str]:
        """Return the problems by which records are lost: all but a last line that is cut off."""
        return [problem for problem in self.problems if not problem.endswith(run_file.INTERRUPTED)]

    def _shown(self, document: Document) -> Shown:
        """Return a document with a caution on the files of which records are lost."""
        return Shown(with_damage(document, {Path(one.partition(":")[0]): one for one in self._lost()}))

    def _names(self) -> tuple[Path, ...]:
        """Return a name for each run: the name of its file, where it is known."""
        return self.files or tuple(Path(f"run-{number}.jsonl") for number, _ in enumerate(self.runs))

    def _complete(self, form: str) -> Shown:
        """Return the report with the parts that other formats have beyond those of a terminal."""
        from attnbench.analysis.report.document import complete

        return Shown(complete(self.report().document, {form}, self.cells, self.runs, self._names()))

    def _export(self, path: str | Path) -> Path:
        """Return the path of an export. Raises UserError for a run file, which would lose its samples."""
        found = path_of(path)
        is_input = any(found.exists() and file.exists() and found.samefile(file) for file in self.files)
        if is_input or os.path.realpath(found).endswith(RUN_FILES):
            raise UserError(f"{found}: a run file, whose samples would be lost; give the export another name")
        return found

    def _put(self, path: str | Path | None, made: Callable[[], str]) -> str:
        to = None if path is None else self._export(path)
        text = made()
        if to is not None:
            write_file(to, text)
        return text


def of_runs(runs: Sequence[Run], files: Sequence[Path] = ()) -> Results:
    """Return the results of some runs; `files` are the runs' files."""
    return Results(tuple(runs), tuple(cells_of(runs)), (), tuple(files))


def results_of(given: Other) -> Results:
    """Return results unchanged, or the results of run files. Raises UserError."""
    return given if isinstance(given, Results) else load(given)


def load(paths: str | Path | Iterable[str | Path], *, convention: Convention = "exact") -> Results:
    """Read run files: a path, a pattern such as "results/*.jsonl" ("**" reaches into all folders), or several of these.

    A run that is given several times, as through links, as a copy, as a part or as its own baseline, counts once.
    `convention` says how FLOPs are counted: "exact" (unmasked pairs) or "fa" (as papers print: half for causal).
    Raises UserError for a pattern that fits no file, and for a file that is no run file.
    """
    one_of("convention", convention, get_args(Convention))
    given: list[Any] = [paths] if isinstance(paths, str | Path | bytes) or not has_items(paths) else [*paths]
    for path in given:
        path_of(path)
    if not working_folder() and not all(os.path.isabs(os.path.expanduser(one)) for one in given):
        raise UserError(GONE)
    files: dict[str, Path] = {}
    for path in (path for one in given for path in _files(str(one))):
        files.setdefault(os.path.realpath(path), path)
    with run_file.without_collector():
        read = [run_file.read(path) for path in files.values()]
    found = without_copies((file, run) for file, (run, _) in zip(files.values(), read, strict=True))
    runs = tuple(run for _, run in found)
    problems = tuple(problem for _, problems in read for problem in problems)
    return Results(runs, tuple(cells_of(runs, convention)), problems, tuple(file for file, _ in found))


def _files(pattern: str) -> list[Path]:
    path = Path(os.path.expanduser(pattern))
    if not glob.has_magic(pattern) or os.path.exists(path):
        return [path]
    there = next(folder for folder in path.parents if os.path.exists(folder))  # its name may have brackets
    below = re.sub(r"(?<![^/])(\*\*/)+", "**/", os.path.relpath(path, there))  # each ** searches all folders again
    named = below.split("/")
    found = sorted(  # Path.glob follows no link at **, so that a circle of links has an end
        file
        for file in there.glob(below)
        if file.is_file() and not any(part[:1] == "." and part not in named for part in file.relative_to(there).parts)
    )
    if not found:
        raise UserError(f"no file fits {pattern!r}; give run files, as attnbench run writes them to results/")
    return found
