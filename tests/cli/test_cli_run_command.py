"""The command that measures a cell again plans exactly this cell."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from tool import Tool

from attnbench.commands.command_line import command_line
from attnbench.core.case import Case
from attnbench.core.json import to_json
from attnbench.core.policy import Policy
from attnbench.run.axes import Axes, expand
from attnbench.run.run_command import cell_command, run_command
from attnbench.run.select import select_backends
from attnbench.run.step_axes import step_blocks
from attnbench.run.suite import load_suite, resolve
from builders import case, job, ok, run

FAKE = replace(run([]).environment.device, kind="fake", name="Simulated GPU")


def cases(**axes: Any) -> list[Case]:
    return expand(Axes(**{"seqlen": "1k", **axes}), None, None)


class StopError(Exception):
    """Raised where a command would begin to measure."""


def asked(command: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[Case, ...], list[str]]:
    """Return the cases and the backends that an `attnbench run` requests on a GPU, without starting anything."""
    requests: list[Any] = []

    def stop(request: Any, _progress: object) -> None:
        requests.append(request)
        raise StopError

    monkeypatch.setattr("attnbench.run.run_suite.run_suite", stop)
    name, *words = shlex.split(command)
    assert name == "attnbench"
    with pytest.raises(StopError):
        command_line("run")(words, standalone_mode=False)
    (request,) = requests
    found = resolve(load_suite(request.suite), "cuda", request.settings)
    return found.cases, [*select_backends(found.backends)]


def planned(tool: Tool, command: str) -> list[dict[str, Any]]:
    """Return the jobs that a command plans."""
    name, *words = shlex.split(command)
    assert name == "attnbench"
    return json.loads(tool(*words, "--dry-run", "--json").out)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "axes",
    [
        {"seqlen": "3000", "headdim": "192-128", "dtype": "fp16", "pass": "bwd", "nheads": 8, "nheads_k": 2},
        {"causal": True, "window": "255/0,open/0", "pass": "fwd_bwd", "batch": 3},
        {"window": "100/open", "softcap": "30.123456789", "layout": "bhsd", "data": "outliers"},
        {"dropout": "0.1", "dtype": "fp32"},
        {"mask": "prefix:100,dilated:3,random:0.25", "causal": True},
        {"seqlen": "128k", "seqlen_q": 1, "nheads": 32, "nheads_k": 8},
        {"dtype": "fp8", "softmax_scale": 0.1},
        {"lengths": "longtail,zipf/descending,2*1k+3000,1x4k+2*1x1k+7x2k"},
        {"lengths": "uniform/ascending", "seqlen_q": 900, "batch": 7, "page_size": 16},  # more queries than some keys
        {"lengths": "+".join(f"{n}x{n + 1}" for n in range(100, 115))},  # too many for the name of a case
        {"page_size": "16,64", "cache_dtype": "same,fp8", "seqlen_q": 1},
        {"page_size": 16, "append": True, "seqlen_q": 512},
        {"latent": True, "headdim": "576-512", "nheads": 128, "page_size": 64, "seqlen_q": 1, "seqlen": "4k"},
        {"sink": True, "causal": [False, True]},
        {"alibi": True, "causal": True},
        {"ranks": "2"},
    ],
    ids=lambda axes: "-".join(axes),
)
def test_the_command_of_a_cell_asks_for_that_cell(axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for one in cases(**axes):
        command = cell_command(run([ok(one, "fake", 1)]), "fake", one)
        assert asked(command, monkeypatch) == ((one,), ["fake"]), command


def test_a_step_of_a_model_is_measured_by_step(tool: Tool) -> None:
    blocks = step_blocks(["tiny"], ["prefill", "decode", "train"], "512", "2", "fp32", 2)
    for one in [one for block in blocks for one in expand(block, None, None)]:
        command = cell_command(run([ok(one, "fake", 1)], device=FAKE), "fake", one)
        assert [of["case"] for of in planned(tool, command)] == [to_json(one)], command


def test_own_code_is_named_by_its_file_and_its_parameters(tool: Tool) -> None:
    path = tool.write("my kernel.py", "def attention(q, k, v, *, causal, softmax_scale, block=1): ...\n")
    of = run([ok(case(), "attention[block=2]", 1)], specs={"attention[block=2]": f"{path}:attention[block=2]"})
    assert f"-b '{path}:attention[block=2]'" in cell_command(of, "attention[block=2]", case())
    (one,) = planned(tool, f"{cell_command(of, 'attention[block=2]', case())} --device fake")
    assert one["backend"] == "attention[block=2]"


def test_interpreter_rounds_and_instruments_are_as_they_were() -> None:
    records = [ok(case(), "fa4", 1, round=i) for i in range(3)]
    of = run(
        records,
        plan=[job(case(), "fa4", i) for i in range(3)],
        policy=Policy(timer="cupti", l2="warm", caches="fresh", sustained_s=10.0),
        interpreters={"fa4": "/envs/fa 4/bin/python"},
    )
    assert cell_command(of, "fa4", case()) == (
        "attnbench run --dtype bf16 --seqlen 1k --batch 16 --nheads 16 --headdim 128 --pass fwd --full -b fa4 "
        "--python 'fa4=/envs/fa 4/bin/python' --rounds 3 --timer cupti --l2 warm --fresh-caches --sustained 10s"
    )


def test_several_cases_are_the_product_of_their_axes(tool: Tool) -> None:
    several = cases(seqlen="1k,2k", causal=[False, True], nheads_k="4,16")
    jobs = planned(tool, f"{run_command(several)} --device fake -b fake")
    assert sorted(map(str, (of["case"] for of in jobs))) == sorted(map(str, map(to_json, several)))
