"""`attnbench run`: its measurements, its output, and the files that it must not touch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tool import FAKE, SMALL, Stored, Tool


def shapes(stored: Stored, *names: str) -> set[tuple[int, ...]]:
    return {tuple(r["case"]["shape"][n] for n in names) for r in stored.records}


def test_one_record_for_each_planned_job(tool: Tool) -> None:
    stored = tool.fake("--seqlen", "512-2k")
    planned = [(j["case"], j["backend"], j["round"]) for j in stored.header["plan"]]
    assert len(planned) == 3 * 2 * 2 * 2  # lengths, headdims, masks, passes
    assert planned == [(r["case"], r["backend"], r["round"]) for r in stored.records]
    assert {r["status"] for r in stored.records} == {"ok"}
    assert all(len(r["measurements"]["time"]["values"]) >= 10 for r in stored.records)


def test_the_first_line_says_what_was_run_and_where(tool: Tool) -> None:
    header = tool.fake("--seqlen", "1k", "--peak", "bf16=700").header
    assert header["schema"] == 2
    assert header["environment"]["device"]["name"] == "Simulated GPU"
    assert header["suite"] == "default"
    assert header["specs"].keys() == {"fake"}
    assert header["peak"] == {"bf16": 700e12}
    assert header["argv"][:3] == ["run", "--device", "fake"]
    assert header["started"][:2] == "20"
    assert all(j["forecast"]["seconds"] > 0 for j in header["plan"])


def test_the_default_file_is_a_new_one_in_results_and_is_named_at_the_end(tool: Tool) -> None:
    first = tool(*FAKE, "--seqlen", "1k", *SMALL)
    second = tool(*FAKE, "--seqlen", "1k", *SMALL)
    files = sorted((tool.folder / "results").iterdir())
    assert len(files) == 2
    for said in (first, second):
        path = said.out.split("Results: ")[1].split("\n")[0]
        assert tool.stored(path).statuses == {1024: "ok"}


def test_a_suite_name_cannot_lead_out_of_results(tool: Tool) -> None:
    tool.write("mine.yaml", "name: ../../x y\naxes: {seqlen: 1k}\n")
    tool(*FAKE, "--suite", "mine.yaml")
    (file,) = (tool.folder / "results").iterdir()
    assert "x-y" in file.name


def test_an_existing_file_is_refused_and_untouched(tool: Tool) -> None:
    tool.write("run.jsonl", "precious")
    result = tool(*FAKE, "--out", "run.jsonl", code=2)
    assert "run.jsonl is there already" in result.err
    assert (tool.folder / "run.jsonl").read_text() == "precious"


def test_a_dry_run_shows_the_plan_and_writes_nothing(tool: Tool) -> None:
    result = tool("run", "--device", "fake", "-b", "fake,eager", "--seqlen", "1k,2k", *SMALL, "--dry-run")
    lines = {line.split()[0]: line.split() for line in result.out.splitlines() if line}
    assert lines["fake"][1:3] == ["2", "0"]
    assert "eager" not in lines
    assert "skip  eager (all): the simulated device runs simulated backends only" in result.out
    assert list(tool.folder.iterdir()) == []


def test_on_a_cpu_the_time_limit_caps_the_sequence_lengths_and_says_so(tool: Tool) -> None:
    pytest.importorskip("torch")
    options = ("--device", "cpu", "-b", "eager", "--seqlen", "64-64k", "--time-limit", "20s", "--dry-run")
    result = tool("run", *options)
    said = r"time limit of 20s leaves out \d+ of 88 cases, of seqlen \S+ to \S+: --time-limit \S+ takes in the next"
    assert re.search(said, " ".join(result.err.split()))
    assert "skip" not in result.out.replace("skipped", "")


def test_what_may_compile_for_minutes_is_said_before(tool: Tool) -> None:
    tool.write("own.py", "from attnbench.backends.fake import Fake\nclass Compiles(Fake): starts_compiler = True\n")
    asked = ("run", "--device", "fake", "-b", "fake,./own.py:Compiles", "--seqlen", "1k,2k,4k", *SMALL, "--dry-run")
    said = " ".join(tool(*asked).err.split())
    assert "Compiles may compile for minutes in a first call, which is not in the forecast; with --time-limit" in said
    jobs = json.loads(tool(*asked, "--time-limit", "5m", "--json").out)
    assert [job["backend"] for job in jobs] == [*["fake"] * 3, *["Compiles"] * 3]


def test_a_dry_run_as_json_is_the_jobs(tool: Tool) -> None:
    result = tool(*FAKE, "--seqlen", "1k,2k", *SMALL, "--dry-run", "--json")
    assert {j["case"]["shape"]["seqlen_k"] for j in json.loads(result.out)} == {1024, 2048}


def test_json_is_alone_on_stdout(tool: Tool) -> None:
    result = tool(*FAKE, "--seqlen", "1k,2k", *SMALL, "--json")
    rows = json.loads(result.out)
    assert [(r["seqlen_k"], r["status"]) for r in rows] == [(1024, "ok"), (2048, "ok")]
    assert all(r["tflops"] > 1 for r in rows)
    assert "Results: " in result.err


def test_rounds_repeat_the_plan(tool: Tool) -> None:
    stored = tool.fake("--seqlen", "1k,2k", *SMALL, "--rounds", "2")
    assert [(r["round"]) for r in stored.records] == [0, 0, 1, 1]
    assert len(set(stored.order)) == 2


def test_the_seed_changes_the_order_and_not_the_cases(tool: Tool) -> None:
    first = tool.fake("--seqlen", "512-4k", "--seed", "1")
    tool(*FAKE, "--seqlen", "512-4k", "--seed", "1", "--out", "same.jsonl")
    tool(*FAKE, "--seqlen", "512-4k", "--seed", "2", "--out", "other.jsonl")
    same, other = tool.stored("same.jsonl"), tool.stored("other.jsonl")
    assert first.order == same.order
    assert first.order != other.order
    assert sorted(first.order) == sorted(other.order)


@pytest.mark.parametrize(
    ("options", "names", "expected"),
    [
        ("--seqlen 1k-8k:2k", ["seqlen_q", "seqlen_k"], {(n, n) for n in (1024, 3072, 5120, 7168)}),
        ("--seqlen 4k --seqlen-q 1,1k", ["seqlen_q", "seqlen_k"], {(1, 4096), (1024, 4096)}),
        ("--seqlen 1k --headdim 64,192-128", ["headdim", "headdim_v"], {(64, 64), (192, 128)}),
        ("--seqlen 1k,4k --tokens 8k", ["seqlen_k", "batch"], {(1024, 8), (4096, 2)}),
        ("--seqlen 1k --nheads-k 8", ["nheads", "nheads_k"], {(32, 8), (16, 8)}),
    ],
)
def test_sizes_reach_the_cases(tool: Tool, options: str, names: list[str], expected: set[tuple[int, ...]]) -> None:
    assert shapes(tool.fake(*options.split()), *names) == expected


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ("--causal", "causal", {True}),
        ("--full", "causal", {None}),  # the file leaves the default out
        ("--pass fwd_bwd", "direction", {"fwd_bwd"}),
    ],
)
def test_words_reach_the_cases(tool: Tool, options: str, field: str, expected: set[object]) -> None:
    stored = tool.fake("--seqlen", "1k", *options.split())
    assert {r["case"].get(field) for r in stored.records} == expected


def test_options_override_a_suite_file(tool: Tool) -> None:
    tool.write(
        "mine.yaml",
        "axes: {seqlen: [1k, 2k], headdim: 128, pass: [fwd, bwd]}\n"
        "exclude: [{seqlen: 2k, pass: bwd}]\nbackends: [fake]\npolicy: {min_samples: 600}\n",
    )
    tool("run", "--device", "fake", "--suite", "mine.yaml", "--out", "plain.jsonl")
    plain = tool.stored("plain.jsonl")
    assert {(r["case"]["shape"]["seqlen_k"], r["case"]["direction"]) for r in plain.records} == {
        (1024, "fwd"),
        (1024, "bwd"),
        (2048, "fwd"),
    }
    assert all(len(r["measurements"]["time"]["values"]) >= 600 for r in plain.records)
    assert plain.header["suite"] == "mine"
    changed = tool.fake("--suite", "mine.yaml", "--seqlen", "4k", "--headdim", "64")
    assert shapes(changed, "seqlen_k", "headdim") == {(4096, 64)}
    assert {r["case"]["direction"] for r in changed.records} == {"fwd", "bwd"}


def test_the_simulated_device_chooses_the_simulated_backend(tool: Tool) -> None:
    tool("run", "--device", "fake", "--seqlen", "1k", *SMALL, "--out", "run.jsonl")
    assert [r["backend"] for r in tool.stored().records] == ["fake"]


def test_what_a_time_limit_leaves_out_is_measured_by_resume(tool: Tool) -> None:
    result = tool(*FAKE, "--seqlen", "1k-16k", "--time-limit", "0.2s", "--out", "run.jsonl")
    before = tool.stored()
    late = [r for r in before.records if r["status"] == "skipped"]
    assert 0 < len(late) < len(before.header["plan"])
    assert all(r["resumable"] and "time limit" in r["reason"] for r in late)
    assert "attnbench run --resume run.jsonl" in result.out
    assert "the time limit of the run does not apply" in tool("run", "--resume", "run.jsonl").err
    after = tool.stored()
    assert after.records[: len(before.records)] == before.records
    assert len(after.records) == len(before.records) + len(late)
    assert {r["status"] for r in after.records[len(before.records) :]} == {"ok"}
    again = tool("run", "--resume", "run.jsonl")
    assert "nothing is missing" in again.err
    assert len(tool.stored().records) == len(after.records)


OWN = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def attention(q, k, v, *, causal, softmax_scale):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return sdpa(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)

def forgets_the_scale(q, k, v, *, causal, softmax_scale):
    return attention(q, k, v, causal=causal, softmax_scale=1.0)

def detaches(q, k, v, **options):
    return attention(q.detach(), k.detach(), v.detach(), **options)
"""
CLASS = """
from attnbench.backends.base import BackendBase, autograd_prepared
from mine import attention

class Classy(BackendBase):
    def unsupported(self, case, device):
        return "no causal mask in this one" if case.causal else None

    def prepare(self, case, inputs):
        def forward(q, k, v):
            return attention(q, k, v, causal=False, softmax_scale=case.softmax_scale)
        return autograd_prepared(case, inputs, forward)
"""


