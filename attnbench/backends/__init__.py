"""Attention implementations, a file or folder per library, and the map from the name of a backend to its class.

A library is imported only in the worker that runs its backend, so one that is missing or fails at import affects its
own records only. The files here import none: for lists and dry runs the parent imports them too. To add a backend,
write backends/mine.py and add a line here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnbench.core.case import KINDS
from attnbench.core.files import working_folder
from attnbench.core.own_code import functions_of, load_file, parameters_of

if TYPE_CHECKING:
    from attnbench.core.backend import Backend

_STEPS: Mapping[str, str] = {  # steps of a whole model
    "eager": "Eager",
    "sdpa": "Sdpa",
    "sdpa-math": "SdpaMath",
    "sdpa-efficient": "SdpaEfficient",
    "sdpa-flash": "SdpaFlash",
    "sdpa-cudnn": "SdpaCudnn",
    "flash_attention_2": "Flash2",
    "flash_attention_3": "Flash3",
    "flash_attention_4": "Flash4",
    "flex_attention": "Flex",
}
STEPS = tuple(f"step-{name}" for name in _STEPS)
_TE = "attnbench.backends.several_devices.ring_transformer_engine"
_RINGS: Mapping[str, str] = {  # one sequence split over GPUs in a ring, which pass keys and values on
    f"ring-{method}-{kernel}": f"attnbench.backends.several_devices.ring:Ring[method={method};kernel={kernel}]"
    for method in ("allgather", "alltoall")
    for kernel in ("flash", "cudnn", "efficient")
} | {
    "ring-flash-attn": "attnbench.backends.several_devices.ring_flash_attn:RingFlashAttention",
    "ring-transformer-engine-p2p": f"{_TE}:ContextParallel[communication=p2p]",
    "ring-transformer-engine-allgather": f"{_TE}:ContextParallel[communication=all_gather]",
    "ulysses-transformer-engine": f"{_TE}:Ulysses",
}
ULYSSES = "ulysses-"  # prefix of a backend's name: several GPUs share the heads, and each runs the backend NAME
_ULYSSES = tuple(  # those that lists show; the prefix goes before the name of any backend for one device
    f"{ULYSSES}{name}"
    for name in (
        *("eager", "sdpa", "sdpa-math", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient"),
        *("triton", "gluon", "fa2", "fa3", "fa4"),
    )
)
SEVERAL = (*_RINGS, *_ULYSSES)  # docs/several-gpus.md
_OF_ONE: Mapping[str, str] = {  # backends of one device
    "eager": "attnbench.backends.pytorch.eager:Eager",
    "sdpa": "attnbench.backends.pytorch.sdpa:Choice",
    "sdpa-math": "attnbench.backends.pytorch.sdpa:Math",
    "sdpa-efficient": "attnbench.backends.pytorch.sdpa:Efficient",
    "sdpa-flash": "attnbench.backends.pytorch.sdpa:Flash",
    "sdpa-cudnn": "attnbench.backends.pytorch.sdpa:Cudnn",
    "torch-varlen": "attnbench.backends.pytorch.varlen:TorchVarlen",
    "triton": "attnbench.backends.triton:Triton",
    "gluon": "attnbench.backends.gluon:Gluon",
    "flex": "attnbench.backends.pytorch.compiled:Flex",
    "flex-flash": "attnbench.backends.pytorch.compiled:FlexFlash",
    "compile": "attnbench.backends.pytorch.compiled:Compile",
    "fa1": "attnbench.backends.flash_attn.fa1:FlashAttention1",
    "fa2": "attnbench.backends.flash_attn.fa2:FlashAttention2",
    "fa3": "attnbench.backends.flash_attn.fa3:FlashAttention3",
    "fa4": "attnbench.backends.flash_attn.fa4:FlashAttention4",
    "vllm-fa3": "attnbench.backends.flash_attn.fa3_of_engines:Vllm",
    "sglang-fa3": "attnbench.backends.flash_attn.fa3_of_engines:Sglang",
    "vllm-triton": "attnbench.backends.vllm_triton:VllmTriton",
    "sdpa-fa3": "attnbench.backends.pytorch.sdpa_flash:SdpaFlashAttention3",
    "sdpa-fa4": "attnbench.backends.pytorch.sdpa_flash:SdpaFlashAttention4",
    "xformers": "attnbench.backends.xformers:XFormers",
    "xformers-cutlass": "attnbench.backends.xformers:Cutlass",
    "xformers-fa2": "attnbench.backends.xformers:Fa2",
    "xformers-fa3": "attnbench.backends.xformers:Fa3",
    "xformers-splitk": "attnbench.backends.xformers:SplitK",
    "flashinfer": "attnbench.backends.flashinfer.dense:FlashInfer",
    "flashinfer-fa2": "attnbench.backends.flashinfer.dense:Fa2",
    "flashinfer-fa3": "attnbench.backends.flashinfer.dense:Fa3",
    "flashinfer-decode": "attnbench.backends.flashinfer.dense:Decode",
    "flashinfer-cascade": "attnbench.backends.flashinfer.dense:Cascade",
    "flashinfer-cudnn": "attnbench.backends.flashinfer.dense:Cudnn",
    "flashinfer-trtllm": "attnbench.backends.flashinfer.dense:TrtLlm",
    "cudnn": "attnbench.backends.cudnn.graphs:Cudnn",
    "cudnn-fp8": "attnbench.backends.cudnn.fp8:CudnnFp8",
    "transformer-engine": "attnbench.backends.transformer_engine.dot_product:TransformerEngine",
    "transformer-engine-fused": "attnbench.backends.transformer_engine.dot_product:Fused",
    "transformer-engine-flash": "attnbench.backends.transformer_engine.dot_product:Flash",
    "transformer-engine-fp8": "attnbench.backends.transformer_engine.fp8:Fp8",
    "flashmla": "attnbench.backends.flashmla:FlashMla",
    "tilelang": "attnbench.backends.tilelang:TileLang",
    "helion": "attnbench.backends.helion:Helion",
    "hf-eager": "attnbench.backends.transformers.functions:Eager",
    "hf-sdpa": "attnbench.backends.transformers.functions:Sdpa",
    "hf-flash_attention_2": "attnbench.backends.transformers.functions:Flash2",
    "hf-flex_attention": "attnbench.backends.transformers.functions:Flex",
}
_DELTA: Mapping[str, str] = {  # gated delta rules: core/delta.py
    "delta-torch": "attnbench.backends.pytorch.delta:DeltaTorch",
    "fla": "attnbench.backends.fla:Fla",
    "flashqla": "attnbench.backends.flashqla:FlashQla",
}
_INDEXERS: Mapping[str, str] = {  # indexers of sparse attention: core/indexer.py
    "indexer-torch": "attnbench.backends.pytorch.indexer:IndexerTorch",
    "indexer-triton": "attnbench.backends.triton.indexer_backend:IndexerTriton",
    "indexer-deepgemm": "attnbench.backends.deep_gemm:IndexerDeepGemm",
}
# The backends of each kind of attention other than softmax: core/case.py
OF_KIND: Mapping[str, tuple[str, ...]] = {
    "gdn": ("delta-torch", "fla", "flashqla"),
    "kda": ("delta-torch", "fla"),
    "indexer": (*_INDEXERS,),
}
OTHER_KINDS = (*_DELTA, *_INDEXERS)
_APPROXIMATE: Mapping[str, str] = {  # approximations of attention: docs/approximate.md
    "linformer": "attnbench.backends.approximate.linformer:Linformer",
    "streaming": "attnbench.backends.approximate.streaming:Streaming",
    "reformer": "attnbench.backends.approximate.reformer:Reformer",
    "block-topk": "attnbench.backends.approximate.block_topk:BlockTopk",
    "nsa": "attnbench.backends.approximate.nsa:Nsa",
    "sage": "attnbench.backends.approximate.sage:Sage",
    "sage2": "attnbench.backends.approximate.sage:Sage2",
    "sparge": "attnbench.backends.approximate.sparge:Sparge",
}
APPROXIMATE = (*_APPROXIMATE,)
BACKENDS: Mapping[str, str] = {
    **_OF_ONE,
    **{f"step-{name}": f"attnbench.backends.transformers.step:{kind}" for name, kind in _STEPS.items()},
    **_RINGS,
    **{name: _OF_ONE[name.removeprefix(ULYSSES)] for name in _ULYSSES},
    **_DELTA,
    **_INDEXERS,
    **_APPROXIMATE,
    "fake": "attnbench.backends.fake:Fake",
}

# Run only where named with --backend; those of another kind of attention also in cases of this kind
NOT_BY_DEFAULT = frozenset({"fake", *STEPS, *SEVERAL, *OTHER_KINDS, *APPROXIMATE})


def available() -> dict[str, str]:
    """Return every known backend as name -> "module:object".

    These are the map above and the entry points of the group `attnbench.backends`; on equal names the map is used.
    """
    found = dict(BACKENDS)
    for name, spec in _installed((*sys.path,)):
        found.setdefault(name, spec)
    return found


@functools.cache
def _installed(_: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the name and "module:object" of each backend that an installed package registers."""
    return tuple((point.name, point.value) for point in importlib.metadata.entry_points(group="attnbench.backends"))


