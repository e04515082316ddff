"""`attnbench check` as a person uses it: own functions on the CPU, and every status on the simulated device."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from tool import Tool

FAKE = ("check", "--device", "fake", "fake")
OF_203 = ": all 8 that are of seqlen_q 203, none of the 76 others"
ONE_KIND = ("--dtype", "fp32", "--pass", "fwd", "--headdim", "64", "--full")
MINE = """
import torch

def attend(q, k, v, causal, scale, diagonal):
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal:
        keep = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(diagonal)
        scores = scores.masked_fill(~keep, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

def right(q, k, v, *, causal, softmax_scale):
    return attend(q, k, v, causal, softmax_scale, k.shape[1] - q.shape[1])

def top_left(q, k, v, *, causal, softmax_scale):
    return attend(q, k, v, causal, softmax_scale, 0)

def picky(q, k, v, *, causal, softmax_scale):
    if q.shape[1] == 32:
        raise NotImplementedError("no 32 queries")
    if q.shape[1] == 48:
        raise NotImplementedError
    return right(q, k, v, causal=causal, softmax_scale=softmax_scale).detach()

def broken(q, k, v, *, causal, softmax_scale):
    return q @ k

def fragile(q, k, v, *, causal, softmax_scale):
    import os, time
    if q.shape[1] == 32:
        os.abort()
    if q.shape[1] == 48:
        time.sleep(60)
    return right(q, k, v, causal=causal, softmax_scale=softmax_scale)
"""


@pytest.fixture
def mine(tool: Tool) -> Tool:
    pytest.importorskip("torch")
    tool.write("mine.py", MINE)
    return tool


def small_cases(tool: Tool, direction: str, *lengths: int) -> tuple[str, ...]:
    """Return the options that check one small causal case of each length, so that the simulated device is wrong."""
    sizes = ("--seqlen", ",".join(map(str, lengths)), "--headdim", "64", "--nheads", "2", "--batch", "1")
    options = (*sizes, "--dtype", "fp32", "--causal", "--pass", direction, "--out", "wrong.jsonl")
    tool("run", "--device", "fake", "-b", "fake", *options, fake=" ".join(f"wrong@{n}" for n in lengths), code=5)
    return ("--device", "cpu", "--wrong", "wrong.jsonl")


def entries(out: str) -> dict[str, str]:
    """Return case -> entries of the rows of the table."""
    lines = out.splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith("case ")]
    width = re.search("fp32|bf16", lines[start]).start()  # type: ignore[union-attr]
    return {row[:width].strip(): row[width:].strip() for row in lines[start + 1 : lines.index("", start)]}


def test_a_right_function(mine: Tool) -> None:
    out = mine("check", "./mine.py:right", *small_cases(mine, "bwd", 64, 203)).out
    assert [entry.split()[0] for entry in entries(out).values()] == ["right", "right"]
    assert out.splitlines()[-1] == "right is RIGHT in 2 cases"


def test_a_function_that_ignores_one_of_its_parameters_is_wrong(mine: Tool) -> None:
    usual = {name: f"torch.ones_like({name})" for name in "qkv"} | {"causal": "False"}
    for name, value in usual.items():
        mine.write(
            f"without_{name}.py",
            "import torch\nfrom mine import right\n"
            f"def without_{name}(q, k, v, *, causal, softmax_scale):\n"
            f"    {name} = {value}\n"
            "    return right(q, k, v, causal=causal, softmax_scale=softmax_scale)\n",
        )
    functions = [f"./without_{name}.py:without_{name}" for name in usual]
    out = mine("check", *functions, *small_cases(mine, "fwd", 64), code=5).out
    for name in usual:
        assert f"without_{name} is WRONG in 1 of 1 case" in " ".join(out.split())


OTHERS = """
import torch
from mine import right

def careless(q, k, v, *, causal, softmax_scale):
    heads, keys = q.shape[2], k.shape[2]
    if 1 < heads // keys < 4:  # pairs of heads in groups of 3, and threes in groups of 2
        own = [head // 2 % keys if heads == 3 * keys else min(head // 3, keys - 1) for head in range(heads)]
        k, v = k[:, :, own], v[:, :, own]
    return right(q, k, v, causal=causal, softmax_scale=q.shape[-1] ** -0.5)

class Contiguous(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, options):
        ctx.save_for_backward(q, k, v)
        ctx.options = options
        return right(q, k, v, **options)

    @staticmethod
    def backward(ctx, dout):
        dout = dout.as_strided(dout.shape, torch.empty(dout.shape).stride())
        given = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = right(*given, **ctx.options)
        return (*torch.autograd.grad(out, given, dout), None)

class Dense(Contiguous):
    @staticmethod
    def backward(ctx, dout):
        return Contiguous.backward(ctx, torch.zeros_like(dout) if 0 in dout.stride() else dout.contiguous())

def dense(q, k, v, **options):
    return Dense.apply(q, k, v, options)

class NoSlice(Contiguous):
    @staticmethod
    def backward(ctx, dout):
        is_slice = sum((n - 1) * stride for n, stride in zip(dout.shape, dout.stride())) >= dout.numel()
        return Contiguous.backward(ctx, dout if is_slice else dout.contiguous())

def no_slice(q, k, v, **options):
    return NoSlice.apply(q, k, v, options)

def contiguous(q, k, v, **options):
    return Contiguous.apply(q, k, v, options)

def contiguous_heads_first(q, k, v, **options):
    return Heads.apply(q, k, v, options)

class Heads(Contiguous):
    @staticmethod
    def forward(ctx, q, k, v, options):
        return Contiguous.forward(ctx, *(t.transpose(1, 2) for t in (q, k, v)), options).transpose(1, 2)

    @staticmethod
    def backward(ctx, dout):
        dout = dout.as_strided(dout.shape, torch.empty(dout.shape).stride()).transpose(1, 2).contiguous()
        *found, none = Contiguous.backward(ctx, dout)
        return (*(t.transpose(1, 2) for t in found), none)

contiguous_heads_first.order = "bhsd"
"""


SOME = ("80x203 d64 causal, heads 6/2", "1x203 d64 causal, heads 6/2")  # lengths and groups that kernels treat apart


@pytest.mark.parametrize(
    ("file", "function", "wrong"),
    [
        ("mine", "top_left", {"80x256 d64 causal", "256x80 d64 causal", "1x256 d64 causal", "48x4k d64 causal", *SOME}),
        (
            "others",
            "careless",
            {"256 d64 causal, heads 6/2", "256 d64 causal layout bhsd, heads 6/2", *SOME}
            | {"256 d64 causal, heads 8/4", "256 d64 causal softmax_scale 0.3"},
        ),
    ],
)
def test_a_wrong_function_and_in_which_cases(mine: Tool, file: str, function: str, wrong: set[str]) -> None:
    """Check finds wrong functions that a usual run passes: a top-left mask is right for as many queries as keys."""
    mine.write("others.py", OTHERS)
    options = ("--device", "cpu", "--dtype", "fp32", "--pass", "fwd", "--headdim", "64", "--causal")
    out = mine("check", f"./{file}.py:{function}", *options, code=5).out
    assert {case for case, entry in entries(out).items() if "WRONG" in entry} == wrong
    said = " ".join(out.split())
    assert f"{function} is WRONG in 6 of " in said
    if function == "top_left":
        assert re.search(r"WRONG top_left \(\d+ cases: [^)]*seqlen_q != seqlen_k[^)]*\): out is off", said)
        assert said.endswith(": all 6 that are of seqlen_q != seqlen_k, none of the 9 others")


def test_a_dout_of_other_strides(mine: Tool) -> None:
    mine.write("others.py", OTHERS)
    functions = [f"./others.py:{name}" for name in ("dense", "no_slice", "contiguous", "contiguous_heads_first")]
    out = mine("check", *functions, *small_cases(mine, "bwd", 64), code=5).out
    for verdict in ("dense is WRONG", "no_slice is WRONG", "contiguous FAILS", "contiguous_heads_first FAILS"):
        assert f"{verdict} in 1 of 1 case" in " ".join(out.split())


def test_an_option_adds_no_case_to_those_tried_by_default(tool: Tool) -> None:
    whole, *parts = (
        {tuple(sorted(row.items())) for row in csv.DictReader(io.StringIO(tool(*FAKE, "-f", "csv", *more).out))}
        for more in ((), ("--pass", "bwd"), ("--dtype", "bf16"), ("--headdim", "64"))
    )
    assert all(part < whole for part in parts)


def test_what_a_function_does_not_implement_is_skipped_with_its_reason(mine: Tool) -> None:
    out = mine("check", "./mine.py:picky", *small_cases(mine, "fwd,bwd", 32, 48, 64)).out
    words = {case.split()[0]: re.findall("skip|right", entry) for case, entry in entries(out).items()}
    assert words == {"32": ["skip", "skip"], "48": ["skip", "skip"], "64": ["right", "skip"]}
    for reason in ("no 32 queries", "not implemented", "not differentiable: its output has no gradient"):
        assert reason in " ".join(out.split())
    assert out.splitlines()[-1] == "picky is RIGHT in 1 case, 5 not supported"


def test_what_was_checked_before_an_interrupt_is_shown(mine: Tool) -> None:
    mine.write(
        "stopped.py",
        "import os, signal, time\nfrom mine import right\n"
        "def stops(q, k, v, *, causal, softmax_scale):\n"
        "    if q.shape[1] == 203:\n"
        "        os.kill(os.getppid(), signal.SIGINT)\n"
        "        time.sleep(60)\n"
        "    return right(q, k, v, causal=causal, softmax_scale=softmax_scale)\n",
    )
    done = mine("check", "./stopped.py:stops", "--device", "cpu", *ONE_KIND, code=130)
    assert done.out.splitlines()[-1].startswith("stops is RIGHT in 1 case; interrupted, ")
    assert [*entries(done.out)] == ["256 d64 full"]


def test_a_failure_shows_its_place(mine: Tool) -> None:
    out = mine("check", "./mine.py:broken", *small_cases(mine, "fwd", 64), code=1).out
    line = MINE.splitlines().index("    return q @ k") + 1
    assert f'  File "{mine.folder}/mine.py", line {line}, in broken' in out
    assert "return q @ k" in out
    assert "worker" not in out  # no frames of attnbench itself
    assert "broken FAILS in 1 of 1 case" in out


def test_another_signature_is_one_line_with_the_code_that_adapts_it(mine: Tool) -> None:
    mine.write("mine.py", MINE + "\ndef plain(query, key, value, is_causal, scale):\n    return query\n")
    *_, said = mine("check", "./mine.py:plain", "--device", "cpu", *ONE_KIND, code=2).err.splitlines()
    assert said.startswith("attnbench: plain: cannot be called with (q, k, v, causal=..., softmax_scale=...): ")
    assert said.endswith(
        "def plain_adapted(q, k, v, *, causal, softmax_scale): "
        "return plain(q, k, v, is_causal=causal, scale=softmax_scale)"
    )


def test_what_a_function_prints_is_shown(mine: Tool) -> None:
    head = "(q, k, v, *, causal, softmax_scale):\n    print(f'rows {q.shape[1]} of"
    mine.write(
        "mine.py", f"def wrong{head} wrong')\n    return q * 0\ndef fails{head} fails')\n    raise ValueError('no')\n"
    )
    out = mine("check", "./mine.py:wrong", "./mine.py:fails", *small_cases(mine, "fwd", 64), code=5).out
    assert "  rows 64 of wrong\n" in out
    assert "  rows 64 of fails\n" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def tiled(q, k, v): ...", """has no 'tild'; did you mean "tiled"?"""),
        ("from os import getcwd", "has no 'tild'; it defines no functions"),
        (
            "from functools import partial\nfrom typing import Optional\nfrom torch import nn\n"
            "from torch.nn.functional import softmax\ndef f(q, k, v): ...\np = partial(f)\nm = nn.Identity()",
            "has no 'tild'; known: f, p, m",
        ),
        ("def tild(q:\n  pass", "SyntaxError: '(' was never closed (mine.py, line 1), at column 9 of: def tild(q:"),
        (
            "import attnbench\ndef tild(q, k, v): ...\nattnbench.check(tild)",
            'calls attnbench itself; put that call under if __name__ == "__main__": (mine.py:3)',
        ),
    ],
)
def test_a_function_that_cannot_be_loaded(mine: Tool, text: str, said: str) -> None:
    mine.write("mine.py", text)
    result = mine("check", "./mine.py:tild", "--device", "cpu", code=2)
    assert said in result.err


def test_a_crash_and_a_hang_cost_one_row_each(mine: Tool) -> None:
    out = mine("check", "./mine.py:fragile", *small_cases(mine, "fwd", 32, 48, 64), "--timeout", "4s", code=1).out
    found = {case.split()[0]: entry.split()[0] for case, entry in entries(out).items()}
    assert found == {"32": "FAIL", "48": "TIMEOUT", "64": "right"}
    assert "the worker crashed (SIGABRT)" in out


def test_the_advice_of_a_run_with_a_wrong_result_checks_the_same_cells_again(mine: Tool) -> None:
    """After a run with a wrong result, the advice is a command that checks the same cells at the lengths of the run."""
    mine.write(
        "at_96.py",
        "from mine import right\n"
        "def at_96(q, k, v, **options):\n"
        "    return right(q, k, v, **options) * (1 + (q.shape[1] == 96))\n",
    )
    options = ("--device", "cpu", "--batch", "1", "--nheads", "2", *ONE_KIND)
    out = mine("run", "-b", "./at_96.py:at_96", "--seqlen", "64,96", *options, "--out", "own.jsonl", code=5).out
    advice = " ".join(out.split()).partition("without timing: attnbench ")[2].split()[:4]
    assert advice == ["check", "./at_96.py:at_96", "--wrong", "own.jsonl"]
    assert [*entries(mine(*advice, "--device", "cpu", code=5).out)] == ["96 d64 full"]
    assert "own.jsonl has no wrong result of these cases" in mine(*advice, "--pass", "bwd", code=2).err


@pytest.mark.parametrize(("readable", "end"), [(0, "\n"), (1, "")], ids=["a damaged line", "an interrupted write"])
def test_a_wrong_result_that_cannot_be_read_is_not_passed_over(tool: Tool, readable: int, end: str) -> None:
    options = ("--seqlen", "512,1k", "--headdim", "64", "--full", "--pass", "fwd", "--out", "own.jsonl")
    tool("run", "--device", "fake", "-b", "fake", *options, fake="wrong@512 wrong@1k", code=5)
    first, *records = (tool.folder / "own.jsonl").read_text().splitlines()
    assert len(records) == 2
    tool.write("own.jsonl", "\n".join([first, *records[:readable], records[readable][:-40]]) + end)
    refused = tool(*FAKE, "--wrong", "own.jsonl", code=2)
    assert f"own.jsonl:{readable + 2}: " in refused.err
    assert refused.err.strip().endswith(
        "a wrong result may be lost there; restore the file, or delete what cannot be read and measure it again: "
        "attnbench run --resume own.jsonl"
    )
    tool.write("own.jsonl", "\n".join([first, *records[:readable], ""]))
    tool("run", "--resume", "own.jsonl", fake="wrong@512 wrong@1k", code=5)
    assert len(entries(tool(*FAKE, "--wrong", "own.jsonl", fake="wrong@512", code=5).out)) == 2


def test_the_code_of_a_mask_that_a_file_names_is_run_with_trust_alone(mine: Tool) -> None:
    mine.write("near.py", "def near(b, h, q, k):\n    return q - k < 9\n")
    options = ("--device", "fake", "-b", "fake", "--mask", "./near.py:near", "--seqlen", "1k", "--pass", "fwd")
    mine("run", *options, "--out", "own.jsonl", fake="wrong@1k", code=5)
    refused = mine("check", "fake", "--device", "fake", "--wrong", "own.jsonl", code=2)
    assert "near.py:near to run; if you trust whoever wrote the file, add --trust" in refused.err
    mine("check", "fake", "--device", "fake", "--wrong", "own.jsonl", "--trust", fake="wrong@1k", code=5)


@pytest.mark.parametrize(
    ("script", "code", "verdict"),
    [
        ("", 0, "fake is RIGHT in 84 cases"),
        ("wrong@203", 5, f"fake is WRONG in 8 of 84 cases{OF_203}"),
        ("error@203", 1, f"fake FAILS in 8 of 84 cases{OF_203}"),
        ("refuse@203", 0, "fake is RIGHT in 76 cases, 8 not supported"),
        ("wrong@203 error@80", 5, "fake is WRONG in 8 and FAILS in 8 of 84 cases"),
        ("missing", 1, "fake: nothing could be checked"),
        ("crash@256", 1, "fake FAILS in 3 of 3 cases"),
    ],
)
def test_exit_codes(tool: Tool, script: str, code: int, verdict: str) -> None:
    out = tool(*FAKE, fake=script, code=code).out
    assert " ".join(out.split()).endswith(verdict)
    if script == "crash@256":
        assert "(3 cases" in out
        assert "not tried: 3 earlier cases ended its process" in out


def test_each_function_of_ones_own_must_be_checked(mine: Tool) -> None:
    mine.write("none.py", "def none(q, k, v, *, causal, softmax_scale):\n    raise NotImplementedError\n")
    options = small_cases(mine, "fwd", 64)
    out = mine("check", "eager", "./none.py:none", *options, code=1).out
    assert "eager is RIGHT" in out
    assert "none: nothing could be checked" in out
    assert "is RIGHT" in mine("check", "eager", "sdpa-cudnn", *options).out


def test_a_refusal_of_several_lines_keeps_its_reason(mine: Tool) -> None:
    why = "No operator found with inputs:\\n  p : 0.0\\n`cutlassF` is not supported because:\\n    headdim > 32"
    mine.write("none.py", f"def none(q, k, v, *, causal, softmax_scale):\n    raise NotImplementedError('{why}')\n")
    out = mine("check", "./none.py:none", *small_cases(mine, "fwd", 64), code=1).out
    assert "`cutlassF` is not supported because: headdim > 32" in " ".join(out.split())


def test_csv_and_json_have_a_row_a_case_and_other_formats_the_verdict(tool: Tool) -> None:
    files = [tool.folder / f"found.{form}" for form in ("csv", "json", "md", "html")]
    tool(*FAKE, *(word for file in files for word in ("-f", f"{file.suffix[1:]}={file}")), fake="wrong@203", code=5)
    in_csv, in_json, *pages = (file.read_text() for file in files)
    rows, records = list(csv.DictReader(io.StringIO(in_csv))), json.loads(in_json)
    assert len(rows) == len(records) == 84
    assert [row["status"] for row in rows] == [record["status"] for record in records]
    assert {(row["status"], row["error"], row["tolerance"]) for row in rows} == {
        ("ok", "0.001", "0.002"),
        ("wrong", "1.0", "0.002"),
    }
    for page in pages:
        assert "fake is WRONG in 8 of 84 cases" in page
        assert "80x256 d64 causal" in page


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing to check; give a function or backends, as in attnbench check ./mine.py:attention"),
        (("./none.py:f",), "no such file: ./none.py"),
        (("triotn",), 'did you mean "triton"?'),
        (("fake", "--device", "fake", "--dtype", "bf61"), "dtype: unknown dtype 'bf61'"),
        (("fake", "--device", "fake", "--timeout", "soon"), "--timeout: 'soon' is not a duration"),
        (("./bad.py:f", "--device", "cpu"), "f: cannot be imported: NameError"),
    ],
)
def test_mistakes_are_one_line(tool: Tool, args: tuple[str, ...], said: str) -> None:
    tool.write("bad.py", "no_such_name\n")
    found = tool("check", *args, code=2)
    assert found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith(f"attnbench: {said}") or said in line