def test_own_code_is_measured_and_checked_like_any_backend(tool: Tool) -> None:
    tool.write("mine.py", OWN)
    (tool.folder / "pkg").mkdir()
    tool.write("pkg/classy.py", CLASS)
    wanted = ("./mine.py:attention", "mine:forgets_the_scale", "mine:detaches", "pkg.classy:Classy")
    tool.write(
        "tiny.yaml",
        "axes: {seqlen: 32, headdim: 16, nheads: 2, batch: 1, dtype: fp32, causal: [false, true], pass: [fwd, bwd]}\n"
        "policy: {l2: warm, warmup_s: 0.001, min_seconds: 0.001, max_seconds: 0.001}\n",
    )
    result = tool(
        "run", "--device", "cpu", "-b", ",".join(wanted), "--suite", "tiny.yaml", "--out", "run.jsonl", code=5
    )
    found: dict[str, set[tuple[str, bool, str]]] = {}
    reasons = {}
    for r in tool.stored().records:
        case = r["case"]
        found.setdefault(r["backend"], set()).add((case["direction"], case.get("causal", False), r["status"]))
        reasons[r["backend"], case["direction"]] = r.get("reason")
    each = [("fwd", False), ("fwd", True), ("bwd", False), ("bwd", True)]
    assert found["attention"] == {(*e, "ok") for e in each}
    assert found["forgets_the_scale"] == {(*e, "wrong") for e in each}
    assert found["detaches"] == {(d, c, "ok" if d == "fwd" else "skipped") for d, c in each}
    assert found["Classy"] == {(d, c, "skipped" if c else "ok") for d, c in each}
    assert reasons["detaches", "bwd"] == "not differentiable: its output has no gradient"
    assert "no causal mask in this one" in result.out
    assert "forgets_the_scale" in result.out


