"""The axes and settings that the functions of the API take, as the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench.core.axes import AXES
from attnbench.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from attnbench.run.suite import Settings

Values = Any  # of an axis: one value, a list of them, or a text as the command line takes
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "torch.float8_e4m3fn": "fp8"}


def settings(axes: Mapping[str, Values], **others: Any) -> Settings:
    """Return the part of a suite that arguments replace, of axes that are not None.

    Raises UserError for an unknown axis or value.
    """
    from attnbench.run.suite import parse_options

    given = {name: value for name, value in axes.items() if value is not None}
    for name in given:
        if name not in AXES or not AXES[name].has_option:
            raise UserError(f"there is no axis {name!r}{did_you_mean(name, [n for n in AXES if AXES[n].has_option])}")
    return parse_options({"axes": {name: _as_option(name, value) for name, value in given.items()}, **others})


def _as_option(name: str, value: Values) -> Any:
    """Return the values of an axis as its option takes them: text with commas, or a flag."""
    axis = AXES[name]
    if axis.switch:
        return list(map(bool, value)) if isinstance(value, (list, tuple)) else bool(value)
    if isinstance(value, tuple) and axis.pair:
        return axis.pair.join("open" if side in (None, -1) else str(side) for side in value)
    if isinstance(value, (list, tuple, range)):
        return ",".join(str(_as_option(name, one)) for one in value)
    return _DTYPES.get(str(value), str(value))
