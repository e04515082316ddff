"""tests/gpu/tune_triton.py without a GPU: a dry run of a row, wrong results, and processes that crash or hang."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_attention import INTERPRET, block_sizes, interpreter  # noqa: F401  before anything imports kernels

ROOT = Path(__file__).parents[2]
dry = pytest.mark.skipif(not INTERPRET, reason="on a machine with a GPU the kernels are not interpreted here")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu")
    return importlib.import_module("tune_triton")


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu")
    return importlib.import_module("tune_candidate")


def test_one_row_dry(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "CANDIDATES", {"fwd d64": "128x64x4x3 64x64x4x3"})
    file = tmp_path / "found.json"
    assert script.main(["--dry", "--only", "d64", "fwd", "--jobs", "1", "--out", str(file)]) == 0
    said = json.loads(file.read_text())
    assert len(said["found"]) == 2
    assert all(f["seconds"] > 0 and 0 < f["largest"] < 1e-3 for f in said["found"])
    assert [f["blocks"] for f in said["found"] if f["table"]] == [{"fwd": "128x64x4x3"}]
    assert capsys.readouterr().out.splitlines()[-1].startswith("d64 16k full fwd     fwd      0 of 440")


@dry
@pytest.mark.parametrize(
    ("kernels", "share"), [(("dkdv",), 0.8), (("dq",), 0.6), (("dkdv", "dq"), 1.0)], ids=["dkdv", "dq", "both"]
)
def test_a_backward_is_checked_and_timed(candidate: ModuleType, kernels: tuple[str, ...], share: float) -> None:
    row, blocks = "d64 16k causal bwd", dict.fromkeys(kernels, "32x32x4x1-ta")
    checked, measured = (candidate.judge(row, blocks, check, True) for check in (True, False))
    assert "wrong" not in checked | measured
    assert "seconds" not in checked
    pairs = 2 * 96 * 97 // 2  # the pairs of both heads
    assert measured["rate"] * measured["seconds"] == pytest.approx(share * 10 * 64 * pairs)


@dry
def test_the_candidate_named_is_run(candidate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.backends.triton import forward

    ran = []
    launch = forward.launch
    monkeypatch.setattr(forward, "launch", lambda f, blocks, *a, **k: (ran.append(blocks), launch(f, blocks, *a, **k)))
    candidate.judge("d64 16k full fwd", {"fwd": "32x64x4x1-tr"}, True, True)
    assert ran == [block_sizes.Blocks(32, 64, 4, 1, tma=True, resident=True)]


def one_row(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    out[0, 5, 1] = 0
    return out, lse


def nothing_written(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty(out.shape), lse


def one_sum(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    lse[0, 1, 3] += 0.02
    return out, lse


@dry
@pytest.mark.parametrize("spoil", [one_row, nothing_written, one_sum, lambda out, lse: (out * 1.01, lse)])
def test_wrong_results_are_named(
    candidate: ModuleType, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    forward = candidate.attention_forward
    monkeypatch.setattr(candidate, "attention_forward", lambda *given: spoil(*forward(*given)))
    answer = candidate.judge("d64 16k full fwd", {"fwd": "32x64x4x1"}, True, True)
    assert answer["wrong"].endswith("at 70 x 90")
    assert "seconds" not in answer


def test_candidates_parse_and_include_the_rows_of_the_table(script: ModuleType, candidate: ModuleType) -> None:
    assert candidate.blocks_of("64x128x4x3-tra") == block_sizes.Blocks(64, 128, 4, 3, True, True, True)
    known = {key: list(map(candidate.blocks_of, texts.split())) for key, texts in script.CANDIDATES.items()}
    assert all(len(set(texts.split())) == len(texts.split()) for texts in script.CANDIDATES.values())
    for kernel, rows in block_sizes._HOPPER_MEASURED.items():
        for d, row in rows.items():
            assert set(row) <= set(known[f"{kernel} d{d}"])


def test_options_that_are_no_block_sizes(candidate: ModuleType) -> None:
    assert candidate.splits_of("64x64x4x3-ts16") == 16
    assert candidate.splits_of("64x128x8x3-s2") == 2
    assert candidate.splits_of("64x64x4x3-tra") is None
    assert candidate.is_padded("64x32x4x3-trap")
    assert not any(map(candidate.is_padded, ("64x32x4x3-tra", "64x32x4x3")))
    assert candidate.share(("dkdv", "dq"), candidate.case_of("d192 4k causal bwd", False).shape) == 1


@dry
@pytest.mark.parametrize(
    ("row", "blocks"),
    [
        ("d192 4k causal fwd", {"fwd": "32x32x4x1-trp"}),
        ("d192 4k causal bwd", {"dkdv": "32x32x4x1-t", "dq": "32x32x4x1-t"}),
        ("d64-mqa 2k causal bwd", {"dkdv": "32x32x4x1-ts2"}),
    ],
    ids=["padded", "in-parts", "split"],
)
def test_rows_with_other_shapes(candidate: ModuleType, row: str, blocks: dict[str, str]) -> None:
    answer = candidate.judge(row, blocks, True, True)
    assert "wrong" not in answer
    assert answer["largest"] < 1e-3


CHILD = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    asked = request["do"]
    if asked == "crash":
        print("out of luck", file=sys.stderr)
        os._exit(3)
    if asked == "hang":
        time.sleep(60)
    print(json.dumps({"pid": os.getpid(), "ends": asked == "end", "number": request["number"]}), flush=True)
"""