def test_two_functions_of_one_name_are_two_backends(tool: Tool) -> None:
    tool.write("one.py", "def f(q, k, v, **options): ...")
    tool.write("two.py", "def f(q, k, v, **options): ...")
    result = tool("run", "--device", "fake", "-b", "./one.py:f", "-b", "./two.py:f", "--dry-run", "--json")
    assert {j["backend"] for j in json.loads(result.out)} == {"one.py:f", "two.py:f"}


def test_a_run_with_nothing_to_measure_leaves_no_file(tool: Tool) -> None:
    said = tool("run", "-b", "fa2", "--device", "fake", code=1)
    assert "skip  fa2 (all)" in said.out
    assert "Results" not in said.out + said.err
    assert list(tool.folder.iterdir()) == []


def test_backends_says_why_not_and_what_would_help(tool: Tool) -> None:
    lines = tool("backends", fake="missing", COLUMNS="200").out.splitlines()
    start = lines.index("Not here")
    table, lacking = lines[:start], lines[start:]
    assert "fake: ATTNBENCH_FAKE says it is missing" in lacking
    assert any(line.split() == ["fake", "unset", "ATTNBENCH_FAKE"] for line in lacking)
    (eager,) = [line for line in table if line.startswith("eager ")]
    assert "torch " in eager
    assert "NVIDIA H200" in eager
    assert any(line.startswith("fake ") and "simulated" in line for line in table)


