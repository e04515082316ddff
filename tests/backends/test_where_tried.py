"""What the documents say of where each backend was tried is what the backends say, and what is possible there."""

from __future__ import annotations

import re
from pathlib import Path

from attnbench.backends import APPROXIMATE, BACKENDS, SEVERAL, STEPS
from attnbench.run.support_matrix import CPU, support_matrix
from standins.contract import backend

DOCS = Path(__file__).parents[2] / "docs"
EVERY = {name: " ".join(made.verified) for name in BACKENDS if not getattr(made := backend(name), "simulated", False)}
ELSEWHERE = (*APPROXIMATE, *STEPS, *SEVERAL)  # docs/approximate.md, docs/step.md, docs/several-gpus.md
VERIFIED = {name: where for name, where in EVERY.items() if name not in ELSEWHERE}
UNVERIFIED = {name for name, where in EVERY.items() if not where}


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text)) & {*BACKENDS}


def tried(start: str) -> str:
    """Return the item of "Where it has been tried" that begins so."""
    section = (DOCS / "results.md").read_text().partition("## Where it has been tried\n")[2]
    (found,) = [item for item in section.split("\n- ") if item.lstrip("- \n").startswith(start)]
    return " ".join(found.split())


def test_the_gpu_that_it_was_tried_on() -> None:
    said, words, _ = tried("**An NVIDIA H200**").partition("; `profile`")
    assert words
    elsewhere = {name for name, where in EVERY.items() if where and "NVIDIA H200" not in where}
    assert named(said) == elsewhere
    assert elsewhere <= named(tried("**An NVIDIA H100**"))


def test_no_backend_is_said_to_run_on_a_cpu_that_needs_a_gpu() -> None:
    cpu = support_matrix(CPU)
    can_run = {row.backend for row in cpu.rows if row.overall.answer != "no"} & {*VERIFIED}
    right = {name for name, where in VERIFIED.items() if "CPU" in where}
    claimed, _, rest = tried("**x86 CPUs**").partition(". Every other backend needs a GPU, but for ")
    assert named(claimed) == right <= can_run
    assert named(rest.partition(", which were not tried")[0]) == can_run - right


def test_none_was_tried_with_stand_ins_only() -> None:
    """As docs/backends.md says. A backend that has run nowhere is to be named there and in docs/results.md again."""
    assert set() == UNVERIFIED
    text = " ".join((DOCS / "backends.md").read_text().split())
    assert "Every backend has one by now" in text
