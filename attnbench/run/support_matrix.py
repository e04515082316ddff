"""The support matrix: the features that each backend supports on a device, which need not be present.

It is made of every backend's `unsupported`, a pure function. A feature is one change to a plain case, forward and
backward. The plain case is bf16 with headdim 128 and a full mask; for a backend that cannot run it (bf16 on Turing),
the next dtype or headdim that it can run. Nothing is measured and no library is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from attnbench.backends import BACKENDS, NOT_BY_DEFAULT, OF_KIND, OTHER_KINDS, load
from attnbench.core import gpus
from attnbench.core.axes import AXES, LIMITED, Axis
from attnbench.core.backend import Backend, refusal
from attnbench.core.case import DTYPES, Case, Shape
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.machine import Device

Answer = Literal["yes", "fwd", "bwd", "no"]  # both passes, one pass or none

PLAIN = Case(Shape(2, 1024, 1024, 16, 16, 128, 128), "bf16", "fwd")
HEADDIMS = ((32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (512, 512))
ARCHITECTURES: Mapping[str, tuple[int, int]] = {
    "Turing": (7, 5),
    "Ampere": (8, 0),
    "Ada": (8, 9),
    "Hopper": (9, 0),
    "Blackwell": (10, 0),
    "Blackwell RTX": (12, 0),
}
PRODUCTS = {gpu.product.lower(): gpu.capability for gpu in gpus.GPUS if gpu.capability}
CPU = Device("cpu", 0, "a CPU", 2**36, 2**36)


@dataclass(frozen=True)
class Feature:
    """A column of the matrix: its name, and the fields of a case that it changes."""

    name: str
    group: str
    change: Mapping[str, Any] = field(default_factory=dict)
    any_pages: bool = False  # its pages may have any size that the backend supports

    def of(self, plain: Case) -> Case:
        """Return the plain case with this feature."""
        sizes = {k: v for k, v in self.change.items() if hasattr(plain.shape, k)}
        rest = {k: v for k, v in self.change.items() if k not in sizes}
        if plain.dtype == "fp8":
            rest.pop("cache_dtype", None)  # the cache is already fp8
            if self.group == SCORES or {"mask", "kind"} & {*self.change}:
                rest["dtype"] = self.change.get("dtype", PLAIN.dtype)  # impossible in fp8
        return replace(plain, shape=replace(plain.shape, **sizes), **rest)


def _headdim(d: int, d_v: int) -> Feature:
    return Feature(f"d{d}" if d == d_v else f"d{d}-{d_v}", "sizes", {"headdim": d, "headdim_v": d_v})


# Two sequences, each with as many queries as keys, or the first with fewer.
_ALIKE, _UNLIKE = ((1, 512, 512), (1, 1024, 1024)), ((1, 512, 1024), (1, 1024, 1024))
SCORES = "sinks, ALiBi and masks by name"
PAGES, PAGE_SIZES = "pages", (64, 256)
_DECODE = {"causal": True, "seqlen_q": 1, "nheads_k": 4, "page_size": PAGE_SIZES[0]}
_LATENT = {"latent": True, "nheads": 128, "nheads_k": 1, "headdim": 576, "headdim_v": 512, "scale": 192**-0.5}


def _paged(name: str, group: str = PAGES, **change: Any) -> Feature:
    return Feature(name, group, {**_DECODE, **change}, any_pages="page_size" not in change)


def _of_kind(kind: str, name: str = "", **change: Any) -> Feature:
    group = "delta rules"
    if kind == "indexer":
        group, change = "indexers", {"batch": 1, "nheads": 64, "nheads_k": 1, "mask": "topk:256", **change}
    return Feature(f"{kind} {name}".strip(), group, {"kind": kind, "causal": True, **change})


def _alone(axis: Axis) -> Feature:
    """Return the feature of an axis that needs an option of implementations."""
    value, *_ = axis.parse(axis.examples[0])
    return Feature(axis.kind or axis.name, SCORES if axis.kind else "masks", {axis.field: value})


FEATURES = (
    Feature("fwd", "sizes"),
    Feature("bwd", "sizes", {"direction": "bwd"}),
    *(Feature(dtype, "sizes", {"dtype": dtype}) for dtype in DTYPES),
    *(_headdim(d, d_v) for d, d_v in HEADDIMS),
    Feature("causal", "masks", {"causal": True}),
    Feature("causal q<k", "masks", {"causal": True, "seqlen_q": 512}),
    Feature("causal q>k", "masks", {"causal": True, "seqlen_k": 512}),
    Feature("window", "masks", {"causal": True, "window_size": (256, 0)}),
    Feature("window, both sides", "masks", {"window_size": (256, 256)}),
    *(_alone(AXES[name]) for name in LIMITED),
    Feature("GQA", "masks", {"nheads_k": 4}),
    Feature("MQA", "masks", {"nheads_k": 1}),
    Feature("q<k", "masks", {"seqlen_q": 512}),
    Feature("decode", "masks", {"seqlen_q": 1, "nheads_k": 4}),
    Feature("sink causal", SCORES, {"sink": True, "causal": True}),
    Feature("sink window", SCORES, {"sink": True, "causal": True, "window_size": (128, 0)}),
    Feature("sink ragged", SCORES, {"sink": True, "causal": True, "lengths": _ALIKE}),
    _paged("sink paged", SCORES, sink=True),
    _paged("sink paged q16", SCORES, sink=True, seqlen_q=16),
    Feature("ALiBi causal", SCORES, {"alibi": True, "causal": True}),
    Feature("ALiBi q<k", SCORES, {"alibi": True, "causal": True, "seqlen_q": 512}),
    Feature("ALiBi ragged", SCORES, {"alibi": True, "causal": True, "lengths": _ALIKE}),
    _paged("ALiBi paged", SCORES, alibi=True),
    Feature("prefix:256", SCORES, {"mask": "prefix:256", "causal": True}),
    Feature("random:0.1", SCORES, {"mask": "random:0.1"}),
    Feature("ragged", "ragged batches", {"lengths": _ALIKE}),
    Feature("ragged causal", "ragged batches", {"lengths": _ALIKE, "causal": True}),
    Feature("ragged q<k", "ragged batches", {"lengths": _UNLIKE}),
    Feature("ragged causal q<k", "ragged batches", {"lengths": _UNLIKE, "causal": True}),
    Feature("ragged window", "ragged batches", {"lengths": _ALIKE, "causal": True, "window_size": (256, 0)}),
    Feature("ragged GQA", "ragged batches", {"lengths": _ALIKE, "nheads_k": 4}),
    *(_paged(f"paged {size}", page_size=size) for size in (1, 16, 64, 256)),
    _paged("paged q16", seqlen_q=16),
    _paged("paged window", window_size=(256, 0)),
    _paged("paged ragged", lengths=((1, 1, 512), (1, 1, 1024))),
    _paged("paged ragged q", seqlen_q=512, lengths=((1, 1, 1024), (1, 512, 1024))),
    _paged("paged append", append=True),
    _paged("paged fp8", cache_dtype="fp8"),
    _paged("paged prefix", shared_prefix=512),
    _paged("MLA paged", **_LATENT),
    _paged("MLA topk", **_LATENT, mask="topk:256"),
    _paged("MLA topk fp8", **_LATENT, mask="topk:256", cache_dtype="fp8"),
    *(
        _of_kind(kind, name, **change)
        for kind in ("gdn", "kda")
        for name, change in (
            ("", {}),
            ("bwd", {"direction": "bwd"}),
            ("token", {"seqlen_q": 1, "seqlen_k": 1}),
            ("GQA", {"nheads_k": 4}),
            ("fp32", {"dtype": "fp32"}),
        )
    ),
    _of_kind("indexer"),
    _of_kind("indexer", "fp8", dtype="fp8"),
    _of_kind("indexer", "fp8 decode", dtype="fp8", seqlen_q=1),
    _of_kind("indexer", "fp8 batch", dtype="fp8", batch=2),
)
GROUPS = (*dict.fromkeys(f.group for f in FEATURES),)
# The features of the kind of attention that a backend computes; all others compute softmax
OWN_GROUP = {name: f.group for f in FEATURES for name in OF_KIND.get(f.change.get("kind", ""), ())}
LEGEND = (
    "yes: forward and backward (forward, for a backend without backward); fwd, bwd: one pass. causal q<k: aligned "
    "bottom-right, 512 queries on 1024 keys; causal q>k: 1024 on 512, so that some queries see no key. window: "
    "causal, 256 to the left. decode: one query, 4 query heads a key head. ragged: one sequence of 512 and one of "
    "1024; ragged q<k: 512 and 1024 queries on 1024 keys each. paged: decode over pages of that many tokens, forward "
    "only; pages of the columns without a number have 64, or 256 for a backend without 64. paged ragged: 512 and 1024"
    " keys; paged ragged q: 1 and 512 queries; paged prefix: 512 keys that all sequences share. MLA: with absorbed "
    "weights; topk: 256 keys chosen for each query. gdn token, kda token: decoding; indexer: 64 heads choose 256 keys, "
    "of one sequence where not batch. sink window: causal, 128 to the left; ALiBi q<k: causal. A backend without any "
    "feature of a table is left out of it."
)


@dataclass(frozen=True)
class Support:
    """An entry of the matrix: the supported passes, and why the others are not supported."""

    answer: Answer
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """A backend on a device. If it runs no dense case there, `plain` is None and its entries say why."""

    backend: str
    plain: Case | None
    cells: tuple[Support, ...]
    runtime_checker: str = ""  # the library whose own check may refuse a supported case

    def takes(self, group: str) -> bool:
        """Return whether a feature of the group is supported."""
        return any(c.answer != "no" for f, c in zip(FEATURES, self.cells, strict=True) if f.group == group)

    @property
    def overall(self) -> Support:
        """Support for the plain case: both passes, forward alone, or none; else for any other case."""
        forward, backward = self.cells[0], self.cells[1]
        if self.plain is None and any(cell.answer != "no" for cell in self.cells):
            return Support("yes", forward.reason)
        return Support("fwd", backward.reason) if forward.answer == "yes" != backward.answer else forward


@dataclass(frozen=True)
class SupportMatrix:
    """The support of several backends on one device."""

    device: Device
    rows: tuple[Row, ...]


def support_matrix(device: Device, names: Sequence[str] | None = None) -> SupportMatrix:
    """Return the support matrix of a device for all shipped backends, or the named ones."""
    by_default = [name for name in BACKENDS if name not in NOT_BY_DEFAULT or name in OTHER_KINDS]
    wanted = by_default if names is None else names
    return SupportMatrix(device, tuple(_row(load(name, BACKENDS[name]), device) for name in wanted))


def named_device(gpu: str) -> Device:
    """Return the device of a name: "h100", "hopper", "sm_90", "9.0" or "cpu". Raises UserError for another name.

    It is only for questions about support; its memory is invented.
    """
    word = re.sub(r"[\s_-]+", " ", gpu.strip().lower())
    if word == "cpu":
        return CPU
    known = {**PRODUCTS, **{name.lower(): capability for name, capability in ARCHITECTURES.items()}}
    if word in known:
        return Device("cuda", 0, gpu.strip(), 2**37, 2**37, known[word])
    if match := re.fullmatch(r"(?:sm ?)?(\d{1,2})\.?(\d)[af]?", word):
        major, minor = int(match[1]), int(match[2])
        return Device("cuda", 0, f"compute capability {major}.{minor}", 2**37, 2**37, (major, minor))
    raise UserError(f"--gpu: no GPU {gpu!r}{did_you_mean(word, known)}; or its compute capability, as sm_90 or 9.0")


def matrices_by_architecture() -> tuple[SupportMatrix, ...]:
    """Return a matrix for each generation of GPUs, and one for a CPU."""
    devices = (*map(named_device, ARCHITECTURES), replace(CPU, name="CPU"))
    return tuple(map(support_matrix, devices))


def _row(backend: Backend, device: Device) -> Row:
    candidates = [replace(PLAIN, dtype=dtype) for dtype in DTYPES]
    candidates += [replace(c, shape=replace(c.shape, headdim=64, headdim_v=64)) for c in candidates]
    refusals = [refusal(backend, c, device) for c in candidates]
    checker = getattr(backend, "runtime_checker", "")
    if None not in refusals:
        # The backend may support only caches of pages, or another kind
        no = Support("no", str(backend.unsupported(candidates[0], device) or refusals[0]))
        cells = (
            _cell(backend, device, f, candidates[0], False) if {"page_size", "kind"} & {*f.change} else no
            for f in FEATURES
        )
        return Row(backend.name, None, tuple(cells), checker)
    plain = candidates[refusals.index(None)]
    backward = refusal(backend, replace(plain, direction="bwd"), device) is None
    return Row(backend.name, plain, tuple(_cell(backend, device, f, plain, backward) for f in FEATURES), checker)


def case_of(feature: Feature, backend: Backend, device: Device, plain: Case) -> Case:
    """Return the plain case with a feature, in pages of the first size with which the backend supports it.

    If there is no such size, the pages have the first size with which the backend supports a decode step.
    """
    case = feature.of(plain)
    if not feature.any_pages:
        return case

    def refused(case: Case, size: int) -> bool:
        return refusal(backend, replace(case, page_size=size), device) is not None

    decode = _paged("decode").of(plain)
    size, *_ = sorted(PAGE_SIZES, key=lambda size: (refused(case, size), refused(decode, size)))
    return replace(case, page_size=size)


def _cell(backend: Backend, device: Device, feature: Feature, plain: Case, backward: bool) -> Support:
    """Return the support for a feature. For a backend without a backward only the forward counts."""
    case = case_of(feature, backend, device, plain)
    if feature.name in ("fwd", "bwd"):
        reason = refusal(backend, case, device)
        return Support("no" if reason else "yes", reason or "")
    forward = refusal(backend, case, device)
    if not backward or case.is_paged or not case.is_softmax:
        return Support("no" if forward else "yes", forward or "")
    reverse = refusal(backend, replace(case, direction="bwd"), device)
    if forward and reverse:
        return Support("no", forward)
    return Support("bwd" if forward else "fwd" if reverse else "yes", forward or reverse or "")
