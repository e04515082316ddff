"""The settings that engines load, from made-up runs; and the names in them, where an engine can be imported."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from attnbench.analysis.choose import engines
from attnbench.analysis.choose.engines import Setting
from attnbench.analysis.recommend.findings import answered_once, problems
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.record import Record
from attnbench.render import terminal
from attnbench.render.document import Document
from attnbench.results.cells import cells
from attnbench.run.shipped_backends import named_in
from builders import CPU, H200, case, ended, ok, run

PREFILL, LONG = case(4096, causal=True), case(8192, causal=True)
FULL = case(4096)
DECODE = case(8192, causal=True, seqlen_q=1, batch=16, nheads=32, nheads_k=8)
PAGED = replace(DECODE, page_size=16)
WINDOW = (1023, 0)
LATENT = Case(Shape(16, 1, 8192, 32, 1, 576, 512), "bf16", "fwd", True, page_size=64, latent=True)


def of(records: Iterable[Record], *, device: Device = H200, module: str = "") -> dict[str, list[Setting]]:
    """Return the settings for the problems of some records, by engine."""
    found: dict[str, list[Setting]] = {}
    for one in engines.settings(answered_once(problems(cells([run(records, device=device)]))), module):
        found.setdefault(one.engine, []).append(one)
    return found


def texts(found: dict[str, list[Setting]], engine: str) -> list[str]:
    return [one.text for one in found.get(engine, [])]


def speeds(which: Case, **tflops: float) -> list[Record]:
    """Return a record of each backend, named with _ for -, with its TFLOP/s."""
    return [ok(which, name.replace("_", "-"), speed) for name, speed in tflops.items()]


def both(which: Case, **tflops: float) -> list[Record]:
    """Return records of the forward and of the backward of a case."""
    return [*speeds(which, **tflops), *speeds(replace(which, direction="bwd"), **tflops)]


def test_vllm_has_one_backend_for_each_kind_of_layer() -> None:
    windowed = [replace(one, window_size=WINDOW) for one in (PREFILL, PAGED)]
    found = of(
        [
            *speeds(PREFILL, vllm_fa3=600, flashinfer=500),
            *speeds(PAGED, vllm_fa3=5, flashinfer=6),
            *speeds(windowed[0], vllm_fa3=300, flashinfer=450),
            *speeds(windowed[1], vllm_fa3=3, flashinfer=4),
        ]
    )
    (one,) = found["vLLM"]
    options = '"flash_attn_version": 3, "use_trtllm_attention": false'
    by_kind = '"backend_per_kind": {"full_attention": "FLASH_ATTN", "sliding_window": "FLASHINFER"}'
    assert one.text == f"--attention-config '{{{by_kind}, {options}}}'"
    assert (one.use, one.purpose) == (("vllm-fa3", "flashinfer"), "prefill and decode in bf16")
    assert one.loss == pytest.approx(6 / 5)
    assert one.where is not None
    assert one.where.case == PAGED
    assert any("contiguous keys and values were measured for prefill" in note for note in one.notes)


def test_vllm_has_a_single_name_where_all_kinds_agree() -> None:
    (one,) = of(speeds(replace(PREFILL, page_size=16), vllm_triton=300) + speeds(PAGED, vllm_triton=5))["vLLM"]
    assert one.text == "--attention-backend TRITON_ATTN"
    assert one.notes == ("in 2 of 2 cases no other backend had a right figure",)
    (latent,) = of(speeds(LATENT, flashmla=30, fa3=20))["vLLM"]
    assert latent.text == "--attention-backend FLASHMLA"


def test_all_layers_of_vllm_have_one_version_of_flash_attention() -> None:
    windowed = replace(PREFILL, window_size=WINDOW)
    (one,) = of(speeds(PREFILL, fa3=300, fa4=600) + speeds(windowed, fa3=500, fa4=400))["vLLM"]
    assert one.text == '--attention-config \'{"backend": "FLASH_ATTN", "flash_attn_version": 4}\''
    assert (one.use, one.loss) == (("fa4",), pytest.approx(5 / 4))


def test_decode_over_pages_counts_before_dense_decode() -> None:
    measured = speeds(PREFILL, fa3=600, fa2=590) + speeds(DECODE, fa3=6, fa2=1)
    found = of(measured + speeds(PAGED, fa3=2, fa2=6))
    assert found["vLLM"][0].use == ("fa2",)
    assert texts(of(measured), "vLLM") == ['--attention-config \'{"backend": "FLASH_ATTN", "flash_attn_version": 3}\'']
    assert "contiguous keys and values were measured for prefill and decode" in of(measured)["vLLM"][0].notes[0]


def test_sglang_has_a_backend_for_each_phase() -> None:
    found = of(speeds(PREFILL, sglang_fa3=600, flashinfer_fa2=500) + speeds(PAGED, sglang_fa3=5, flashinfer_fa2=6))
    assert texts(found, "SGLang") == ["--prefill-attention-backend fa3 --decode-attention-backend flashinfer"]
    assert found["SGLang"][0].loss == 1
    multiplied = case(4096, causal=True, nheads_k=16, headdim=192, headdim_v=128)
    latent = of(speeds(multiplied, fa3=500, sdpa_cudnn=600) + speeds(LATENT, flashmla=3, fa3=2))
    assert texts(latent, "SGLang") == ["--prefill-attention-backend fa3 --decode-attention-backend flashmla"]


@pytest.mark.parametrize(("nheads_k", "use"), [(8, "flashinfer-fa2"), (16, "flashinfer-decode")])
def test_sglang_decodes_with_tensor_cores_from_four_heads_of_a_key_head_on(nheads_k: int, use: str) -> None:
    paged = replace(PAGED, shape=replace(PAGED.shape, nheads_k=nheads_k))
    (one,) = of(speeds(paged, flashinfer_fa2=5, flashinfer_decode=5))["SGLang"]
    assert (one.text, one.use) == ("--decode-attention-backend flashinfer", (use,))


def test_sdpa_has_an_order_for_each_phase_without_what_was_wrong() -> None:
    wide = case(4096, causal=True, headdim=256)
    forward = [*speeds(PREFILL, sdpa_cudnn=500, sdpa_flash=300, sdpa_math=9), *speeds(wide, sdpa_flash=200, fa3=400)]
    wrong = ended(LONG, "sdpa-efficient", "wrong", "out is off")
    decode = speeds(DECODE, sdpa_flash=6, sdpa_cudnn=2)
    found = of(
        [*forward, *speeds(PREFILL, sdpa_efficient=600), *speeds(LONG, sdpa_flash=300, sdpa_cudnn=500), wrong, *decode]
    )
    orders = {one.purpose: re.findall(r"SDPBackend\.(\w+)", one.text) for one in found["SDPA"]}
    assert orders == {
        "forward in bf16 d128": ["CUDNN_ATTENTION", "FLASH_ATTENTION", "MATH"],
        "decode in bf16 d128": ["FLASH_ATTENTION", "CUDNN_ATTENTION"],
        "forward in bf16 d256": ["FLASH_ATTENTION"],
    }
    assert "set_priority=True" in found["SDPA"][0].text
    compile(found["SDPA"][0].text, "text", "exec")


def test_sdpa_follows_its_order_to_the_first_that_takes_a_call() -> None:
    long = [*speeds(LONG, sdpa_flash=300, sdpa_fa3=600), ended(LONG, "sdpa-cudnn", "skipped", "refused")]
    (one,) = of([*speeds(PREFILL, sdpa_cudnn=600, sdpa_flash=500, sdpa_fa3=300), *long])["SDPA"]
    assert one.use == ("sdpa-cudnn", "sdpa-fa3"), "a process has one implementation of flash"
    assert 'activate_flash_attention_impl("FA3")' in one.text
    assert one.loss == 1
    assert one.default is None


def test_transformers_has_a_name_for_training_and_one_for_all_else() -> None:
    found = of([*speeds(FULL, fa3=600, hf_sdpa=500), *both(PREFILL, fa2=400, hf_sdpa=500)], module="chosen")
    assert texts(found, "transformers") == [
        'attn_implementation="flash_attention_3"',
        'attn_implementation="sdpa"',
        "import chosen\n\nchosen.register_transformers()",
    ]
    assert [one.default for one in found["transformers"]] == [pytest.approx(6 / 5), 1, None]
    training = of(speeds(replace(PREFILL, direction="fwd_bwd"), fa2=400, hf_sdpa=500))
    assert texts(training, "transformers") == ['attn_implementation="sdpa"']
    assert not {"vLLM", "SGLang", "diffusers"} & {*training}


def test_of_two_builds_with_one_name_the_engine_s_own_counts() -> None:
    found = of(speeds(PREFILL, sdpa=600, hf_sdpa=400, fa2=500))
    assert texts(found, "transformers") == ['attn_implementation="flash_attention_2"']


def test_diffusers_has_a_name_for_forwards_without_a_mask() -> None:
    found = of(speeds(FULL, sdpa_cudnn=600, sdpa=550) + speeds(PREFILL, sdpa_cudnn=200, sdpa=550))
    (one,) = found["diffusers"]
    assert one.text.splitlines()[0] == "export DIFFUSERS_ATTN_BACKEND=_native_cudnn"
    assert [one.loss, one.default] == [1, pytest.approx(60 / 55)]
    assert "diffusers" not in of(speeds(PREFILL, sdpa=500))


def test_layers_of_one_kind_have_settings_for_each_head_dim() -> None:
    wide = case(4096, causal=True, headdim=256)
    measured = speeds(PREFILL, fa3=600, fa4=500) + speeds(wide, fa3=300, fa4=400)
    versions = [json.loads(text.split("'")[1])["flash_attn_version"] for text in texts(of(measured), "vLLM")]
    assert versions == [3, 4]
    kinds = speeds(PREFILL, fa3=600, fa4=500) + speeds(replace(wide, window_size=WINDOW), fa3=300, fa4=400)
    assert len(of(kinds)["vLLM"]) == 1, "one model may have both"


def test_what_an_engine_lacks_is_said_where_a_person_can_measure_it() -> None:
    (one,) = of(speeds(PREFILL, sdpa=500, triton=400))["vLLM"]
    assert one.text == ""
    assert "-b fa2,fa3,fa4,vllm-fa3,vllm-triton,flashinfer,flashmla" in one.notes[0]
    (none,) = of(speeds(PREFILL, fa3=500) + speeds(LONG, flashinfer=400))["vLLM"]
    assert none.notes == ("no backend with a name there was right in all of 2 cases; choose fewer cases",)
    assert "vLLM" not in of(speeds(PREFILL, sdpa=500), device=CPU)


def test_other_problems_have_no_settings() -> None:
    other = (replace(PREFILL, dtype="fp8"), replace(PREFILL, mask="prefix:1k"), replace(FULL, dropout_p=0.1))
    assert [of(speeds(one, fa3=500, fa2=400)) for one in other] == [{}, {}, {}]


def test_a_document_and_json_have_the_settings() -> None:
    (found,) = of(speeds(PREFILL, vllm_triton=1, sglang_fa3=500))["SGLang"]
    shown = terminal.text(Document("tune", "", blocks=engines.blocks([found, Setting("vLLM", "", notes=("why",))])))
    assert "--prefill-attention-backend fa3" in shown
    assert "SGLang: decode was not measured." in shown
    assert "vLLM: why." in shown
    assert engines.blocks([]) == ()
    (row,) = engines.data([found])
    assert json.loads(json.dumps(row))["where"] == "4k d128 causal fwd"
    assert (row["for"], row["loss"], row["use"]) == ("prefill in bf16", 1, ["sglang-fa3"])


def test_a_backend_that_runs_other_kernels_inherits_no_name() -> None:
    named = {
        backend for engine in ("sdpa", "transformers", "vllm", "sglang", "diffusers") for backend in named_in(engine)
    }
    assert not named & {"flex-flash", "flashinfer-trtllm", "flashinfer-fa3", "xformers-fa3", "cudnn", "triton"}


def imported(module: str) -> Any:
    """Return a module of an engine. Skips the test where it cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except Exception as error:
        pytest.skip(f"{module} cannot be imported: {error}")


