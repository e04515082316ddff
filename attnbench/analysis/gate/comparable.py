"""What differs between two runs so that their figures say nothing of the code, unless it is what is under test.

Every difference has names, and `--expect NAME` says that it is meant. A backend whose library is known by another name
too (sdpa-flash is torch's, fa2 is the package flash-attn) answers to either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.machine import Environment
from attnbench.core.policy import Policy
from attnbench.core.record import Run
from attnbench.results import columns

_ENVIRONMENT = {  # field -> the name to expect it by
    "attnbench": "attnbench",
    "torch": "torch",
    "cuda": "torch",  # comes with it
    "driver": "driver",
    "power_limit_w": "power_limit",
    "clock_max_hz": "clock_max",
    "cpu": "cpu",
}
_DEVICE = {"kind": "gpu", "name": "gpu", "memory": "gpu", "threads": "threads"}
_POLICY = (
    "timer",
    "l2",
    "warmup_s",
    "burst_s",
    "isolate_power",
    "caches",
    "min_samples",
    "max_samples",
    "target",
    "min_seconds",
    "max_seconds",
)


@dataclass(frozen=True)
class Difference:
    names: tuple[str, ...]  # any of them expects it; the first is the one to show
    what: str  # "driver was 580.82 and is 590.10"

    @property
    def remedy(self) -> str:
        return f"--expect {self.names[0]}"


def differences(baseline: Run, current: Run) -> list[Difference]:
    """In the order in which a person would look: the machine, its software, how it was measured."""
    ours, theirs = baseline.environment, current.environment
    found = [
        Difference((expect,), _phrase(f"device {name}", getattr(ours.device, name), getattr(theirs.device, name)))
        for name, expect in _DEVICE.items()
        if getattr(ours.device, name) != getattr(theirs.device, name)
    ]
    versions = _versions(ours, theirs)
    backends = {
        name: (baseline.versions[name], current.versions[name])
        for name in sorted({*baseline.versions} & {*current.versions})
        if baseline.versions[name] != current.versions[name]
    }
    for name, expect in _ENVIRONMENT.items():
        before, after = getattr(ours, name), getattr(theirs, name)
        if before != after and name not in versions:
            found.append(Difference((expect,), _phrase(name, before, after)))
    for library, pair in versions.items():
        users = [name for name, own in backends.items() if name != library and _is_of(own, pair)]
        found.append(Difference((library, *users), _phrase(library, *pair)))
    known = {name for d in found for name in d.names}
    found += [Difference((name,), _phrase(name, *pair)) for name, pair in backends.items() if name not in known]
    return found + _of_policy(baseline.policy, current.policy)


def split(found: Sequence[Difference], expect: Iterable[str]) -> tuple[list[Difference], list[Difference], list[str]]:
    """(those that are meant, those that are not, names that were expected to differ and do not)."""
    expect = list(dict.fromkeys(expect))
    meant = [d for d in found if {*d.names} & {*expect}]
    named = {name for d in meant for name in d.names}
    return meant, [d for d in found if d not in meant], [name for name in expect if name not in named]


def check_names(expect: Iterable[str], runs: Sequence[Run]) -> None:
    """Raises UserError for a name that no difference of such runs could have."""
    expect = list(expect)
    known = {*_ENVIRONMENT.values(), *_DEVICE.values(), *_POLICY}
    for run in runs if expect else ():
        known |= {*run.environment.packages, *run.versions, *columns.of(run.records).backends}
    for name in expect:
        if name not in known:
            raise UserError(f"--expect: nothing is called {name!r}{did_you_mean(name, sorted(known))}")


def _is_of(backend: tuple[str, str], library: tuple[str | None, str | None]) -> bool:
    """Whether a backend's versions name the library's, before and after: "flash-attn 2.8.3" is of 2.8.3."""

    def named(said: str, version: str | None) -> bool:
        public = re.escape((version or "").partition("+")[0])  # torch calls itself 2.11.0 and 2.11.0+cu130
        return bool(version and re.search(rf"(?<![\w.]){public}(?![\w.])", said))

    return all(named(said, version) for said, version in zip(backend, library, strict=True))


def _versions(ours: Environment, theirs: Environment) -> dict[str, tuple[str | None, str | None]]:
    """Of the libraries that differ: name -> (before, after)."""
    libraries = {"torch": (ours.torch, theirs.torch)}
    for name in sorted({*ours.packages} | {*theirs.packages}):
        libraries[name] = (ours.packages.get(name), theirs.packages.get(name))
    return {name: pair for name, pair in libraries.items() if pair[0] != pair[1]}


def _of_policy(ours: Policy, theirs: Policy) -> list[Difference]:
    pairs = ((name, getattr(ours, name), getattr(theirs, name)) for name in _POLICY)
    return [Difference((name,), _phrase(name, before, after)) for name, before, after in pairs if before != after]


def _phrase(what: str, before: object, after: object) -> str:
    was, now = ("not there" if value in (None, "") else f"{value}" for value in (before, after))
    return f"{what} was {was} and is {now}"
