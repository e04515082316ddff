"""The notebook of docs/python.md, progress in a notebook, and the package of examples/backend-package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnbench
import forked_worker
from attnbench.api import timing
from attnbench.render.progress import notebook
from worker_here import quick_cpu

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells of the notebook run in the shell of a notebook's kernel, in the process of the test."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.chdir(tmp_path)
    shell, outputs = shells.InteractiveShell(), []
    timing._instruments.cache_clear()
    with forked_worker.workers(), quick_cpu():
        for cell in json.loads((EXAMPLES / "kernel.ipynb").read_text())["cells"]:
            if cell["cell_type"] == "code":
                done = shell.run_cell("".join(cell["source"]), store_history=True)
                done.raise_error()
                outputs += [done.result] if done.result is not None else []
    timing._instruments.cache_clear()
    wrong, right, report, plot, table, one, verdict = (shell.display_formatter.format(of)[0] for of in outputs)
    assert "attention is WRONG in" in wrong["text/plain"]
    assert "seqlen_q != seqlen_k" in wrong["text/html"]
    assert "attention is RIGHT in" in right["text/plain"]
    assert "4 cells: 4 measured." in report["text/plain"]
    assert "application/vnd.vegalite.v5+json" in plot
    assert "memory_peak" in table["text/html"]
    assert one["text/plain"].startswith("Timing(latency=")
    assert "latency" in verdict["text/html"]
    assert {"before.jsonl", "after.jsonl"} <= {*os.listdir(tmp_path)}
    specs = attnbench.load("before.jsonl").runs[0].specs
    assert specs["attention"].endswith("attention.py:attention"), "not in this process"


def test_progress_in_a_notebook_is_one_output_that_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: drawn.append(data["text/plain"]))
    shell = type("ZMQInteractiveShell", (), {})()
    display = SimpleNamespace(display=lambda data, raw, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "EVERY", 0.01)
    assert notebook.in_notebook()
    live = notebook.NotebookLive()
    live.start()
    for text in ("[1/2] a", "[2/2] b"):
        live.update(text)
        deadline = time.monotonic() + 5
        while text not in drawn and time.monotonic() < deadline:
            time.sleep(0.01)
    live.stop()
    assert drawn[:2] == ["[1/2] a", "[2/2] b"]
    assert drawn[-1] == ""


def test_a_package_brings_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend of an installed package is measured by its name."""
    package, there = EXAMPLES / "backend-package", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", there, package], capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling, which builds it, is not installed")
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(there))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(there), os.environ.get("PYTHONPATH", "")]))
    small = {"seqlen": 64, "headdim": 32, "dtype": "fp32", "causal": True, "direction": ["fwd", "bwd"], "nheads": 2}
    with forked_worker.workers():
        found = attnbench.measure("mine", device="cpu", batch=1, progress=False, **small)
    assert {(cell.backend, cell.status) for cell in found.cells} == {("mine", "ok")}
    assert found.runs[0].specs == {"mine": "attention_of_mine:attention"}
