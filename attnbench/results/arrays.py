"""numpy's arrays as types, for `if TYPE_CHECKING` alone: numpy itself is imported where something is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Ints = NDArray[numpy.int64]
    Bools = NDArray[numpy.bool_]
    Labels = NDArray[Any]  # of what can be told apart, such as the families of a correction
