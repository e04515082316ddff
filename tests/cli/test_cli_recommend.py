"""`attnbench recommend` as a black box: from run files of an H100 and an H200, and from a short run."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from tool import Tool

RESULTS = Path(__file__).parents[2] / "results"
LIBRARIES = RESULTS / "20261121-174520-libraries-nvidia-h200.jsonl.gz"
H100, H200 = (RESULTS / "spreads" / name for name in ("h100-ff241cb2-1.jsonl.gz", "h200-7f3cc288-1.jsonl.gz"))


def test_options_choose_cases_and_backends_of_run_files(tool: Tool) -> None:
    options = ("--seqlen", "4k", "--headdim", "64,128", "--dtype", "bf16", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(tool("recommend", LIBRARIES, *options).out)))
    assert {(row["seqlen_k"], row["headdim"]) for row in rows} == {("4096", "64"), ("4096", "128")}
    assert {row["step"] for row in rows} == {"fwd", "fwd + bwd"}
    rows = list(csv.DictReader(io.StringIO(tool("recommend", LIBRARIES, *options, "-b", "sdpa-*,!sdpa-cudnn").out)))
    assert {row["use"] for row in rows} == {"sdpa-fa4"}
    assert {row["default"] for row in rows} == {"hf-sdpa"}, "still what it is compared with"


def test_searches_and_steps_of_models_are_ranked_elsewhere(tool: Tool) -> None:
    for name in ("20261124-030327-capacity-nvidia-h100.jsonl.gz", "20261124-025920-step-nvidia-h100.jsonl.gz"):
        for words in (("recommend",), ("tune",), ("tune", "-f", "module=m.py")):
            assert "attnbench capacity ranks searches, attnbench step" in tool(*words, RESULTS / name, code=2).err
    assert tool("recommend", LIBRARIES, RESULTS / name).out == tool("recommend", LIBRARIES).out


def test_a_short_run_of_a_simulated_gpu(tool: Tool) -> None:
    done = tool("recommend", "--device", "fake", "--seqlen", "2k,4k", "--causal", "--pass", "fwd,bwd")
    assert "fake alone was right in 4: no choice" in done.out
    assert "The gain over PyTorch's default is not known in 4 cases." in " ".join(done.out.split())
    (file,) = (tool.folder / "results").glob("*-quick-*.jsonl")
    assert f"Results: results/{file.name}" in done.err
    again = tool("recommend", f"results/{file.name}").out
    assert again == done.out, "the file gives the same"


def test_no_default_is_missed_where_pytorch_has_none(tool: Tool) -> None:
    for options in (("--kind", "gdn,indexer", "--headdim", "128"), ("--page-size", "16", "--seqlen-q", "1")):
        out = tool("recommend", "--device", "fake", "--seqlen", "1k", "--causal", "--pass", "fwd", *options).out
        assert "The gain over PyTorch's default" not in " ".join(out.split())


def test_bits_are_compared_shown_and_asked_for(tool: Tool) -> None:
    """A simulated backend whose bits differ in three ways is left out where its bits are asked for."""
    fake = ("--device", "fake", "-b", "fake", "--causal", "--headdim", "128")
    odd = {"ATTNBENCH_FAKE": "unordered@1k batched@2k process@4k"}
    tool("run", *fake, "--seqlen", "1k-8k", "--pass", "bwd", "--bitwise", "--out", "r.jsonl", **odd)
    rows = list(csv.DictReader(io.StringIO(tool("report", "r.jsonl", "-f", "csv").out)))
    said = {row["seqlen_k"]: (row["deterministic"], row["batch_invariant"]) for row in rows}
    assert said == {"1024": ("0.0", ""), "2048": ("1.0", "0.0"), "4096": ("0.0", "1.0"), "8192": ("1.0", "1.0")}
    text = " ".join(tool("report", "r.jsonl").out.split())
    assert "dq differs in 3 of 7 further launches (1 cell)" in text
    assert "dq differs with the batch (1 cell)" in text
    assert "dq, dk and dv differ between processes (1 cell)" in text
    rows = list(csv.DictReader(io.StringIO(tool("recommend", "r.jsonl", "--bits", "deterministic", "-f", "csv").out)))
    assert [row["seqlen_k"] for row in rows if row["use"]] == ["2048", "8192"]
    both = ("--bits", "deterministic,batch-invariant")
    assert "nothing with these bits" in tool("recommend", "r.jsonl", *both).out
    short = tool("recommend", *fake, "--seqlen", "1k,8k", "--pass", "bwd", *both, "-f", "csv", **odd).out
    assert [row["use"] for row in csv.DictReader(io.StringIO(short))] == ["", "fake"], "a short run compares bits"


def test_a_deterministic_variant_that_differs_is_told(tool: Tool) -> None:
    fake = ("run", "--device", "fake", "-b", "fake", "--causal", "--headdim", "128", "--seqlen", "1k,4k", "--bitwise")
    done = tool(*fake, "--deterministic", "--pass", "bwd", ATTNBENCH_FAKE="unordered@1k process@4k")
    assert "1 result of a deterministic variant with other bits in another launch or process" in " ".join(
        done.out.split()
    )


def test_a_short_run_whose_results_are_wrong_recommends_nothing(tool: Tool) -> None:
    options = ("recommend", "--device", "fake", "--seqlen", "2k", "--causal", "--out", "r.jsonl")
    done = tool(*options, ATTNBENCH_FAKE="wrong@2k", code=1)
    assert "nothing can be recommended: no exact backend has a right figure" in " ".join(done.out.split())
    assert "WRONG" in done.out
    assert tool("recommend", "r.jsonl", code=1).out == done.out


def test_a_run_file_without_records(tool: Tool) -> None:
    tool("recommend", "--device", "fake", "--seqlen", "2k", "--out", "r.jsonl")
    tool.write("empty.jsonl", (tool.folder / "r.jsonl").read_text().splitlines()[0] + "\n")
    assert tool("recommend", "empty.jsonl", code=1).out.startswith("Nothing was measured: there are no records.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((LIBRARIES, "--seqlen", "3k"), "no case of these run files has the shapes"),
        ((LIBRARIES, "-b", "fa9"), "--backend: these run files have no such backend for these shapes, only eager, "),
        ((LIBRARIES, "--rounds", "5"), "--rounds: for measuring; with run files nothing is measured, leave it out"),
        ((LIBRARIES, "--device", "cpu", "--out", "x.jsonl"), "--device and --out: for measuring"),
        ((LIBRARIES, "--seqlen", "much"), "seqlen"),
        (("none.jsonl",), "none.jsonl"),
        (("notes.txt",), "is not an attnbench run file"),
        (("--device", "fake", "-b", "no-such"), "no backend 'no-such'"),
        ((LIBRARIES, "-f", "xml"), "--format: unknown 'xml'"),
        ((LIBRARIES, "--bits", "determinist"), "bits: unknown bits 'determinist'; did you mean \"deterministic\"?"),
    ],
)
def test_what_is_wrong_is_one_line(tool: Tool, options: tuple[object, ...], said: str) -> None:
    tool.write("notes.txt", "hello\n")
    err = tool("recommend", *map(str, options), code=2).err
    assert said in err
    assert len(err.splitlines()) == 1


def test_many_runs_are_a_screen_and_all_is_a_word_away(tool: Tool) -> None:
    files = sorted((RESULTS / "spreads").glob("h[12]00-*.jsonl.gz"))
    short = tool("recommend", *files, "-f", "table", "-f", "csv=short.csv", "-f", "md=use.md").out
    assert len(short.splitlines()) < 80
    assert short.count("\nNVIDIA H") >= 2
    assert "attnbench recommend --all shows everything" in " ".join(short.split())
    every = tool("recommend", *files, "--all", "-f", "table", "-f", "csv=every.csv").out
    assert len(every.splitlines()) > 5 * len(short.splitlines())
    assert "Not shown" not in every
    assert (tool.folder / "short.csv").read_text() == (tool.folder / "every.csv").read_text()
    assert len((tool.folder / "use.md").read_text().splitlines()) > 5 * len(short.splitlines())
