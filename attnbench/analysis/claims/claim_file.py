"""Claims as data: what a source printed, of which setting, and how exactly it can be read (docs/claims.md)."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ValidationError

from attnbench.analysis.claims import SUITE
from attnbench.core import gpus
from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import Convention
from attnbench.core.text import listed
from attnbench.results.metrics import METRICS
from attnbench.run import yaml_file
from attnbench.run.axes import STRICT, Axes, expand, overlay
from attnbench.run.select import select_backends
from attnbench.run.shipped_suites import shipped_claims
from attnbench.run.suite import Block, Settings, Suite

ANY_GPU = "any"
TOLERANCES = {"text": 0.05, "table": 0.05, "figure": 0.10}  # where a claim names none
UNITS = {"": 1.0, "%": 0.01, "x": 1.0, "ms": 1e-3, "us": 1e-6, "s": 1.0, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20}
_NUMBER = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<unit>%|x|ms|us|s|MB|GB|MiB|)")

Word = Annotated[str, BeforeValidator(str)]
Kind = Literal["equal", "range", "up to", "at least"]


@dataclass(frozen=True)
class Printed:
    """A printed figure: its text, and its value, range or bound in the metric's unit."""

    text: str
    low: float
    high: float
    kind: Kind


def parse_printed(text: str) -> Printed:
    """Return the value of a printed figure: 616, 8.42 ms, 1.5-2.0, to 740, over 1. Raises UserError."""
    kind: Kind = "equal"
    rest = text.strip()
    for word, named in (("to ", "up to"), ("over ", "at least")):
        if rest.startswith(word):
            kind, rest = named, rest.removeprefix(word)  # type: ignore[assignment]
    parts = rest.split("-") if kind == "equal" else [rest]
    found = [_NUMBER.fullmatch(part.strip()) for part in parts]
    if not all(found) or len(parts) > 2:
        raise UserError(f"{text!r} is no printed figure; as in 616, 8.42 ms, 1.5-2.0, to 740, over 1")
    units = [of["unit"] for of in found if of]
    values = [float(of["number"]) * UNITS[of["unit"] or units[-1]] for of in found if of]
    if len(values) == 2 and values[0] < values[1]:
        return Printed(text, values[0], values[1], "range")
    if len(values) == 2 or not values[0] > 0:
        raise UserError(f"{text!r} is no range of figures above 0, the smaller first")
    return Printed(text, values[0], values[0], kind)


class Claim(BaseModel):
    """One printed result: what it says, the setting, and its figures by backend, or why it cannot be tried."""

    model_config = STRICT

    id: Word
    what: Word
    where: Word = ""
    read: Literal["text", "table", "figure"] = "text"
    axes: Axes = Axes()
    gpu: Word | None = None
    metric: Word = "tflops"
    printed: dict[str, Word] = {}
    ratios: dict[str, Word] = {}
    tolerance: Word | None = None
    why: Word = ""
    cannot: Word | None = None


class ClaimFile(BaseModel):
    """A source and its claims, validated."""

    model_config = STRICT

    source: Word
    address: Word
    checked: Word
    gpu: Word = ANY_GPU
    flops: Convention = "exact"
    versions: dict[str, Word] = {}
    axes: Axes = Axes()
    claims: list[Claim]


@dataclass(frozen=True)
class Figure:
    """One figure of a claim: the metric of a backend, or the factor by which it is better than another's.

    `backends` and `over` are names, of which the first that was measured counts.
    """

    metric: str
    backends: tuple[str, ...]
    over: tuple[str, ...]  # () for the metric itself
    printed: Printed
    tolerance: float

    @property
    def is_ratio(self) -> bool:
        """Whether it is a ratio, which may be tried on any GPU."""
        return bool(self.over)

    @property
    def name(self) -> str:
        """The figure as a table names it: "fa3", "fa3 / fa2"."""
        return " / ".join(names[0] for names in (self.backends, self.over) if names)


@dataclass(frozen=True)
class Setting:
    """A claim with the settings that its file gives for all claims: cases, figures, and where it was printed."""

    paper: str  # the name of the claim's file
    file: ClaimFile
    claim: Claim

    @property
    def gpu(self) -> str:
        """The GPU of the printed figures; "any" where it does not matter."""
        return self.claim.gpu or self.file.gpu

    @cached_property
    def axes(self) -> Axes:
        """The axes of the claim over those of its file."""
        return overlay(self.file.axes, self.claim.axes)

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases that the claim is measured on; empty where the claim cannot be tried."""
        return () if self.claim.cannot else tuple(expand(self.axes, None, None))

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The figures of the claim: the printed values, then the printed ratios."""
        claim = self.claim
        tolerance = _share(claim.tolerance) if claim.tolerance else TOLERANCES[claim.read]
        metric = claim.metric
        absolute = [
            Figure(metric, _names(who), (), parse_printed(text), tolerance) for who, text in claim.printed.items()
        ]
        ratios = []
        for who, text in claim.ratios.items():
            ours, theirs = map(_names, who.split("/"))
            ratios.append(Figure(metric, ours, theirs, parse_printed(text), tolerance))
        plain = [figure for figure in absolute if figure.printed.kind == "equal"]
        if not ratios:
            ratios = [_ratio(other, plain[0]) for other in plain[1:]]
        return (*absolute, *ratios)

    def figures_for(self, gpu: str) -> tuple[Figure, ...]:
        """Return the figures that can be judged on a GPU model: ratios on any, metrics only on the printed model."""
        return tuple(figure for figure in self.figures if figure.is_ratio or self.gpu in (ANY_GPU, gpu))

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of all backends of the claim's figures."""
        return _backends(self.figures)


