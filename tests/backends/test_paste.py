"""The code that a person pastes: it parses, names the backend's calls, and computes the attention of the case."""

from __future__ import annotations

import ast
import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import judge
from attnbench.backends import APPROXIMATE, BACKENDS, SEVERAL, STEPS
from attnbench.backends.base import BackendBase
from attnbench.core.backend import cu_seqlens, refusal
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import cudnn, engines, flash_attn, flashinfer, install, torch_attention, xformers
from standins.contract import CPU, HOPPER, backend

# backends without code: simulated; a graph with six scales; whole models; several processes
WITHOUT = {"fake", "cudnn-fp8", *STEPS, *SEVERAL, *APPROXIMATE}
NAMES = [name for name in BACKENDS if name not in WITHOUT]
SQUARE, OTHER = Shape(2, 48, 48, 2, 2, 64, 64), Shape(2, 24, 48, 2, 2, 64, 64)
LENGTHS = ((1, 48, 48), (1, 24, 24))
CASES = {
    "full": Case(SQUARE, "bf16", "fwd"),
    "causal": Case(SQUARE, "bf16", "fwd", True),
    "fp8": Case(SQUARE, "fp8", "fwd", True),
    "more-keys": Case(OTHER, "bf16", "fwd", True),
    "one-query": Case(replace(SQUARE, seqlen_q=1), "bf16", "fwd", True),
    "one-sequence": Case(replace(SQUARE, batch=1), "bf16", "fwd", True),
    "grouped": Case(replace(SQUARE, nheads=4), "bf16", "fwd"),
    "window": Case(SQUARE, "bf16", "fwd", True, window_size=(16, 0)),
    "window-both": Case(SQUARE, "bf16", "fwd", window_size=(16, 5)),
    "window-left": Case(SQUARE, "bf16", "fwd", window_size=(16, None)),
    "softcap": Case(SQUARE, "bf16", "fwd", softcap=2.0),
    "scale": Case(SQUARE, "bf16", "fwd", scale=0.2),
    "ragged": Case(SQUARE, "bf16", "fwd", lengths=LENGTHS),
    "ragged-causal": Case(SQUARE, "bf16", "fwd", True, lengths=LENGTHS),
    "paged": Case(SQUARE, "bf16", "fwd", True, page_size=16),
    "paged-256": Case(replace(SQUARE, nheads=4, seqlen_q=1, seqlen_k=600), "bf16", "fwd", True, page_size=256),
    "latent": Case(Shape(2, 1, 90, 16, 1, 576, 512), "bf16", "fwd", True, page_size=64, latent=True, scale=0.07),
    "prefix": Case(replace(SQUARE, seqlen_k=500), "bf16", "fwd", True, page_size=16, shared_prefix=304),
    "paged-unlike": Case(
        replace(SQUARE, seqlen_k=600), "bf16", "fwd", True, lengths=((1, 48, 600), (1, 1, 300)), page_size=256
    ),
    "dropout": Case(SQUARE, "bf16", "fwd", dropout_p=0.1),
    "gdn": Case(replace(SQUARE, nheads=4), "bf16", "fwd", True, kind="gdn"),
    "gdn-128": Case(replace(SQUARE, headdim=128, headdim_v=128), "bf16", "fwd", True, kind="gdn"),
    "kda": Case(SQUARE, "bf16", "fwd", True, kind="kda", scale=0.2),
    "gdn-token": Case(replace(SQUARE, seqlen_q=1, seqlen_k=1), "bf16", "fwd", True, kind="gdn"),
    "kda-token": Case(replace(SQUARE, seqlen_q=1, seqlen_k=1), "bf16", "fwd", True, kind="kda"),
    "indexer": Case(replace(OTHER, nheads_k=1), "bf16", "fwd", True, kind="indexer", mask="topk:32"),
    "indexer-fp8": Case(replace(OTHER, nheads_k=1), "fp8", "fwd", True, kind="indexer", mask="topk:32"),
    "indexer-of-32": Case(
        replace(OTHER, batch=1, nheads=32, nheads_k=1), "fp8", "fwd", True, kind="indexer", mask="topk:32"
    ),
}
STAND_INS: dict[str, dict[str, Any]] = {
    "fa1": flash_attn.version_1(),
    "fa2": flash_attn.version_2(),
    "fa3": flash_attn.version_3(),
    "fa4": flash_attn.version_4(),
    "sglang-fa3": engines.functions(),
    "vllm-fa3": engines.functions(),
    "vllm-triton": engines.functions(),
    "cudnn": cudnn.version_1_32(),
    **{name: xformers.version_0_0_35() for name in NAMES if name.startswith("xformers")},
    **{name: flashinfer.version_0_6_13() for name in NAMES if name.startswith("flashinfer")},
}
RUNNABLE = [*STAND_INS, "sdpa", "sdpa-math", "sdpa-flash", "torch-varlen", "flex", "eager", "compile"]


