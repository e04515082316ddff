"""The module to vendor: made from a run whose speeds a test sets, and used by a Python that has no attnbench."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import forked_code
from attnbench.analysis.choose import module
from attnbench.analysis.choose.document import Choices
from attnbench.analysis.recommend.findings import answered_once, problems
from attnbench.backends import BACKENDS
from attnbench.core.record import Bitwise, Record, Run
from attnbench.render import terminal
from attnbench.results.cells import cells
from builders import CPU, H200, case, ok, run

FAST, SLOW = 2.0, 1.0  # TFLOP/s


def crossing(device: object = CPU, **changes: int) -> Run:
    """Return a run in which sdpa-math wins up to 64 keys and sdpa-flash from 128 on, also in training and decode."""
    records: list[Record] = []
    for length in (32, 64, 128, 256):
        for direction in ("fwd", "bwd"):
            for causal in (False, True):
                sizes = {"batch": 2, "headdim": 32, "nheads": 4, "nheads_k": 2, **changes}
                which = case(length, dtype="fp32", causal=causal, direction=direction, **sizes)
                decode = case(length, dtype="fp32", causal=causal, seqlen_q=1, **sizes)
                for one in (which, decode) if direction == "fwd" else (which,):
                    speeds = (FAST, SLOW) if length < 100 else (SLOW, FAST)
                    records += [ok(one, "sdpa-math", speeds[0]), ok(one, "sdpa-flash", speeds[1]), ok(one, "sdpa", 0.5)]
    specs = {name: BACKENDS[name] for name in ("sdpa", "sdpa-math", "sdpa-flash")}
    return run(records, device=device, specs=specs)  # type: ignore[arg-type]


def text(of: Run, *, vary: bool = False) -> str:
    return module.module(answered_once(problems(cells([of], by_machine=True))), [of], "attnbench tune", vary=vary)


def used(folder: Path, code: str) -> str:
    """Return what some code prints that imports the module from a folder, in a process without attnbench."""
    head = "import sys, warnings\nimport torch\nimport attention_choice as a\ntorch.manual_seed(0)\n"
    return forked_code.printed(head + code, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("module")
    (made / "attention_choice.py").write_text(text(crossing(), vary=True))
    return made


RIGHT = """
def exact(q, k, v, causal, left, right):
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - (k.shape[2] - q.shape[2])
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    hidden |= (ahead > 0) if causal else (ahead > right) if right is not None else False
    hidden |= (ahead < -left) if left is not None else False
    scores = (q @ k.transpose(-2, -1) * 0.3).masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)

names = set()
for sq, sk in ((32, 32), (100, 100), (256, 256), (1, 64), (1, 200), (7, 64), (300, 300)):
    for causal, left, right in ((False, None, None), (True, None, None), (False, 5, 3), (False, 5, 0), (True, 9, None)):
        window = [left, right]
        q = torch.randn(2, sq, 4, 32, requires_grad=True)
        k, v = (torch.randn(2, sk, 2, 32, requires_grad=True) for _ in "kv")
        out = a.attention(q, k, v, causal=causal, softmax_scale=0.3, window=window)
        want = exact(q, k, v, causal, *window)
        assert (out - want).abs().max() < 1e-5, (sq, sk, causal, window)
        given = torch.randn_like(out)
        grads = torch.autograd.grad(want, (q, k, v), given.double())
        for got, grad in zip(torch.autograd.grad(out, (q, k, v), given), grads):
            assert (got - grad).abs().max() < 1e-4, (sq, sk, causal, window)
        names.add((sq, sk, a.choose(q, k, v, causal=causal, window=window)))
print(sorted(names))
"""


def test_attention_is_right_for_each_region_and_outside(folder: Path) -> None:
    """Every mask and pass is right; each shape has its region's backend, else SDPA, which a warning says once."""
    told = used(folder, RIGHT)
    chosen = {(sq, sk): name for sq, sk, name in ast.literal_eval(told.splitlines()[0]) if name != "sdpa"}
    assert chosen == {
        (32, 32): "sdpa-math",
        (100, 100): "sdpa-flash",
        (256, 256): "sdpa-flash",
        (1, 64): "sdpa-math",
        (1, 200): "sdpa-flash",
    }
    dense = "('train', 'torch.float32', 4, 2, 32, 32, False, (None, None), 0)"
    assert told.count(f"{dense} no measured choice for some batches or lengths of this; SDPA is used for them") == 1


