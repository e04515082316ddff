"""The document of `attnbench backends`, as a terminal and other formats show it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from attnbench.analysis.backends.document import Row, document
from attnbench.render import json_and_csv, markdown, terminal

FA2 = "pip install 'attnbench[fa2]'"
INSTALL = "pip install --no-build-isolation 'transformer-engine[pytorch]>=2.0'"
ROWS = (
    Row("eager", "torch 2.13.0", "NVIDIA H200"),
    Row("fa2", None, "NVIDIA H200", None, "flash_attn is not installed", FA2),
    Row("transformer-engine", None, "not verified on hardware", None, "transformer_engine is not installed", INSTALL),
    Row("hf-flash_attention_2", None, "NVIDIA H200", None, "flash_attn is not installed", FA2),
    Row("sdpa-cudnn", "torch 2.13.0", "NVIDIA H200", None, "needs a CUDA GPU"),
)


@pytest.mark.parametrize("columns", [60, 200])
def test_a_line_a_reason_and_each_command_whole(columns: int) -> None:
    out = io.StringIO()
    terminal.render(Console(file=out, width=columns), document("a CPU", ROWS))
    table, reasons, commands = out.getvalue().split("\n\n")[1:4]
    assert out.getvalue().startswith("a CPU\n")
    assert [line.split()[0] for line in table.splitlines()[1:] if line[0] != " "] == [row.backend for row in ROWS]
    assert reasons.splitlines() == [
        "Not here",
        "fa2, hf-flash_attention_2: flash_attn is not installed",
        "transformer-engine: transformer_engine is not installed",
        "sdpa-cudnn: needs a CUDA GPU",
    ]
    assert commands.splitlines() == [
        "To install what is missing",
        "  fa2, hf-flash_attention_2  pip install 'attnbench[fa2]'",
        f"  transformer-engine         {INSTALL}",
    ]


def test_other_formats() -> None:
    found = document("a CPU", [*ROWS[:-1], replace(ROWS[-1], interpreter="/opt/python")])
    read = json.loads(json_and_csv.json_text(found))
    assert [row["backend"] for row in read] == [row.backend for row in ROWS]
    assert read[4] == {
        "backend": "sdpa-cudnn",
        "version": "torch 2.13.0",
        "verified": "NVIDIA H200",
        "interpreter": "/opt/python",
        "reason": "needs a CUDA GPU",
        "install": None,
    }
    assert json_and_csv.csv_text(found).splitlines()[1] == "eager,torch 2.13.0,NVIDIA H200,,,"
    assert "- sdpa-cudnn: needs a CUDA GPU" in markdown.render(found)
    assert "| sdpa-cudnn | torch 2.13.0, in /opt/python | NVIDIA H200 |" in markdown.render(found)


def test_where_all_run_nothing_is_missing() -> None:
    assert len(document("a CPU", ROWS[:1]).blocks) == 1
