"""Numbers as reports print them: three significant digits and a fitting unit. core/sizes.py reads what people type."""

from __future__ import annotations

import math
from collections.abc import Sequence

FAR = 10  # an interval that ends beyond this multiple of its value says little about the value


def digits(number: float) -> str:
    """Return a number with three significant digits: whole from 100 on, with an exponent below 1e-4."""
    if number == 0:
        return "0"
    if not math.isfinite(number):
        return str(number)
    if abs(number) < 1000:
        number = float(f"{number:.3g}")
    if abs(number) < 1e-4:
        return f"{number:.2e}"
    return f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"


def duration(seconds: float) -> str:
    """Return seconds as "1.20 ms", in s, ms or us."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))


def size(nbytes: float) -> str:
    """Return bytes as "1.50 GiB", in B to TiB."""
    return _scaled(nbytes, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))


def energy(joules: float) -> str:
    """Return joules as "3.20 mJ", in J, mJ or uJ."""
    return _scaled(joules, ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ")))


def percent(fraction: float) -> str:
    """Return a fraction as per cent with two significant digits, whole from 100 on: 62%, 2.7%, 0.42%, 1250000%."""
    return f"{float(f'{100 * fraction:.2g}'):g}%" if abs(fraction) < 1 else f"{100 * fraction:.0f}%"


def share(fraction: float) -> str:
    """Return a fraction as whole per cent from 1 up: 62%, 3%, 0.4%."""
    hundredths = 100 * fraction
    return f"{hundredths:.0f}%" if hundredths >= 0.95 else f"{hundredths:.1g}%"


def _scaled(number: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a number in the largest unit in which it is at least 1 after rounding, else in the smallest unit."""
    for factor, unit in units:
        if float(f"{abs(number) / factor:.3g}") >= 1 or factor == units[-1][0]:
            return f"{digits(number / factor)} {unit}"
    raise AssertionError("no units")


def times(ratio: float) -> str:
    return f"{digits(ratio)}x"


def yes_or_no(verdict: float) -> str:
    return "yes" if verdict else "no"


def whole_number(number: float) -> str:
    return f"{number:.0f}"


def megacycles(cycles: float) -> str:
    return f"{digits(cycles / 1e6)} Mcycles"


def megahertz(hertz: float) -> str:
    return f"{hertz / 1e6:.0f} MHz"