def _backends(figures: Iterable[Figure]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for figure in figures for name in (*figure.backends, *figure.over)))


def _ratio(figure: Figure, over: Figure) -> Figure:
    """Return the ratio of two printed figures: how many times better the first is."""
    ours, theirs = figure.printed.low, over.printed.low
    value = ours / theirs if METRICS[figure.metric].better == "higher" else theirs / ours
    printed = Printed(f"{value:.3g}x", value, value, "equal")
    return Figure(figure.metric, figure.backends, over.backends, printed, 1.4 * figure.tolerance)  # of two readings


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split("|"))


def _share(text: str) -> float:
    """Return a share of 0 to 1, of a text such as "5%"."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = math.nan
    if not percent or rest or not 0 <= share < 1:
        raise UserError(f"tolerance: {text!r} is no share, as in 5%")
    return share


def load(papers: Sequence[str] = ()) -> list[Setting]:
    """Return the claims of papers: names or patterns of shipped files, or paths of YAML files; all by default.

    Raises UserError that says what is wrong and where.
    """
    shipped = shipped_claims()
    files: dict[str, Path] = {}
    for word in papers or ["*"]:
        matching = fnmatch.filter(shipped, word)
        if word.endswith((".yaml", ".yml")):
            files[Path(word).stem] = Path(word)
        elif matching:
            files.update({name: shipped[name] for name in matching})
        else:
            raise UserError(f"--paper: no claims of {word!r}{did_you_mean(word, shipped)} (or give a YAML file)")
    found = [setting for name, path in files.items() for setting in _of_file(name, path)]
    ids: dict[str, str] = {}
    for setting in found:
        if setting.claim.id in ids:
            raise UserError(
                f"two claims have the id {setting.claim.id}: in {ids[setting.claim.id]} and {setting.paper}"
            )
        ids[setting.claim.id] = setting.paper
    return found


def selected(settings: Sequence[Setting], gpus: Sequence[str], backends: Sequence[str]) -> list[Setting]:
    """Return the claims on GPUs with one of these words in their names, and on one of these backends.

    Without words or backends all claims pass that condition. Raises UserError where none is left.
    """
    found = [
        setting
        for setting in settings
        if (not gpus or any(word.lower() in setting.gpu.lower() for word in gpus))
        and (not backends or any(fnmatch.filter(setting.backends, pattern) for pattern in backends))
    ]
    if not found:
        known = ", ".join(sorted({setting.gpu for setting in settings}))
        raise UserError(f"no claim is left by --gpu and --backend; GPUs: {known}; attnbench claims --list has all")
    return found


def _of_file(name: str, path: Path) -> Iterator[Setting]:
    data = yaml_file.read_yaml(path)
    models: Mapping[str, Any] = {"": ClaimFile, "claims": Claim, "axes": Axes}
    try:
        file = ClaimFile.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {yaml_file.first_mistake(error, models)}") from None
    for claim in file.claims:
        setting = Setting(name, file, claim)
        try:
            _check(setting)
        except UserError as error:
            raise UserError(f"{path}: {claim.id}: {error}") from None
        yield setting


def _check(setting: Setting) -> None:
    """Raise UserError for a claim without figures, of an unknown metric, or with figures that cannot be read."""
    claim = setting.claim
    if claim.metric not in METRICS:
        raise UserError(f"no metric {claim.metric!r}{did_you_mean(claim.metric, METRICS)}")
    if METRICS[claim.metric].better is None:
        raise UserError(f"{claim.metric} has no better direction, higher or lower, so there is nothing to reproduce")
    for who in claim.ratios:
        if len(who.split("/")) != 2:
            raise UserError(f"ratios: {who!r} is not A / B")
    if not setting.figures and not claim.cannot:
        raise UserError("it has neither printed nor ratios; if it cannot be tried, the key cannot says why")
    if not setting.cases and not claim.cannot:
        raise UserError("its axes have no case")
    if not claim.cannot:
        select_backends(setting.backends)
    known = [ANY_GPU, *(gpu.name for gpu in gpus.GPUS)]
    if setting.gpu not in known:
        raise UserError(
            f"gpu: {setting.gpu!r} is neither in attnbench's table nor any{did_you_mean(setting.gpu, known)}"
        )


def suite_of(settings: Sequence[Setting], sustained_s: float, gpu: str | None = None) -> Suite:
    """Return the suite that measures claims, each case on the backends of its claims.

    `sustained_s`: seconds for which each cell is also run without pauses. `gpu`: a GPU model: the suite has only the
    figures that can be judged on it; the backends of the suite are the same on all. Raises UserError where no claim can
    be tried.
    """
    tried = [setting for setting in settings if setting.cases]
    if not tried:
        raise UserError("none of these claims can be tried; attnbench claims --list says why")
    judged = [(setting, setting.figures if gpu is None else setting.figures_for(gpu)) for setting in tried]
    blocks = [
        Block(**setting.axes.model_dump(exclude_none=True), backends=[*_backends(figures)])
        for setting, figures in judged
        if figures
    ]
    if not blocks:
        others = listed(dict.fromkeys(setting.gpu for setting in tried))
        raise UserError(
            f"none of these claims can be tried on {gpu}: they print metrics of {others}, and no ratio of "
            "backends, which could be tried on any GPU; attnbench claims --list has all claims"
        )
    names = dict.fromkeys(name for setting in tried for name in setting.backends)
    on_cpu = Settings(time_limit="10m")  # claims are of GPUs; a CPU would need days for all
    return Suite(name=SUITE, backends=[*names], cases=blocks, policy={"sustained_s": sustained_s}, on_cpu=on_cpu)
