"""The record of an audit: each printed figure of a command beside its recomputed value."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXACT = 1e-9  # for JSON, which has every digit
SEVEN_DIGITS = 1e-6  # for the data of a page


@dataclass
class Audit:
    """The counts of compared figures by name, and the places of the figures that differ."""

    compared: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    failed: bool = False

    def same(self, where: str, name: str, printed: Any, computed: Any, tolerance: float = EXACT) -> None:
        """Record whether a printed value equals the computed one; None means that there is no value."""
        self.compared[name] += 1
        if isinstance(printed, bool | str) or isinstance(computed, bool | str) or None in (printed, computed):
            alike = printed == computed
        else:
            alike = math.isclose(printed, computed, rel_tol=tolerance, abs_tol=1e-12)
        if not alike:
            self.differing.append(f"{where}: {name}: printed {printed!r}, by hand {computed!r}")

    def report(self, what: str) -> None:
        """Print the number of figures of `what` that agree, and those that differ, and reset the record."""
        print(f"{what}: {self.compared.total()} figures, {len(self.differing)} differ", flush=True)
        for line in self.differing:
            print(f"    {line}")
        self.failed |= bool(self.differing) or not self.compared
        self.compared, self.differing = Counter(), []


def printed(*arguments: str | Path) -> Any:
    """Return the JSON output of a command of attnbench."""
    return json.loads(run(*arguments, "-f", "json"))


def run(*arguments: str | Path) -> str:
    """Return the output of a command of attnbench. Exit code 1 (no recommendation) is allowed; others raise."""
    done = subprocess.run([sys.executable, "-m", "attnbench", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout
