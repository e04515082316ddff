"""The cases that an implementation takes, as data: dtypes, GPUs, head dims, masks, features."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnbench.core import masks
from attnbench.core.axes import AXES, LIMITED
from attnbench.core.case import Case
from attnbench.core.machine import Device

Capability = tuple[int, int]
_SAID = {"sink": "attention sink", "alibi": "ALiBi", "deterministic": "deterministic variant"}


@dataclass(frozen=True)
class Limits:
    """The cases that a library takes. Without `on_cpu` it needs a CUDA GPU."""

    dtypes: tuple[str, ...] = ("bf16", "fp16")
    capability: Capability = (8, 0)  # the oldest compute capability
    capability_below: Capability | None = None  # the oldest compute capability that is too new
    amd: bool = True  # includes AMD GPUs, whose capability is the gfx number: 9.0 for gfx90a
    bf16_capability: Capability = (5, 0)  # the oldest compute capability for bf16
    headdim: tuple[int, int] = (8, 256)  # least and most, for headdim and headdim_v
    headdim_multiple: int = 8  # headdim and headdim_v must be multiples of this
    headdim_v: bool = False  # headdim_v may differ from headdim
    headdim_pairs: tuple[tuple[int, int], ...] = ()  # the only (headdim, headdim_v), if any are named
    backward: bool = True
    gqa: bool = True  # grouped heads: nheads_k < nheads
    gqa_backward: bool = True
    window: bool = False
    softcap: bool = False
    dropout: bool = False
    sink: bool = False  # a learnt logit of each head beside its scores
    masks: bool = False  # masks by name
    own_masks: bool = False  # also masks that a person's own function defines
    chosen: bool = False  # also masks that keep a number of keys of each query (mask topk), over latent rows too
    alibi: bool = False  # scores that fall with the distance of query and key
    deterministic: bool = False  # each launch can give the same bits
    unequal_causal: bool = True  # its causal mask is aligned bottom-right when seqlen_q != seqlen_k
    empty_rows: bool = True  # a query that sees no key gets output 0
    ragged: bool = False  # sequences of unlike lengths in one batch
    page_sizes: tuple[int, ...] = ()  # page sizes of a cache; multiples of each are taken too
    cache_dtypes: tuple[str, ...] = ()  # dtypes of a cache of pages, beside the dtype of q
    append: bool = False  # a call writes the new keys and values to the pages first
    latent: bool = False  # MLA with absorbed weights: v is a part of k; the head dims above do not apply to it
    on_cpu: bool = False

    @property
    def without_cache(self) -> Limits:
        """These limits without caches of pages and latent rows."""
        return replace(self, page_sizes=(), cache_dtypes=(), append=False, latent=False)

    def refusal(self, case: Case, device: Device) -> str | None:
        """Return why the library cannot run the case on the device, or None where it can."""
        return (
            self._device_refusal(device)
            or self._bf16_refusal(case, device)
            or self._tensor_refusal(case)
            or self._mask_refusal(case)
        )

    def _device_refusal(self, device: Device) -> str | None:
        if device.kind == "cpu":
            return None if self.on_cpu else "needs a CUDA GPU"
        if device.is_amd and not self.amd:
            return f"needs an NVIDIA GPU, this is {device.name}"
        if device.capability is None:
            return None
        this = f"this GPU has {_dotted(device.capability)}"
        if device.capability < self.capability:
            return f"needs compute capability {_dotted(self.capability)} or newer, {this}"
        if self.capability_below is not None and device.capability >= self.capability_below:
            return f"needs a compute capability below {_dotted(self.capability_below)}, {this}"
        return None

    def _bf16_refusal(self, case: Case, device: Device) -> str | None:
        if case.dtype == "bf16" and device.capability is not None and device.capability < self.bf16_capability:
            oldest, this = _dotted(self.bf16_capability), _dotted(device.capability)
            return f"no bf16 below compute capability {oldest}, this GPU has {this}"
        return None

    def _tensor_refusal(self, case: Case) -> str | None:
        s = case.shape
        if case.dtype not in self.dtypes:
            return f"no {case.dtype}, only {' and '.join(self.dtypes)}"
        if case.has_backward and not self.backward:
            return "forward only"
        if not case.latent and (reason := self._headdim_refusal(s.headdim, s.headdim_v)):
            return reason
        if s.nheads != s.nheads_k and not self.gqa:
            return "no grouped heads (nheads_k must equal nheads)"
        if s.nheads != s.nheads_k and case.has_backward and not self.gqa_backward:
            return "grouped heads are forward only"
        return None

    def _headdim_refusal(self, headdim: int, headdim_v: int) -> str | None:
        if self.headdim_pairs:
            if (headdim, headdim_v) in self.headdim_pairs:
                return None
            known = ", ".join(str(d) if d == d_v else f"{d}-{d_v}" for d, d_v in self.headdim_pairs)
            return f"headdim {headdim} with headdim_v {headdim_v}: only {known}"
        for name, size in (("headdim", headdim), ("headdim_v", headdim_v)):
            if not self.headdim[0] <= size <= self.headdim[1]:
                return f"{name} {size} is outside {self.headdim[0]} to {self.headdim[1]}"
            if size % self.headdim_multiple:
                return f"{name} {size} is no multiple of {self.headdim_multiple}"
        if headdim != headdim_v and not self.headdim_v:
            return f"v must have the headdim of q and k ({headdim}), not {headdim_v}"
        return None

    def _page_refusal(self, case: Case) -> str | None:
        size = case.page_size
        if not self.page_sizes:
            return "no cache of pages"
        if case.cache_dtype != "same" and case.cache_dtype not in self.cache_dtypes:
            return f"no {case.cache_dtype} cache for {case.dtype} queries"
        if case.append and not self.append:
            return "its call does not append to the cache"
        if not any(size % known == 0 for known in self.page_sizes):
            return f"no pages of {size} tokens, only multiples of {' and '.join(map(str, self.page_sizes))}"
        return None

    def _mask_refusal(self, case: Case) -> str | None:
        if case.is_ragged and not self.ragged:
            return "no ragged batches"
        if case.is_paged and (reason := self._page_refusal(case)):
            return reason
        if case.latent and not self.latent:
            return "no latent rows (MLA with absorbed weights)"
        if case.window_size != (None, None) and not self.window:
            return "no sliding window"
        for name in LIMITED:
            if AXES[name].label(case) and not getattr(self, name, False):
                return f"no {_SAID.get(name, AXES[name].option)}"
        if masks.chooses(case.mask):
            if not self.chosen:
                return "no keys chosen for each query (mask topk)"
        elif case.mask and not self.masks:
            return "no masks by name"
        if masks.is_own(case.mask) and not self.own_masks:
            return "no mask of one's own"
        unequal = case.shape.seqlen_q > 1 and not case.has_equal_lengths
        if case.causal and unequal and not self.unequal_causal:  # a single query sees every key, whatever the alignment
            return "its causal mask is not bottom-right aligned when seqlen_q != seqlen_k"
        if has_empty_rows(case) and not self.empty_rows:
            why = "a mask of one's own" if case.mask else "seqlen_q > seqlen_k"
            return f"no defined output for query rows that see no key ({why})"
        return None


# Limits of an implementation that calls torch's operators only, and has no window, softcap or dropout.
TORCH_LIMITS = Limits(
    dtypes=("bf16", "fp16", "fp32"),
    capability=(5, 0),
    headdim=(1, 2**20),
    headdim_multiple=1,
    headdim_v=True,
    on_cpu=True,
)


def has_empty_rows(case: Case) -> bool:
    """Return whether some query may see no key at all, so that its row of probabilities is empty.

    With a limited right side and seqlen_q > seqlen_k the first queries are at positions before the first key. A
    person's own mask may hide all keys from a query.
    """
    if masks.is_own(case.mask):
        return True
    right = 0 if case.causal else case.window_size[1]
    return right is not None and any(of.seqlen_q - of.seqlen_k > right for of in case.sequences)


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))
