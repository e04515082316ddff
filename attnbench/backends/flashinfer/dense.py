"""`flashinfer*`: FlashInfer's kernels, forward only: its own choice of backend (`flashinfer`) and each backend.

Checked against 0.6.13. Batch 1 runs single_prefill_with_kv_cache, larger batches run the ragged wrapper, which
`prepare` plans. Tensors are views (batch * seqlen, nheads, headdim) of the inputs. plan() gets the offsets on the host,
where a serving model has them; it would copy offsets on the device back, and wait. `cudnn` and `trtllm` exist for
ragged batches only. `trtllm` is TensorRT-LLM's kernel for the GPU: FMHA v2 on Hopper, and trtllm-gen on Blackwell,
whose binaries FlashInfer downloads. nvcc compiles the other kernels on first use. The causal mask is aligned
bottom-right; a window has a left side only.

The wrappers of `paged.py` read caches of pages, the one of `cascade` with a shared prefix once. The wrapper of
`sparse.py` computes masks by name.

An attention sink, in float32, needs a variant of the kernels. FlashInfer has one for its wrapper of pages, and compiles
it for any wrapper (jit/attention/variants.py, jit_args); TensorRT-LLM's kernels take `sinks`. Only its fa2 kernels have
ALiBi, with the slopes of the paper and the bias slope * (key - query), which equals attnbench's where no key is beyond
the query.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.flashinfer.paged import (
    PAGED_HEADDIMS,
    WORKSPACE,
    host_cu_seqlens,
    paged_refusal,
    prepare_paged,
    scores_options,
    sink_variant,
)
from attnbench.backends.flashinfer.sparse import prepare_sparse, sparse_refusal
from attnbench.backends.limits import Limits
from attnbench.backends.paste import PAGES_THD, THD, Paste
from attnbench.backends.shared.libraries import Library
from attnbench.backends.shared.masks import flash_window
from attnbench.core.backend import Prepared, Signature, Unsupported, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

HEADDIMS = (*PAGED_HEADDIMS, (192, 128))
HOPPER = 9  # major compute capability
DECODE_GROUPS = (1, 2, 3, 4, 8)  # query heads of a key head (DISPATCH_GQA_GROUP_SIZE)


PAGED_CALL = f"""\
{PAGES_THD}pages = (seqlens_k + k_cache.size(1) - 1) // k_cache.size(1)  # seqlens_k and cu_seqlens_q are on the host
indptr = torch.nn.functional.pad(pages.cumsum(0, dtype=torch.int32), (1, 0))
indices = torch.cat([row[:used] for row, used in zip(page_table, pages.tolist())])
last_page_len = seqlens_k - (pages - 1) * k_cache.size(1)
buffer = torch.zeros(128 * 2**20, dtype=torch.uint8, device=q.device)
wrapper = {{wrapper}})
wrapper.plan(  # once a step, for all layers
    {{queries}}indptr, indices, last_page_len, q.size(1), k_cache.size(2), q.size(2), k_cache.size(1),
    q_data_type=q.dtype, kv_data_type=k_cache.dtype{{{{options}}}}
)
out = wrapper.run(q, (k_cache, v_cache))"""


CASCADE_CALL = f"""\
{PAGES_THD}shared = {{prefix}} // k_cache.size(1)  # pages of the prefix, with which all rows of page_table begin
own = (seqlens_k + k_cache.size(1) - 1) // k_cache.size(1) - shared  # seqlens_k and cu_seqlens_q are on the host
indptr = torch.nn.functional.pad(own.cumsum(0, dtype=torch.int32), (1, 0))
indices = torch.cat([row[shared : shared + used] for row, used in zip(page_table, own.tolist())])
last_page_len = seqlens_k - (shared + own - 1) * k_cache.size(1)
buffer = torch.zeros(128 * 2**20, dtype=torch.uint8, device=q.device)
wrapper = MultiLevelCascadeAttentionWrapper(2, buffer)
wrapper.plan(  # once a step, for all layers
    [cu_seqlens_q[[0, -1]], cu_seqlens_q], [torch.tensor([0, shared], dtype=torch.int32), indptr],
    [page_table[0, :shared], indices], [torch.tensor([k_cache.size(1)], dtype=torch.int32), last_page_len],
    q.size(1), k_cache.size(2), q.size(2), k_cache.size(1),
    q_data_type=q.dtype, kv_data_type=k_cache.dtype{{options}}
)
out = wrapper.run(q, (k_cache, v_cache))"""


def flashinfer_paste(backend: str) -> Paste:
    """Return the calls of FlashInfer with one of its backends."""
    chosen = f'backend="{backend}"'
    wrapped = f"""\
{THD}buffer = torch.empty(128 * 2**20, dtype=torch.uint8, device=q.device)
wrapper = BatchPrefillWithRaggedKVCacheWrapper(buffer, {chosen})
wrapper.plan(  # once a step, for all layers; cu_seqlens are on the host
    cu_seqlens_q, cu_seqlens_k, q.size(1), k.size(1), q.size(2), v.size(2),
    q_data_type=q.dtype, kv_data_type=k.dtype{{options}}
)
out = wrapper.run(q, k, v)"""
    calls = dict.fromkeys(("dense", "ragged"), wrapped)
    alone = f"# q, k, v: (seqlen, nheads, headdim)\nout = single_prefill_with_kv_cache(q, k, v, {chosen}{{options}})"
    paged = PAGED_CALL.format(wrapper=f"BatchPrefillWithPagedKVCacheWrapper(buffer, {chosen}", queries="cu_seqlens_q, ")
    return Paste(
        (
            "import torch",
            "from flashinfer import BatchPrefillWithPagedKVCacheWrapper",
            "from flashinfer import BatchPrefillWithRaggedKVCacheWrapper",
            "from flashinfer import single_prefill_with_kv_cache",
        ),
        calls | {"single": alone, "paged": paged},
        causal="causal=True",
        window="causal=True, window_left={left}",
        softcap="logits_soft_cap={softcap}",
        scale="sm_scale={scale}",
        alibi='pos_encoding_mode="ALIBI"' if backend != "fa3" else "",
    )


CUDNN_CALL = """\
buffer = torch.empty(128 * 2**20, dtype=torch.uint8, device=q.device)
wrapper = BatchPrefillWithRaggedKVCacheWrapper(buffer, backend="cudnn")
wrapper.plan(  # once a step, for all layers; cu_seqlens are on the host
    cu_seqlens_q * q[0].numel(), cu_seqlens_k * k[0].numel(), q.size(1), k.size(1), q.size(2), v.size(2),
    v_indptr=cu_seqlens_k * v[0].numel(), o_indptr=cu_seqlens_q * (q.size(1) * v.size(2)),
    seq_lens=cu_seqlens_k.diff().view(-1, 1, 1, 1).to(q.device),
    seq_lens_q=cu_seqlens_q.diff().view(-1, 1, 1, 1).to(q.device),
    max_token_per_sequence=max_seqlen_q, max_sequence_kv=max_seqlen_k,
    q_data_type=q.dtype, kv_data_type=k.dtype{options}
)
out = wrapper.run(q, k, v)"""
FMHA_V2_CALL = """\
out = trtllm_fmha_v2_prefill(  # on Hopper
    (q, k, v), "SEPARATE_Q_K_V", workspace_buffer=torch.zeros(128 * 2**20, dtype=torch.uint8, device=q.device),
    seq_lens=cu_seqlens_k.diff(), cum_seq_lens_q=cu_seqlens_q, cum_seq_lens_kv=cu_seqlens_k,
    max_q_len=max_seqlen_q, max_kv_len=max_seqlen_k, batch_size=len(cu_seqlens_q) - 1,
    bmm1_scale=q.size(2) ** -0.5, bmm2_scale=1.0{options}
)"""


class FlashInfer(Library):
    name = "flashinfer"
    paste = flashinfer_paste("auto")
    # Without this option vLLM decodes with XQA on Hopper, and with trtllm-gen on Blackwell.
    engine_names: ClassVar = {"vllm": "FLASHINFER use_trtllm_attention=false", "sglang mla": "flashinfer"}
    efficiency = 0.6
    starts_compiler = True  # nvcc takes 60 to 180 s for fa3's kernels
    backend = "auto"
    module = "flashinfer"
    distributions: ClassVar = ("flashinfer-python",)
    uses: ClassVar = ("nvidia-cudnn-frontend", "nvidia-cutlass-dsl")
    install = "pip install flashinfer-python  # compiles with nvcc; flashinfer-jit-cache has compiled kernels"
    min_version = "0.4"
    limits: ClassVar = Limits(
        headdim_pairs=HEADDIMS,
        backward=False,
        window=True,
        softcap=True,
        sink=True,
        alibi=True,
        masks=True,
        ragged=True,
        page_sizes=(1,),
        cache_dtypes=("fp8",),
        append=True,
        latent=True,
    )
    forward_kernels = "PrefillWith\\w*KVCacheKernel"
    latent_kernels = "BatchMLAPage(d|Attention)"
    tensor_cores = True  # argument of the decode wrapper

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.mask and self.backend == "fa3":
            return "its fa3 kernels take no mask of pairs"
        if case.is_paged and not self.limits.page_sizes:
            return "its calls for caches of pages are not wired up"
        if reason := super().unsupported(case, device) or paged_refusal(case):
            return reason
        if case.mask:
            return sparse_refusal(case)
        if case.alibi and not case.causal and case.shape.seqlen_q > 1:
            return "its ALiBi falls with the distance of earlier keys only, so it must be causal"
        if case.alibi and case.sink:
            return "its kernels with an attention sink have no ALiBi"
        return None if case.window_size[1] is None or case.causal else "its window has no right side"

    def engine_name(self, engine: str, case: Case) -> str:
        if engine == "sglang" and case.shape.seqlen_q == 1:  # should_use_tensor_core in flashinfer_backend.py
            tensor_cores = case.cache_dtype == "fp8" or case.shape.nheads >= 4 * case.shape.nheads_k
            if tensor_cores != self.tensor_cores:
                return ""
        return super().engine_name(engine, case)

    def signature(self, case: Case, device: Device) -> Signature:
        found = super().signature(case, device)
        return replace(found, runs=(self.latent_kernels,)) if case.latent else found

    def workspace(self, case: Case) -> Workspace:
        if case.mask:  # at most three masks of all pairs of each sequence
            s = case.shape
            return Workspace(nbytes=WORKSPACE + 3 * s.batch * s.seqlen_q * s.seqlen_k, what="masks of pairs")
        return Workspace(nbytes=WORKSPACE, what="split-k buffer")

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        if case.is_paged:
            return prepare_paged(case, inputs, self.backend, tensor_cores=self.tensor_cores)
        if case.mask:
            import torch

            buffer = torch.empty(WORKSPACE, dtype=torch.uint8, device=inputs.q.device)
            return prepare_sparse(case, inputs, buffer, self.backend)
        if case.shape.batch == 1 and not case.sink:
            return self._single(case, inputs)
        return self._ragged(case, inputs)

    def _single(self, case: Case, inputs: Inputs) -> Prepared:
        from flashinfer import single_prefill_with_kv_cache

        attention = functools.partial(
            single_prefill_with_kv_cache, backend=self.backend, causal=case.causal, **scores_options(case)
        )
        return autograd_prepared(case, inputs, attention, "thd")

    def _batch(self, case: Case, device: torch.device) -> dict[str, Any]:
        """Return the arguments of the ragged wrapper's plan() that describe the batch."""
        queries, keys = host_cu_seqlens(case)
        return {"qo_indptr": offsets(queries), "kv_indptr": offsets(keys)}

    def _ragged(self, case: Case, inputs: Inputs) -> Prepared:
        """Return the call of the ragged wrapper."""
        import torch
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        s, like = case.shape, inputs.q
        buffer = torch.empty(WORKSPACE, dtype=torch.uint8, device=like.device)
        options = sink_variant(case, inputs, self.backend) if case.sink else {"backend": self.backend}
        wrapper = BatchPrefillWithRaggedKVCacheWrapper(buffer, kv_layout="NHD", **options)

        def plan() -> None:
            wrapper.plan(
                num_qo_heads=s.nheads,
                num_kv_heads=s.nheads_k,
                head_dim_qk=s.headdim,
                head_dim_vo=s.headdim_v,
                q_data_type=like.dtype,
                kv_data_type=like.dtype,
                **self._batch(case, like.device),
                causal=case.causal,
                **scores_options(case),
            )

        plan()
        step = plan if case.is_ragged else None
        if inputs.sink is None:
            return autograd_prepared(case, inputs, wrapper.run, "thd", plan=step)
        sink = inputs.sink.float()

        def call(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
            out: Tensor = wrapper.run(q, k, v, sink, case.softmax_scale)
            return out

        return _with_copy(sink, autograd_prepared(case, inputs, call, "thd", plan=step))


class Fa2(FlashInfer):
    name = "flashinfer-fa2"
    paste = flashinfer_paste("fa2")
    engine_names: ClassVar = {"sglang": "flashinfer"}  # SGLang asks for fa2 on all GPUs, except for MLA
    efficiency = 0.45
    backend = "fa2"
    forward_kernels = "(Single|Batch)PrefillWith\\w*KVCacheKernel"
    latent_kernels = "BatchMLAPagedAttentionKernel"


class Decode(FlashInfer):
    """The decode wrapper without tensor cores; the other backends read pages with tensor cores."""

    name = "flashinfer-decode"
    paste = Paste(
        ("import torch", "from flashinfer import BatchDecodeWithPagedKVCacheWrapper"),
        {"paged": PAGED_CALL.format(wrapper="BatchDecodeWithPagedKVCacheWrapper(buffer", queries="")},
        window="window_left={left}",
        softcap="logits_soft_cap={softcap}",
        scale="sm_scale={scale}",
        alibi='pos_encoding_mode="ALIBI"',
    )
    engine_names: ClassVar = {"sglang": "flashinfer"}
    efficiency = 0.45
    limits: ClassVar = replace(FlashInfer.limits, headdim_pairs=PAGED_HEADDIMS, sink=False, masks=False, latent=False)
    forward_kernels = "BatchDecodeWithPagedKVCacheKernel"
    tensor_cores = False

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := self.limits.refusal(case, device):
            return reason
        if not case.is_paged or case.shape.seqlen_q > 1:
            return "decode steps over a cache of pages only, one query a sequence"
        if (group := case.shape.nheads // case.shape.nheads_k) not in DECODE_GROUPS:
            return f"no {group} query heads on a key head, only {', '.join(map(str, DECODE_GROUPS))}"
        return super().unsupported(case, device)


class Cascade(FlashInfer):
    """A shared prefix read once, for all queries together, then each sequence's own keys; both parts are merged."""

    name = "flashinfer-cascade"
    paste = Paste(
        ("import torch", "from flashinfer import MultiLevelCascadeAttentionWrapper"),
        {"paged": CASCADE_CALL},
        causal="causal=True",
        softcap="logits_soft_cap={softcap}",
        scale="sm_scale={scale}",
    )
    limits: ClassVar = Limits(
        headdim_pairs=PAGED_HEADDIMS, backward=False, softcap=True, ragged=True, page_sizes=(1,), append=True
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := self.limits.refusal(case, device):
            return reason
        if not case.shared_prefix:
            return "a cascade needs a prefix that the sequences share (--shared-prefix)"
        return super().unsupported(case, device)

    def signature(self, case: Case, device: Device) -> Signature:
        found = super().signature(case, device)
        return replace(found, runs=(*found.runs, "MergeStateInPlaceKernel"))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        return prepare_paged(case, inputs, self.backend, cascade=True)


class Fa3(FlashInfer):
    name = "flashinfer-fa3"
    paste = flashinfer_paste("fa3")
    efficiency = 0.75
    backend = "fa3"
    limits: ClassVar = replace(  # no fp8 caches: fa3 reads them for fp8 queries only
        FlashInfer.limits, capability=(9, 0), capability_below=(9, 1), alibi=False, masks=False, cache_dtypes=()
    )
    forward_kernels = r"\bPrefillWithKVCacheKernel"
    latent_kernels = "BatchMLAPageAttentionHopperKernel"


class Cudnn(FlashInfer):
    """cuDNN through the ragged wrapper, with offsets in elements, not in tokens."""

    name = "flashinfer-cudnn"
    paste = Paste(
        ("import torch", "from flashinfer import BatchPrefillWithRaggedKVCacheWrapper"),
        dict.fromkeys(("dense", "ragged"), THD + CUDNN_CALL),
        causal="causal=True",
        scale="sm_scale={scale}",
    )
    efficiency = 0.65
    starts_compiler = False
    backend = "cudnn"
    min_version = "0.6.4"  # the first whose plan() takes v_indptr
    limits: ClassVar = Limits(capability=(9, 0), headdim_pairs=HEADDIMS, backward=False, empty_rows=False, ragged=True)
    forward_kernels = "cudnn.*(fprop|sdpa)"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        return self._ragged(case, inputs)

    def _batch(self, case: Case, device: torch.device) -> dict[str, Any]:
        s = case.shape
        queries, keys = host_cu_seqlens(case)
        return {
            "qo_indptr": offsets(queries, s.nheads * s.headdim),
            "kv_indptr": offsets(keys, s.nheads_k * s.headdim),
            "v_indptr": offsets(keys, s.nheads_k * s.headdim_v),
            "o_indptr": offsets(queries, s.nheads * s.headdim_v),
            "seq_lens": keys.diff().view(-1, 1, 1, 1).to(device),
            "seq_lens_q": queries.diff().view(-1, 1, 1, 1).to(device),
            "max_token_per_sequence": s.seqlen_q,
            "max_sequence_kv": s.seqlen_k,
        }


class TrtLlm(FlashInfer):
    name = "flashinfer-trtllm"
    paste = Paste(
        ("import torch", "from flashinfer.prefill import trtllm_fmha_v2_prefill"),
        dict.fromkeys(("dense", "ragged"), THD + FMHA_V2_CALL),
        full='mask_mode="padding"',
        causal='mask_mode="causal"',
        window='mask_mode="sliding_window", window_left={left}',
        sink="sinks=sink.float()",
    )
    min_version = "0.6.7"  # the first with trtllm_fmha_v2_prefill
    efficiency = 0.65
    limits: ClassVar = Limits(
        capability=(9, 0),
        capability_below=(11, 0),
        headdim_pairs=HEADDIMS,
        backward=False,
        window=True,
        sink=True,
        empty_rows=False,
        ragged=True,
    )
    forward_kernels = "fmha_v2|fmhaSm1"

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if case.window_size != (None, None) and not case.causal:
            return "its sliding window is causal only"
        hopper = device.capability is not None and device.capability[0] == HOPPER
        if hopper and not case.has_equal_lengths:
            # Seen in 0.6.13 on Hopper; FlashInfer tests equal lengths only.
            return "FMHA v2 gives wrong results for unequal lengths"
        if hopper and case.shape.headdim != case.shape.headdim_v:
            return "FMHA v2 on Hopper needs headdim_v equal to headdim"
        if device.capability is not None and not hopper and case.shape.headdim == 64:
            return "trtllm-gen takes headdim 128, 192-128 and 256"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        device = inputs.q.device
        sink = None if inputs.sink is None else inputs.sink.float()
        make = _fmha_v2 if torch.cuda.get_device_capability(device)[0] == HOPPER else _trtllm_gen
        attention = make(case, sink, self._options_of_both(case, inputs))

        def call(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
            return attention(q, k, v)

        plan = functools.partial(self._batch, case, device) if case.is_ragged else None
        return _with_copy(sink, autograd_prepared(case, inputs, call, "thd", plan=plan))

    def _batch(self, case: Case, device: torch.device) -> dict[str, Any]:
        queries, keys = host_cu_seqlens(case)
        return {
            "seq_lens": keys.diff().to(device),
            "cum_seq_lens_q": offsets(queries).to(device),
            "cum_seq_lens_kv": offsets(keys).to(device),
        }

    def _options_of_both(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Return the arguments that both TensorRT-LLM functions take. Their workspace must be zero at first."""
        import torch

        s, device = case.shape, inputs.q.device
        return {
            **self._batch(case, device),
            "workspace_buffer": torch.zeros(WORKSPACE, dtype=torch.uint8, device=device),
            "max_q_len": s.seqlen_q,
            "max_kv_len": s.seqlen_k,
            "bmm1_scale": case.softmax_scale,
            "bmm2_scale": 1.0,
            "batch_size": s.batch,
            "window_left": flash_window(case)[0],
        }


Attention = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]


def _fmha_v2(case: Case, sink: Tensor | None, options: dict[str, Any]) -> Attention:
    from flashinfer.prefill import trtllm_fmha_v2_prefill

    windowed, causal = case.window_size[0] is not None, case.causal and case.shape.seqlen_q > 1
    options |= {"mask_mode": "sliding_window" if windowed else "causal" if causal else "padding", "sinks": sink}
    return lambda *qkv: trtllm_fmha_v2_prefill(qkv, "SEPARATE_Q_K_V", **options)


def _trtllm_gen(case: Case, sink: Tensor | None, options: dict[str, Any]) -> Attention:
    from flashinfer.prefill import trtllm_ragged_attention_deepseek

    options |= {"attention_sinks": sink, "is_causal": case.causal, "return_lse": False}
    return functools.partial(trtllm_ragged_attention_deepseek, o_sf_scale=1.0, enable_pdl=None, **options)


def _with_copy(sink: Tensor | None, prepared: Prepared) -> Prepared:
    """Return a prepared call whose `reads` include the sink that the launch reads; unchanged without a sink."""
    return prepared if sink is None else replace(prepared, reads={**prepared.reads, "sink": sink})


def offsets(cu_seqlens: Tensor, each: int = 1) -> Tensor:
    """Return the offsets of the sequences, (batch + 1,) int32, in a unit of which each token has `each`.

    Raises Unsupported where int32 cannot hold the last offset.
    """
    import torch

    if int(cu_seqlens[-1]) * each > torch.iinfo(torch.int32).max:
        raise Unsupported("its int32 offsets do not reach this far")
    return cu_seqlens * each
