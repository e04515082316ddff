"""From YAML and options to cases: priorities, exclusions, and the place in an error."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.core.policy import Policy
from attnbench.run import suite, yaml_file

AXES = {"seqlen": "1k", "headdim": 64}


def parse(data: dict[str, Any]) -> suite.Suite:
    return suite.parse_suite({"name": "mine", "axes": AXES, **data}, "mine.yaml")


def resolve(data: dict[str, Any], kind: str = "cuda", **options: Any) -> suite.Resolved:
    return suite.resolve(parse(data), kind, suite.parse_options(options))


def cases(data: dict[str, Any], kind: str = "cuda", **options: Any) -> tuple[Case, ...]:
    return resolve(data, kind, **options).cases


def only(data: dict[str, Any], kind: str = "cuda", **options: Any) -> Shape:
    (case,) = cases(data, kind, **options)
    return case.shape


def test_axes_multiply() -> None:
    axes = {
        "seqlen": "1k-4k",
        "headdim": [64, "192-128"],
        "dtype": "bf16, fp16",
        "causal": [False, True],
        "pass": ["fwd", "bwd"],
    }
    found = cases({"axes": axes})
    assert len(found) == len(set(found)) == 3 * 2 * 2 * 2 * 2
    assert {c.shape.seqlen_k for c in found} == {1024, 2048, 4096}
    assert all(c.shape.seqlen_q == c.shape.seqlen_k for c in found)
    assert {(c.shape.headdim, c.shape.headdim_v) for c in found} == {(64, 64), (192, 128)}
    assert {(c.dtype, c.causal, c.direction) for c in found} >= {("fp16", True, "bwd"), ("bf16", False, "fwd")}


def test_what_is_not_said() -> None:
    assert cases({"axes": {"seqlen": 1024}}) == (Case(Shape(16, 1024, 1024, 16, 16, 128, 128), "bf16", "fwd"),)
    resolved = resolve({})
    assert (resolved.backends, resolved.policy, resolved.time_limit) == (("*",), Policy(), None)


@pytest.mark.parametrize("value", [10**400, -1, math.inf, math.nan, 2**63])
def test_a_number_of_a_policy_is_within_bounds(value: float) -> None:
    with pytest.raises(UserError, match=r"max_seconds: .* is not a number of at least 0, below 2\^63") as error:
        parse({"policy": {"max_seconds": value}})
    assert len(str(error.value)) < 150


def test_a_block_of_cases_may_name_its_backends() -> None:
    data = {
        "backends": ["eager", "sdpa-*"],
        "cases": [
            {"seqlen": "2k", "backends": "sdpa-flash"},
            {"seqlen": "4k", "backends": ["eager"]},
            {"seqlen": "1k"},
        ],
    }
    only = {case.shape.seqlen_k: names for case, names in resolve(data).only.items()}
    assert only == {2048: ("sdpa-flash",), 4096: ("eager",)}
    both = [{"seqlen": "2k", "backends": "eager"}, {"seqlen": "2k", "backends": "sdpa-*,eager"}]
    assert [*resolve({"cases": both}).only.values()] == [("eager", "sdpa-*")]
    assert resolve({"cases": [*both, {"seqlen": "2k"}]}).only == {}


def test_the_same_case_said_twice_is_one() -> None:
    assert len(cases({"axes": {**AXES, "dtype": ["bf16", "bf16"], "seqlen": "1k,1024"}})) == 1


def test_batch_from_tokens() -> None:
    found = cases({"axes": {**AXES, "seqlen": "1k-64k"}, "tokens": "16k"})
    assert {c.shape.seqlen_k: c.shape.batch for c in found} == {
        1024: 16, 2048: 8, 4096: 4, 8192: 2, 16384: 1, 32768: 1, 65536: 1,
    }  # fmt: skip
    assert only({"tokens": "4k"}).batch == 4


def test_of_batch_and_tokens_the_later_wins() -> None:
    assert only({"axes": {**AXES, "batch": 3}, "tokens": "16k"}).batch == 3
    assert only({"axes": {**AXES, "batch": 3}}, tokens="2k").batch == 2
    assert only({"tokens": "16k"}, axes={"batch": "5"}).batch == 5
    assert only({"axes": {**AXES, "batch": 3}, "on_cpu": {"tokens": "2k"}}, "cpu").batch == 2
    assert only({"on_cpu": {"axes": {"batch": 2}}}, "cpu", tokens="8k").batch == 8


def test_heads_from_hidden() -> None:
    assert only({"hidden": "2k"}).nheads == 32
    assert only({"hidden": 32}).nheads == 1  # less than one head
    assert only({"hidden": "2k", "axes": {**AXES, "nheads": 6}}).nheads == 6


def test_grouped_heads() -> None:
    shape = only({"axes": {**AXES, "nheads_k": 4}, "hidden": "2k"})
    assert (shape.nheads, shape.nheads_k) == (32, 4)
    with pytest.raises(UserError, match=r"nheads-k: 32 query heads .headdim 64. are not a multiple of 5 key heads"):
        cases({"axes": {**AXES, "nheads_k": 5}, "hidden": "2k"})
    with pytest.raises(UserError, match="not a multiple of 16 key heads"):
        cases({"axes": {**AXES, "nheads": 8, "nheads_k": "4,16"}})


def test_decode_and_cross_attention() -> None:
    found = cases({"axes": {**AXES, "seqlen": "1k,2k", "seqlen_q": "1,128"}})
    assert {(c.shape.seqlen_q, c.shape.seqlen_k) for c in found} == {(1, 1024), (128, 1024), (1, 2048), (128, 2048)}


def test_options_win_over_on_cpu_over_the_suite() -> None:
    data = {
        "axes": {**AXES, "dtype": "bf16"},
        "tokens": "16k",
        "policy": {"seed": 1, "target": 0.1, "min_samples": 20},
        "time_limit": "9m",
        "backends": ["eager"],
        "on_cpu": {"axes": {"dtype": "fp32"}, "tokens": "2k", "policy": {"seed": 2, "target": 0.2}, "time_limit": "1m"},
    }
    gpu, cpu = resolve(data), resolve(data, "cpu")
    mine = resolve(data, "cpu", axes={"dtype": "fp16"}, policy={"seed": 3}, time_limit="5s", backends=["triton"])
    assert [r.cases[0].dtype for r in (gpu, cpu, mine)] == ["bf16", "fp32", "fp16"]
    assert [r.cases[0].shape.batch for r in (gpu, cpu, mine)] == [16, 2, 2]
    assert [r.cases[0].shape.headdim for r in (gpu, cpu, mine)] == [64, 64, 64]
    assert [(r.policy.seed, r.policy.target) for r in (gpu, cpu, mine)] == [(1, 0.1), (2, 0.2), (3, 0.2)]
    assert {r.policy.min_samples for r in (gpu, cpu, mine)} == {20}
    assert [r.time_limit for r in (gpu, cpu, mine)] == [540, 60, 5]
    assert [r.backends for r in (gpu, cpu, mine)] == [("eager",), ("eager",), ("triton",)]


def test_what_was_shrunk_for_a_cpu_is_said() -> None:
    data = {"on_cpu": {"axes": {"dtype": "fp32", "pass": "fwd"}, "tokens": "2k"}}
    assert resolve(data).notes == ()
    (note,) = resolve(data, "cpu").notes
    assert all(words in note for words in ("dtype fp32", "pass fwd", "tokens 2k"))
    (note,) = resolve(data, "cpu", axes={"dtype": "fp16"}).notes
    assert "dtype" not in note
    assert resolve({}, "cpu").notes == ()


def test_exclude_takes_what_has_all_of_an_entry() -> None:
    axes = {"seqlen": "1k-4k", "headdim": [64, 256], "pass": ["fwd", "bwd"], "causal": [False, True]}
    left = cases({"axes": axes, "exclude": [{"headdim": 256, "pass": "bwd"}, {"seqlen": "2k-4k", "causal": True}]})
    every = cases({"axes": axes})
    gone = {c for c in every if c.shape.headdim == 256 and c.direction == "bwd"}
    gone |= {c for c in every if c.shape.seqlen_k >= 2048 and c.causal}
    assert set(left) == set(every) - gone
    assert 0 < len(left) < len(every)


def test_exclude_reads_lists_as_axes_do() -> None:
    axes = {**AXES, "dtype": "bf16, fp16, fp32"}
    for said in ("bf16, fp16", "bf16,fp16", ["bf16", "fp16"]):
        assert {c.dtype for c in cases({"axes": axes, "exclude": [{"dtype": said}]})} == {"fp32"}


def test_a_time_limit_may_be_a_bare_number_of_seconds() -> None:
    assert resolve({"time_limit": 90}).time_limit == resolve({"time_limit": "90s"}).time_limit == 90


def test_excluding_everything_is_an_error() -> None:
    with pytest.raises(UserError, match="nothing to measure"):
        cases({"exclude": [{"headdim": 64}]})


def test_cases_stand_beside_the_axes_and_take_from_them() -> None:
    found = cases({"axes": {**AXES, "dtype": "fp16"}, "cases": [{"seqlen": "8k", "seqlen_q": 1, "batch": 32}]})
    assert [(c.shape.batch, c.shape.seqlen_q, c.shape.seqlen_k, c.dtype) for c in found] == [
        (16, 1024, 1024, "fp16"),
        (32, 1, 8192, "fp16"),
    ]
    alone = suite.parse_suite({"cases": [{"seqlen": "2k"}, {"seqlen": "4k", "pass": "bwd"}]}, "x")
    assert [c.shape.seqlen_k for c in suite.resolve(alone, "cuda").cases] == [2048, 4096]
    (case,) = suite.resolve(alone, "cuda", suite.parse_options({"axes": {"seqlen": "1k", "pass": "fwd"}})).cases
    assert case.shape.seqlen_k == 1024


@pytest.mark.parametrize(
    ("data", "place", "hint"),
    [
        ({"tokns": "1k"}, "tokns: unknown key", 'did you mean "tokens"?'),
        ({"model": "llama-3.1-8b"}, "model: unknown key", 'did you mean "models"?'),
        ({"axes": {"model": "x"}}, "axes.model: unknown key", "known: alibi"),
        ({"axes": {"sink": []}}, "axes.sink: ", "is not true or false"),
        ({"axes": {"seqlens": "1k"}}, "axes.seqlens: unknown key", 'did you mean "seqlen"?'),
        ({"axes": {"direction": "fwd", "batches": 1}}, "axes.batches: unknown key", 'did you mean "batch"?'),
        ({"on_cpu": {"token": 1}}, "on_cpu.token: unknown key", 'did you mean "tokens"?'),
        ({"on_cpu": {"axes": {"dtypes": "fp32"}}}, "on_cpu.axes.dtypes: unknown key", 'did you mean "dtype"?'),
        ({"exclude": [{}, {"head_dim": 1}]}, "exclude.1.head_dim: unknown key", 'did you mean "headdim"?'),
        ({"cases": [{"seqlenq": 1}]}, "cases.0.seqlenq: unknown key", "did you mean"),
        ({"policy": {"max_secnds": 1}}, "policy: unknown key 'max_secnds'", 'did you mean "max_seconds"?'),
        ({"on_cpu": {"policy": {"sed": 1}}}, "policy: unknown key 'sed'", 'did you mean "seed"?'),
        ({"policy": {"target": -1}}, "policy: target: -1 is not", ""),
        ({"policy": {"target": "small"}}, "policy: target: 'small' is not", ""),
        ({"policy": {"l2": "wram"}}, "policy: l2: unknown 'wram'", 'did you mean "warm"?'),
        ({"policy": {"l2": 1}}, "policy: l2: unknown 1", ""),
        ({"policy": {"timer": "graphs"}}, "policy: timer: unknown 'graphs'", 'did you mean "graph"?'),
        ({"policy": {"timer": "nsys"}}, "policy: timer: unknown 'nsys'", "events"),
        ({"policy": {"isolate_power": "yes"}}, "policy: isolate_power: 'yes' is neither true nor false", ""),
        ({"policy": {"isolate_power": 1}}, "policy: isolate_power: 1 is neither true nor false", ""),
        ({"policy": {"cross_check": True}}, "policy: cross_check: True is not a number", ""),
        ({"policy": {"min_samples": 2.5}}, "policy: min_samples: 2.5 is not a whole number", ""),
        ({"policy": {"min_samples": 0}}, "policy: min_samples: 0 is not a whole number of at least 1", ""),
        ({"policy": {"min_samples": True}}, "policy: min_samples: True is not a number", ""),
        ({"policy": {"target": float("nan")}}, "policy: target: nan is not a number", ""),
        ({"policy": {"sustained_s": float("inf")}}, "policy: sustained_s: inf is not a number", ""),
        ({"on_cpu": {"policy": {"timer": "perf"}}}, "policy: timer: unknown 'perf'", ""),
        ({"axes": {"causal": "maybe"}}, "axes.causal", ""),
        ({"axes": 3}, "axes: ", ""),
        ({"backends": 3}, "backends: ", ""),
    ],
)
def test_a_mistake_is_said_with_its_place(data: dict[str, Any], place: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        suite.parse_suite(data, "mine.yaml")
    said = str(error.value)
    assert said.startswith(f"mine.yaml: {place}")
    assert hint in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "policy",
    [
        {"timer": "graph"},
        {"timer": "cupti", "l2": "warm"},
        {"cross_check": 0.05},
        {"cross_check": 1},
        {"sustained_s": 20},
        {"isolate_power": True},
        {"isolate_power": False, "seed": 0, "target": 0, "burst_s": 0.001},
    ],
)
def test_what_a_policy_may_say(policy: dict[str, Any]) -> None:
    assert resolve({"policy": policy}).policy == Policy(**policy)
    assert resolve({}, policy=policy).policy == Policy(**policy)


def test_a_sustained_run_is_given_as_a_duration() -> None:
    for said in ("20s", "20", 20):
        assert resolve({}, policy={"sustained_s": said}).policy.sustained_s == 20
    assert resolve({}, policy={"sustained_s": "2m"}).policy.sustained_s == 120
    assert resolve({"policy": {"sustained_s": 5}}, policy={"sustained_s": None}).policy.sustained_s == 5
    with pytest.raises(UserError, match="--sustained: 'long' is not a duration"):
        suite.parse_options({"policy": {"sustained_s": "long"}})


GPU_ONLY = {"timer": "graph", "cross_check": 0.5, "sustained_s": 20.0, "isolate_power": True}


def test_what_a_cpu_cannot_do_is_left_out_and_said_once() -> None:
    data = {"policy": {**GPU_ONLY, "l2": "warm", "seed": 3, "target": 0.1}}
    on_cpu = resolve(data, "cpu")
    assert on_cpu.policy == Policy(l2="warm", seed=3, target=0.1)
    (note,) = on_cpu.notes
    assert note.startswith("on a CPU: timer, cross_check, sustained_s, isolate_power does not apply")
    assert "perf_counter" in note
    on_gpu = resolve(data)
    assert (on_gpu.policy, on_gpu.notes) == (Policy(**data["policy"]), ())


@pytest.mark.parametrize("name", GPU_ONLY)
def test_of_what_a_cpu_cannot_do_only_what_was_asked_for_is_said(name: str) -> None:
    found = resolve({}, "cpu", policy={name: GPU_ONLY[name]})
    assert found.policy == Policy()
    (note,) = found.notes
    assert note.startswith(f"on a CPU: {name} does not apply")
    assert resolve({"policy": {name: getattr(Policy, name)}}, "cpu").notes == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"axes": {**AXES, "dtype": "bf61"}}, "dtype: unknown dtype 'bf61'; did you mean \"bf16\"?"),
        ({"axes": {**AXES, "pass": "forward"}}, "pass: unknown pass 'forward'"),
        ({"axes": {**AXES, "seqlen": "8x"}}, "seqlen: '8x' is not a size"),
        ({"axes": {"headdim": 64}}, "seqlen is missing; give it there, as in seqlen: 1k,4k, or by"),
        ({"tokens": 0}, "tokens: 0 is not at least 1"),
        ({"exclude": [{"pass": "backward"}]}, "pass: unknown pass 'backward'"),
        ({"exclude": [{"dtype": "bf16, fp61"}]}, "dtype: unknown dtype 'fp61'"),
        ({"tokens": "many"}, "tokens: 'many' is not a size"),
        ({"time_limit": "soon"}, "time_limit: 'soon' is not a duration"),
        (
            {"cases": [{"seqlen": "1-1000:1", "nheads": "1,2,3,4"}] * 9},
            "that is 12000 cases, more than the 10000",
        ),  # a density of all blocks
        (  # no reader of a run file would accept it
            {"axes": {"seqlen": "256k", "causal": True, "mask": ",".join(f"random:{i / 100}" for i in range(1, 99))}},
            "blocks of different random masks, more than the 268,435,456 that a run may have",
        ),
    ],
)
def test_a_value_that_is_not_one(data: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        cases(data)
    assert said in str(error.value)


@pytest.mark.parametrize("content", ["a: [", "- 1\n", "just words", "", "a: !!python/object:os.system {}", "\x00"])
def test_files_that_are_no_suite(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=r"bad\.yaml:[ 0-9]"):
        suite.load_suite(str(path))


def test_a_suite_is_found_by_name_or_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r'no suite .quik.; did you mean "quick"\?'):
        suite.load_suite("quik")
    with pytest.raises(UserError, match="no suite"):
        suite.load_suite(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("axes: {seqlen: 2k}\n")
    assert suite.load_suite("own.yaml").name == "own"
    assert suite.resolve(suite.load_suite("own.yaml"), "cuda").cases[0].shape.seqlen_k == 2048


SHIPPED = sorted(suite.shipped_suites())


@pytest.mark.parametrize("kind", ["cuda", "cpu", "fake"])
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_suites_resolve(name: str, kind: str) -> None:
    loaded = suite.load_suite(name)
    found = suite.resolve(loaded, kind)
    assert loaded.name == name
    assert loaded.description
    assert found.cases
    if kind == "cpu":
        assert found.time_limit, "a CPU run must end"
        assert {c.dtype for c in found.cases} == {"fp32"}
    assert str(len(suite.resolve(loaded, "cuda").cases)) in suite.describe_suite(loaded)


def test_the_default_suite_is_the_papers() -> None:
    found = suite.resolve(suite.load_suite("default"), "cuda").cases
    assert {c.shape.batch * c.shape.seqlen_k for c in found} == {16384}
    assert {c.shape.nheads * c.shape.headdim for c in found} == {2048}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_the_ci_suite_is_half_of_all_combinations_and_every_two_choices_meet(kind: str) -> None:
    found = suite.resolve(suite.load_suite("ci"), kind).cases
    square = [c for c in found if c.shape.seqlen_q == c.shape.seqlen_k]
    choices = [(c.shape.headdim, c.causal, c.direction, c.shape.seqlen_k) for c in square]
    assert len(choices) == 8
    assert len({choice[:3] for choice in choices}) == 8  # every headdim x mask x pass
    for i, j in itertools.combinations(range(4), 2):
        pairs = [(choice[i], choice[j]) for choice in choices]
        assert [pairs.count(pair) for pair in sorted(set(pairs))] == [2] * 4
    decode = [c.shape for c in found if c not in square]
    assert [(s.seqlen_q, s.nheads // s.nheads_k) for s in decode] == ([(1, 4)] * 2 if kind == "cuda" else [])


def test_windows_softcaps_and_dropouts_multiply() -> None:
    axes = {**AXES, "causal": [False, True], "window": ["none", "1k"], "softcap": ["none", 30], "dropout": 0.1}
    found = cases({"axes": axes})
    assert len(found) == 8
    assert {c.dropout_p for c in found} == {0.1}
    assert {(c.causal, c.window_size) for c in found} == {
        (False, (None, None)), (False, (1024, 1024)), (True, (None, None)), (True, (1024, 0)),
    }  # fmt: skip
    assert {c.softcap for c in found} == {0.0, 30.0}


def test_a_mask_has_one_name() -> None:
    """A mask has one name: under a causal mask the right side of a window has no effect."""
    axes = {**AXES, "causal": True, "window": ["1k", "1k/0", "1024/512", "1k/open"]}
    (found,) = cases({"axes": axes})
    assert found.window_size == (1024, 0)
    (found,) = cases({"axes": {**axes, "window": "open/512"}})
    assert found.window_size == (None, None)
    full = cases({"axes": {**axes, "causal": False}})
    assert {(c.causal, c.window_size) for c in full} == {
        (False, (1024, 1024)), (True, (1024, 0)), (False, (1024, 512)), (False, (1024, None)),
    }  # fmt: skip
    assert len(cases({"axes": {**axes, "causal": [False, True]}})) == 4  # the causal ones are equal


def test_layouts_are_an_axis_and_packed_has_one_length_and_one_headdim() -> None:
    axes = {**AXES, "seqlen_q": ["1k", "2k"], "layout": ["native", "packed"]}
    found = suite.resolve(suite.parse_suite({"axes": axes}, "mine.yaml"), "cuda")
    packed = [c for c in found.cases if c.layout == "packed"]
    assert packed
    assert all(c.shape.seqlen_q == c.shape.seqlen_k for c in packed)
    assert any("packed inputs have one length and one headdim: " in note for note in found.notes)
    assert {c.layout for c in cases({"axes": {**AXES, "layout": "bshd"}})} == {"bshd"}
    with pytest.raises(UserError, match="packed needs q, k and v of one length and one headdim"):
        cases({"axes": {**AXES, "headdim": "192-128", "layout": "packed"}})


def test_data_are_an_axis_and_other_cases_keep_their_keys() -> None:
    found = cases({"axes": {**AXES, "data": ["normal", "zeros"]}})
    assert {c.data for c in found} == {"normal", "zeros"}
    assert {c.key for c in found if c.data == "normal"} == {c.key for c in cases({"axes": AXES})}


def test_excluding_and_adding_by_window_softcap_and_dropout() -> None:
    axes = {**AXES, "causal": True, "window": ["none", "1k"], "softcap": ["none", 30], "dropout": ["none", 0.1]}
    found = cases({"axes": axes, "exclude": [{"window": "1k", "dropout": 0.1}, {"softcap": 30, "window": "none"}]})
    assert {(c.window_size[0], c.softcap, c.dropout_p) for c in found} == {
        (None, 0, 0), (None, 0, 0.1), (1024, 0, 0), (1024, 30, 0),
    }  # fmt: skip
    (_, added) = cases({"cases": [{"window": "512/512", "softcap": 50}]})
    assert (added.window_size, added.softcap) == ((512, 512), 50)
    assert {c.dropout_p for c in cases({"axes": axes}, axes={"dropout": "none"})} == {0}


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"window": "1024:0"}, r"window: '1024:0' is not a window; write 1024, 1024/0"),
        ({"window": [[256, 0]]}, r"axes.window: \[256, 0\] is a list in a list; a pair is written 256/0, several"),
        ({"window": [[256, -1], [1, 1]]}, "a pair is written 256/open"),
        ({"window": [256, 0]}, r"'0' is not a window; .* \(left and right of one window: 256/0\)"),
        ({"window": "256/-1"}, r"'256/-1' is not a window; .* \(flash-attn's -1 is open\)"),
        ({"headdim": [[192, 128]]}, "axes.headdim: .* a pair is written 192-128"),
        ({"seqlen": [[1024, 2048]]}, r"axes.seqlen: .* is a list in a list; give single values, as in \[A, B\]"),
        ({"seqlen": [[*range(1024, 2048)]]}, r"seqlen: \[1024, .*\.\.\. is a list in a list; give single values"),
        ({"window": [[[1], 2]]}, "is a list in a list; give single values"),
        ({"dtype": "torch.float16"}, "dtype: unknown dtype 'torch.float16'; here it is \"fp16\""),
        ({"pass": "backward"}, "pass: unknown pass 'backward'; here it is \"bwd\""),
        ({"pass": "fp16"}, "pass: unknown pass 'fp16'; known: fwd, bwd"),
        ({"dropout": 1}, "dropout: 1 is out of range; a number from 0 and below 1"),
        ({"softcap": "-1"}, "softcap: -1 is out of range"),
        ({"dropout": "nan"}, "dropout: nan is out of range"),
        ({"windows": "1k"}, r"axes.windows: unknown key; did you mean .?window"),
        ({"soft_cap": 30}, r"unknown key.*softcap"),
    ],
)
def test_what_is_no_window_softcap_or_dropout(axes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        cases({"axes": {**AXES, **axes}})


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """Numbers are YAML 1.2's; in PyYAML's YAML 1.1 12:30 is 750, 010 is 8 and 1e3 is text."""
    file = tmp_path / "mine.yaml"
    file.write_text("a: [12:30, 010, 0x10, 0b1, 1_000, 1e3, 1.5e-3, -2, +3, 0, .5, 7., -.inf, 1k, 190:20:30.15]\n")
    expected = ["12:30", "010", "0x10", "0b1", "1_000", 1000.0, 0.0015, -2, 3, 0, 0.5, 7.0, -math.inf, "1k"]
    assert yaml_file.read_yaml(file)["a"] == [*expected, "190:20:30.15"]
    assert [type(value) for value in yaml_file.read_yaml(file)["a"][7:10]] == [int] * 3


def test_a_suite_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xef\xbb\xbfaxes: {seqlen: 1k}\n")
    assert suite.load_suite(str(file)).axes.seqlen == "1k"


def test_delta_rules_are_causal_and_have_backends_of_their_own() -> None:
    """A product leaves a full mask out. Backends of delta rules run their cases where none is named."""
    data = {"axes": {"seqlen": "1k", "headdim": 64, "causal": [False, True], "kind": ["softmax", "gdn"]}}
    found = resolve(data)
    assert [(case.kind, case.causal) for case in found.cases] == [
        ("softmax", False),
        ("softmax", True),
        ("gdn", True),
    ]
    assert found.backends == ("*", "*", "delta-torch", "fla", "flashqla")
    assert resolve({**data, "backends": ["!flex"]}).backends == ("*", "!flex", "delta-torch", "fla", "flashqla")
    assert resolve({**data, "backends": ["fla", "fa3"]}).backends == ("fla", "fa3")
    assert resolve({"axes": {"seqlen": "1k", "kind": "kda"}}).backends == ("delta-torch", "fla")
    assert resolve({"axes": {"seqlen": "1k", "kind": "kda"}}).cases[0].causal
    assert resolve({"axes": {"seqlen": "1k"}}).backends == ("*",)
    with pytest.raises(UserError, match="--kind: gdn is causal; leave out --full"):
        suite.parse_options({"axes": {"kind": "gdn", "causal": False}})
    with pytest.raises(UserError, match="softcap 30 with a delta rule cannot be measured"):
        cases({"axes": {"seqlen": "1k", "kind": "gdn", "softcap": 30}})
    with pytest.raises(UserError, match="in place of earlier keys; leave out --seqlen-q"):
        cases({"axes": {"seqlen": "1k", "kind": "gdn", "seqlen_q": 1}})


def test_an_indexer_chooses_2k_keys_unless_a_mask_says_otherwise() -> None:
    """It is causal and forward only, and has one key head and backends of its own."""
    found = resolve({"axes": {"seqlen": "8k", "kind": ["softmax", "indexer"], "pass": ["fwd", "bwd"], "causal": True}})
    *_, own = found.cases
    assert [case.direction for case in found.cases if case.is_indexer] == ["fwd"]
    assert (own.kind, own.mask, own.causal, own.shape.nheads_k) == ("indexer", "topk:2k", True, 1)
    assert found.backends == ("*", "*", "indexer-torch", "indexer-triton", "indexer-deepgemm")
    (own,) = cases({"axes": {"seqlen": "8k", "kind": "indexer", "mask": "topk:512", "seqlen_q": 1, "dtype": "fp8"}})
    assert (own.mask, own.is_decode, own.dtype) == ("topk:512", True, "fp8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mask": "topk_recent:1k"}, "kind: an indexer chooses a number of keys; give --mask topk:2k, or leave it out"),
        ({"mask": "strided:64"}, "kind: mask strided:64 with an indexer cannot be measured; leave out one of them"),
        ({"nheads_k": 2}, "kind: all heads of an indexer share one key; leave out --nheads-k 2"),
        ({"headdim": "128-64"}, "kind: an indexer has no values; give --headdim 128"),
        ({"softmax_scale": 0.5}, "kind: the scale of an indexer is in its weights; leave out --softmax-scale"),
        ({"page_size": 64}, "kind: page-size 64 with an indexer cannot be measured; leave out one of them"),
        ({"softcap": 30}, "kind: softcap 30 with an indexer cannot be measured; leave out one of them"),
        ({"seqlen_q": "2k"}, "mask: topk:2k takes at most as many queries as keys; give a smaller --seqlen-q"),
        ({"pass": "bwd"}, "kind: indexer is forward only; give --pass fwd"),
    ],
)
def test_what_an_indexer_cannot_have_is_said_in_a_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as told:
        cases({"axes": {"seqlen": "1k", "nheads": 4, "kind": "indexer", **given}})
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_an_untrusted_run_has_a_clock_of_its_own() -> None:
    """Its figures are never compared with those of another clock, and no option that does nothing is taken."""
    plain = suite.parse_suite({"axes": {"seqlen": 64}}, "x")
    given = suite.parse_options({"policy": {"untrusted": True}})
    policy = suite.resolve(plain, "cuda", given).policy
    assert (policy.timer, policy.l2) == ("outside", "warm")
    for name, value in {"bitwise": True, "caches": "fresh", "timer": "graph", "l2": "warm"}.items():
        with pytest.raises(UserError, match=f"leave out {name}"):
            suite.resolve(plain, "cuda", suite.parse_options({"policy": {"untrusted": True, name: value}}))
    with pytest.raises(UserError, match="simulated device"):
        suite.resolve(plain, "fake", given)
