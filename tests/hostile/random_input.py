"""Random command lines, and mutated suites and run files, for the command line in this process.

Kind, seed and number determine an input: attempt("suite", seed=7, number=12).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hostile.call import Ending, call
from hostile.hostile_names import names
from hostile.mutated_files import run_file, suite
from hostile.random_command_lines import command_line
from hostile.sandbox import sandbox

GENERATORS: Mapping[str, Callable[[random.Random, Path], Iterator[list[str]]]] = {
    "command-line": command_line,
    "suite": suite,
    "run-file": run_file,
    "names": names,
}
KINDS = tuple(GENERATORS)
ENCODINGS = ("utf-8",) * 6 + ("ascii", "cp1252", "latin-1")


def attempt(kind: str, seed: int, number: int, template: Path, folder: Path) -> list[Ending]:
    """Make input `number` of a kind in `folder`, a copy of `template`, and return the end of each command on it."""
    shutil.copytree(template, folder)
    rng = random.Random(f"{kind} {seed} {number}")
    with sandbox(folder):
        return [call(args, rng.choice(ENCODINGS)) for args in GENERATORS[kind](rng, folder)]
