"""The options of commands: fields of a dataclass, from which `command` makes parameters for typer.

A field is declared by the panel of --help that shows it: `seed: int | None = how("N", "The seed of the inputs.")`.
Options of several commands are in base dataclasses, or in functions that return a field. The options of axes come from
the table in core/axes.py.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from attnbench.commands import complete
from attnbench.commands.shared import command_line, words
from attnbench.core.axes import AXES
from attnbench.core.errors import UserError, one_of
from attnbench.core.models import PHASES

if TYPE_CHECKING:
    from attnbench.run.suite import Settings

G = TypeVar("G")


@dataclass(frozen=True)
class Panel:
    """A panel of --help. Called, it declares an option in it."""

    title: str | None
    order: int = 2  # panels with a lower order come first; equal ones keep the order of fields

    def __call__(self, metavar: str, help: str, default: Any = None, *names: str, **more: Any) -> Any:
        """Return the field of an option. `names` are its flags; without them its flag is made of the field's name."""

        def info(name: str) -> Any:
            flags = names or (f"--{name.replace('_', '-')}",)
            return typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=self.title, **more)

        return dataclasses.field(default=default, metadata={"order": self.order, "info": info})

    def flag(self, help: str, *names: str, default: bool = False, **more: Any) -> Any:
        """Return the field of an option without a value."""
        return self("", help, default, *names, **more)


