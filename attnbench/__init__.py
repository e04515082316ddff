"""attnbench measures attention: how fast, how lean and how close to the hardware's limit.

In a script, a notebook or a test (docs/python.md):

    import attnbench

    attnbench.check(my_attention).raise_if_wrong()
    found = attnbench.measure(my_attention, backends="sdpa-*", seqlen="1k-16k", headdim=128, causal=True)
    print(found)             # as `attnbench run` shows it; a notebook shows tables
    found.table()            # a pandas DataFrame: a row per cell and round, every metric in its unit
    attnbench.load("results/*.jsonl")
    attnbench.do_bench(lambda: my_attention(q, k, v))

These names are the API; a change of one that breaks a caller is a new major version. They are imported when they are
asked for: workers import this package too, where only torch is.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing takes longer to import than all else of a command's start
if TYPE_CHECKING:
    from typing import Any

    from attnbench.api.guard import SlowerError
    from attnbench.api.measure import CheckResult, WrongResultError, check, measure
    from attnbench.api.results import Results, load
    from attnbench.api.shapes import record_shapes
    from attnbench.api.shown import Plot, Shown, Verdict
    from attnbench.api.timing import Timing, do_bench
    from attnbench.core.case import Case
    from attnbench.core.errors import UserError
    from attnbench.core.record import Record, Run

__version__ = "0.1.0"
__all__ = [
    "Case",
    "CheckResult",
    "Plot",
    "Record",
    "Results",
    "Run",
    "Shown",
    "SlowerError",
    "Timing",
    "UserError",
    "Verdict",
    "WrongResultError",
    "__version__",
    "check",
    "do_bench",
    "load",
    "measure",
    "record_shapes",
]

_HOMES = {
    "Case": "core.case",
    "CheckResult": "api.measure",
    "Plot": "api.shown",
    "Record": "core.record",
    "Results": "api.results",
    "Run": "core.record",
    "Shown": "api.shown",
    "SlowerError": "api.guard",
    "Timing": "api.timing",
    "UserError": "core.errors",
    "Verdict": "api.shown",
    "WrongResultError": "api.measure",
    "check": "api.measure",
    "do_bench": "api.timing",
    "load": "api.results",
    "measure": "api.measure",
    "record_shapes": "api.shapes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return all names of the API, also those that are imported on demand, so that a notebook completes them."""
    return sorted({*globals(), *__all__})
