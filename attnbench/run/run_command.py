"""The command line that measures some cases, or repeats one cell of a run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

from attnbench.core import masks
from attnbench.core.axes import AXES
from attnbench.core.case import Case
from attnbench.core.lengths import Lengths, describe, is_pattern, spell
from attnbench.core.own_code import as_written
from attnbench.core.policy import Policy
from attnbench.core.record import Run
from attnbench.core.sizes import format_size
from attnbench.results import case_names
from attnbench.run.select import is_user_code

FLAGS = tuple(name for name in case_names.EXTRAS if AXES[name].switch)  # axes whose options take no value
_VALUED = [name for name in ("window", "mask", *case_names.EXTRAS) if AXES[name].has_option and name not in FLAGS]
USUAL = {name: [AXES[name].text(AXES[name].usual)] for name in _VALUED}  # values that need no option


def run_command(cases: Collection[Case]) -> str:
    """Return the command that measures cases on any device: `attnbench run`, or `attnbench step` for steps of models.

    For several cases it measures the product of their axes.
    """
    attention = [case for case in cases if not case.step]
    words = ["attnbench", "run", *_axes(attention)] if attention else ["attnbench", "step", *_steps(cases)]
    return shlex.join(words)


def cell_command(run: Run, backend: str, case: Case) -> str:
    """Return the command that measures a cell of a run again.

    It names the backend, or a person's code by its file, the kind of device unless that is a GPU, the backend's
    interpreter if one was chosen, how the run was timed, and its number of rounds.
    """
    kind, spec = run.environment.device.kind, run.specs.get(backend, "")
    own = bool(spec) and is_user_code(spec)
    split = "ulysses-" if own and backend.startswith("ulysses-") else ""
    name = split + as_written(spec) if own else backend.removeprefix("step-") if case.step else backend
    words = [*shlex.split(run_command([case])), "-b", name]
    words += ["--device", kind] if kind != "cuda" else []
    if python := run.interpreters.get(backend):
        words += ["--python", f"{'*' if own else backend}={python}"]
    if (rounds := run.planned_rounds) > 1:
        words += ["--rounds", str(rounds)]
    return shlex.join(words if case.step else [*words, *_how(run.policy)])


def _how(policy: Policy) -> Iterator[str]:
    """Yield the options of a policy that change the meaning of a measured time."""
    if policy.untrusted:
        yield "--untrusted"
        return
    if policy.timer != Policy.timer:
        yield from ("--timer", policy.timer)
    if policy.l2 != Policy.l2:
        yield from ("--l2", policy.l2)
    if policy.bitwise:
        yield "--bitwise"
    if policy.caches != Policy.caches:
        yield "--fresh-caches"
    if policy.sustained_s:
        yield from ("--sustained", f"{policy.sustained_s:g}s")


def _axes(cases: Collection[Case]) -> Iterator[str]:
    """Yield the options of `attnbench run` for the axes of cases, without usual values."""
    written = {}
    for name, axis in AXES.items():
        values = sorted({axis.of(case) for case in cases}, key=str if name == "window" else None)
        written[name] = [axis.text(value) for value in values]
    written["lengths"] = sorted({_lengths(case.lengths) for case in cases})
    own = {of.spec for of in masks.own_of(case.mask for case in cases)}
    named = [text for text in written["mask"] if not masks.is_own(text)]
    written["mask"] = [*named, *map(as_written, sorted(own))]
    written["pass"] = written["direction"]
    tokens = {case.extent.batch * case.extent.seqlen_k for case in cases}
    written["tokens"] = [format_size(n) for n in tokens]
    by_tokens = len(written["batch"]) > 1 and len(tokens) == 1
    names = ["dtype", "seqlen", "tokens" if by_tokens else "batch", "nheads", "headdim"]
    if queries := {case.shape.seqlen_q for case in cases if not case.has_equal_lengths}:
        queries |= {case.shape.seqlen_q for case in cases if not case.is_ragged}
        written["seqlen_q"] = [format_size(n) for n in sorted(queries)]
        names.append("seqlen_q")
    names += ["nheads_k"] if any(case_names.has_grouped_heads(case) for case in cases) else []
    if written["lengths"] != ["none"]:
        names.append("lengths")
        if not any(is_pattern(text) or text == "none" for text in written["lengths"]):
            names = [name for name in names if name not in ("seqlen", "tokens", "batch", "seqlen_q")]
    names += [name for name, usual in USUAL.items() if written[name] != usual]
    for name in (*names, "pass"):
        yield from (f"--{name.replace('_', '-')}", ",".join(written[name]))
    if len(causal := {case.causal for case in cases}) == 1:
        yield "--causal" if causal == {True} else "--full"
    yield from (f"--{name}" for name in FLAGS if written[name] == ["true"])


def _lengths(lengths: Lengths) -> str:
    """Return the lengths of a batch as text for --lengths."""
    text = describe(lengths) if lengths else "none"
    return text if is_pattern(text) or not lengths else spell(lengths)


def _steps(cases: Collection[Case]) -> Iterator[str]:
    """Yield the model and the options of `attnbench step` for steps of models."""
    steps = [step for case in cases if (step := case.model_step)]
    yield from dict.fromkeys(step.model for step in steps)
    options: dict[str, list[str]] = {
        "phase": [step.phase for step in steps],
        "seqlen": [format_size(n) for n in sorted({case.shape.seqlen_k for case in cases})],
        "batch": [format_size(n) for n in sorted({case.shape.batch for case in cases})],
        "dtype": [case.dtype for case in cases],
    }
    for name, values in options.items():
        yield from (f"--{name}", ",".join(dict.fromkeys(values)))
    if len(kept := {step.layers for step in steps}) == 1:
        yield from ("--layers", str(*kept))