def kinds_of(name: str) -> Collection[str]:
    """Return the kinds of attention that a backend computes, by its name: all for a backend that does not ship."""
    own = [kind for kind, names in OF_KIND.items() if name in names]
    return own or (("softmax",) if name in BACKENDS and name != "fake" else KINDS)


def present_spec(name: str, spec: str) -> str:
    """Return where a backend that a run file names is now, as "module:object": modules of attnbench may have moved."""
    moved = spec.startswith(f"{__name__}.") and spec not in BACKENDS.values()
    return BACKENDS.get(name, BACKENDS.get(name.removeprefix(ULYSSES), spec)) if moved else spec


def load(name: str, spec: str) -> Backend:
    """Import a backend, give it this name, and return it.

    `spec` is "package.module:object" or "path/file.py:object". The object is a class (or instance) of the Backend
    protocol, or a function f(q, k, v, *, causal, softmax_scale) on (batch, seqlen, nheads, headdim) tensors. With
    "object[block_m=64]" the function gets that argument too, and a class is made with it. For a name that begins with
    ULYSSES the object computes on each device.

    Raises the errors of the import, AttributeError where the module has no such object, and TypeError for an object
    that is neither class nor function, or that is no BackendBase although the name begins with ULYSSES.
    """
    found = _load(name.removeprefix(ULYSSES), present_spec(name, spec))
    if not name.startswith(ULYSSES) or getattr(found, "several", False):
        found.name = name
        return found
    from attnbench.backends.base import BackendBase
    from attnbench.backends.several_devices.ulysses import Ulysses

    if not isinstance(found, BackendBase):
        raise TypeError(f"{ULYSSES}NAME needs a function or a subclass of BackendBase; {spec} is neither")
    return Ulysses(found)