def argument(metavar: str, help: str, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Return the field of an argument, which a person must give where it has no default."""
    info = typer.Argument(metavar=metavar, help=help, **more)
    return dataclasses.field(default=default, metadata={"order": 0, "info": lambda _: info})


plain = Panel(None, 1)
shape = Panel("What to measure (lists are combined, each with each; an option replaces the suite's)")
how = Panel("How to measure", 3)
files = Panel("Files and output", 4)


def axes(panel: Panel = shape, helps: Mapping[str, str] | None = None, *, one: bool = False) -> Any:
    """Return the field of the options of axes, which maps each given axis to its values.

    `helps` maps the axes to their help where it is not the table's; without any, all axes with an option are included.
    With `one` an option takes one value, and no list.
    """
    helps, parameters = helps or {name: "" for name, axis in AXES.items() if axis.has_option}, []
    for name, help in helps.items():
        axis = AXES[name]
        settings: dict[str, Any] = {"help": help or (axis.one if one else axis.help), "rich_help_panel": panel.title}
        if not axis.switch:
            settings["metavar"] = axis.metavar.removesuffix("S") if one else axis.metavar
        if axis.words:
            settings["autocompletion"] = (complete.one if one else complete.several)(axis.words)
        kind: Any = bool | None if axis.switch else str | None
        parameters.append(_parameter(name, kind, typer.Option(axis.switch or f"--{axis.option}", **settings), None))
    return dataclasses.field(default_factory=dict, metadata={"order": panel.order, "axes": parameters})


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, whose parameters are the fields of the dataclass that the function takes as `given`.

    The parameters of one panel are together, in the order of the fields.
    """
    options = inspect.get_annotations(function, eval_str=True)["given"]

    def with_options(**values: Any) -> None:
        function(made(options, values))

    kinds = {name: kind for base in reversed(options.__mro__) for name, kind in _kinds(base).items()}
    parameters = [of for field in _fields(options) for of in _parameters(field, kinds[field.name])]
    with_options.__name__, with_options.__doc__ = function.__name__, function.__doc__
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


@functools.cache
def _kinds(options: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's own fields. Evaluating them is slow, and many dataclasses inherit them."""
    return inspect.get_annotations(options, eval_str=True)


def _fields(options: Any) -> list[dataclasses.Field[Any]]:
    return sorted(dataclasses.fields(options), key=lambda field: int(field.metadata.get("order", 0)))


def _parameters(field: dataclasses.Field[Any], kind: Any) -> list[inspect.Parameter]:
    if "axes" in field.metadata:
        return list(field.metadata["axes"])
    info = field.metadata["info"](field.name) if "info" in field.metadata else None
    return [_parameter(field.name, kind, info, field.default)]


def _parameter(name: str, kind: Any, info: Any, default: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    annotation = Annotated[kind, info] if info else kind
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def made(options: type[G], values: Mapping[str, Any]) -> G:
    """Return the options of a command with the values of its parameters."""
    fields = [field.name for field in _fields(options)]
    own = {name: values[name] for name in fields if name in values}
    if "axes" in fields:
        own["axes"] = {name: value for name, value in values.items() if name in AXES and value is not None}
    return options(**own)


def changed(given: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return option -> value, for the fields with these names whose value is not the default."""
    found: dict[str, Any] = {}
    for field in (field for field in dataclasses.fields(given) if field.name in {*names}):
        value = getattr(given, field.name)
        if "axes" in field.metadata:
            found |= {f"--{AXES[name].option}": inner for name, inner in value.items()}
        elif value not in (field.default, [], (), None):
            found[str(field.metadata["info"](field.name).default)] = value  # typer stores the first flag there
    return found


def request(kind: type[G], given: Any, **more: Any) -> G:
    """Return a request to measure, with the options whose names are fields of it; `more` are other fields."""
    own = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    own = {**own, "pythons": own.get("python"), "argv": command_line(), **more}
    values = {field.name: own.get(field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: tuple(of) if isinstance(of, list) else of for name, of in values.items() if of is not None})


def metrics(panel: Panel, known: Callable[[], Iterable[str]], help: str) -> Any:
    """Return the field of the option --metric of a command that takes the metrics `known`: a list of their names.

    With `-m help` it lists them and ends the command, whatever else is given.
    """

    def names(given: list[str] | None) -> list[str]:
        from attnbench.results.metrics import METRICS

        metrics = {name: METRICS[name] for name in known()}
        asked = words(given)
        if "help" in asked:
            for metric in metrics.values():
                print(f"{metric.name:22} {metric.doc}")
            raise typer.Exit
        return [one_of("--metric", name, tuple(metrics)) for name in dict.fromkeys(asked)]

    completion = complete.several(lambda: (*known(), "help"))
    # eager: handled before a missing argument is reported
    return panel("NAMES", help, None, "--metric", "-m", callback=names, is_eager=True, autocompletion=completion)


def gate_metrics() -> Iterable[str]:
    """Return the metrics that a gate judges, and whose history can be followed."""
    from attnbench.analysis.gate.margins import RULES

    return RULES


# Options of several commands.


def suite(default: str, help: str) -> Any:
    """Return the field of --suite."""
    return shape("NAME|FILE", help, default, autocompletion=complete.one(complete.suites))


def backend(help: str, panel: Panel = shape) -> Any:
    """Return the field of --backend."""
    return panel("NAMES", help, None, "--backend", "-b", autocompletion=complete.several(complete.backends))


def bits() -> Any:
    """Return the field of --bits."""
    return shape(
        "NAMES",
        "Only backends whose results are known to have the same bits: deterministic (in each launch and process), "
        "batch-invariant (of a sequence, with and without its batch), or both with a comma. Run files know it from "
        "attnbench run --bitwise.",
        None,
        autocompletion=complete.several(("deterministic", "batch-invariant")),
    )


def device(help: str = "auto, cuda:N, cpu, or fake (a simulated GPU, to try the commands).") -> Any:
    """Return the field of --device."""
    return how("DEVICE", help, "auto", autocompletion=complete.one(("auto", "cpu", "cuda", "fake")))


def python() -> Any:
    """Return the field of --python."""
    return how("NAME=PATH", "Run a backend in an interpreter of its own: fa4=/opt/fa4/bin/python.")


def seed() -> Any:
    """Return the field of --seed."""
    return how("N", "The seed of the inputs and of the order of the jobs.")


def allow_busy() -> Any:
    """Return the field of --allow-busy."""
    return how.flag(
        "Measure also on a GPU that other processes use; the output then begins with the advice not to believe it."
    )


def allow_wrong() -> Any:
    """Return the field of --allow-wrong."""
    return how.flag("End with exit code 0 even if a result is wrong. It is 5 otherwise.")


def trust() -> Any:
    """Return the field of --trust."""
    return how.flag(
        "Also run code and interpreters that only the run file names. Give it only for a file whose author you trust."
    )


def untrusted() -> Any:
    """Return the field of --untrusted."""
    return how.flag(
        "For kernels that may cheat: run each in a fenced process that has no clock, seeds or reference, and judge it "
        "from outside."
    )


def out(help: str = "The run file to write. Default: a new file in results/.", metavar: str = "FILE") -> Any:
    """Return the field of --out."""
    return files(metavar, help)


def dry_run(help: str = "Show the plan and how long it would take. Measures and writes nothing.") -> Any:
    """Return the field of --dry-run."""
    return files.flag(help)


@dataclass(frozen=True, kw_only=True)
class WhatToMeasure:
    """The options that choose what to measure."""

    suite: str = suite(
        "default",
        "A shipped suite (`attnbench suites` lists them), a YAML file of your own, or workloads of flashinfer-trace "
        "(JSONL).",
    )
    backend: list[str] | None = backend(
        "Names, patterns such as sdpa-*, and !name to leave one out. Your own code: ./file.py:function or "
        "pkg.mod:object, also './file.py:f\\[block=64,128]'. Default: every backend that works here."
    )
    axes: Mapping[str, Any] = axes()
    tokens: str | None = shape("SIZE", "Tokens in a batch: the batch size is tokens / seqlen. Default: 16k.")


@dataclass(frozen=True, kw_only=True)
class WhichModel:
    """The options that take heads, dims and windows from models."""

    model: str | None = shape(
        "NAMES",
        "Heads, head dims, windows and softcap of models: llama-3.1-8b,gemma-2-9b; `attnbench models` lists them. Each "
        "kind of layer is a case.",
        autocompletion=complete.several(complete.models),
    )
    tp: int | None = shape("N", "With --model: the heads of one of N devices (tensor parallel).")
    phase: str | None = shape(
        "NAMES",
        "With --model: prefill (default: as many queries as keys, forward), decode (one query, batch 1 unless --batch "
        "is given), mixed (a chunk of 2k of one sequence beside decoding), train (forward and backward).",
        autocompletion=complete.several(PHASES),
    )


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The options of commands that start workers on a device."""

    device: str = device()
    python: list[str] | None = python()
    allow_busy: bool = allow_busy()


@dataclass(frozen=True, kw_only=True)
class ShortRun(OnDevice):
    """The options of commands that measure a suite, or show run files."""

    time_limit: str | None = how("TIME", "Stop after this time, as in 90s or 10m; attnbench run --resume goes on.")
    rounds: int = how("N", "Measure everything N times, each time in new processes: fewer ties.", 1)
    out: Path | None = out()

    def refuse_measuring(self, *more: str, where: str = "with run files") -> None:
        """Raise UserError where options of measuring, or these fields, are given beside run files."""
        if idle := changed(self, [*more, *(field.name for field in dataclasses.fields(WholeRun))]):
            raise UserError(f"{' and '.join(idle)}: for measuring; {where} nothing is measured, leave it out")


@dataclass(frozen=True, kw_only=True)
class WholeRun(ShortRun):
    """The options of commands that measure a suite, which may also show the plan alone."""

    allow_wrong: bool = allow_wrong()
    dry_run: bool = dry_run()


SETTINGS = {"backend": "backends", "model": "models"} | {  # field of the options -> setting of a suite
    name: name for name in ("tokens", "axes", "tp", "phase", "time_limit")
}


def settings(given: Any, **replaced: Any) -> Settings:
    """Return the settings that options replace, for a suite; `replaced` has settings that replace these."""
    from attnbench.run.suite import parse_options

    return parse_options({to: getattr(given, of) for of, to in SETTINGS.items() if hasattr(given, of)} | replaced)
