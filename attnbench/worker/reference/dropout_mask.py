"""Which probabilities a launch drops, read off the launch itself.

With D = kept / (1 - p), out = (P * D) v and dv = (P * D)' dout. So where v, or dout, has a single value in each column,
a column of out, or of dv, holds single products, and is zero where dropout was:

- v with one of `headdim_v` keys in each column gives those keys for all queries, in one launch of the forward;
- dout with one of `headdim_v` query rows in each column gives those rows for all keys, in one launch with a backward.

A library draws its mask from torch's random numbers, so the same launch from the same state draws the same mask; of a
backward alone it was drawn in `prepare`. What was read is put to the tests that a mask of random bits passes (`flaws`):
the share kept, and no two heads, rows, or stretches of keys alike. Their thresholds are for errors of one in a million
and fewer, and the share may be off by 1/256 besides: flash-attn compares random bytes (csrc/flash_attn/src/dropout.h),
so that of p = 0.1 it keeps 230/256.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core.backend import MASK_LAUNCHES, Inputs, Prepared
from attnbench.core.case import Case
from attnbench.worker.reference.exact_attention import visible_keys
from attnbench.worker.reference.row_sample import RowSample, rows_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAUNCHES = MASK_LAUNCHES
PROBE_VALUE = 256.0  # the value in a column: small probabilities stay above fp16's least
QUANTUM = 1 / 256  # of the share kept
SIGMAS = 6.0
SAME_CORRELATION = 0.5  # the correlation from which two masks are one
MIN_INFORMATION = 60.0  # bits compared, times p (1 - p): chance comes to LIKE once in 10^14
MAX_COMPARED = 512  # heads, or rows, that are compared with each other
MAX_BITS = 2**24  # that are looked at


class MaskReader:
    """Of one prepared launch, as drawn from one state of torch's random numbers. `given`: what it reads."""

    def __init__(self, case: Case, prepared: Prepared, given: Inputs, state: RandomState) -> None:
        self.case = case
        self.prepared = prepared
        self.state = state
        name = "dout" if case.has_backward else "v"
        self._place = _in_order(prepared.reads.get(name, getattr(given, name)), getattr(given, name), name)

    def read(self, sample: RowSample) -> Tensor:
        """(pairs, count, group, seqlen_k) bool: what is kept in the sample's rows; as many launches as `parts`."""
        import torch

        s = self.case.shape
        pairs, count = sample.rows.shape
        kept = torch.zeros(
            pairs, count, s.nheads // s.nheads_k, s.seqlen_k, dtype=torch.bool, device=self._place.device
        )
        with self._probing():
            for part in launch_parts(self.case, sample):
                self.state.restore()
                self._read(sample, part, kept)
        return kept

    def read_repeats(self, sample: RowSample) -> tuple[Tensor, Tensor, Tensor]:
        """The best part of the mask, of the next call's, and of that from the same state again; of seen pairs."""
        import torch

        part = best_part(self.case, sample)
        s = self.case.shape
        shape = (*sample.rows.shape, s.nheads // s.nheads_k, s.seqlen_k)
        seen = part_of(self.case, part, visible_in_sample(self.case, sample))
        drawn = []
        with self._probing():
            for again in (True, False, True):
                if again:
                    self.state.restore()
                kept = torch.zeros(shape, dtype=torch.bool, device=self._place.device)
                self._read(sample, part, kept)
                drawn.append(part_of(self.case, part, kept)[seen])
        return drawn[0], drawn[1], drawn[2]

    def probe_launch(self, given: Inputs, sample: RowSample) -> tuple[Inputs, Tensor, dict[str, Tensor]]:
        """One such launch: its inputs, what it kept as far as it shows, and its results."""
        import torch

        part = best_part(self.case, sample)
        s = self.case.shape
        shape = (*sample.rows.shape, s.nheads // s.nheads_k, s.seqlen_k)
        kept = torch.zeros(shape, dtype=torch.bool, device=self._place.device)
        with self._probing():
            results = {name: t.clone() for name, t in self._read(sample, part, kept).items()}
            values = self._place.clone(memory_format=torch.contiguous_format)
        return replace(given, **{"dout" if self.case.has_backward else "v": values}), kept, results

    @contextmanager
    def _probing(self) -> Iterator[None]:
        """Puts what the launch reads back in the end."""
        before = self._place.clone()
        try:
            yield
        finally:
            self._place.data.copy_(before)

    def _read(self, sample: RowSample, part: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """One launch, whose mask goes to `part` of `kept`; its results."""
        import torch

        s = self.case.shape
        group, columns = s.nheads // s.nheads_k, torch.arange(len(part), device=part.device)
        self._place.data.zero_()
        if not self.case.has_backward:
            self._place.data[:, part, :, columns] = PROBE_VALUE
            results = dict(self.prepared.canonical(self.prepared.launch()))
            kept[..., part] = (
                rows_of(self.case, results["out"], sample.batch, sample.head, sample.rows)[..., columns] != 0
            )
            return results
        pairs, count = sample.rows.shape
        rows, member = sample.rows[:, part // group], part % group
        heads = sample.head[:, None] * group + member
        self._place.data[sample.batch[:, None], rows, heads, columns.expand(pairs, -1)] = PROBE_VALUE
        results = dict(self.prepared.canonical(self.prepared.launch()))
        found = results["dv"][sample.batch, :, sample.head][..., columns] != 0
        kept.view(pairs, count * group, s.seqlen_k)[:, part] = found.transpose(1, 2)
        return results


class RandomState:
    """Of torch's random numbers, on the host and on the device. `restore` is for launches that draw a mask.

    A backward alone draws none: if it did, it should not find the numbers that its forward had.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        import torch

        self._draws = case.has_forward
        self._device = device
        self._host = torch.get_rng_state()
        self._on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        import torch

        if not self._draws:
            return
        torch.set_rng_state(self._host)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)


def readable_sample(case: Case, sample: RowSample) -> RowSample:
    """The sample with as many of its rows as LAUNCHES launches show, from the first to the last."""
    import torch

    s = case.shape
    count = sample.rows.shape[1]
    most = max(1, LAUNCHES * s.headdim_v * s.nheads_k // s.nheads)
    if not case.has_backward or count <= most:
        return sample
    chosen = torch.linspace(0, count - 1, most, device=sample.rows.device).round().long()
    return replace(sample, rows=sample.rows[:, chosen], all_rows=False)


def launch_parts(case: Case, sample: RowSample) -> tuple[Tensor, ...]:
    """What one launch shows each: keys of a forward; with a backward positions in count x group query rows."""
    import torch

    s = case.shape
    n = sample.rows.shape[1] * (s.nheads // s.nheads_k) if case.has_backward else s.seqlen_k
    found: tuple[Tensor, ...] = torch.arange(n, device=sample.rows.device).split(s.headdim_v)
    return found


def best_part(case: Case, sample: RowSample) -> Tensor:
    """The one whose pairs are seen most."""
    seen = visible_in_sample(case, sample)
    return max(launch_parts(case, sample), key=lambda part: int(part_of(case, part, seen).sum()))


def part_of(case: Case, part: Tensor, bits: Tensor) -> Tensor:
    """That part of bits (pairs, count, group, seqlen_k)."""
    return bits.flatten(1, 2)[:, part] if case.has_backward else bits[..., part]


def find_mask_flaws(case: Case, seen: Tensor, kept: Tensor) -> tuple[str, ...]:
    """What is wrong with a mask, in words; both (pairs, count, group, keys) bool, of pairs that a query sees."""
    some = max(1, seen.numel() // MAX_BITS)
    rows = slice((seen.shape[1] - 1) % some, None, some)  # the last among them
    seen, kept = seen[:, rows], kept[:, rows]
    n = int(seen.sum())
    if n == 0:
        return ()
    p = case.dropout_p
    share = int((kept & seen).sum()) / n
    found = []
    if abs(share - (1 - p)) > QUANTUM + SIGMAS * math.sqrt(p * (1 - p) / n):
        found.append(f"dropout keeps {share:.2%} of the probabilities where {1 - p:.2%} are asked for")
    centred = (kept.float() - share) * seen
    variance = share * (1 - share)
    if _heads_alike(seen, centred, variance):
        found.append("dropout drops the same probabilities in several heads")
    if _rows_alike(seen, centred, variance):
        found.append("dropout drops the same probabilities in several query rows")
    if lag := _repeats(seen, centred, variance):
        found.append(f"dropout drops the same probabilities every {lag} keys")
    return tuple(found)


def is_same_mask(case: Case, first: Tensor, second: Tensor) -> bool:
    """Whether (bits,) are so many that only one and the same mask gives them twice."""
    return first.numel() * case.dropout_p * (1 - case.dropout_p) >= MIN_INFORMATION and bool((first == second).all())


def visible_in_sample(case: Case, sample: RowSample) -> Tensor:
    """(pairs, count, group, seqlen_k) bool: which keys the rows see, a view."""
    s = case.shape
    seen = visible_keys(case, sample.rows)[:, :, None]
    return seen.expand(-1, -1, s.nheads // s.nheads_k, -1)


def _heads_alike(seen: Tensor, centred: Tensor, variance: float) -> bool:
    """Of the heads that have the same rows: all where all do, else each head's last."""
    same_rows = bool((seen == seen[:1]).all())
    last = slice(None) if same_rows else slice(-1, None)
    heads = centred[:, last].transpose(1, 2).flatten(0, 1).flatten(1)[:MAX_COMPARED]
    return _alike(heads @ heads.T, int(seen[0, last, 0].sum()), variance)


def _rows_alike(seen: Tensor, centred: Tensor, variance: float) -> bool:
    """Of some rows, in all heads that have them."""
    same_rows = bool((seen == seen[:1]).all())
    for heads in (slice(None),) if same_rows else (slice(0, 1), slice(-1, None)):
        rows, both = (t[heads, :MAX_COMPARED].float().transpose(0, 1).flatten(1) for t in (centred, seen))
        if _alike(rows @ rows.T, both @ both.T, variance):
            return True
    return False


def _alike(compare_checksums: Tensor, n: Tensor | int, variance: float) -> bool:
    """Whether two of these are one mask; `n` are the bits that each two have in common."""
    import torch

    enough = (
        torch.as_tensor(n, device=compare_checksums.device).expand_as(compare_checksums) * variance >= MIN_INFORMATION
    )
    enough = enough & ~torch.eye(len(compare_checksums), dtype=torch.bool, device=compare_checksums.device)
    return bool((enough & (compare_checksums > SAME_CORRELATION * variance * n)).any())


def _repeats(seen: Tensor, centred: Tensor, variance: float) -> int:
    """The distance in keys after which masks repeat themselves; 0 where they do not."""
    import torch

    keys = seen.shape[-1]
    size = 2 * keys

    def along(t: Tensor) -> Tensor:
        """Sums of t[j] t[j + lag] over all rows, for each lag."""
        spectrum = torch.fft.rfft(t.flatten(0, 2).float(), n=size)
        sums: Tensor = torch.fft.irfft(spectrum.abs().square().sum(0), n=size)
        return sums[:keys]

    compare_checksums, n = along(centred), along(seen)
    alike = (n * variance >= MIN_INFORMATION) & (compare_checksums > SAME_CORRELATION * variance * n)
    alike[0] = False
    return int(alike.int().argmax()) if bool(alike.any()) else 0


def _in_order(place: Tensor, own: Tensor, name: str) -> Tensor:
    """What the launch reads, as (batch, seqlen, nheads, headdim); it may lie there as (batch, nheads, seqlen, headdim).

    Where the two look alike their contents tell; signs may have changed since.
    """
    import torch

    turned = place.transpose(1, 2) if place.ndim == own.ndim else place
    if place.shape == own.shape and (place.shape != turned.shape or torch.equal(place.abs(), own.abs())):
        return place
    if turned.shape == own.shape:
        return turned
    raise ValueError(f"reads[{name!r}] has shape {tuple(place.shape)}: dropout cannot be read from it")
