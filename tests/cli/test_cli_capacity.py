"""`attnbench capacity` on the simulated device, and on a CPU with kernels that fail at some length."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

from tool import Tool

FAKE = ("capacity", "--device", "fake", "-b", "fake")
OWN = """
import time
import torch
import torch.nn.functional as F

def right(q, k, v, *, causal, softmax_scale):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)

def overflows(q, k, v, *, causal, softmax_scale):
    out = right(q, k, v, causal=causal, softmax_scale=softmax_scale).clone()
    out[:, 1000:] = 0  # as an index that has wrapped leaves the end of a result
    return out

def starts_slowly(q, k, v, *, causal, softmax_scale):
    if q.shape[1] > 2048:
        raise RuntimeError("no more than 2048")
    time.sleep(0.1)
    return right(q, k, v, causal=causal, softmax_scale=softmax_scale)

def hungry(q, k, v, *, causal, softmax_scale):
    return right(q, k, v, causal=causal, softmax_scale=softmax_scale) + 0 * len(torch.empty(q.shape[1], 2**18))
"""


def found(tool: Tool, *args: str, code: int = 0, fake: str = "") -> list[dict[str, Any]]:
    return json.loads(tool(*args, "--json", code=code, fake=fake).out)


def test_memory_stops_it(tool: Tool) -> None:
    forward, training = found(tool, *FAKE, "--memory", "4g", "--out", "a.jsonl")
    assert (forward["fits"], forward["limit"], forward["done"]) == (2**18, "memory", True)
    assert forward["bytes"] == 2**32
    assert forward["growth"]["name"] == "linear"
    assert forward["seqlen_k"] == forward["fits"]
    assert training["fits"] < forward["fits"]
    assert found(tool, "capacity", "a.jsonl") == [forward, training]
    shown = tool("capacity", "a.jsonl", "--html", "a.html").out
    assert "causal, heads 16, forward, Simulated GPU: 256k tokens in 4 GiB with fake (memory stops the next)" in shown
    assert "Memory over size" in (tool.folder / "a.html").read_text()
    assert "attnbench capacity --resume a.jsonl" in tool("run", "--resume", "a.jsonl", code=2).err


def test_sizes_under_unlike_limits_stand_apart_with_their_limits(tool: Tool) -> None:
    for name, *limits in (
        ("a", "--memory", "4g"),
        ("b", "--call-limit", "1s"),
        ("c", "--memory", "4g", "--ranks", "2"),
    ):
        tool(*FAKE, "--pass", "fwd", *limits, "--out", f"{name}.jsonl")
    shown = tool("capacity", "a.jsonl", "b.jsonl", "c.jsonl", "--html", "a.html", COLUMNS="200").out
    page = (tool.folder / "a.html").read_text()
    told = (
        "forward, Simulated GPU: 256k tokens in 4 GiB with fake (memory stops the next)",
        "forward, Simulated GPU: 512k tokens in 4 GiB of each device with fake (memory stops the next)",
        "with fake (more than 1s a call stops the next)",
        "heads 16, forward, 4 GiB of each device, 10s a call at most",  # titles of tables
        "heads 16, forward, all memory, 1s a call at most",
        "Over several devices, 4 GiB of each device, 10s a call at most",
        "tokens in 4 GiB, fake",  # part of the reasons
    )
    for text in told:
        assert text in " ".join(shown.split()), text
    for text in told[:-1]:
        assert text in page, text
    assert (
        "nothing was measured; 4 GiB, 10s a call at most"
        in tool(*FAKE, "--memory", "4g", "--dry-run", COLUMNS="200").out
    )
    tool(*FAKE, "--pass", "fwd", "--memory", "4g", "--call-limit", "1s", "--out", "d.jsonl")
    both = " ".join(tool("capacity", "a.jsonl", "d.jsonl", COLUMNS="200").out.split())
    assert "256k tokens in 4 GiB at 10s a call with fake" in both
    assert "256k tokens in 4 GiB at 1s a call with fake" in both


def test_a_lack_of_memory_was_seen_by_a_process_of_its_own(tool: Tool) -> None:
    tool(*FAKE, "--memory", "4g", "--pass", "fwd", "--out", "a.jsonl")
    records = tool.stored("a.jsonl").records
    (size,) = {r["case"]["shape"]["seqlen_k"] for r in records[-2:]}
    assert [r["status"] for r in records[-2:]] == ["oom", "oom"]
    assert 2**18 < size < 2**18 * 1.06


def test_more_ranks_hold_a_longer_sequence(tool: Tool) -> None:
    ranks = found(tool, *FAKE, "--ranks", "1,2,4", "--memory", "4g", "--pass", "fwd", "--out", "a.jsonl")
    assert [(of["ranks"], of["fits"], of["limit"]) for of in ranks] == [(n, n * 2**18, "memory") for n in (1, 2, 4)]
    said = " ".join(tool("capacity", "a.jsonl", COLUMNS="200").out.split())
    assert "fake 256k tokens 512k tokens, 2.00x 1m tokens, 4.00x" in said
    assert "over several devices" not in tool(*FAKE, "--pass", "fwd").out.lower()
    said = tool(*FAKE, "--pass", "fwd", "--ranks", "2", COLUMNS="200").out.splitlines()
    assert "bf16 d128 causal ranks 2, heads 16, forward, all memory, 10s a call at most" in said


def test_several_ranks_on_a_cpu(tool: Tool) -> None:
    options = ("--pass", "fwd", "--nheads", "2", "--headdim", "16", "--call-limit", "0.1s", "--out", "a.jsonl")
    (of,) = found(tool, "capacity", "--device", "cpu", "-b", "ulysses-sdpa", "--ranks", "2", *options)
    assert of["limit"] == "too slow"
    assert of["fits"]
    lines = (tool.folder / "a.jsonl").read_text().splitlines(keepends=True)
    tool.write("part.jsonl", "".join(lines[:-2]))
    (again,) = found(tool, "capacity", "--resume", "part.jsonl")
    assert (again["ranks"], again["done"]) == (2, True)


def test_a_slow_call_stops_it_and_is_not_tried(tool: Tool) -> None:
    (of,) = found(tool, *FAKE, "--pass", "fwd", "--call-limit", "1s")
    assert of["limit"] == "too slow"
    assert 0.8 < of["seconds"] <= 1.0
    assert "not tried: one call is forecast to take" in of["reason"]


def test_a_forecast_by_a_short_call_is_outdated_by_a_longer_one(tool: Tool) -> None:
    """A forecast by a short call, here one with a constant 0.1 s, is replaced by the forecast by a longer call."""
    tool.write("mine.py", OWN)
    options = ("--nheads", "1", "--headdim", "16", "--pass", "fwd", "--call-limit", "1s", "--out", "a.jsonl")
    (of,) = found(tool, "capacity", "--device", "cpu", "-b", "./mine.py:starts_slowly", *options)
    assert "not tried: one call is forecast to take" in (tool.folder / "a.jsonl").read_text()
    assert (of["fits"], of["limit"]) == (2048, "failed")


def test_a_refusal_and_a_wrong_result_are_told_apart(tool: Tool) -> None:
    (of,) = found(tool, *FAKE, "--pass", "fwd", fake="wrong@8k", code=5)
    assert (of["limit"], of["next"]) == ("wrong", 8192)
    found(tool, *FAKE, "--pass", "fwd", "--allow-wrong", fake="wrong@8k")
    sizes = ",".join(f"refuse@{2**i}" for i in range(7, 27))
    (of,) = found(tool, *FAKE, "--pass", "fwd", fake=sizes, code=1)
    assert of["limit"] == "refused"
    assert "scripted refusal" in of["reason"]


def test_a_search_of_which_nothing_can_be_tried_leaves_no_file(tool: Tool) -> None:
    out = tool("capacity", "--device", "fake", "-b", "fake", fake="missing", code=1).out
    assert "nothing fits" in out
    assert not (tool.folder / "results").exists()


def test_a_batch_and_a_model(tool: Tool) -> None:
    (of,) = found(tool, *FAKE, "--of", "batch", "--seqlen", "8k", "--memory", "4g", "--pass", "fwd")
    assert (of["of"], of["fits"]) == ("batch", 32)
    said = tool(*FAKE, "--model", "llama-3.1-8b", "--phase", "train").out
    assert "llama-3.1-8b train, training, Simulated GPU: " in said


def test_sizes_end_where_a_mask_ends_and_a_token_of_a_delta_rule_has_none(tool: Tool) -> None:
    chosen, indexer = found(tool, *FAKE, "--model", "deepseek-v3.2", "--phase", "decode", "--out", "a.jsonl")
    assert chosen["fits"] < 2**31 / 2049 < indexer["fits"], "a mask that chooses keys takes so many"
    assert chosen["done"]
    (softmax,) = found(tool, *FAKE, "--model", "qwen3-next-80b-a3b", "--phase", "decode")
    assert softmax["headdim"] == 256


def test_a_search_goes_on_where_it_was_interrupted(tool: Tool) -> None:
    whole = found(tool, *FAKE, "--memory", "4g", "--out", "whole.jsonl")
    assert len(whole) == 2
    lines = (tool.folder / "whole.jsonl").read_text().splitlines(keepends=True)
    for kept in (1, 4, len(lines) - 3):
        tool.write("part.jsonl", "".join(lines[:kept]))
        assert found(tool, "capacity", "--resume", "part.jsonl") == whole
        assert len((tool.folder / "part.jsonl").read_text().splitlines()) <= len(lines) + 2
    assert found(tool, "capacity", "part.jsonl", "whole.jsonl") == whole  # each search counts once
    tool.write("part.jsonl", "".join(lines[:4]))
    assert found(tool, "capacity", "part.jsonl", "whole.jsonl") == whole  # not those ended in the other file
    before = (tool.folder / "whole.jsonl").read_text()
    assert found(tool, "capacity", "--resume", "whole.jsonl") == whole
    assert (tool.folder / "whole.jsonl").read_text() == before


def test_a_search_goes_on_with_own_code_that_was_moved(tool: Tool) -> None:
    tool.write("old.py", "from attnbench.backends.fake import Fake\nclass Mine(Fake): pass\n")
    options = ("--device", "fake", "-b", "./old.py:Mine", "--memory", "4g", "--pass", "fwd", "--out", "whole.jsonl")
    whole = found(tool, "capacity", *options)
    lines = (tool.folder / "whole.jsonl").read_text().splitlines(keepends=True)
    tool.write("part.jsonl", "".join(lines[:2]))
    (tool.folder / "old.py").rename(tool.folder / "new.py")
    assert "add --trust" in tool("capacity", "--resume", "part.jsonl", code=2).err
    assert found(tool, "capacity", "--resume", "part.jsonl", "-b", "./new.py:Mine") == whole


def test_ctrl_c_keeps_what_was_measured(tool: Tool) -> None:
    with tool.start(*FAKE, "--memory", "4g", "--pass", "fwd", "--out", "a.jsonl", fake="hang@128k") as process:
        tool.wait_until_stuck(process, "a.jsonl")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "attnbench capacity --resume a.jsonl goes on" in err
    assert "unfinished" in out
    (of,) = found(tool, "capacity", "--resume", "a.jsonl")
    assert (of["fits"], of["done"]) == (2**18, True)


def test_a_dry_run_measures_nothing(tool: Tool) -> None:
    said = tool(*FAKE, "--dry-run").out
    assert "Dry run: nothing was measured" in said
    assert not (tool.folder / "results").exists()


def test_a_cpu(tool: Tool) -> None:
    """On a CPU a kernel does not fit where it is silently wrong; one that takes all memory is out of memory."""
    tool.write("own.py", OWN)
    small = ("--device", "cpu", "--memory", "1g", "--pass", "fwd", "--nheads", "1")
    wrong, hungry = found(tool, "capacity", "-b", "./own.py:overflows,./own.py:hungry", *small, code=5)
    assert (wrong["fits"], wrong["limit"]) == (896, "wrong")
    assert hungry["limit"] == "memory"
    assert 768 <= hungry["fits"] <= 1024  # 1 MiB each


def test_what_the_process_takes_for_itself_is_not_of_the_limit(tool: Tool) -> None:
    """The limit of memory does not include the process's own memory: the answer takes over 0.6 of the limit."""
    small = ("--device", "cpu", "--memory", "256m", "--pass", "fwd", "--nheads", "1", "--headdim", "16")
    (of,) = found(tool, "capacity", "-b", "sdpa-math", *small)
    assert 0.6 * 2**28 < of["bytes"] < 2**28


