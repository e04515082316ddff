"""Which libraries runs used, and what of their setups differs.

A run file lists the libraries of the main environment. A backend may run in another interpreter (`--python`), whose
libraries only the versions that backends give tell: "torch 2.11.0, flash-attn-4 4.0.0b36".
"""

from __future__ import annotations

from collections.abc import Collection

from attnbench.core.record import Run
from attnbench.core.text import some
from attnbench.results.run_setup import differing, setup

MOST_VERSIONS = 3


def libraries(run: Run, names: Collection[str], backends: Collection[str]) -> dict[str, str | None]:
    """Return library -> its version in a run, of those `names` that are known; None where the library is not there.

    It is what the backends say that they ran with; of a library that none of them names, that of the main environment.
    What is not there may be in another interpreter of the run, and is then not known.
    """
    records = {(record.backend, record.version) for record in run.records}
    said = [version for name, version in {*run.versions.items(), *records} if name in backends and version]
    pairs = {tuple(part.split(" ", 1)) for version in said for part in version.split(", ")}
    found: dict[str, str | None] = {}
    for library in names:
        used = sorted(pair[1] for pair in pairs if len(pair) == 2 and pair[0] == library)
        version = some(used, MOST_VERSIONS) or run.environment.packages.get(library)
        if version or not run.interpreters:
            found[library] = version
    return found


def setup_differs(one: Run, other: Run) -> bool:
    """Return whether the setups of two runs are known to differ, in more than the interpreter that has a library."""
    names = {*one.environment.packages, *other.environment.packages}
    backends = one.versions.keys() & other.versions.keys()
    ours, theirs = (libraries(run, names, backends) for run in (one, other))
    apart = [name for name in differing(setup(one), setup(other)) if name not in names]
    return bool(apart) or any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys())
