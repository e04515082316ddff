"""Stored values: their identity, and their conversion to and from JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import replace

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Approximation, Bitwise, Forecast, Job, Proof, Record, TensorError
from builders import CPU, H200, environment, ok, shape

PLAIN = Case(Shape(4, 4096, 4096, 16, 16, 128, 128), "bf16", "fwd")
RICH = Case(Shape(1, 1, 8192, 32, 8, 192, 128), "fp16", "bwd", True, (128, None), softcap=30.0, dropout_p=0.1)


def through_json(value):
    return json.loads(json.dumps(to_json(value)))


def test_a_whole_number_and_its_float_are_one_case() -> None:
    shape = Shape(1, 64, 64, 2, 2, 64, 64)
    assert Case(shape, "bf16", "fwd", softcap=30).key == Case(shape, "bf16", "fwd", softcap=30.0).key


def test_keys_of_stored_results_do_not_change() -> None:
    """Keys of stored results do not change. If this fails, baselines are lost: correct the hashing, not the test."""
    assert PLAIN.key == "176fd8747c40b182"
    assert RICH.key == "8f3fddf53a845ac4"


def test_a_field_at_its_default_is_not_in_the_key() -> None:
    @dataclasses.dataclass(frozen=True)
    class Newer(Case):
        stages: int = 1
        layout: str = "dense"

    assert Newer(PLAIN.shape, "bf16", "fwd").key == PLAIN.key
    assert Newer(PLAIN.shape, "bf16", "fwd", stages=2).key != PLAIN.key
    assert replace(PLAIN, softcap=0, window_size=(None, None), causal=False).key == PLAIN.key


def test_every_field_is_in_the_key() -> None:
    changes = [
        {"dtype": "fp16"},
        {"direction": "bwd"},
        {"causal": True},
        {"window_size": (None, 0)},
        {"window_size": (0, None)},
        {"softcap": 1.0},
        {"dropout_p": 0.1},
        {"layout": "packed"},
        {"data": "zeros"},
        {"page_size": 16},
        {"page_size": 16, "cache_dtype": "fp8"},
        {"page_size": 16, "append": True},
        {"page_size": 16, "shared_prefix": 16, "shape": replace(PLAIN.shape, seqlen_q=1)},
        {"sink": True},
        {"alibi": True},
        {"deterministic": True},
        {"mask": "strided:16"},
        {"latent": True, "shape": replace(PLAIN.shape, nheads_k=1)},
        {"scale": 0.1},
        {"ranks": 2},
        {"causal": True, "kind": "gdn"},
        {"causal": True, "kind": "indexer", "mask": "topk:16", "shape": replace(PLAIN.shape, nheads_k=1)},
        {"causal": True, "step": "prefill tiny 2/2 arch=llama hidden=128 intermediate=256 vocab=512"},
        {"lengths": ((PLAIN.shape.batch - 1, 1, 1), (1, PLAIN.shape.seqlen_q, PLAIN.shape.seqlen_k))},
        *({"shape": replace(PLAIN.shape, **{f.name: 32})} for f in dataclasses.fields(Shape) if f.name != "nheads_k"),
        {"shape": replace(PLAIN.shape, nheads_k=8)},
    ]
    assert {name for change in changes for name in change} == {f.name for f in dataclasses.fields(Case)}
    keys = {replace(PLAIN, **change).key for change in changes} | {PLAIN.key}
    assert len(keys) == len(changes) + 1


@pytest.mark.parametrize("which", [PLAIN, RICH])
def test_case_keeps_its_identity_through_json(which: Case) -> None:
    back = from_json(Case, through_json(which))
    assert back == which
    assert back.key == which.key
    assert hash(back) == hash(which)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Shape)])
def test_sizes_are_at_least_one(name: str) -> None:
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {value}"):
            replace(PLAIN.shape, **{name: value})


def test_key_heads_divide_query_heads() -> None:
    assert shape(nheads=12, nheads_k=3).nheads_k == 3
    for nheads_k in (5, 24):
        with pytest.raises(ValueError, match=f"12 query heads .* not a multiple of {nheads_k} key"):
            shape(nheads=12, nheads_k=nheads_k)
    with pytest.raises(ValueError, match=r"1 query head .* is not a multiple of 8 key heads"):
        shape(nheads=1, nheads_k=8)


def rich_record() -> Record:
    return ok(
        RICH, "triton", 300.0, round=2, n=7, memory_peak=2**30, memory_saved=5, clock_sm=1.98e9, first_call=3.5,
        accuracy=Accuracy({"dq": TensorError(0.1, 0.2, 0.4, 0.01)}, 64, 8, ("dk",)),
        version="3.6.0", limits=("thermal",), span=(8e-6, 9e-6), enqueue=4e-6, turns_graph=(7e-6, 8e-6),
        sustained_power_error=0.01, ceiling_matmul=7e14, ceiling_copy=4e12, l2="unproven", timer="cupti",
        kernels={"_forward": 1, "Memset (Device)": 2}, others=("train (pid 12)",), ecc_errors=3, host_bound=True,
        notes=("cross-check: graph: no", "sustained: not steady within 7 s"), phases={"timing": 0.3, "check": 0.1},
    )  # fmt: skip


def test_a_record_of_a_newer_version_can_be_read() -> None:
    data = through_json(rich_record())
    data["energy_model"] = {"nvml": [1, 2]}
    data["accuracy"]["method"] = "interval"
    assert from_json(Record, data) == rich_record()


def test_nan_and_infinity_through_json() -> None:
    odd = Accuracy({"out": TensorError(float("nan"), float("inf"), 0.4, 0.01)}, 64, 8)
    text = json.dumps(to_json(odd), allow_nan=False)
    assert to_json(from_json(Accuracy, json.loads(text))) == to_json(odd)
    assert math.isnan(from_json(Accuracy, json.loads(text)).errors["out"].max_error)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("backend", 5, "backend: 5 is no text"),
        ("round", 1.5, "round: 1.5 is no whole number"),
        ("status", "great", 'status: "great" is none of ok, skipped'),
        ("seconds", [], "seconds: [] is no number"),
        ("measurements", [], "measurements: [] is no object with names"),
        ("measurements.time.values", [1.0, "fast"], 'measurements: time: values: "fast" is no number'),
        ("accuracy.errors.dq", {"max_error": 1.0}, "dq: a tensorerror without eager_error, tolerance, relative"),
        ("case.dtype", "bf15", 'case: dtype: "bf15" is none of bf16, '),
        ("case.window_size", [1], "case: window_size: [1] is no list of 2"),
    ],
)
def test_a_value_of_another_type_is_reported_with_its_place(place: str, value: object, said: str) -> None:
    """A value of another type, as in a damaged file, is reported with its place, not accepted until a later error."""
    data = through_json(rich_record())
    *above, last = place.split(".")
    inside = data
    for name in above:
        inside = inside[name]
    inside[last] = value
    with pytest.raises(ValueError, match=re.escape(said)):
        from_json(Record, data)


def test_a_record_of_an_older_version_can_be_read() -> None:
    """A record of an older version can be read, if it has all fields without a default."""
    data = through_json(rich_record())
    least = {name: data[name] for name in ("case", "backend", "round", "status")}
    assert from_json(Record, least) == Record(RICH, "triton", 2, "ok")


def test_every_field_of_a_record_survives() -> None:
    """Every field of a record survives JSON; none is at its default, so a new field that is not read fails here."""
    rich = replace(
        rich_record(), reason="r", forecast=Forecast(1.0, 0.1, 5), seconds=2.0, resumable=True, stderr="tail",
        approximation=Approximation("few keys", 0.4, 0.8, rows=64, heads=4),
        judge="beside", bitwise=Bitwise(8, {"dq": 3}, {"dq": "0f"}, ("dk",), "", ("dv",), "why"),
        sanitizer={"racecheck": "hung"}, proof=Proof((8, 16, 32), 1e-5, 2e-6, 0.03, 84, {"processes": "root"}),
    )  # fmt: skip
    plain = Record(PLAIN, "", -1, "skipped")
    assert [f.name for f in dataclasses.fields(Record) if getattr(rich, f.name) == getattr(plain, f.name)] == []
    assert from_json(Record, through_json(rich)) == rich


ODD = Policy(
    timer="cupti", l2="warm", warmup_s=0.1, min_samples=7, max_samples=70, target=0.1, min_seconds=0.3, max_seconds=0.4,
    burst_s=0.005, cross_check=0.25, sustained_s=20.0, isolate_power=True, timeout_s=9.0, seed=5,
    caches="fresh", bitwise=True, untrusted=True,
)  # fmt: skip


def test_policy_through_json() -> None:
    assert [f.name for f in dataclasses.fields(Policy) if getattr(ODD, f.name) == f.default] == []
    for policy in (ODD, Policy()):
        assert from_json(Policy, through_json(policy)) == policy


def test_job_and_environment_through_json() -> None:
    job = Job(RICH, "eager", 1, Forecast(1.5, 0.01, 123), "needs 9 GiB", True)
    assert from_json(Job, through_json(job)) == job
    known = environment(replace(H200, matmul={"bf16": 8e14}, copy=4e12), packages={"triton": "3.6.0"}, git="abc+dirty")
    for which in (known, environment(CPU)):
        assert from_json(Environment, through_json(which)) == which
    newer = through_json(known)
    newer["mig"] = None
    newer["device"]["numa"] = 1
    assert from_json(Environment, newer) == known
    assert from_json(Device, through_json(H200)).capability == (9, 0)


def error(size: float) -> TensorError:
    return TensorError(size, 0.001, 0.002, size)


def test_accuracy_and_its_problem() -> None:
    assert Accuracy({"out": error(0.002)}, 1, 1).ok
    assert Accuracy({"out": error(0.002)}, 1, 1).problem() == ""
    wrong = Accuracy({"out": error(0.001), "dq": error(0.5), "dk": error(float("nan"))}, 1, 1, ("dk",))
    assert not wrong.ok
    assert wrong.problem() == (
        "dk has values that are not finite (NaN, or never written); "
        "dq is off by 0.5 where 0.002 is allowed (eager: 0.001)"
    )
    assert not Accuracy({"out": error(float("nan"))}, 1, 1).ok
    assert not Accuracy({"out": error(0.0)}, 1, 1, ("out",)).ok  # right where compared, but not everywhere