def _load(name: str, spec: str) -> Backend:
    where, _, named = spec.rpartition(":")
    attribute, parameters = parameters_of(named)
    module = load_file(Path(where)) if where.endswith(".py") else _import_module(where)
    try:
        obj = getattr(module, attribute)
    except AttributeError:
        raise AttributeError(f"{where} has no {attribute!r}{functions_of(module, attribute)}") from None
    if type(obj).__module__.partition(".")[0] == "triton":
        raise TypeError(f"{attribute} is a kernel of Triton; give the function of (q, k, v) that launches it")
    if inspect.isclass(obj):
        if {"forward", "backward"} <= {*vars(obj)}:
            raise TypeError(f"{spec} is a torch.autograd.Function; give a function that calls {attribute}.apply")
        obj = _made(obj, parameters)
        parameters = {}
    if inspect.getattr_static(obj, "prepare", None) is not None:  # getattr would create this attribute on some objects
        if parameters:
            raise TypeError(f"{attribute} is an object already; set its parameters where it is made, not by {named}")
        backend = cast("Backend", obj)
        backend.name = name
        return backend
    if callable(obj):
        from attnbench.backends.shared.function import Function

        return Function(name, obj, parameters, f"{_path_of(module) or where}:{attribute}")
    raise TypeError(f"{spec} is neither a function of (q, k, v) nor a class with a prepare method")


def _made(of: type, parameters: Mapping[str, Any]) -> object:
    """Make an object of a person's class. Raises TypeError where `parameters` lacks arguments that the class needs."""
    with contextlib.suppress(ValueError):  # inspect cannot read the arguments of some classes
        signature = inspect.signature(of)
        try:
            signature.bind(**parameters)
        except TypeError as error:
            lacking = [
                name for name, p in signature.parameters.items() if p.default is p.empty and p.kind < p.VAR_POSITIONAL
            ]
            name = of.__name__
            todo = f"give {name}[{';'.join(f'{one}=...' for one in lacking)}], or an object: mine = {name}(...)"
            raise TypeError(f"{name} cannot be made without arguments: {error}; {todo}") from None
    return of(**parameters)


def _path_of(module: object) -> str:
    """Return the path of a module's source; "" where it has none."""
    path = getattr(module, "__file__", None) or ""
    return path if path.endswith(".py") else ""


def search_here(name: str) -> list[str]:
    """Search the working directory too, for a module of a package that is not installed; return it, [] for others.

    A worker starts without that directory on sys.path. Here it comes last, so that nothing in it replaces a package.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None and (here := working_folder()):
        sys.path.append(here)
        return [here]
    return []


def _import_module(name: str) -> object:
    search_here(name)
    return importlib.import_module(name)