def test_after_a_crash_or_a_hang_a_new_process_continues(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    with script.CandidateProcess(dry=True) as asker:
        asker._program = (str(tmp_path / "child.py"),)
        pids = [asker.ask({"do": "well"}, 30)["pid"] for _ in range(2)]
        assert asker.ask({"do": "crash"}, 30)["failed"] == "the worker ended with exit code 3: out of luck"
        pids.append(asker.ask({"do": "end"}, 30)["pid"])
        pids.append(asker.ask({"do": "well"}, 30)["pid"])
        assert asker.ask({"do": "hang"}, 0.2)["failed"] == "no answer within 0.2 s"
        pids.append(asker.ask({"do": "well"}, 30)["pid"])
    assert pids[0] == pids[1]
    assert len(set(pids)) == 4


class ScriptedAsker:
    """A stand-in for the processes, in which each candidate takes given seconds or has a given answer."""

    def __init__(self, takes: dict[str, Any]) -> None:
        self.dry, self.takes, self.asked = True, takes, []

    def ask(self, question: dict[str, Any], _: float = 0.0) -> dict[str, Any]:
        kernels = tuple(question["blocks"])
        self.asked.append((kernels, question["check"]))
        taken = [self.takes.get(text, 2.0) for text in question["blocks"].values()]
        if bad := [t for t in taken if isinstance(t, dict)]:
            return bad[0]
        return {"largest": 0.0} | ({} if question["check"] else {"seconds": sum(taken), "rate": 400e12 / sum(taken)})

    def all(self, questions: list[dict[str, Any]], *_: Any) -> Iterator[dict[str, Any]]:
        yield from map(self.ask, questions)


def scripted(script: ModuleType, monkeypatch: pytest.MonkeyPatch, takes: dict[str, Any], kinds: list[str]) -> Any:
    asker = ScriptedAsker(takes)
    monkeypatch.setattr(script, "ask_all", asker.all)
    rows = ["d64 16k causal bwd", "d128 16k full bwd"]
    found = script.tune(rows, kinds, {"dkdv d64 causal": "a", "dq d64 causal": "x"}, 1, asker)
    return asker, found, *script.summary(rows, kinds, found)


def test_the_best_of_both_kernels_are_timed_together(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "CANDIDATES", {"dkdv d64": "a b c", "dq d64": "x y"})
    takes = {"a": 0.6, "b": 0.5, "c": {"wrong": "off by inf at 1 x 1"}, "x": 0.1, "y": {"failed": "out of registers"}}
    asker, _, lines, well = scripted(script, monkeypatch, takes, ["bwd"])
    assert lines == ["d64 16k causal bwd   bwd    667 of 370 reached  dkdv b, dq x"]
    assert well
    assert len([1 for _, check in asker.asked if not check]) == 4  # a, b, x and both
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()][1:] == [
        "dkdv b 500.000 ms 800 TFLOP/s",
        "dkdv a 600.000 ms 667 TFLOP/s table",
        "dkdv c WRONG: off by inf at 1 x 1",
        "dq x 100.000 ms 4000 TFLOP/s table",
        "dq y FAILED: out of registers",
        "dkdv b, dq x 600.000 ms 667 TFLOP/s",
    ]
    _, _, lines, well = scripted(script, monkeypatch, {**takes, "a": {"failed": "it crashed"}, "b": 3.0}, ["bwd"])
    assert lines == ["d64 16k causal bwd   bwd    129 of 370 -65%     dkdv b, dq x"]
    assert not well  # the row of the table failed