def paste(name: str, case: Case) -> str:
    made = backend(name)
    assert isinstance(made, BackendBase)
    assert made.paste is not None
    return made.paste.text(case)


def taken(name: str) -> dict[str, Case]:
    """Return the cases that a backend takes on a GPU or on a CPU."""
    made = backend(name)
    return {key: case for key, case in CASES.items() if not all(refusal(made, case, on) for on in (HOPPER, CPU))}


@pytest.mark.parametrize("name", NAMES)
def test_it_parses_and_imports_what_the_backend_calls(name: str) -> None:
    calls = {word for cls in type(backend(name)).__mro__ for word in _identifiers(cls.__module__)}
    codes = [paste(name, case) for case in taken(name).values()]
    assert any(codes), "no code for any case"
    for code in codes:
        imported = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
        names = {alias.name for node in imported for alias in node.names}
        assert names - INSTEAD <= calls
        assert "  " not in code.replace("    ", "").replace("  #", "")
        assert all(len(line) <= 120 for line in code.splitlines())


# Names that replace a backend's switches for its whole process, or stand for a model; backends/shared/masks.py calls
# create_block_mask.
INSTEAD = {"SDPBackend", "sdpa_kernel", "AutoModelForCausalLM", "create_block_mask"}


def _identifiers(module: str) -> set[str]:
    """Return the names that a backend's module uses, with the modules of its folder that it imports.

    Names in strings do not count.
    """
    path = Path(__file__).parents[2] / f"{module.replace('.', '/')}.py"
    if not module.startswith("attnbench.backends"):
        return set()
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    found = {alias.name for node in imports for alias in node.names}
    beside = {node.module for node in imports if f"{node.module}".startswith("attnbench.backends.flashinfer.")}
    found = found.union(*(_identifiers(f"{other}") for other in beside))
    return found | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_only_backends_without_a_call_of_their_own_lack_it() -> None:
    assert {name for name in BACKENDS if getattr(backend(name), "paste", None) is None} == WITHOUT


@pytest.mark.parametrize("name", ["sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "sdpa-fa3", "sdpa-fa4"])
def test_the_switch_of_sdpa_is_that_of_the_backend(name: str) -> None:
    code, switch = paste(name, CASES["causal"]), backend(name).switch  # type: ignore[attr-defined]
    named = {"math": "MATH", "mem_efficient": "EFFICIENT_ATTENTION"}.get(switch, f"{switch.upper()}_ATTENTION")
    assert f"SDPBackend.{named})" in code
    assert hasattr(torch.nn.attention.SDPBackend, named)


def test_what_a_library_has_no_option_for_has_no_code() -> None:
    assert paste("sdpa-flash", replace(CASES["causal"], softcap=2.0)) == ""
    assert paste("sdpa", CASES["window"]) == ""
    assert paste("xformers", CASES["window-both"]) == "", "its window of one side is the causal one"
    assert paste("fa1", CASES["paged"]) == ""
    assert paste("fa2", replace(CASES["paged"], cache_dtype="fp8")) == ""
    assert paste("fa3", replace(CASES["paged-256"], append=True)) == ""
    assert "softcap" not in paste("hf-sdpa", replace(CASES["causal"], softcap=2.0)), "the model has it"


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}-{key}")
        for name in RUNNABLE
        for key, case in taken(name).items()
        if case.dropout_p == 0 and paste(name, case)
    ],
)
def test_it_computes_attention(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code computes attention, with the library's stand-in or torch, on tensors as in its comments."""
    _stand_in(name, monkeypatch)
    _compute(name, case)


TRITON = {
    "dense": Case(Shape(2, 24, 40, 4, 2, 32, 32), "fp32", "fwd", True, softcap=2.0),
    "ragged": Case(Shape(2, 40, 40, 2, 2, 32, 32), "fp32", "fwd", True, lengths=((1, 40, 40), (1, 7, 7))),
    "paged": Case(Shape(2, 1, 40, 4, 2, 32, 32), "fp32", "fwd", True, page_size=16),
    "latent": Case(Shape(2, 1, 40, 16, 1, 48, 32), "fp32", "fwd", True, page_size=16, latent=True),
}


@pytest.mark.parametrize("case", TRITON.values(), ids=TRITON)
def test_the_code_of_triton_in_its_interpreter(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend("triton").unsupported(case, CPU) is None
    _compute("triton", case)


@pytest.mark.parametrize("name", ["gdn", "kda", "gdn-token", "kda-token"])
def test_the_code_of_a_delta_rule_in_torch(name: str) -> None:
    case = CASES[name]
    code, given = paste("delta-torch", case), inputs.make(case, "cpu", seed=0)
    names: dict[str, Any] = {**given.values}
    names["gate"] = names["gate"].view(*names["beta"].shape, -1)
    exec(compile(code, name, "exec"), names)
    accuracy = judge.make_check(case, given, 0).check_first({"out": names["out"], "state": names["state"]})
    assert accuracy.ok, accuracy.problem()


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("indexer-torch", CASES["indexer"]),
        ("indexer-torch", CASES["indexer-fp8"]),
        ("indexer-triton", replace(CASES["indexer"], dtype="fp32")),
        ("indexer-deepgemm", CASES["indexer-of-32"]),
    ],
)
def test_the_code_of_an_indexer(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code and the backend choose right keys, DeepGEMM's with a stand-in for its function."""
    if name == "indexer-triton":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "deep_gemm", ModuleType("deep_gemm"))
    sys.modules["deep_gemm"].fp8_mqa_logits = _fp8_mqa_logits  # type: ignore[attr-defined]
    given = inputs.make(case, "cpu", seed=0)
    names: dict[str, Any] = {**given.values, "torch": torch}
    exec(compile(paste(name, case), name, "exec"), names)
    prepared = backend(name).prepare(case, given)
    for results in ({"indices": names["indices"]}, prepared.canonical(prepared.launch())):
        accuracy = judge.make_check(case, given, 0).check_first(results)
        assert accuracy.ok, accuracy.problem()