def test_one_library_computes_both_passes(folder: Path) -> None:
    """The choice of a step of training is of its own table, and a graph keeps the implementation of its forward."""
    code = """
seen = []
is_loaded = a._is_loaded
a._is_loaded = lambda make: seen.append(make.__name__) or is_loaded(make)
q, k, v = (torch.randn(2, 32, n, 32, requires_grad=True) for n in (4, 2, 2))
a.attention(q, k, v, causal=True).sum().backward()
with torch.no_grad():
    a.attention(q, k, v, causal=True)
print(seen, {key[0] for key in a.TABLE}, q.grad is not None)
"""
    told = used(folder, code)
    assert told.startswith("['_make_sdpa_math")
    assert "'train'" in told
    assert "True" in told


def test_it_compiles_without_a_break(folder: Path) -> None:
    """torch.compile takes the call as one graph, with lengths that change, and the choice follows the length.

    What it cannot trace, the name of a GPU and the import of a library, is read while it compiles.
    """
    code = """
a.torch.cuda.get_device_name = lambda index: open("/dev/null").read() or "NVIDIA H200"  # torch.compile traces no file
a.META |= {"kind": "cuda", "gpu": "NVIDIA H200"}
named = torch.compile(lambda x: x if a._unlike("cuda", 0) == "" else x + 1, fullgraph=True, backend="eager")
assert named(torch.ones(1)) == 1
a.META["kind"] = "cpu"
attend = lambda q, k, v: a.attention(q, k, v, causal=True)
compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
for length in (32, 64, 100, 256):
    q, k, v = (torch.randn(2, length, n, 32) for n in (4, 2, 2))
    assert torch.equal(compiled(q, k, v), attend(q, k, v))
print("same")
"""
    assert "same" in used(folder, code)


def test_a_choice_costs_little_more_than_reading_the_shapes(folder: Path) -> None:
    """A call adds a few readings of tensors and one look-up: tests/gpu/use_choice.py has its time on a GPU."""
    code = """
import time
q, k, v = (torch.randn(2, 32, n, 32) for n in (4, 2, 2))
a.attention(q, k, v, causal=True)
a._SEEN.update({key: (lambda q, k, v, s: q) for key in a._SEEN})

def read(seen):
    return seen.get((q.shape, v.shape, q.dtype, q.device, q.requires_grad or k.requires_grad or v.requires_grad))

def best(call, least):
    start = time.perf_counter()
    for _ in range(20):
        call()
    return min(least, time.perf_counter() - start)

choice = reading = 1.0
for _ in range(3000):  # in turns, in short bursts: other work slows both
    choice = best(lambda: a.attention(q, k, v, causal=True), choice)
    reading = best(lambda: read(a._SEEN), reading)
print(choice / reading)
"""
    assert float(used(folder, code)) < 2.2


def test_another_machine_and_other_software_are_told(tmp_path: Path) -> None:
    """On another GPU, and without a library, SDPA is called and a warning says so once; check() says what differs."""
    (tmp_path / "attention_choice.py").write_text(text(crossing(H200)))
    code = "q, k, v = (torch.randn(2, 32, n, 32) for n in (4, 2, 2))\n"
    code += "for _ in range(3): a.attention(q, k, v, causal=True)\nprint(a.choose(q, k, v), a.check('cpu'))"
    told = used(tmp_path, code)
    assert told.count("the tensors are on cpu, and NVIDIA H200 was measured so SDPA is used for all shapes") == 1
    assert "sdpa another machine: the tensors are on cpu, and NVIDIA H200 was measured" in told
    (tmp_path / "attention_choice.py").write_text(text(crossing()).replace("import SDPBackend", "import Gone"))
    told = used(tmp_path, code)
    assert told.count("sdpa-math cannot be loaded here; SDPA is used in its place") == 1
    assert "stale: torch 2.13" in told.replace("torch 2.11.0+cu130 was measured", "")
    assert "sdpa-flash cannot be loaded" in told


def test_no_text_of_a_run_file_is_code_of_the_module(tmp_path: Path) -> None:
    """Names of a machine, and words of a command, are quoted, whatever characters a stranger's run file has."""
    evil = '"""\nraise SystemExit("run")\n"""\\N{x}'
    environment = replace(crossing().environment, torch=evil, driver=evil, device=replace(CPU, name=evil))
    of = replace(crossing(), environment=environment, started=evil)
    choices = Choices(cells([of], by_machine=True))
    (tmp_path / "attention_choice.py").write_text(choices.writers(("tune", f"{evil}.jsonl"))["module"]())
    assert used(tmp_path, "print('imported', a.META['gpu'] == a.META['driver'])").startswith("imported True")


