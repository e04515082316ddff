"""What `attnbench backends` shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from attnbench.analysis.backends.available import Row, render

INSTALL = "pip install --no-build-isolation 'transformer-engine[pytorch]>=2.0'"
ROWS = (
    Row("eager", "torch 2.13.0", "NVIDIA H200"),
    Row("fa2", "-", "NVIDIA H200", "flash_attn is not installed", "pip install 'attnbench[fa2]'"),
    Row("transformer-engine", "-", "not verified on hardware", "transformer_engine is not installed", INSTALL),
    Row("hf-flash_attention_2", "-", "NVIDIA H200", "flash_attn is not installed", "pip install 'attnbench[fa2]'"),
    Row("sdpa-cudnn", "torch 2.13.0", "NVIDIA H200", "needs a CUDA GPU"),
)


@pytest.mark.parametrize("columns", [60, 200])
def test_a_line_a_reason_with_its_command_whole(columns: int) -> None:
    out = io.StringIO()
    render(Console(file=out, width=columns), "a CPU", ROWS)
    table, lacking = out.getvalue().split("\n\nNot here:\n")
    assert table.splitlines()[0] == "on a CPU:"
    assert [line.split()[0] for line in table.splitlines()[2:] if line[0] != " "] == [row.name for row in ROWS]
    assert lacking.split("\n\n")[0].splitlines() == [
        "fa2, hf-flash_attention_2: flash_attn is not installed",
        "    pip install 'attnbench[fa2]'",
        "transformer-engine: transformer_engine is not installed",
        f"    {INSTALL}",
        "sdpa-cudnn: needs a CUDA GPU",
    ]
