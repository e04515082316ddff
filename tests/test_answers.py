"""What docs/compare.md quotes is what its commands print of results/, and a person reads it in a few minutes."""

from __future__ import annotations

import re

from answers import FILE, commands, renewed


def test_the_answers_of_the_document_are_those_of_its_commands() -> None:
    assert len(commands()) == 10
    assert renewed(FILE.read_text()) == FILE.read_text(), "python tests/answers.py writes them; read the difference"


def test_a_person_wrote_few_words_beside_them() -> None:
    text = re.sub(r"^(>|\||    |<!--).*$", "", FILE.read_text(), flags=re.MULTILINE)
    assert len(text.split()) <= 1200
