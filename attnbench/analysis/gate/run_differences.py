"""Differences between two runs, such as another driver, that make their figures incomparable unless they are expected.

Every difference has names, and `--expect NAME` says that it is expected. A difference of a backend's library has the
backend's name too: sdpa-flash is part of torch, fa2 is the package flash-attn. Differences that move no figure are
reported and refuse nothing: Python, the platform, and a library that no backend of both runs uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.record import Run
from attnbench.results.run_setup import VARIABLE, differing, phrase, setup
from attnbench.run.shipped_backends import is_of_torch, may_use

# The fields that are compared, and the name by which to expect a difference in each.
_DEVICE = {
    **dict.fromkeys(("device kind", "device name", "device memory"), "gpu"),
    "device threads": "threads",
    "device instructions": "instructions",
}
_ENVIRONMENT = {  # beside the versions of torch and other libraries
    "attnbench": "attnbench",
    "cuda": "torch",  # CUDA comes with torch
    "driver": "driver",
    "power_limit_w": "power_limit",
    "clock_max_hz": "clock_max",
    "cpu": "cpu",
}
_POLICY = {
    name: name
    for name in (
        *("timer", "l2", "warmup_s", "burst_s", "isolate_power", "caches"),
        *("min_samples", "max_samples", "target", "min_seconds", "max_seconds"),
    )
}
METHOD = "method"
_TOLD = {"python": "python", "platform": "platform"}  # of the environment: reported, and no obstacle


@dataclass(frozen=True)
class Difference:
    """One thing that differs between two runs."""

    names: tuple[str, ...]  # names for --expect, any of which will do; messages show the first
    what: str  # "driver was 580.82 and is 590.10"
    matters: bool = True  # whether it may move a figure that both runs have

    @property
    def remedy(self) -> str:
        """The option that says that the difference is expected."""
        return f"--expect {self.names[0]}"


def differences(baseline: Run, current: Run) -> list[Difference]:
    """Return the differences between two runs: first of the machine, then of its software, then of the method."""
    ours, theirs = baseline.environment, current.environment
    device = differing(
        *({name: value for name, value in setup(run).items() if name in _DEVICE} for run in (baseline, current))
    )
    found = [Difference((_DEVICE[name],), phrase(name, *pair)) for name, pair in device.items()]
    found += _of_fields(_ENVIRONMENT, ours, theirs)
    variables = differing(ours.variables, theirs.variables)
    found += [Difference((name,), phrase(f"{VARIABLE}{name}", *pair)) for name, pair in variables.items()]
    named = sorted({*baseline.versions} & {*current.versions})
    backends = differing(*({name: run.versions[name] for name in named} for run in (baseline, current)))
    both, specs = _measured(baseline) & _measured(current), {**baseline.specs, **current.specs}
    gpu = "cuda" in (ours.device.kind, theirs.device.kind)
    libraries = differing(*({"torch": on.torch, **dict(sorted(on.packages.items()))} for on in (ours, theirs)))
    for library, pair in libraries.items():
        users = [name for name, own in backends.items() if name != library and _is_of(own, pair)]
        matters = bool({*users} & both) or any(may_use(name, specs.get(name), library, gpu=gpu) for name in both)
        found.append(Difference((library, *users), phrase(library, *pair), matters))
    known = {name for d in found for name in d.names}
    others = {name: pair for name, pair in backends.items() if name not in known}
    found += [Difference((name,), phrase(name, *pair), name in both) for name, pair in others.items()]
    found += _of_fields(_POLICY, baseline.policy, current.policy)
    if baseline.method != current.method:  # another method can give another figure for the same kernel
        what = f"{phrase('measuring method', baseline.method, current.method)} (measure the baseline again)"
        found.append(Difference((METHOD,), what))
    return found + [replace(d, matters=False) for d in _of_fields(_TOLD, ours, theirs)]


def split(found: Sequence[Difference], expect: Sequence[str]) -> tuple[list[Difference], list[Difference], list[str]]:
    """Return the expected differences, the others that matter, and the names in `expect` for which nothing differs."""
    expected = [d for d in found if {*d.names} & {*expect}]
    idle = [name for name in dict.fromkeys(expect) if not any(name in d.names for d in found)]
    return expected, [d for d in found if d.matters and d not in expected], idle


def concerned(baseline: Run, current: Run) -> frozenset[str]:
    """Return the backends that a difference between two runs can have changed: all, where it is not of a library."""
    found = [d for d in differences(baseline, current) if d.matters]
    libraries = {*baseline.environment.packages, *current.environment.packages}
    both, specs = _measured(baseline) | _measured(current), {**baseline.specs, **current.specs}
    gpu = "cuda" in (baseline.environment.device.kind, current.environment.device.kind)

    def may_change(difference: Difference, backend: str) -> bool:
        name, spec = difference.names[0], specs.get(backend)
        if name == "torch" or backend in difference.names:
            return True
        if name in libraries:
            return not is_of_torch(backend, spec) and may_use(backend, spec, name, gpu=gpu)
        return name not in {*baseline.versions, *current.versions}  # it is a backend's name, or of the machine

    return frozenset(backend for backend in both if any(may_change(d, backend) for d in found))


def controls(baseline: Run, current: Run) -> frozenset[str]:
    """Return the backends of both runs whose kernels are torch's own and which no difference can have changed."""
    specs = {**baseline.specs, **current.specs}
    both = _measured(baseline) & _measured(current)
    return frozenset(name for name in both if is_of_torch(name, specs.get(name))) - concerned(baseline, current)


def told(found: Sequence[Difference], expected: Sequence[Difference]) -> list[str]:
    """Return a note on the differences that do not matter; none where they are all expected, or there are none."""
    also = [d.what for d in found if not d.matters and d not in expected]
    return [f"Also different, but no obstacle to comparing: {'; '.join(also)}."] if also else []


def check_names(expect: Sequence[str], runs: Sequence[Run]) -> None:
    """Raise UserError for a name that no difference between such runs could have."""
    known = {*_ENVIRONMENT.values(), *_DEVICE.values(), *_POLICY, *_TOLD, METHOD}
    for run in runs if expect else ():
        known |= {*run.environment.packages, *run.environment.variables, *run.versions}
        known |= {record.backend for record in run.records}
    for name in expect:
        if name not in known:
            raise UserError(f"--expect: nothing is called {name!r}{did_you_mean(name, sorted(known))}")


def _measured(run: Run) -> set[str]:
    """Return the backends that a run has measured; before it has any record, the backends that it will measure."""
    if run.records:
        return {record.backend for record in run.records if record.status != "skipped"}
    return {job.backend for job in run.plan if not job.skip}


def _is_of(backend: tuple[str, str], library: tuple[str | None, str | None]) -> bool:
    """Return whether a backend's versions name a library's, before and after: "flash-attn 2.8.3" names 2.8.3."""

    def names(text: str, version: str | None) -> bool:
        public = re.escape((version or "").partition("+")[0])  # torch is both 2.11.0 and 2.11.0+cu130
        return bool(version and re.search(rf"(?<![\w.]){public}(?![\w.])", text))

    return all(names(text, version) for text, version in zip(backend, library, strict=True))


def _of_fields(names: Mapping[str, str], ours: object, theirs: object) -> list[Difference]:
    """Return the differences in some fields of two objects. `names`: field -> the name by which to expect it."""
    return [
        Difference((name,), phrase(field, getattr(ours, field), getattr(theirs, field)))
        for field, name in names.items()
        if getattr(ours, field) != getattr(theirs, field)
    ]
