"""Suites: cases, backends and the method of measuring, from a YAML file and the command line's options over it.

name: mine
description: one line
axes:                       # the product of all axes is measured
  seqlen: 1k-16k            # also 1k,3000,8k and 1k-8k:1k; seqlen_k, and seqlen_q unless that is given
  headdim: [64, 192-128]    # qk-v where they differ
  dtype: bf16               # fp16, fp32, fp8
  causal: [false, true]
  pass: [fwd, bwd]
  nheads_k: 4               # grouped heads; nheads where left out
  window: [none, 1k]        # 1k, or left/right: 1k/0, 512/512, 512/open
  softcap: [none, 30]
  dropout: 0.1
  layout: [native, packed]  # how q, k and v lie in memory: native (as each backend likes them), bshd, bhsd, packed
  data: [normal, zeros]     # the values of the inputs: normal, outliers, uniform, zeros, decaying
tokens: 16k                 # batch = max(1, tokens / seqlen), unless axes have batch
hidden: 2k                  # nheads = hidden / headdim, unless axes have nheads
exclude: [{headdim: 256, pass: bwd}]
cases:                      # more cases; an axis that is left out is as above
  - {seqlen: 8k, seqlen_q: 1, batch: 32}
  - {seqlen: 32k, dtype: fp8, backends: [cudnn-fp8]}    # of these backends only
backends: ["sdpa-*", "!sdpa-math"]
policy: {max_seconds: 1.0}
time_limit: 8m
models: [llama-3.1-8b, gemma-2-9b]                # in place of nheads, headdim, window, ...: `attnbench models`
tp: 8                       # with models: the heads of one of 8 devices
phase: decode               # with models: prefill, decode, mixed, train, or several
interpreters: {fa4: ~/envs/fa4/bin/python}        # the Python of a backend, or of several: "flashinfer-*"
on_cpu: {tokens: 2k}        # replaces the settings above if there is no GPU
notes: [decode only]        # lines that a run shows

A JSONL file of flashinfer-trace workloads is a suite too (run/flashinfer_workloads.py).
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from attnbench.backends import OF_KIND
from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.layouts import packable
from attnbench.core.own_code import split_names
from attnbench.core.policy import INSTRUMENTS, Policy
from attnbench.core.sizes import format_size, parse_duration, parse_size
from attnbench.core.text import count, shortened
from attnbench.results.bounds import check_cases
from attnbench.results.run_file import begins_as_one
from attnbench.run import flashinfer_workloads, yaml_file
from attnbench.run.axes import LATENT, STRICT, Axes, Item, Text, expand_all, matching, overlay, parsed
from attnbench.run.model_axes import FIXED, check_not_both, model_axes, parse_phases
from attnbench.run.select import possible_kinds
from attnbench.run.shipped_suites import shipped_suites

MOST = 2**63  # all numbers of a policy are below
POLICY_FIELDS = {f.name: f for f in dataclasses.fields(Policy)}
GPU_ONLY = ("timer", "cross_check", "sustained_s", "isolate_power")  # fields of a policy
TRUSTED_ONLY = ("timer", "l2", "cross_check", "sustained_s", "isolate_power", "bitwise", "caches")  # of a policy
DURATIONS = {  # fields of a policy that are options with a unit
    "sustained_s": "--sustained",
    "timeout_s": "--timeout",
    "warmup_s": "--warmup",
    "max_seconds": "--max-seconds",
}
CHOICES: Mapping[str, Sequence[str]] = {  # fields of a policy and their values
    "timer": INSTRUMENTS,
    "l2": ("cold", "warm"),
    "caches": ("kept", "fresh"),
}
Names = Annotated[list[str], BeforeValidator(lambda v: split_names(v) if isinstance(v, str) else v)]


class Settings(BaseModel):
    """The parts of a suite that options and `on_cpu` may replace."""

    model_config = STRICT

    axes: Axes = Axes()
    tokens: Item | None = None
    hidden: Item | None = None
    backends: Names | None = None
    models: Names | None = None
    tp: int | None = None
    phase: Text | None = None
    policy: dict[str, bool | int | float | str] = {}
    time_limit: Text | None = None


class Block(Axes):
    """Some cases of a suite, measured on all its backends or on named ones."""

    backends: Names | None = None


class Suite(Settings):
    """A suite file, validated."""

    name: str = ""
    description: str = ""
    exclude: list[Axes] = Field(default=[], max_length=100)  # each is compared with each case
    cases: list[Block] = []
    interpreters: dict[str, str] = {}
    on_cpu: Settings = Settings()
    notes: list[Text] = []


# key of a mapping in a suite file -> its model
MODELS: Mapping[str, type[BaseModel]] = {
    "": Suite,
    "on_cpu": Settings,
    **dict.fromkeys(("axes", "exclude"), Axes),
    "cases": Block,
}


@dataclass(frozen=True)
class Resolved:
    """A suite for one kind of device: the cases, the backends and the policy; notes name differences for the device.

    A case in `only` is measured on only the backends with one of its names or patterns.
    """

    name: str
    cases: tuple[Case, ...]
    backends: tuple[str, ...]
    policy: Policy
    time_limit: float | None
    notes: tuple[str, ...] = ()
    only: Mapping[Case, tuple[str, ...]] = field(default_factory=dict)


def load_suite(name: str) -> Suite:
    """Read a shipped suite by name, a YAML file, or a JSONL file of flashinfer-trace workloads.

    Raises UserError with the mistake and its place.
    """
    path = shipped_suites().get(name)
    if path is None:
        path = Path(name)
        if not os.path.isfile(path):  # unlike Path's, false for a name that is too long
            raise UserError(f"no suite {name!r}{did_you_mean(name, shipped_suites())} (or give a YAML file)")
    if path.suffix == ".jsonl" and not begins_as_one(path):
        return parse_suite(flashinfer_workloads.read(path), str(path))
    if ".jsonl" in path.suffixes:
        raise UserError(f"{name} is a run file, not a suite; --resume {shlex.quote(name)} continues its run")
    data = yaml_file.read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: a suite is a mapping with axes, tokens, ...; see `attnbench suites default`")
    data.setdefault("name", path.stem)
    return parse_suite(data, str(path))


def parse_suite(data: Mapping[str, Any], where: str) -> Suite:
    """Return the suite in some data. Raises UserError with `where`, the place of the mistake, and a suggestion."""
    try:
        suite = Suite.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {yaml_file.first_mistake(error, MODELS, {'policy': POLICY_FIELDS})}") from None
    try:
        if suite.models:
            check_not_both(suite.axes)
            model_axes(suite.models, suite.tp, suite.phase, Axes(), Axes())
        for settings in (suite, suite.on_cpu):
            _policy(settings.policy)
            if settings.time_limit is not None:
                parse_duration(settings.time_limit, "time_limit")
        for axes in suite.exclude:
            parsed(axes)
        together: tuple[Sequence[Axes], ...] = ([Axes()], [suite.on_cpu.axes], suite.cases)
        for blocks in together:
            given = (whole for axes in blocks if (whole := overlay(suite.axes, axes)) != Axes())
            sized = (axes.model_copy(update={"seqlen": axes.seqlen or "1k", "nheads_k": None}) for axes in given)
            for _ in expand_all(sized, suite.tokens, suite.hidden):
                pass  # raises an error
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return suite


def parse_options(options: Mapping[str, Any]) -> Settings:
    """Return command-line options as settings; None and {} stand for options that are not given.

    Raises UserError, which names an option with an unreadable value.
    """
    axes = {k: v for k, v in options.get("axes", {}).items() if v is not None}
    if axes.get("latent"):
        axes = {**LATENT, **axes}
    policy = {k: v for k, v in options.get("policy", {}).items() if v is not None}
    for name, option in DURATIONS.items():
        if name in policy:
            policy[name] = parse_duration(policy[name], option)
    _policy(policy, as_options=True)
    given = {k: v for k, v in options.items() if v is not None}
    try:
        settings = Settings.model_validate({**given, "axes": axes, "policy": policy})
    except ValidationError as error:
        raise UserError(f"--{yaml_file.first_mistake(error, MODELS, {'policy': POLICY_FIELDS})}") from None
    try:
        parsed(settings.axes)
    except UserError as error:  # the error names the axis
        raise UserError(f"--{error}") from None
    if settings.tokens is not None:
        parse_size(str(settings.tokens), "--tokens")
    _check_together(settings)
    if settings.tp is not None and settings.tp < 1:
        raise UserError(f"--tp: {settings.tp} is not at least 1")
    if settings.time_limit is not None:
        parse_duration(settings.time_limit, "--time-limit")
    return settings


def _check_together(given: Settings) -> None:
    """Raise UserError for options that contradict each other, or of which one has no effect beside another.

    Options and a suite cannot contradict each other, as options replace its settings.
    """
    axes, values = given.axes, parsed(given.axes)
    if axes.causal is False and any(window and window[1] == 0 for window in values.get("window", ())):
        raise UserError("--window: with 0 to the right no later key is seen, which is causal; leave out --full")
    if axes.causal is False and "softmax" not in (kinds := values.get("kind", ("softmax",))):
        raise UserError(f"--kind: {kinds[0]} is causal; leave out --full")
    sizes = {"batch": axes.batch, "tokens": given.tokens, "seqlen": axes.seqlen, "seqlen-q": axes.seqlen_q}
    others = [f"--{name}" for name, size in sizes.items() if size is not None]
    lengths = values.get("lengths", ())
    if others and lengths and all(of and of.fixed for of in lengths):
        raise UserError(f"--lengths: a list has all lengths of the batch; leave out {' and '.join(others)}")
    counted = {"decode", "mixed"} & {*parse_phases(given.phase)}
    if counted and given.tokens is not None:
        raise UserError(f"--tokens: --phase {min(counted)} has a number of sequences; give --batch")


def resolve(suite: Suite, kind: str, given: Settings | None = None) -> Resolved:
    """Return the suite for a device of this kind; `given`, from the command line, has priority over the file.

    Raises UserError if no case is left.
    """
    given = given or Settings()
    notes = tuple(suite.notes)
    merged = _merge([suite, given])
    if kind == "cpu":
        usual, merged = merged, _merge([suite, suite.on_cpu, given])
        notes += _shrunk(usual, merged)
    cases: dict[Case, tuple[str, ...]] = {}  # case -> the backends that it is limited to; () for all
    blocks = _blocks(suite, merged, given)
    found = expand_all((block for block, _ in blocks), merged.tokens, merged.hidden)
    lost: dict[str, str] = {}  # option -> the first reason why the products leave a case out
    for (_, names), (of_block, reasons) in zip(blocks, found, strict=True):
        for reason in reasons:
            lost.setdefault(reason.partition(":")[0], reason)
        for case in of_block:
            before = cases.get(case, names)
            cases[case] = tuple(dict.fromkeys((*before, *names))) if before and names else ()
    if not cases:
        raise UserError("; ".join(lost.values()))
    if "shared-prefix" in lost:
        notes += (f"left out: {lost['shared-prefix']}",)
    excluded = [matching(axes) for axes in (() if given.models else suite.exclude)]
    kept = tuple(case for case in cases if not any(matches(case) for matches in excluded))
    if not kept:
        raise UserError("nothing to measure: no case is left; give --seqlen, or loosen the suite's exclude")
    laid = tuple(c for c in kept if c.layout != "packed" or packable(c.shape))
    if not laid:
        raise UserError("layout: packed needs q, k and v of one length and one headdim; give another layout")
    check_cases(laid)
    if left_out := len(kept) - len(laid):
        notes += (f"packed inputs have one length and one headdim: {count(left_out, 'other case')} left out",)
    limit = parse_duration(merged.time_limit, "time_limit") if merged.time_limit else None
    policy = _policy(merged.policy)
    if kind != "cuda" and (idle := [name for name in GPU_ONLY if getattr(policy, name) != getattr(Policy, name)]):
        where, why = ("a CPU", "; the one instrument is perf_counter") if kind == "cpu" else ("a simulated device", "")
        notes += (f"on {where}: {', '.join(idle)} does not apply{why}",)
        policy = dataclasses.replace(policy, **{name: getattr(Policy, name) for name in idle})
    if policy.untrusted:
        policy = _by_clock_outside(policy, kind)
    backends = _backends(merged.backends or ["*"], laid)
    if kind == "fake" and not given.backends:
        backends = ["fake"]
    only = {case: names for case in laid if (names := cases[case])}
    return Resolved(suite.name, laid, tuple(backends), policy, limit, notes, only)


def _by_clock_outside(policy: Policy, kind: str) -> Policy:
    """Return the policy of an untrusted run. Raises UserError for fields that do not go with it."""
    if kind == "fake":
        raise UserError("--untrusted: the simulated device has no kernels to judge")
    if given := [name for name in TRUSTED_ONLY if getattr(policy, name) != getattr(Policy, name)]:
        raise UserError(f"--untrusted has a clock and chains of its own; leave out {', '.join(given)}")
    return dataclasses.replace(policy, timer="outside", l2="warm")


def _backends(patterns: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Return the patterns of backends for some cases: without any that is named, backends of each kind of attention."""
    kinds = {case.kind for case in cases}
    others = dict.fromkeys(name for kind, names in OF_KIND.items() if kind in kinds for name in names)
    if not others or any(pattern != "*" and not pattern.startswith("!") for pattern in patterns):
        return [*patterns]
    return [*(("*", *patterns) if "softmax" in kinds else ()), *others]


