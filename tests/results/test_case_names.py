"""Names of cases and of sets of cases."""

from __future__ import annotations

from attnbench.results import case_names
from builders import case


def test_a_case_in_a_few_words() -> None:
    assert case_names.case_name("triton", case()) == "triton 1k d128 full fwd"
    assert case_names.case_name("triton", case(dtype="fp16"), dtype=True) == "triton 1k d128 full fwd fp16"
    odd = case(16384, seqlen_q=1, headdim=192, headdim_v=128, nheads=32, nheads_k=8, direction="bwd", softcap=30.0)
    assert case_names.case_name("fa3", odd) == "fa3 1x16k d192-128 full bwd softcap 30 b1 h32/8"
    assert (case_names.heads(odd), case_names.counted_heads(odd)) == ("32/8", "32/8 heads")
    assert case_names.counted_heads(case(nheads=1, nheads_k=1)) == "1 head"
    assert case_names.extras(case(softcap=30.0, dropout_p=0.1)) == ("softcap 30", "dropout 0.1")


def test_what_sets_some_cases_apart_from_all() -> None:
    all_cases = [
        case(n, causal=c, dtype=d) for n in (1024, 2048, 4096) for c in (False, True) for d in ("bf16", "fp16")
    ]
    assert case_names.where(all_cases, all_cases) == ""
    assert case_names.where([c for c in all_cases if c.causal], all_cases) == "causal"
    some = [c for c in all_cases if c.dtype == "fp16" and c.shape.seqlen_k > 1024]
    assert case_names.where(some, all_cases) == "2k, 4k; fp16"
    others = [case(), case(softcap=30.0), case(dropout_p=0.1), case(direction="bwd"), case(nheads_k=4)]
    others.append(case(seqlen_q=1))
    assert case_names.where(others[1:2], others) == "softcap 30; fwd"
    assert case_names.where(others[3:4], others) == "bwd", "what lacks dropout too need not be said"
    assert case_names.where(others[4:5], others) == "grouped heads; fwd"
    assert case_names.where(others[5:], others) == "seqlen_q != seqlen_k; fwd"
    assert case_names.where([others[0], *others[4:]], others) == "without dropout or softcap; fwd"


def test_a_backends_version_is_named_where_others_have_another_one_of_the_library() -> None:
    versions = {
        "sdpa-flash": "torch 2.11.0",
        "sdpa-cudnn": "torch 2.11.0",
        "sdpa-fa4": "torch 2.13.0, flash-attn-4 4.0.0b18",
        "fa4": "flash-attn-4 4.0.0b36",
        "fa2": "flash-attn 2.8.3",
        "triton": "3.6.0",
        "mine": "mine, source 12345678",
        "yours": "yours, source 87654321",
    }
    named = case_names.with_versions(versions)
    assert {backend: name for backend, name in named.items() if name != backend} == {
        "sdpa-fa4": "sdpa-fa4 (2.13.0, 4.0.0b18)",  # most backends have torch 2.11, which is not named
        "fa4": "fa4 (4.0.0b36)",
    }
    assert case_names.backend_rank("fa4 (4.0.0b36)")[0] == case_names.backend_rank("fa4")[0]
