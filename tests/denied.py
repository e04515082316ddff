"""Folders that this process may not read, simulated because permissions do not stop root."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def deny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make the system refuse to list a folder."""

    def refusing(real: Any) -> Any:
        def listed(path: Any = ".") -> Any:
            if not isinstance(path, int) and Path(os.fsdecode(path)) == folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))
            return real(path)

        return listed

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