def _fp8_mqa_logits(
    q: Tensor, kv: tuple[Tensor, Tensor], weights: Tensor, first: Tensor, end: Tensor, clean_logits: bool = False
) -> Tensor:
    """Return the scores (queries, keys) of the keys from `first` to before `end` of each query, -inf for others.

    As in the packages of SGLang, scores of other keys are left as they are unless `clean_logits` is given.
    """
    k = kv[0].float() * kv[1][:, None]
    scores = torch.einsum("sht,sh->st", torch.einsum("shd,td->sht", q.float(), k).relu(), weights)
    keys = torch.arange(len(k))
    return scores.masked_fill((keys < first[:, None]) | (keys >= end[:, None]), -math.inf if clean_logits else math.inf)


def _compute(name: str, case: Case) -> None:
    """Run the code, and compare its result with the reference."""
    scaled = replace(case, scale=case.softmax_scale)  # stand-ins need a scale
    code, given = paste(name, scaled) or paste(name, case), inputs.make(case, "cpu", seed=0)
    if name in ("sdpa", "sdpa-math", "sdpa-flash") and case.is_ragged:
        code = code.replace("SDPBackend.FLASH_ATTENTION", "SDPBackend.MATH")  # on a CPU only math takes them
        if case.causal:
            pytest.skip("math has no causal mask of nested tensors")
    names: dict[str, Any] = _sizes(case) | {"q": given.q, "k": given.k, "v": given.v}
    names |= {"k_cache": given.k, "v_cache": given.v, "page_table": given.page_table}
    names |= {"cache": given.k, "headdim_v": case.shape.headdim_v}
    by_heads = "(batch, nheads, seqlen, headdim)" in code
    packed = "(total, nheads, headdim)" in code
    for letter in "qkv":
        t: Tensor = names[letter]
        names[letter] = t.transpose(1, 2) if by_heads else t.flatten(0, 1) if packed else t
        if "(seqlen, nheads, headdim)" in code:
            names[letter] = t[0]
        if "nheads_k, nheads // nheads_k" in code and case.shape.nheads != case.shape.nheads_k:
            split = t.unflatten(2, (case.shape.nheads_k, -1))
            names[letter] = split.expand(-1, -1, -1, case.shape.nheads // case.shape.nheads_k, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, and flex_attention is not compiled here
        exec(compile(code, name, "exec"), names)
    out: Tensor = names["out"]
    if out.is_nested:
        out = out._values.transpose(0, 1)  # type: ignore[attr-defined]
    elif by_heads:
        out = out.transpose(1, 2)
    rows = judge.choose_rows(case, torch.device("cpu"))
    out = out.reshape(*given.q.shape[:3], case.shape.headdim_v)
    accuracy = judge.compare(judge.compute_reference(case, given, rows), {"out": out})
    assert accuracy.ok, f"{code}\n{accuracy.problem()}"


def _sizes(case: Case) -> dict[str, Any]:
    starts_q, starts_k = cu_seqlens(case, torch.device("cpu"))
    if torch.equal(starts_q, starts_k):
        starts_k = starts_q  # nested tensors of one shape share offsets
    longest = {"max_seqlen_q": case.shape.seqlen_q, "max_seqlen_k": case.shape.seqlen_k}
    return {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "seqlens_k": starts_k.diff(), **longest}


def _stand_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the library's stand-in, and let compiled functions run uncompiled."""
    monkeypatch.setattr(torch, "compile", lambda function=None, **_: function)
    if name == "torch-varlen":
        from torch.nn.attention import varlen

        old, new = torch_attention.varlen_attn_2_11, torch_attention.varlen_attn_2_13
        either = lambda *given, **options: (new if "block_table" in options else old)(*given, **options)  # noqa: E731
        monkeypatch.setattr(varlen, "varlen_attn", either)
    if name not in STAND_INS:
        return
    install(monkeypatch, STAND_INS[name], {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
