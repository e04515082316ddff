"""Recompute from raw lines what attnbench prints, without importing attnbench, and say what differs.

    python tests/by_hand/recompute.py                # run files of unlike kinds, each compared with another
    python tests/by_hand/recompute.py FILE ...       # what `recommend` and the page's charts say of these

It is written from docs/measuring.md, compare.md, dev/compare.md, recommend.md and run-files.md and from datasheets,
with its own count of FLOPs and bytes, so that a wrong formula is wrong in one place only. `recommend` and `compare` are
read as JSON, the charts from the data in the page. Needs numpy and scipy. Exit code 1: something differs.
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

# Files that are compared. No run of several ranks of an H100 has a case in common with that of H200s.
COMPARED = (
    ("20261123-141253-default-nvidia-h200", "20261123-140542-default-nvidia-h100"),
    ("20261125-195215-serving-nvidia-h200", "20261125-225814-serving-nvidia-h100"),
    ("20261123-141732-sustained-nvidia-h200", "20261123-141048-sustained-nvidia-h100"),
    ("20261124-120822-claims-nvidia-h200", "20261124-020208-claims-nvidia-h100"),  # xformers ran unlike kernels
    ("20261126-060921-training-packed-nvidia-h200", "20261125-223822-training-packed-nvidia-h100"),
    ("20261125-144815-approximate-nvidia-h200", "20261123-165707-approximate-nvidia-h100"),
    ("20261126-062025-several-gpus-nvidia-h200", "20261126-141244-several-gpus-nvidia-h200"),
    ("ci-experiment/shipped", "20261123-140542-default-nvidia-h100"),  # five rounds of one card
    ("20261121-141028-default-nvidia-h200", "20261121-141425-default-nvidia-h200"),  # two runs of one card
    (  # a search by a newer method beside figures of an older
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

# Of these `recommend` and charts as well, which claims lack. The last but two has approximations, in the last but one
# the default of PyTorch ties, in the last both passes are timed apart and as one.
ALONE = (
    *dict.fromkeys(files[0] for files in COMPARED if "-claims-" not in files[0]),
    "20261125-145417-default-nvidia-h200",
    "20261121-174520-libraries-nvidia-h200",
    "20261126-014716-fp8-nvidia-h100",
)


def path_of(name: str) -> Path:
    """Return the run file of a name in results/, or of a path."""
    return next(path for ending in (".jsonl.gz", ".jsonl", "") if (path := RESULTS / (name + ending)).exists())


def check_file(audit: Audit, path: Path) -> None:
    """Compare what `recommend` and the charts of the page say of a run file; it has other records than claims."""
    page.check(audit, path)
    ranking.check(audit, path)


def main(files: Sequence[str]) -> int:
    """Print for each file and comparison how many figures agree, and which do not; return how it ended."""
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
