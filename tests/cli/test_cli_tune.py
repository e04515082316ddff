"""`attnbench tune` as a black box, on a simulated GPU with two backends whose speeds cross at some length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tool import Tool

RESULTS = Path(__file__).parents[2] / "results"
OTHER = """
from attnbench.backends.fake import Fake

class Short(Fake):
    \"\"\"Faster than `fake` up to 3k keys, and slower beyond.\"\"\"
    def prepare(self, case, inputs):
        self.speed = 1.5 if case.shape.seqlen_k <= 3072 else 0.8
        return super().prepare(case, inputs)
"""
TUNE = ("tune", "--device", "fake", "-b", "fake,./other.py:Short", "--seqlen", "1k-8k", "--batch", "1", "--causal")


@pytest.fixture
def two(tool: Tool) -> Tool:
    tool.write("other.py", OTHER)
    return tool


def lengths(file: Path) -> list[int]:
    records = [json.loads(line) for line in file.read_text().splitlines() if '"record"' in line[:20]]
    return [record["case"]["shape"]["seqlen_k"] for record in records if record["backend"] == "Short"]


def test_borders_are_refined_and_the_choice_is_written(two: Tool) -> None:
    """The border of 3k lies between lengths that differ by 1.2 at most; the file says what was measured."""
    done = two(*TUNE, "--out", "t.jsonl", "-f", "choice=c.json")
    measured = lengths(two.folder / "t.jsonl")
    assert measured[4:] == [3072, 3584]
    choices = json.loads((two.folder / "c.json").read_text())
    assert choices["choices"] == 1
    assert [(one["use"], one["seqlen_k"]) for one in choices["regions"]] == [
        ("Short", [1024, 3318]),
        ("fake", [3319, 8192]),
    ]
    first = choices["regions"][0]["measured"][0]
    assert [one["backend"] for one in first["backends"]] == ["Short", "fake"]
    assert first["backends"][0]["low"] < first["backends"][0]["latency"] < first["backends"][0]["high"]
    assert first["backends"][0]["error"] == pytest.approx(0.5)
    assert "Short in 1, fake in 1" in " ".join(done.out.split())
    shown = two("recommend", "c.json").out
    assert "Short in 1" in " ".join(shown.split())
    assert two("tune", "t.jsonl").out == done.out
    assert "give the run files" in two("recommend", "c.json", "-f", "module=x.py", code=2).err
    assert "would call none of these backends" in two("tune", "t.jsonl", "-f", "module=m.py", code=2).err
    refused = two(*TUNE, "--out", "n.jsonl", "-f", "module=m.py", code=2)  # before anything is measured
    assert "would call none of these backends" in refused.err
    assert not [name for name in ("m.py", "n.jsonl") if (two.folder / name).exists()]


def test_nothing_is_written_where_nothing_was_measured(tool: Tool) -> None:
    assert (
        "fake"
        in tool("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", "--rounds", "1", "--out", "t.jsonl").out
    )
    tool.write("t.jsonl", (tool.folder / "t.jsonl").read_text().partition("\n")[0] + "\n")
    assert "no record was made" in tool("tune", "t.jsonl", "-f", "choice=c.json", "-f", "module=m.py", code=1).err
    assert not {*tool.folder.glob("*.*")} - {tool.folder / "t.jsonl"}


def test_a_run_goes_on_where_it_ended(two: Tool) -> None:
    """A file without its last records is finished and refined by --resume; run --resume measures what is planned."""
    two(*TUNE, "--out", "whole.jsonl")
    lines = (two.folder / "whole.jsonl").read_text().splitlines(keepends=True)
    added = next(i for i, line in enumerate(lines) if '"jobs"' in line[:20])
    two.write("part.jsonl", "".join(lines[: added - 1]))
    two("tune", "--resume", "part.jsonl", "--trust")
    assert sorted(lengths(two.folder / "part.jsonl")) == sorted(lengths(two.folder / "whole.jsonl"))
    two.write("planned.jsonl", "".join(lines[: added + 2]))
    two("run", "--resume", "planned.jsonl", "--trust")
    assert lengths(two.folder / "planned.jsonl") == lengths(two.folder / "whole.jsonl")[:5]


def test_bits_are_kept_in_the_file(two: Tool) -> None:
    """A run for --bits goes on for the same bits, and refuses others in one line."""
    words = ("--bits", "deterministic")
    whole = two(*TUNE, *words, "--out", "t.jsonl", ATTNBENCH_FAKE="process@1k").out
    again = ("tune", "--resume", "t.jsonl", "--trust")
    assert two(*again).out == two(*again, *words).out == whole
    error = two(*again, "--bits", "batch-invariant", code=2).err
    assert error == "attnbench: --bits: t.jsonl was measured for deterministic; leave it out\n"
    two(*TUNE, "--time-limit", "1s", "--out", "u.jsonl")
    assert "u.jsonl was measured without it" in two("tune", "--resume", "u.jsonl", "--trust", *words, code=2).err


def test_a_model_has_its_phases(tool: Tool) -> None:
    """A model is measured in prefill, decode (dense and over pages) and training; one of fixed length around it."""
    plan = ("--device", "fake", "-b", "fake", "--dry-run", "--json")

    def planned(*words: str) -> list[dict[str, Any]]:
        return [job["case"] for job in json.loads(tool("tune", *words, *plan).out)]

    cases = planned("--model", "llama-3.1-8b")
    assert {case["direction"] for case in cases} == {"fwd", "bwd"}
    assert {case.get("page_size", 0) for case in cases if case["shape"]["seqlen_q"] == 1} == {0, 16}
    video = planned("--model", "wan-2.1-t2v-14b", "--phase", "prefill")
    assert sorted(case["shape"]["seqlen_k"] for case in video) == [8190, 16380, 32760]


def test_recommend_writes_the_choice_of_run_files(tool: Tool) -> None:
    file = RESULTS / "20261128-222252-default-nvidia-h100.jsonl.gz"
    tool("recommend", file, "-f", "choice=c.json", "-f", "module=m.py")
    assert json.loads((tool.folder / "c.json").read_text())["gpu"] == "NVIDIA H100 80GB HBM3"
    assert "scaled_dot_product_attention" in (tool.folder / "m.py").read_text()
    shown = tool("tune", file, "-f", "module=m.py").out  # a module of an earlier tune is replaced, and no other code
    for text in (shown, (tool.folder / "m.py").read_text()):
        assert "import m\n" in text
        assert "import attention_choice" not in text
    assert "\nm.register_transformers()" in tool("tune", file, "-f", "module=m.py", "--json").out.replace("\\n", "\n")
    tool.write("other.py", OTHER)
    assert "Python code, which would be overwritten" in tool("tune", file, "-f", "module=other.py", code=2).err
    for name in ("2", "class"):
        assert "Python imports no file of this name" in tool("tune", file, "-f", f"module={name}.py", code=2).err
    for name in ("torch", "flash_attn", "warnings"):
        error = tool("tune", file, "-f", f"module=sub/{name}.py", code=2).err
        assert f"would hide the library {name}; give attention_choice.py" in error
    for words in (("--seqlen", "1k"), ("-b", "sdpa"), ("--bits", "deterministic"), ("--vary-in-training",)):
        assert "with a choice file nothing is measured" in tool("tune", "c.json", *words, code=2).err
    other = RESULTS / "20261129-230118-default-nvidia-h200.jsonl.gz"
    assert "a choice is of one machine" in tool("recommend", file, other, "-f", "choice=d.json", code=2).err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--model", "llama-3.1-8b", "--nheads", "4"), "--model sets this"),
        (("--phase", "decode"), "--phase needs a model"),
        (("--suite", "no-such.yaml"), "no suite"),
        (("--resume", "no-such.jsonl"), "no-such.jsonl"),
        (("-f", "choise=c.json"), 'did you mean "choice"'),
        (("--tokens", "4k"), "--tokens: tune has batches of its own; give --batch"),
    ],
)
def test_bad_input(tool: Tool, words: tuple[str, ...], error: str) -> None:
    assert error in " ".join(tool("tune", "--device", "fake", "-b", "fake", *words, code=2).err.split())


def test_all_backends_by_default(tool: Tool) -> None:
    words = ("--device", "cpu", "--model", "llama-3.1-8b", "--phase", "prefill", "--dry-run", "--json")
    jobs = json.loads(tool("tune", *words).out)
    named = {job["backend"] for job in jobs if "skip" not in job}
    assert "sdpa" in named
    assert not named & {"eager", "sdpa-math", "hf-sdpa"}


def test_no_choice_file(tool: Tool) -> None:
    tool.write("c.json", '{"choices": 1, "gpu": 3}')
    assert "c.json is no choice file" in tool("recommend", "c.json", code=2).err
    tool.write("c.json", '{"choices": 9}')
    assert "newer attnbench" in tool("recommend", "c.json", code=2).err