def test_suites_are_listed_and_shown_to_be_copied(tool: Tool) -> None:
    listed = tool("suites").out
    for name in ("default", "quick", "flash-paper"):
        assert any(line.startswith(f"{name} ") for line in listed.splitlines())
    Path(tool.folder, "copy.yaml").write_text(tool("suites", "quick").out)
    assert shapes(tool.fake("--suite", "copy.yaml"), "seqlen_k") == {(1024,), (4096,), (16384,)}


def test_a_round_is_measured_again(tool: Tool) -> None:
    """A round that is measured again stays in the file of the run, because the last record of a job counts."""
    stored = tool.fake("--seqlen", "1k,2k", *SMALL, "--rounds", "3")
    jobs = len(stored.header["plan"])
    tool("run", "--resume", "run.jsonl", "--again", "1")
    assert len(stored.records) == jobs
    assert [r["round"] for r in tool.stored().records[jobs:]] == [1] * (jobs // 3)
    assert tool("run", "--resume", "run.jsonl", code=0).err.count("nothing is missing") == 1
    assert "run.jsonl has no round 7, but 0 to 2" in tool("run", "--resume", "run.jsonl", "--again", "7", code=2).err
    (tool.folder / "empty.jsonl").write_text(
        json.dumps({"type": "run", **stored.header, "plan": []}, separators=(",", ":")) + "\n"
    )
    assert "has no round 7\n" in tool("run", "--resume", "empty.jsonl", "--again", "7", code=2).err
    assert "name it with --resume FILE" in tool("run", "--again", "1", code=2).err
    limited = tool("run", "--resume", "run.jsonl", "--again", "1", "--time-limit", "1m", code=2)
    assert "leave out --time-limit" in limited.err


def test_a_run_that_names_a_module_of_ours_where_it_was_before_goes_on(tool: Tool) -> None:
    tool.fake("--seqlen", "1k,2k", *SMALL)
    path = Path(tool.folder, "run.jsonl")
    lines = path.read_text().replace("attnbench.backends.fake:Fake", "attnbench.backends.before:Fake").splitlines(True)
    path.write_text("".join(lines[:-1]))
    tool("run", "--resume", "run.jsonl")
    assert len(tool.stored().records) == len(lines) - 1
