"""`attnbench step` as a black box on the simulated device: plan, measurement, report, refusals."""

from __future__ import annotations

import json

import pytest
from tool import Tool

OWN = """
from attnbench.backends.fake import Fake

class Slow(Fake):
    def prepare(self, case, inputs):
        self.speed = 0.2
        return super().prepare(case, inputs)
"""


def test_a_gain_is_predicted_and_measured(tool: Tool) -> None:
    tool.write("own.py", OWN)
    args = ("llama-3.1-8b", "--device", "fake", "-b", "fake,./own.py:Slow", "--seqlen", "16k")
    found = json.loads(tool("step", *args, "--out", "run.jsonl", "--json").out)
    rows = {row["backend"]: row for row in found["steps"]}
    slow, fast = rows["Slow"], rows["fake"]
    assert slow["fastest"] == "fake"
    assert slow["latency"] > 1.5 * fast["latency"]
    assert abs(slow["off"]) < 0.01
    assert (fast["model"], fast["phase"], fast["layers"], fast["depth"]) == ("llama-3.1-8b", "prefill", 13, 32)
    assert fast["tokens_per_second"] == pytest.approx(16384 / fast["latency"])
    again = json.loads(tool("step", "run.jsonl", "--json").out)
    assert again == found
    assert "Attention is" in tool("step", "run.jsonl").out


def test_run_files_of_steps_are_those_of_any_run(tool: Tool) -> None:
    for name in ("old", "new"):
        tool("step", "tiny", "--device", "fake", "--phase", "prefill,decode,train", "--out", f"{name}.jsonl")
    assert "prefill tiny 2/2" in tool("report", "new.jsonl", "-m", "tokens_per_second,attention_share").out
    tool("gate", "old.jsonl", "new.jsonl", "--inconclusive", "pass")
    tool("compare", "old.jsonl", "new.jsonl")
    assert "Traceback" not in tool("recommend", "new.jsonl", code=None).err
    assert "not measured here" in tool("report", "new.jsonl", "--model", "llama-3.1-8b", code=2).err


def test_a_plan_measures_nothing(tool: Tool) -> None:
    out = tool("step", "tiny", "--device", "fake", "--dry-run").out
    assert "fake" in out
    assert not list(tool.folder.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("llama",), "no model 'llama'"),
        (("llama-3.1-405b",), "no step of llama-3.1-405b can be built, only of llama-3.1-8b, "),
        (("tiny", "--phase", "serve"), "--phase: unknown 'serve'"),
        (("tiny", "-b", "nothing"), "--backend: unknown 'nothing'"),
        (("tiny", "--layers", "3"), "--layers: 3 is not from 1 to the 2 of tiny"),
        (("tiny", "--seqlen", "1"), "--seqlen: a step has two tokens or more"),
        (("tiny", "--dtype", "fp8"), "fp8"),
        (("run.jsonl", "tiny"), "models: for measuring"),
        (("run.jsonl", "--layers", "2"), "--layers: for measuring"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(args: tuple[str, ...], said: str, tool: Tool) -> None:
    err = tool("step", *args, code=2).err
    assert said in err
    assert "Traceback" not in err
