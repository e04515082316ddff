"""The inputs and results of kinds of attention other than softmax (`Case.kind`): shapes, dtypes, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from attnbench.core import delta, indexer
from attnbench.core.case import ITEMSIZE, Case


class _Definition(Protocol):
    DTYPES: Mapping[str, str]  # the tensors that have one dtype in all cases

    def shapes(self, case: Case) -> Mapping[str, tuple[int, ...]]: ...

    def result_shapes(self, case: Case) -> Mapping[str, tuple[int, ...]]: ...

    def input_names(self, case: Case) -> tuple[str, ...]: ...


def _definition(case: Case) -> _Definition:
    return indexer if case.is_indexer else delta


def result_shapes(case: Case) -> Mapping[str, tuple[int, ...]]:
    """Return the names of the results, with their shapes."""
    return _definition(case).result_shapes(case)


def input_names(case: Case) -> tuple[str, ...]:
    """Return the names of the tensors that a call reads."""
    return _definition(case).input_names(case)


def own_dtype(case: Case, name: str) -> str | None:
    """Return torch's name of the dtype that a tensor has in all cases; None where it has the dtype of the case."""
    return _definition(case).DTYPES.get(name)


def nbytes(case: Case, names: Iterable[str]) -> int:
    """Return the bytes of some inputs and results, by name."""
    known = {**_definition(case).shapes(case), **result_shapes(case)}
    return sum(math.prod(known[name]) * (4 if own_dtype(case, name) else ITEMSIZE[case.dtype]) for name in names)
