"""Recompute the output of attnbench from raw lines, without importing attnbench, and print the differences.

    python tests/by_hand/recompute.py                # run files of unlike kinds, each compared with another
    python tests/by_hand/recompute.py FILE ...       # `recommend` and the page's charts of these files

It is written from docs/measuring.md, compare.md, dev/compare.md, recommend.md and run-files.md and from datasheets,
with its own count of FLOPs and bytes, so that a wrong formula is wrong in one place only. `recommend` and `compare` are
read as JSON, the charts from the data in the page. It needs numpy and scipy. Exit code 1 means a difference.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from by_hand import comparison, page, ranking
from by_hand.audit import Audit

RESULTS = Path(__file__).parents[2] / "results"

# Files to compare. The H100 runs of several ranks share no case with the H200s'.
COMPARED = (
    ("20261123-141253-default-nvidia-h200", "20261123-140542-default-nvidia-h100"),
    ("20261125-195215-serving-nvidia-h200", "20261125-225814-serving-nvidia-h100"),
    ("20261123-141732-sustained-nvidia-h200", "20261123-141048-sustained-nvidia-h100"),
    ("20261124-120822-claims-nvidia-h200", "20261124-020208-claims-nvidia-h100"),  # xformers ran other kernels on each
    ("20261126-060921-training-packed-nvidia-h200", "20261125-223822-training-packed-nvidia-h100"),
    ("20261125-144815-approximate-nvidia-h200", "20261123-165707-approximate-nvidia-h100"),
    ("20261126-062025-several-gpus-nvidia-h200", "20261126-141244-several-gpus-nvidia-h200"),
    ("ci-experiment/shipped", "20261123-140542-default-nvidia-h100"),  # five rounds of one card
    ("20261121-141028-default-nvidia-h200", "20261121-141425-default-nvidia-h200"),  # two runs of one card
    (  # a search by a newer method beside figures by an older one
        "20261121-174520-libraries-nvidia-h200",
        "20261124-120111-capacity-nvidia-h200",
        "20261123-140542-default-nvidia-h100",
    ),
    (  # a machine of several files, cards, methods and versions
        "20261121-141425-default-nvidia-h200",
        "20261121-141028-default-nvidia-h200",
        "ci-experiment/shipped",
        "20261123-141253-default-nvidia-h200",
        "20261123-140542-default-nvidia-h100",
    ),
)

# Files for `recommend` and charts, which claims lack. At the end are approximations, ties of PyTorch's default, both
# passes timed apart and together, chosen keys, and four of delta rules.
ALONE = (
    *dict.fromkeys(files[0] for files in COMPARED if "-claims-" not in files[0]),
    "20261125-145417-default-nvidia-h200",
    "20261121-174520-libraries-nvidia-h200",
    "20261126-014716-fp8-nvidia-h100",
    "20261129-160225-chosen-keys-nvidia-h200",
    *(f"20261129-{time}-default-nvidia-h200" for time in ("161458", "161813", "161832", "165848")),
)


def path_of(name: str) -> Path:
    """Return the run file of a name in results/, or of a path."""
    return next(path for ending in (".jsonl.gz", ".jsonl", "") if (path := RESULTS / (name + ending)).exists())


def check_file(audit: Audit, path: Path) -> None:
    """Check `recommend` and the charts of the page of a run file that has records other than claims."""
    page.check(audit, path)
    ranking.check(audit, path)


def main(files: Sequence[str]) -> int:
    """Print for each file and comparison the number of agreeing figures, and the others; return the exit code."""
    audit = Audit()
    for path in map(Path, files or map(path_of, ALONE)):
        check_file(audit, path)
        audit.report(path.name)
    for compared in () if files else COMPARED:
        comparison.check(audit, [*map(path_of, compared)])
        audit.report(f"compare {' '.join(compared)}")
    return 1 if audit.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
