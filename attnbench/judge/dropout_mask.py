"""Read the dropout mask of a kernel from launches with special inputs, and test whether it is random.

With D = kept / (1 - p), out = (P * D) v and dv = (P * D)' dout. So where each column of v (or of dout) has a single
non-zero value, each element of out (or of dv) is a single product, and is zero where dropout dropped it:

- a v with one of `headdim_v` keys in each column shows these keys for all queries, in one launch of the forward;
- a dout with one of `headdim_v` query rows in each column shows these rows for all keys, in one launch with a backward.

A library draws its mask from torch's random numbers, so a launch from the same state of the generator draws the same
mask. Where only the backward is launched, the mask was drawn in `prepare`.

The mask must pass tests that random bits pass (`find_mask_flaws`): the kept share, and no two heads, rows or blocks of
keys with the same mask. The thresholds allow at most one false alarm in a million. In addition the share may be off by
1/256, because flash-attn compares random bytes (csrc/flash_attn/src/dropout.h) and for p = 0.1 keeps 230/256.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.core.backend import MASK_LAUNCHES, Inputs, Prepared
from attnbench.core.case import Case
from attnbench.judge.exact_attention import visible_keys
from attnbench.judge.row_sample import RUN, RowSample, choose_rows, rows_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAUNCHES = MASK_LAUNCHES
PROBE_VALUE = 256.0  # non-zero value of a column; large, so that products with small probabilities are not 0 in fp16
QUANTUM = 1 / 256  # allowed error of the kept share
SIGMAS = 6.0  # allowed standard errors
SAME_CORRELATION = 0.5  # masks with this correlation or more count as the same
# Least number of compared bits times p (1 - p): random bits then reach SAME_CORRELATION once in 10^14.
MIN_INFORMATION = 60.0
MAX_COMPARED = 512  # most heads, or rows, that are compared with each other
MAX_BITS = 2**24  # most bits of a mask that are tested


class MaskReader:
    """Reads the dropout mask that one prepared launch draws from one state of torch's random numbers.

    `given` are the inputs that the launch reads.
    """

    def __init__(self, case: Case, prepared: Prepared, given: Inputs, state: RandomState) -> None:
        self.case = case
        self.prepared = prepared
        self.state = state
        name = "dout" if case.has_backward else "v"
        own, copy = getattr(given, name), prepared.whole_copy(name)
        self._probed = in_input_order(own if copy is None else copy, own, name)

    def read(self, sample: RowSample) -> Tensor:
        """Return the mask of the sample's rows, (pairs, count, group, seqlen_k) bool, True where a probability is kept.

        Launches once for each of `launch_parts`, each time from the same random state.
        """
        import torch

        kept = torch.zeros_like(visible_in_sample(self.case, sample))
        with self._probing():
            for part in launch_parts(self.case, sample):
                self.state.restore()
                self._read(sample, part, kept)
        return kept

    def read_repeats(self, sample: RowSample) -> tuple[Tensor, Tensor, Tensor]:
        """Return one part of the masks of three calls: from the random state, the next call, and from the state again.

        Each is a flat bool tensor over the visible (query, key) pairs.
        """
        import torch

        part = best_part(self.case, sample)
        visible = visible_in_sample(self.case, sample)
        seen = select_part(self.case, part, visible)
        drawn = []
        with self._probing():
            for again in (True, False, True):
                if again:
                    self.state.restore()
                kept = torch.zeros_like(visible)
                self._read(sample, part, kept)
                drawn.append(select_part(self.case, part, kept)[seen])
        return drawn[0], drawn[1], drawn[2]

    def probe_launch(self, given: Inputs, sample: RowSample) -> tuple[Inputs, Tensor, dict[str, Tensor]]:
        """Launch once with probing values. Return the inputs, the part of the mask that it shows, and the results."""
        import torch

        part = best_part(self.case, sample)
        kept = torch.zeros_like(visible_in_sample(self.case, sample))
        with self._probing():
            results = {name: t.clone() for name, t in self._read(sample, part, kept).items()}
            values = self._probed.clone(memory_format=torch.contiguous_format)
        return given.with_values({"dout" if self.case.has_backward else "v": values}), kept, results

    @contextmanager
    def _probing(self) -> Iterator[None]:
        """Return a context that restores at its end the tensor into which probing values are written."""
        before = self._probed.clone()
        try:
            yield
        finally:
            self._probed.data.copy_(before)

    def _read(self, sample: RowSample, part: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """Launch once with probing values, write the mask that it shows to `part` of `kept`, and return the results."""
        import torch

        s = self.case.shape
        group, columns = s.nheads // s.nheads_k, torch.arange(len(part), device=part.device)
        self._probed.data.zero_()
        if not self.case.has_backward:
            self._probed.data[:, part, :, columns] = PROBE_VALUE
            results = dict(self.prepared.canonical(self.prepared.launch()))
            kept[..., part] = (
                rows_of(self.case, results["out"], sample.batch, sample.head, sample.rows)[..., columns] != 0
            )
            return results
        pairs, count, _ = sample.rows.shape
        rows, member = sample.rows.flatten(1)[:, part], part % group
        heads = sample.head[:, None] * group + member
        self._probed.data[sample.batch[:, None], rows, heads, columns.expand(pairs, -1)] = PROBE_VALUE
        results = dict(self.prepared.canonical(self.prepared.launch()))
        found = results["dv"][sample.batch, :, sample.head][..., columns] != 0
        kept.view(pairs, count * group, s.seqlen_k)[:, part] = found.transpose(1, 2)
        return results


class RandomState:
    """The state of torch's random numbers on the host and on the device, as it was when this object was made.

    `restore` does nothing for a case that launches the backward alone, which must not draw a mask: a backward that
    draws one anyway must not get the numbers of its forward, by which its result would be right.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        import torch

        self._draws = case.has_forward
        self._device = device
        self._host = torch.get_rng_state()
        self._on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Set the random numbers to this state, where launches of the case draw a mask."""
        import torch

        if not self._draws:
            return
        torch.set_rng_state(self._host)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)


def readable_sample(case: Case, device: torch.device, seed: int, share: float = 1.0) -> RowSample:
    """Choose rows whose mask LAUNCHES launches can show, among them the last RUN rows of all heads.

    Neighbouring rows are the likeliest to share a mask: cuDNN 9.19 on an H200 gives one mask to the rows i, i + 2,
    i + 4 and i + 6 of each 8.
    """
    s = case.shape
    most = max(1, LAUNCHES * s.headdim_v * s.nheads_k // s.nheads) if case.has_backward else None
    return choose_rows(case, device, seed, share, most=most, run=RUN)


def launch_parts(case: Case, sample: RowSample) -> tuple[Tensor, ...]:
    """Return the part of the mask that each launch shows, as indices.

    They are indices of keys for a forward, and of the count * group query rows for a backward.
    """
    import torch

    s = case.shape
    n = sample.rows.shape[1] * (s.nheads // s.nheads_k) if case.has_backward else s.seqlen_k
    found: tuple[Tensor, ...] = torch.arange(n, device=sample.rows.device).split(s.headdim_v)
    return found


def best_part(case: Case, sample: RowSample) -> Tensor:
    """Return the part of `launch_parts` that shows the most visible (query, key) pairs."""
    seen = visible_in_sample(case, sample)
    return max(launch_parts(case, sample), key=lambda part: int(select_part(case, part, seen).sum()))


def select_part(case: Case, part: Tensor, bits: Tensor) -> Tensor:
    """Return the part of bits (pairs, count, group, seqlen_k) that one launch shows."""
    return bits.flatten(1, 2)[:, part] if case.has_backward else bits[..., part]


def find_mask_flaws(case: Case, rows: Tensor, seen: Tensor, kept: Tensor) -> tuple[str, ...]:
    """Return the flaws of a mask, one sentence each; empty where it could be random bits.

    `rows` (pairs, count, group) are the numbers of the query rows. `seen` is True for visible (query, key) pairs,
    `kept` for pairs that dropout keeps, both (pairs, count, group, keys) bool.
    """
    chosen = _thinned(seen, rows.device)
    rows, seen, kept = rows[:, chosen], seen[:, chosen], kept[:, chosen]
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
    if _heads_share_mask(rows, seen, centred, variance):
        found.append("dropout drops the same probabilities in several heads")
    if alike := _rows_that_share_mask(rows, seen, centred, variance):
        distance = f"{alike[1] - alike[0]} apart, as rows {alike[0]} and {alike[1]}"
        found.append(f"dropout drops the same probabilities in several query rows ({distance})")
    if lag := _repeat_distance(seen, centred, variance):
        found.append(f"dropout drops the same probabilities every {lag} keys")
    return tuple(found)


def _thinned(seen: Tensor, device: torch.device) -> Tensor:
    """Return positions of rows to test, with about MAX_BITS bits at most, the last RUN rows among them."""
    import torch

    count = seen.shape[1]
    step = max(1, seen.numel() // MAX_BITS)
    kept = torch.zeros(count, dtype=torch.bool, device=device)
    kept[(count - 1) % step :: step] = True
    kept[-RUN:] = True
    return kept.nonzero().squeeze(1)


def is_same_mask(case: Case, first: Tensor, second: Tensor) -> bool:
    """Return whether two masks (bits,) are equal, and too long for random masks to be equal by chance."""
    return first.numel() * case.dropout_p * (1 - case.dropout_p) >= MIN_INFORMATION and bool((first == second).all())


def visible_in_sample(case: Case, sample: RowSample) -> Tensor:
    """Return (pairs, count, group, seqlen_k) bool, True where a row of the sample sees a key."""
    return visible_keys(case, sample.rows)


def _common_positions(rows: Tensor) -> Tensor:
    """Return the positions at which all heads have the same row."""
    return (rows == rows[:1, :, :1]).all(2).all(0).nonzero().squeeze(1)


def _heads_share_mask(rows: Tensor, seen: Tensor, centred: Tensor, variance: float) -> bool:
    """Return whether two heads have the same mask, in the rows that all heads have."""
    common = _common_positions(rows)
    heads = centred[:, common].transpose(1, 2).flatten(0, 1).flatten(1)[:MAX_COMPARED]
    return bool(_same_masks(heads @ heads.T, int(seen[0, common, 0].sum()), variance).any())


def _rows_that_share_mask(rows: Tensor, seen: Tensor, centred: Tensor, variance: float) -> tuple[int, int] | None:
    """Return the closest two query rows that share a mask; None where no two rows do.

    Rows that all heads have are compared in all heads together, other rows in the first and in the last head.
    """
    import torch

    common = _common_positions(rows)
    everywhere = (slice(None), common, slice(None))
    for at in (everywhere, (slice(0, 1), slice(None), slice(0, 1)), (slice(-1, None), slice(None), slice(-1, None))):
        bits, both = (t[at].float().transpose(0, 1).flatten(1)[-MAX_COMPARED:] for t in (centred, seen))
        numbers = rows[at][0, -MAX_COMPARED:, 0]
        same = _same_masks(bits @ bits.T, both @ both.T, variance)
        if bool(same.any()):
            distance = (numbers[:, None] - numbers).abs().masked_fill(~same, torch.iinfo(numbers.dtype).max)
            pair = divmod(int(distance.argmin()), len(numbers))
            first, second = sorted(int(numbers[i]) for i in pair)
            return first, second
    return None


def _same_masks(products: Tensor, n: Tensor | int, variance: float) -> Tensor:
    """Return (masks, masks) bool, True where two masks are the same, from their products.

    `products` (masks, masks) are sums over the bits that both masks have, `n` the numbers of these bits.
    """
    import torch

    enough = torch.as_tensor(n, device=products.device).expand_as(products) * variance >= MIN_INFORMATION
    enough = enough & ~torch.eye(len(products), dtype=torch.bool, device=products.device)
    return enough & (products > SAME_CORRELATION * variance * n)


def _repeat_distance(seen: Tensor, centred: Tensor, variance: float) -> int:
    """Return the distance in keys at which a mask repeats; 0 where it does not."""
    import torch

    keys = seen.shape[-1]
    size = 2 * keys

    def along(t: Tensor) -> Tensor:
        """Return for each lag the sum of t[j] t[j + lag] over all rows."""
        spectrum = torch.fft.rfft(t.flatten(0, 2).float(), n=size)
        sums: Tensor = torch.fft.irfft(spectrum.abs().square().sum(0), n=size)
        return sums[:keys]

    products, n = along(centred), along(seen)
    same_mask = (n * variance >= MIN_INFORMATION) & (products > SAME_CORRELATION * variance * n)
    same_mask[0] = False
    return int(same_mask.int().argmax()) if bool(same_mask.any()) else 0


def in_input_order(read_tensor: Tensor, given_tensor: Tensor, name: str) -> Tensor:
    """Return the tensor that a launch reads, viewed as (batch, seqlen, nheads, headdim).

    It may be (batch, nheads, seqlen, headdim) in memory. Where both shapes are equal, the absolute values decide,
    because signs may have been changed. Raises ValueError for another shape.
    """
    import torch

    transposed = read_tensor.transpose(1, 2) if read_tensor.ndim == given_tensor.ndim else read_tensor
    if read_tensor.shape == given_tensor.shape and (
        read_tensor.shape != transposed.shape or torch.equal(read_tensor.abs(), given_tensor.abs())
    ):
        return read_tensor
    if transposed.shape == given_tensor.shape:
        return transposed
    raise ValueError(f"reads[{name!r}] has shape {tuple(read_tensor.shape)}: its dropout mask cannot be read")
