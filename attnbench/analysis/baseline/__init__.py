"""The `baseline` command: the runs that gates compare with, kept in git, one file for each name and GPU model.

A baseline is a run file, baselines/NAME/GPU.jsonl, so all that reads run files reads it. docs/ci.md is the guide.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("baselines")  # the folder of all baselines by default
MAIN = "main"  # the name of a baseline by default