def test_compare_has_the_limits(tool: Tool) -> None:
    cases = ("--seqlen", "4k,16k", "--causal", "--headdim", "128", "--pass", "fwd")
    tool("run", "--device", "fake", "-b", "fake", *cases, "--batch", "1", "--out", "run.jsonl")
    search = (*FAKE, "--pass", "fwd", "--call-limit", "1000s")
    tool(*search, "--out", "whole.jsonl")
    tool(*search, "--memory", "1g", "--out", "part.jsonl")
    names = []
    for name in ("run", "whole", "part"):
        names += [f"{name}.jsonl", f"{name}-2.jsonl"]
        tool.write(names[-1], (tool.folder / names[-2]).read_text().replace('"Simulated GPU"', '"Other GPU"'))
    said = " ".join(tool("compare", *names).out.split())
    (of,) = found(tool, "capacity", "whole.jsonl")
    assert of["limit"] == "memory"
    assert re.search(rf"\(no room to measure ({of['next']}|{of['next']:,}|{of['next'] // 1024}k)\)", said)


def test_bad_input(tool: Tool) -> None:
    for args, said in (
        (("--of", "heads"), "--of: unknown 'heads'"),
        (("--seqlen", "4k"), "--of batch"),
        (("--ranks", "3"), "4096 tokens are not a multiple of 3"),
        (("--memory", "4"), "--memory: '4' is not a size"),
        (("--resume", "none.jsonl", "--of", "batch"), "--resume uses the settings"),
        (("none.jsonl",), "leave out the options of a search"),
        (("--model", "llama-3.1-8b", "--phase", "mixed", "--batch", "2"), "ragged"),
    ):
        assert said in tool("capacity", "-b", "fake", "--device", "fake", *args, code=2).err
