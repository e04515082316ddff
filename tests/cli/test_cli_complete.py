"""A Tab in a shell completes the values of options, at once and without heavy imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tool import Tool

from attnbench.analysis.gate.margins import RULES
from attnbench.backends import BACKENDS
from attnbench.results.metrics import METRICS
from attnbench.run.shipped_suites import shipped_suites
from attnbench.run.support_matrix import named_device

HEAVY = ("pydantic", "rich", "yaml", "msgspec", "numpy", "pandas", "torch")


def tab(tool: Tool, *words: str) -> list[str]:
    """Return a function that gives bash's completions of the last word after `attnbench`."""
    line = "\n".join(("attnbench", *words))
    return tool(_ATTNBENCH_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words))).out.split()


@pytest.mark.parametrize("command", ["run", "ab", "bisect"])
def test_suites(tool: Tool, command: str) -> None:
    assert tab(tool, command, "--suite", "") == [*shipped_suites()]
    if command == "run":
        assert tab(tool, command, "--suite", "qui") == ["quick"]
        assert tab(tool, command, "--suite", "=", "qui") == ["quick"]  # as bash splits --suite=qui
        assert tab(tool, command, "--suite", "./mine") == []  # the shell then offers files
        assert tab(tool, "suites", "qui") == ["quick"]


@pytest.mark.parametrize("command", ["run", "profile", "ab", "check"])
def test_backends_in_lists_and_left_out(tool: Tool, command: str) -> None:
    assert tab(tool, command, "-b", "") == [*BACKENDS]
    assert tab(tool, command, "--backend", "eager,tri") == ["eager,triton"]
    if command == "run":
        assert tab(tool, command, "-b", "sdpa-*,!sdpa-m") == ["sdpa-*,!sdpa-math"]
        assert tab(tool, command, "-b", "'!sdpa-m") == ["!sdpa-math"]  # an open quote, as in bash
        assert "flex,flex" not in tab(tool, command, "-b", "flex,f")


def test_dtypes_and_passes(tool: Tool) -> None:
    assert tab(tool, "run", "--dtype", "bf16,") == ["bf16,fp16", "bf16,fp32", "bf16,fp8"]
    assert tab(tool, "run", "--pass", "fwd_") == ["fwd_bwd"]
    assert tab(tool, "profile", "--dtype", "b") == ["bf16"]


def test_metrics(tool: Tool) -> None:
    assert tab(tool, "report", "-m", "") == [*METRICS, "help"]
    assert tab(tool, "report", "-m", "latency,tfl") == [
        "latency,tflops",
        "latency,tflops_computed",
        "latency,tflops_per_watt",
    ]
    for command in ("gate", "ab"):
        assert tab(tool, command, "--metric", "") == [*RULES, "help"]


def test_each_gpu_that_is_offered_is_one(tool: Tool) -> None:
    offered = tab(tool, "backends", "--gpu", "h100,")
    assert {"h100,a100", "h100,rtx-4090", "h100,hopper", "h100,cpu"} <= {*offered}
    assert all(named_device(name.removeprefix("h100,")) for name in offered)


def test_commands_and_options(tool: Tool) -> None:
    assert tab(tool, "ba") == ["backends", "baseline"]
    assert tab(tool, "baseline", "s") == ["save", "show"]
    assert "--suite" in tab(tool, "run", "--s")


def test_zsh_and_fish(tool: Tool) -> None:
    zsh = tool(_ATTNBENCH_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="attnbench run --suite qui").out
    assert '"quick"' in zsh
    fish = {"_ATTNBENCH_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "attnbench run -b eager,tri"}
    assert tool(**fish, _TYPER_COMPLETE_FISH_ACTION="get-args").out == "eager,triton\n"
    fish["_TYPER_COMPLETE_ARGS"] = "attnbench run --suite ./mine"
    assert tool(**fish, _TYPER_COMPLETE_FISH_ACTION="is-args", code=1).out == ""


@pytest.mark.parametrize("given", [{"COMP_WORDS": "x", "COMP_CWORD": "q"}, {"COMP_WORDS": "x"}, {}])
def test_a_tab_with_odd_variables_prints_nothing(tool: Tool, given: dict[str, str]) -> None:
    done = tool(_ATTNBENCH_COMPLETE="complete_bash", **given, code=2)
    assert done.out + done.err == ""
    tool(_ATTNBENCH_COMPLETE="nonsense", code=2)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_in_bash_itself(tmp_path: Path) -> None:
    """The script of --install-completion works, called as bash calls it at a Tab."""
    program = tmp_path / "attnbench"
    program.write_text(f"#!{sys.executable}\nfrom attnbench.cli import main\nmain()\n")
    program.chmod(0o755)
    commands = """
        eval "$(_ATTNBENCH_COMPLETE=source_bash attnbench)"
        COMP_WORDS=(attnbench run --suite qui) COMP_CWORD=3
        _attnbench_completion attnbench
        echo "offered: ${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "offered: quick\n", done


OFFERED = ("run --s", "run --suite q", "run -b e", "report -m l", "gate -m l", "backends --gpu h", "suites q", "r")


def test_nothing_heavy_is_imported() -> None:
    """A Tab imports nothing heavy: it may take 0.2 s, Python and typer take 0.05, pydantic or rich 0.06 or more."""
    tabs = [{"_ATTNBENCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "attnbench run --suite q"}]
    for words in OFFERED:
        line = ["attnbench", *words.split()]
        place = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(line) - 1)}
        tabs.append({"_ATTNBENCH_COMPLETE": "complete_bash", **place})
    code = f"""
import contextlib, os, sys
from attnbench.cli import main
for tab in {tabs}:
    sys.argv = ["attnbench"]
    with contextlib.suppress(SystemExit):
        os.environ |= tab
        main()
    print("\\nloaded:", *(name for name in {HEAVY} if sys.modules.get(name)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    offered = done.stdout.split("\nloaded:")
    assert [loaded.splitlines()[0] for loaded in offered[1:]] == [""] * len(tabs), done
    assert all(text.strip() for text in offered[:-1]), done