def names(engine: str) -> set[str]:
    return {*named_in(engine).values(), *named_in(f"{engine} mla").values()}


def test_torch_knows_the_names() -> None:
    attention = imported("torch.nn.attention")
    known = getattr(attention, "list_flash_attention_impls", lambda: ["FA3", "FA4"])()  # from torch 2.11 on
    for name in names("sdpa"):
        member, _, implementation = name.partition(" ")
        assert member in attention.SDPBackend.__members__
        assert implementation in ("", *known)


def test_transformers_knows_the_names() -> None:
    known = imported("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    assert names("transformers") <= {"eager", *known}


def test_vllm_knows_the_names_and_the_keys() -> None:
    config = imported("vllm.config.attention").AttentionConfig
    windowed = replace(PREFILL, window_size=WINDOW)
    found = of(speeds(PREFILL, fa3=600, flashinfer=500) + speeds(windowed, fa3=300, flashinfer=400))
    config(**json.loads(found["vLLM"][0].text.split("'")[1]))
    for name in names("vllm"):
        config(backend=name.split()[0], **engines._options(name))
    assert {engines._kind(p) for p in problems(cells([run(speeds(LATENT, fa3=1))]))} == {"mla_attention"}
    config(backend_per_kind=dict.fromkeys(("mla_attention", "sliding_window_mla"), "FLASHMLA"))


def test_sglang_knows_the_names() -> None:
    assert names("sglang") <= {*imported("sglang.srt.arg_groups.choices").ATTENTION_BACKEND_CHOICES}


def test_diffusers_knows_the_names() -> None:
    known = imported("diffusers.models.attention_dispatch").AttentionBackendName
    assert names("diffusers") <= {one.value for one in known}