def check_has_model(given: Settings) -> None:
    """Raise UserError where options for a model are given without a model."""
    if word := next((name for name in ("tp", "phase") if getattr(given, name) is not None), None):
        raise UserError(f"--{word} needs a model; name one with --model NAME (`attnbench models` lists them)")


def _blocks(suite: Suite, merged: Settings, given: Settings) -> list[tuple[Axes, tuple[str, ...]]]:
    """Return the axes whose products are the cases of a suite, each with the backends that its cases are limited to.

    Models given as options take the place of its cases.
    """

    def own_cases() -> list[tuple[Axes, tuple[str, ...]]]:
        return [(overlay(overlay(merged.axes, case), given.axes), tuple(case.backends or ())) for case in suite.cases]

    if not merged.models:
        check_has_model(merged)
        return own_cases() if suite.cases and suite.axes == Axes() else [(merged.axes, ()), *own_cases()]
    check_not_both(given.axes)
    below = merged.axes.model_copy(update=dict.fromkeys(FIXED))
    own = given.axes if given.models else overlay(suite.axes, given.axes)
    blocks = model_axes(merged.models, merged.tp, merged.phase, below, own)
    return [(block, ()) for block in blocks] + ([] if given.models else own_cases())


def _merge(layers: Sequence[Settings]) -> Settings:
    """Return the settings of all layers; a later layer replaces the settings that it gives."""
    merged = Settings()
    nothing: tuple[Any, ...] = (None, {}, Axes())
    for layer in layers:
        given = {n: value for n in Settings.model_fields if (value := getattr(layer, n)) not in nothing}
        axes = overlay(merged.axes, layer.axes)
        for axis, rule in (("batch", "tokens"), ("nheads", "hidden")):  # both set one size; the last layer wins
            if getattr(layer.axes, axis) and not getattr(layer, rule):
                given[rule] = None
            if getattr(layer, rule) and not getattr(layer.axes, axis):
                axes = axes.model_copy(update={axis: None})
        given["policy"] = {**merged.policy, **layer.policy}
        merged = merged.model_copy(update={**given, "axes": axes})
    return merged