def test_kinds_with_one_key_do_not_hide_each_other() -> None:
    """Of cases that differ in the scale alone, and of both ways to time training, the one with most problems counts."""
    more = [replace(record, case=replace(record.case, scale=0.5)) for record in crossing().records[:6]]
    records = [*crossing().records, *more]
    made = text(replace(run(records, device=CPU), specs=crossing().specs))
    assert (
        made.split("TABLE")[1].split("def attention")[0] == text(crossing()).split("TABLE")[1].split("def attention")[0]
    )


def test_versions_are_of_all_runs() -> None:
    """A library that an older run alone used is compared by check() too, by the version that its backend named."""
    which = case(1024, causal=True)
    specs = {name: BACKENDS[name] for name in ("fa4", "sdpa")}
    old = run([ok(which, "fa4", 500)], specs=specs, versions={"fa4": "flash-attn-4 4.0.0b36, code x"})
    new = run([ok(which, "sdpa", 400)], specs=specs, started="2026-08-01T10:00:00+00:00")
    made = Choices(cells([old, new], by_machine=True)).writers(())["module"]()
    assert "'flash-attn-4': '4.0.0b36'" in made


def test_what_the_module_can_call() -> None:
    """Stateless calls of dense tensors alone: no plan, graph, block mask or compiler, and nothing of attnbench."""
    own = run([], specs={name: spec for name, spec in BACKENDS.items() if name != "fake"})
    which = case(1024, causal=True, nheads=32, nheads_k=8)
    able = [name for name in own.specs if module.call_of(own, name, which)]
    assert able == ["sdpa", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "fa2", "fa3", "fa4"]
    call = module.call_of(own, "fa4", which)
    assert call is not None
    assert call.statement == "out, _ = flash_attn_func(q, k, v, causal=True, softmax_scale=softmax_scale)"
    window = case(1024, causal=True, window_size=(127, 0))
    assert [name for name in ("sdpa", "fa2", "fa4") if module.call_of(own, name, window)] == ["fa2", "fa4"]


def test_a_deterministic_variant_is_called_where_bits_were_asked_for() -> None:
    """fa2 differs between launches and its variant, which is proven, does not: module and file call the variant."""
    same = Bitwise(8, {"dq": 0}, {"dq": "00"}, not_alone="x", no_process="")
    records = []
    for direction in ("fwd", "bwd"):
        which = case(1024, causal=True, direction=direction)
        variant = replace(which, deterministic=True)
        records += [ok(which, "fa2", 500, bitwise=replace(same, differing={"dq": 3}))]
        records += [ok(variant, "fa2", 400, bitwise=same), ok(which, "sdpa-cudnn", 300, bitwise=same)]
    of = run(records, specs={name: BACKENDS[name] for name in ("fa2", "sdpa-cudnn")})
    choices = Choices(cells([of], by_machine=True), bits=("deterministic",))
    assert [(one.use, one.deterministic) for one in choices.file.regions] == [("fa2", True), ("fa2", True)]
    made = choices.writers(())["module"]()
    assert "flash_attn_func(q, k, v, causal=True, softmax_scale=softmax_scale, deterministic=True)" in made
    assert "fa2 (deterministic)" in terminal.text(choices.document())
    usual = Choices(cells([of], by_machine=True))
    assert {(one.use, one.deterministic) for one in usual.file.regions} == {("fa2", False), ("fa2", True)}
    assert "deterministic=True" not in usual.writers(())["module"]()


def test_a_transformers_model_runs_with_the_registered_name(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    (tmp_path / "attention_choice.py").write_text(text(crossing(), vary=True))
    code = """
from transformers import LlamaConfig, LlamaForCausalLM
name = a.register_transformers()
config = LlamaConfig(hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=99, max_position_embeddings=512)
model = LlamaForCausalLM(config).eval()
ids, used = torch.randint(0, 99, (2, 100)), set()
row = a._row
a._row = lambda *given: used.add(row(*given)[0]) or row(*given)
for mask in (None, torch.ones(2, 100).long().index_fill(1, torch.arange(9), 0)):
    logits, tokens = {}, {}
    for way in ("sdpa", "eager", name):
        model.set_attn_implementation(way)
        with torch.no_grad():
            logits[way] = model(ids, attention_mask=mask).logits[:, 9:]
            tokens[way] = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert torch.equal(tokens[name], tokens["sdpa"])
    assert (logits[name] - logits["eager"]).abs().max() < 1e-4
    assert mask is not None or used == {"sdpa-flash"}, used
print("same")
"""
    assert "same" in used(tmp_path, code)
