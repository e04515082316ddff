"""The progress of a bisection on stderr: that of its A/Bs, and a line for each build and each A/B."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from attnbench.core.record import Run
from attnbench.render.progress.ab_progress import AbProgress


class BisectProgress(AbProgress):
    """The progress of a bisection, as analysis/bisect/run_bisect.py tells of it."""

    def begun(self, a: Run, b: Run, cells: int, paths: Sequence[Path], notes: Sequence[str]) -> None:
        """Take the beginning of an A/B. The machine is said at the first one alone."""
        if not self.files:
            super().begun(a, b, cells, paths, notes)
        self._cells, self._settled, self.files = cells, 0, paths

    def tell(self, text: str) -> None:
        """Print a line that stays."""
        self._print(Text(text))
