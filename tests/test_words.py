"""The documents stay short: `python tests/test_words.py` prints the words that a person has written in each.

Code, tables and what a command makes are not counted.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = {"README.md": 700, "ARCHITECTURE.md": 900, "CONTRIBUTING.md": 700, "docs/measuring.md": 2000}
MOST_OF_A_GUIDE = 1200
MOST_IN_ALL = {"docs/": 24000, "docs/dev/": 5000}  # with the documents beside docs/; of developers
NOT_COUNTED = re.compile(
    r"^```.*?^```$"  # code
    r"|^ {4}[^\n]*$"
    r"|<!-- \[\[\[cog.*?\]\]\] -->"  # code that makes tables
    r"|^ *\|[^\n]*$"  # tables
    r"|^<!-- matrix.*?^<!-- end of the matrix -->$"  # attnbench backends --matrix
    r"|^\[?!\[[^\n]*$",  # pictures
    re.MULTILINE | re.DOTALL,
)


def counts() -> dict[str, int]:
    """Return the hand-written words of each document, by its path."""
    files = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return {
        str(file.relative_to(ROOT)): len(NOT_COUNTED.sub("", file.read_text(encoding="utf-8")).split())
        for file in files
    }


@pytest.mark.parametrize(("name", "words"), counts().items())
def test_no_document_is_longer_than_a_person_reads(name: str, words: int) -> None:
    assert words <= MOST.get(name, MOST_IN_ALL["docs/dev/"] if "/dev/" in name else MOST_OF_A_GUIDE)


def test_all_documents_together() -> None:
    of_developers = sum(words for name, words in counts().items() if "/dev/" in name)
    assert of_developers <= MOST_IN_ALL["docs/dev/"]
    assert sum(counts().values()) - of_developers <= MOST_IN_ALL["docs/"]


if __name__ == "__main__":
    for name, words in counts().items():
        print(f"{words:6} {name}")
