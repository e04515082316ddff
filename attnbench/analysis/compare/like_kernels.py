"""Whether one backend ran the same software on two machines: one version, and kernels with a name in common.

A library may fall back to another library if its usual one is missing.

xformers 0.0.35 ran FlashAttention 3 on an H200 and FlashAttention 2 on an H100, as its build on the H100 had no
FlashAttention 3 (results/20261124-120822-claims-nvidia-h200.jsonl.gz and 20261124-020208-claims-nvidia-h100.jsonl.gz).

GPUs of one compute capability can run the same code; unlike kernels on them are thus a property of the software. The
kernels of a cell are unlike if they have no name in common, compared up to the pass, the first number or the template
argument: tiles, splits and architectures follow these. Torch's copies and element-wise kernels, which any backend
launches, do not count. For GPUs of unlike capabilities a library has unlike kernels, which belong to the hardware that
a buyer chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

from attnbench.analysis.compare.common_cells import common
from attnbench.analysis.compare.machines import Machine
from attnbench.results.cells import Key

_WRAPPERS = re.compile(r"^(?:[\w:]*(?:device_kernel|Kernel\d*|enable_sm\w*)<)+")
_Kind = tuple[object, frozenset[str]]  # a compute capability, and the first parts of kernels' names
_END = re.compile(r"_?[FfBb]wd|\d")
_ANYONES = re.compile(r"Mem(cpy|set)|at::native::\w*elementwise_kernel")


def shared_cells(machines: Sequence[Machine]) -> list[Key]:
    """Return the cells with a figure on all machines, by like kernels, in the order of the first machine.

    For machines of unlike models, only the cells with one version of the backend and one measuring method, to keep
    differences of software out, if they cover at least half of the cases; else all cells, and the answer says so.
    """
    alike = [key for key in common(machine.log_rounds for machine in machines) if not unlike_kernels(machines, key)]
    if len({machine.model for machine in machines}) == 1:
        return alike
    of_one_version = [key for key in alike if not unlike_versions(machines, key)]
    cases, every = (
        {case for case, backend in keys if backend not in machines[0].own_code} for keys in (of_one_version, alike)
    )
    most = 2 * len(cases) >= len(every)
    return of_one_version if most else alike


def unlike_versions(machines: Sequence[Machine], key: Key) -> bool:
    """Return whether machines measured a cell with unlike versions of its backend, or by unlike methods."""
    return len({machine.versions[key] for machine in machines if key in machine.log_rounds}) > 1


def tried_by_all(machines: Sequence[Machine], keys: Iterable[Key]) -> bool:
    """Return whether each machine tried each of the cells (Machine.tried), and no cell has unlike kernels."""
    return all(all(key in of.tried for of in machines) and not unlike_kernels(machines, key) for key in keys)


def unlike_kernels(machines: Sequence[Machine], key: Key) -> str:
    """Return the kernels of a cell by machine, if two machines are known to have run unlike ones; else "".

    A machine without a figure for the cell does not count.
    """
    measured = [machine for machine in machines if machine.is_gpu and key in machine.log_rounds]
    kinds = {(of.environment.device.capability, _beginnings(of.cells[key].kernels)) for of in measured}
    if not any(_unlike(*pair) for pair in combinations(kinds, 2)):
        return ""
    names = ((of.label, _own_names(of.cells[key].kernels)) for of in measured)
    return ", ".join(f"{min(own, key=len, default='?')} on {label}" for label, own in names)


def _unlike(first: _Kind, second: _Kind) -> bool:
    """Return whether two GPUs have one compute capability and no kernel's first part of the name in common."""
    (ours, our_kernels), (theirs, their_kernels) = first, second
    return ours == theirs and bool(our_kernels and their_kernels) and not our_kernels & their_kernels


@cache
def _own_names(kernels: frozenset[str]) -> list[str]:
    """Return the names of kernels that tell backends apart, without wrappers and template arguments."""
    return [name for kernel in sorted(kernels) if (name := _own_name(kernel))]


@cache
def _beginnings(kernels: frozenset[str]) -> frozenset[str]:
    return frozenset(_END.split(name, maxsplit=1)[0] for name in _own_names(kernels))


def _own_name(kernel: str) -> str:
    """Return a kernel's name without wrappers and template arguments; "" for a kernel that any backend runs."""
    return "" if _ANYONES.match(kernel) else _WRAPPERS.sub("", kernel).partition("<")[0]
