"""Groups of options: a group is a dataclass, and `grouped` makes it options of a command.

The options of axes are those of the table, core/axes.py.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from attnbench.commands import complete
from attnbench.commands.shared import one_of, words
from attnbench.core.axes import AXES
from attnbench.core.models import PHASES

G = TypeVar("G")

shape = partial(typer.Option, rich_help_panel="What to measure (lists multiply; each option replaces the suite's)")
how = partial(typer.Option, rich_help_panel="How to measure")
files = partial(typer.Option, rich_help_panel="Files and output")
# Options of several commands, each with a help of its own
backend = partial(shape, "--backend", "-b", metavar="NAMES", autocompletion=complete.several(complete.backends))
device = partial(how, "--device", metavar="DEVICE", autocompletion=complete.one(("auto", "cpu", "cuda", "fake")))
python = partial(how, "--python", metavar="NAME=PATH")
time_limit = partial(how, "--time-limit", metavar="TIME")
out = partial(files, "--out", metavar="FILE")
resume = partial(files, "--resume", metavar="FILE")
dry_run = partial(files, "--dry-run", metavar="")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which each parameter that is a group of options is replaced by the group's fields.

    The command itself gets the group with the values that were given. A group is a dataclass with options for fields.
    """
    groups: dict[str, Any] = {}
    parameters = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += [option for options in _fields(groups[name]).values() for option in options]
        else:
            parameters.append(parameter)

    def with_groups(**given: Any) -> None:
        for name, group in groups.items():
            own = {option.name for options in _fields(group).values() for option in options}
            given[name] = made(group, {name: given.pop(name) for name in own & given.keys()})
        command(**given)

    with_groups.__name__, with_groups.__doc__ = command.__name__, command.__doc__
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups


def _fields(group: Any) -> dict[str, list[inspect.Parameter]]:
    """Return field -> its options, of a group."""
    types = get_type_hints(group, include_extras=True)
    found = {}
    for field in dataclasses.fields(group):
        said = types[field.name].__metadata__[0]
        if isinstance(said, OfAxes):
            found[field.name] = [said.parameter(name) for name in said.names]
        else:
            kind, default = inspect.Parameter.KEYWORD_ONLY, field.default
            found[field.name] = [inspect.Parameter(field.name, kind, default=default, annotation=types[field.name])]
    return found


def made(group: type[G], given: Mapping[str, Any]) -> G:
    """Return a group of the values of some options; others that are given are left out."""
    values: dict[str, Any] = {}
    for name, options in _fields(group).items():
        found = {option.name: given[option.name] for option in options if option.name in given}
        if [option.name for option in options] != [name]:
            values[name] = {axis: value for axis, value in found.items() if value is not None}
        elif found:
            values[name] = found[name]
    return group(**values)


