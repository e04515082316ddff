"""The `baseline` command: what gates compare with, kept in git, a file per name and GPU model.

    reduced.py   a run -> the run with what a gate reads, and nothing else
    files.py     where they are, and which one belongs to a run

A baseline is a run file, baselines/NAME/GPU.jsonl, so whatever reads run files reads it. docs/ci.md has the guide.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("baselines")  # where they are kept unless a person says otherwise
MAIN = "main"  # the name that is meant unless a person says another
