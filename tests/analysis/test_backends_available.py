"""The document of `attnbench backends`: usable backends, the reasons for others, and how to install them."""

from __future__ import annotations

import json
from dataclasses import replace

from attnbench.analysis.backends.document import Row, document
from attnbench.render import json_and_csv, terminal

FA2 = "pip install 'attnbench[fa2]'"
ROWS = (
    Row("eager", "torch 2.13.0", "NVIDIA H200"),
    Row("fa2", None, "NVIDIA H200", None, "flash_attn is not installed", FA2),
    Row("hf-flash_attention_2", None, "NVIDIA H200", None, "flash_attn is not installed", FA2),
    Row("sdpa-cudnn", "torch 2.13.0", "NVIDIA H200", None, "needs a CUDA GPU"),
)


def test_a_line_a_reason_and_each_command_whole() -> None:
    title, table, reasons, commands = terminal.text(document("a CPU", ROWS)).split("\n\n")[:4]
    assert title == "a CPU"
    assert [line.split()[0] for line in table.splitlines()[1:]] == [row.backend for row in ROWS]
    shared = "fa2, hf-flash_attention_2"
    told = [f"{shared}: flash_attn is not installed", "sdpa-cudnn: needs a CUDA GPU"]
    assert reasons.splitlines() == ["Not here", *told]
    assert commands.splitlines() == ["To install what is missing", f"  {shared}  {FA2}"]
    assert len(document("a CPU", ROWS[:1]).blocks) == 1, "where all run nothing is missing"


def test_for_programs() -> None:
    found = document("a CPU", [*ROWS[:-1], replace(ROWS[-1], interpreter="/opt/python")])
    assert json.loads(json_and_csv.json_text(found))[-1] == {
        "backend": "sdpa-cudnn",
        "version": "torch 2.13.0",
        "verified": "NVIDIA H200",
        "interpreter": "/opt/python",
        "reason": "needs a CUDA GPU",
        "install": None,
    }
