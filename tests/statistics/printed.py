"""Tables of simulations: printed, and kept in docs/site/simulated/ for the documents (`make tables`)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

KEPT = Path(__file__).parents[2] / "docs" / "site" / "simulated"


def options(doc: str | None, runs: int, **flags: str) -> argparse.Namespace:
    """Read the options --runs and --only, and further flags with their help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help="number of repetitions of each row")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="the rows with this text in their names; keeps no file"
    )
    for flag, what in flags.items():
        parser.add_argument(f"--{flag}", action="store_true", help=what)
    return parser.parse_args()


def show(
    name: str, asked: argparse.Namespace, heading: Sequence[str], rows: Iterable[Sequence[str]], seed: int
) -> None:
    """Print a table row by row, and keep it, if it is whole, in NAME.json with its command, repetitions and seed."""
    kept = []
    for row in (heading, [":---", *("---:" for _ in heading[1:])]):
        print(f"| {' | '.join(row)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
        kept.append([*row])
    if not asked.only:
        command = " ".join(["python", f"tests/statistics/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        content = {"command": command, "repetitions": asked.runs, "seed": seed, "heading": [*heading], "rows": kept}
        (KEPT / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
