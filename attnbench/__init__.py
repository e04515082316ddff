"""attnbench measures attention: how fast, how lean and how close to the hardware's limit.

In a notebook or a script:

    import attnbench

    results = attnbench.load("results/*.jsonl")
    results.table()          # a pandas DataFrame: a row per cell and round, every metric in its unit
    results.cells[0].value("tflops")

`load` and the classes are imported when they are asked for: workers import this package too, where only torch is.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing takes longer to import than all else of a command's start
if TYPE_CHECKING:
    from typing import Any

    from attnbench.core.case import Case
    from attnbench.core.record import Record, Run
    from attnbench.results.load import Results, load

__version__ = "0.1.0"
__all__ = ["Case", "Record", "Results", "Run", "__version__", "load"]

_HOMES = {
    "Case": "attnbench.core.case",
    "Record": "attnbench.core.record",
    "Run": "attnbench.core.record",
    "Results": "attnbench.results.load",
    "load": "attnbench.results.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name what is imported when it is asked for too, so that a notebook completes it."""
    return sorted({*globals(), *__all__})