def metric_option(known: Callable[[], Iterable[str]], **settings: Any) -> Any:
    """Return the option --metric of a command that takes the metrics `known`; its value is a list of their names.

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

    return typer.Option(
        "--metric",
        "-m",
        metavar="NAMES",
        callback=names,
        is_eager=True,  # before a missing argument is said
        autocompletion=complete.several(lambda: (*known(), "help")),
        **settings,
    )


@dataclasses.dataclass(frozen=True)
class OfAxes:
    """Marks a field of a group that stands for the options of axes: a mapping of the axes that are given.

    `helps` are the axes and their help where it is not the table's; without any they are all that have an option.
    """

    option: Callable[..., Any] = shape
    helps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    one: bool = False  # an option takes one value, and no list

    @property
    def names(self) -> Sequence[str]:
        """The axes that are options."""
        return [*self.helps] or [name for name, axis in AXES.items() if axis.has_option]

    def parameter(self, name: str) -> inspect.Parameter:
        """Return the option of an axis as a command has it."""
        axis = AXES[name]
        settings: dict[str, Any] = {"help": self.helps.get(name) or (axis.one if self.one else axis.help)}
        if not axis.switch:
            settings["metavar"] = axis.metavar.removesuffix("S") if self.one else axis.metavar
        if axis.words:
            settings["autocompletion"] = (complete.one if self.one else complete.several)(axis.words)
        kind: Any = bool | None if axis.switch else str | None
        annotation = Annotated[kind, self.option(axis.switch or f"--{axis.option}", **settings)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@dataclasses.dataclass(frozen=True)
class WhatToMeasure:
    """The options that choose what to measure."""

    suite: Annotated[
        str,
        shape(
            metavar="NAME|FILE",
            help="A shipped suite (`attnbench suites` lists them), or a YAML file of your own.",
            autocompletion=complete.one(complete.suites),
        ),
    ] = "default"
    backend: Annotated[
        list[str] | None,
        backend(
            help="Names, patterns such as sdpa-*, and !name to leave one out. Your own code: ./file.py:function or "
            "pkg.mod:object, also './file.py:f\\[block=64,128]'. Default: every backend that works here."
        ),
    ] = None
    axes: Annotated[Mapping[str, Any], OfAxes()] = dataclasses.field(default_factory=dict)
    tokens: Annotated[
        str | None, shape(metavar="SIZE", help="Tokens in a batch: the batch size is tokens / seqlen. Default: 16k.")
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a suite that these options replace, for run.suite.parse_options."""
        return {"backends": self.backend, "tokens": self.tokens, "axes": self.axes}


@dataclasses.dataclass(frozen=True)
class WhichModel:
    """The options that take heads, dims and windows from models."""

    model: Annotated[
        str | None,
        shape(
            "--model",
            metavar="NAMES",
            help="Heads, head dims, windows and softcap of models: llama-3.1-8b,gemma-2-9b; `attnbench models` lists "
            "them. Each kind of layer is a case.",
            autocompletion=complete.several(complete.models),
        ),
    ] = None
    tp: Annotated[
        int | None, shape("--tp", metavar="N", help="With --model: the heads of one of N devices (tensor parallel).")
    ] = None
    phase: Annotated[
        str | None,
        shape(
            "--phase",
            metavar="NAME",
            help="With --model: prefill (default: as many queries as keys, forward), decode (one query, batch 1 unless "
            "--batch is given), mixed (a chunk of 2k of one sequence beside decoding), train (forward and backward).",
            autocompletion=complete.one(PHASES),
        ),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a suite that these options replace, for run.suite.parse_options."""
        return {"models": self.model, "tp": self.tp, "phase": self.phase}


AllowBusy = Annotated[
    bool,
    how(
        "--allow-busy",
        metavar="",
        help="Measure also on a GPU that other processes use; what is shown then says first not to believe it.",
    ),
]
AllowWrong = Annotated[
    bool, how("--allow-wrong", metavar="", help="End with exit code 0 even if a result is wrong. It is 5 otherwise.")
]
Trust = Annotated[
    bool,
    how(
        "--trust",
        metavar="",
        help="Run the code and interpreters that the given run file names, also where none would be chosen here.",
    ),
]
Device = Annotated[str, device(help="auto, cuda:N, cpu, or fake (a simulated GPU, to try the commands).")]
Python = Annotated[
    list[str] | None, python(help="Run a backend in an interpreter of its own: fa4=/opt/fa4/bin/python.")
]
TimeLimit = Annotated[
    str | None, time_limit(help="Stop after this time, as in 90s or 10m; attnbench run --resume goes on.")
]
Rounds = Annotated[
    int, how("--rounds", metavar="N", help="Measure everything N times, each time in new processes: fewer ties.")
]
Seed = Annotated[int | None, how("--seed", metavar="N", help="The seed of the inputs and of the order of the jobs.")]
Out = Annotated[Path | None, out(help="The run file to write. Default: a new file in results/.")]
DryRun = Annotated[bool, dry_run(help="Show the plan and how long it would take. Measures and writes nothing.")]