def _shrunk(usual: Settings, merged: Settings) -> tuple[str, ...]:
    """Return a note of the sizes that `on_cpu` changes, for settings that differ from the usual ones."""
    axes = {
        field.alias or name: (getattr(usual.axes, name), getattr(merged.axes, name))
        for name, field in Axes.model_fields.items()
    }
    rest = {name: (getattr(usual, name), getattr(merged, name)) for name in ("tokens", "hidden", "time_limit")}
    changed = [
        f"{name.replace('_', '-')} {now}" for name, (was, now) in {**axes, **rest}.items() if now not in (None, was)
    ]
    return (f"on a CPU: defaults shrunk to {', '.join(changed)}",) if changed else ()


def _policy(settings: Mapping[str, Any], *, as_options: bool = False) -> Policy:
    """Return the policy of some fields. Raises UserError for an unknown field or value.

    The error names a field as in a suite, or by its option.
    """
    for name, value in settings.items():
        where = DURATIONS.get(name, f"--{name.replace('_', '-')}") if as_options else f"policy: {name}"
        if name not in POLICY_FIELDS:
            there = yaml_file.stands(name, POLICY_FIELDS, {key: yaml_file.keys_of(of) for key, of in MODELS.items()})
            more = f"; it stands {there}" if there else did_you_mean(name, POLICY_FIELDS)
            raise UserError(f"policy: unknown key {name!r}{more}")
        default = POLICY_FIELDS[name].default
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise UserError(f"{where}: {value!r} is neither true nor false")
        elif isinstance(default, str):
            if value not in CHOICES[name]:
                raise UserError(f"{where}: unknown {value!r}{did_you_mean(str(value), CHOICES[name])}")
        elif isinstance(value, (str, bool)) or not 0 <= value < MOST:
            raise UserError(f"{where}: {shortened(repr(value))} is not a number of at least 0, below 2^63")
        elif isinstance(default, int) and (isinstance(value, float) or (value < 1 and name != "seed")):
            raise UserError(f"{where}: {value!r} is not a whole number of at least 1")
    policy = Policy(**settings)
    if "min_samples" in settings and policy.min_samples > policy.max_samples:
        where = "--min-samples" if as_options else "policy: min_samples"
        raise UserError(f"{where}: {policy.min_samples} is more than max_samples, {policy.max_samples}")
    return policy


def describe_suite(suite: Suite) -> str:
    """Return the number of cases and their lengths, in a few words."""
    cases = resolve(suite, "cuda").cases
    lengths = sorted({c.shape.seqlen_k for c in cases})
    span = dict.fromkeys(format_size(length) for length in (lengths[0], lengths[-1]))
    return f"{len(cases)} cases, seqlen {' to '.join(span)}"


def resolve_suite_for(suite: Suite, device: str, settings: Settings) -> list[Resolved]:
    """Return the suite resolved for each possible kind of device of `device` ("auto", "cpu", ...).

    Raises UserError where it can be resolved for none.
    """
    found, errors = [], []
    for kind in possible_kinds(device):
        try:
            found.append(resolve(suite, kind, settings))
        except UserError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found
