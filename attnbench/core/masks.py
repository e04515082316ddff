"""Masks by name (`Case.mask`): which keys a query sees, beside causal and window.

The place of query i is its position among the keys of its sequence: i + seqlen_k - seqlen_q. Causal and window leave it
a band of keys around its place. A mask adds keys to the band, or keeps some of its keys; d is the query's place minus
the key's:

    prefix:N        adds the first N keys: a prompt that is read in both directions (prefix-LM, UniLM; with causal)
    sink_tokens:N   adds the first N keys, up to the query: StreamingLLM (arXiv 2309.17453; with causal and a window)
    strided:L       keeps |d| < L and the multiples of L: the Sparse Transformer (arXiv 1904.10509, section 4.2)
    dilated:D       keeps the multiples of D, 2 where none is given: Longformer's dilated window (arXiv 2004.05150)
    random:P        keeps each block of 128 x 128 with probability P, and blocks with d = 0, the same in all heads, as
                    in BigBird (arXiv 2007.14062); drawn by the number of the block's row, so that all runs agree
    topk:N          keeps N of the keys up to the query, all where there are fewer, the same in all heads, as an indexer
                    chooses them (DeepSeek-V3.2, arXiv 2512.02556, section 2.1): one key in each of N parts of these
                    keys, drawn by the query's place, so that the chosen keys lie apart from each other
    topk_recent:N   keeps the last N keys up to the query: the choice whose keys lie together

    FILE.py:NAME  keeps the keys of a person's function: FlexAttention's mask_mod, NAME(b, h, q_idx, kv_idx), with the
                  query's place as q_idx. It must be the same for all b and h. Its file's name, and a hash of the
                  file and of the person's files that it imports, are part of the case; its folder is not.

`Mask.picks` and `sees` take tensors of places and keys as well as numbers.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.core.band import pairs_up_to, visible_pairs
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.files import can_name_a_file
from attnbench.core.own_code import functions_of, load_file
from attnbench.core.own_files import content_of, named_by
from attnbench.core.sizes import format_size, parse_numbers, parse_size

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 128  # tokens of a block of random:P, as in FlexAttention
_PATH = (*sys.path,)  # sys.path before a person's code is loaded, which adds its folder
PRIME = 32_749  # the squares of numbers below it fit in 32 bits, which kernels that compile a mask use
MOST_DRAWN = 2**18  # the most keys for random:P, whose blocks grow with the square of the keys and are drawn one by one


class MaskChangedError(UserError):
    """A person's own mask is gone, or was changed since the run was planned."""


@dataclass(frozen=True)
class Band:
    """The keys that causal and window leave each query: from `left` before its place to `right` after it."""

    seqlen_q: int
    seqlen_k: int  # never less than seqlen_q
    left: int
    right: int

    @property
    def first_place(self) -> int:
        """The place of the first query."""
        return self.seqlen_k - self.seqlen_q

    def keys(self, place: int) -> tuple[int, int]:
        """Return the first and the last key of a query."""
        return max(0, place - self.left), min(self.seqlen_k - 1, place + self.right)

    def pairs(self) -> int:
        """Return the number of pairs in the band."""
        return visible_pairs(self.seqlen_q, self.seqlen_k, False, (self.left, self.right))

    def multiples(self, n: int) -> int:
        """Return the number of pairs in the band whose distance is a multiple of n."""
        before = _sum_quotients(self.first_place, self.seqlen_k - 1, self.left, n)
        return before + _sum_quotients(0, self.seqlen_q - 1, self.right, n) + self.seqlen_q


class Mask:
    """A mask by name: it adds keys to the band of a query, or keeps some of them."""

    adds: ClassVar[bool] = False  # whether it adds keys to the band; if not, it keeps some of the band

    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        """Return whether the mask adds or keeps a key. `blocks` is the value of `kept_blocks`, or a tensor of it."""
        raise NotImplementedError

    def pairs(self, band: Band) -> int:
        """Return the number of visible (query, key) pairs under this mask and a band."""
        raise NotImplementedError

    def kept_blocks(self, seqlen_k: int) -> Sequence[Sequence[bool]] | None:
        """Return which blocks of places and keys the mask keeps; None where it is not made of blocks."""


@dataclass(frozen=True)
class Numbered(Mask):
    """A mask by name with a number, such as "prefix:1k"."""

    number: float


class Prefix(Numbered):
    adds = True

    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        return key < self.number

    def pairs(self, band: Band) -> int:
        n, queries = min(int(self.number), band.seqlen_k), band.seqlen_q
        return band.pairs() + n * queries - pairs_up_to(band.first_place, queries, n)  # causal, without a window


class SinkTokens(Numbered):
    adds = True

    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        return (key < self.number) & (key <= place)

    def pairs(self, band: Band) -> int:
        before_band = pairs_up_to(band.first_place - band.left - 1, band.seqlen_q, int(self.number))
        return band.pairs() + before_band


class Strided(Numbered):
    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        d = place - key
        return ((d < self.number) & (d > -self.number)) | (d % self.number == 0)

    def pairs(self, band: Band) -> int:
        stride = int(self.number)
        near = replace(band, left=min(band.left, stride - 1), right=min(band.right, stride - 1))
        return near.pairs() + band.multiples(stride) - band.seqlen_q  # both count d = 0


class Dilated(Numbered):
    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        return (place - key) % self.number == 0

    def pairs(self, band: Band) -> int:
        return band.multiples(int(self.number))


class Chosen(Numbered):
    """A mask that keeps a number of keys of each query, which an indexer would have chosen."""

    def pairs(self, band: Band) -> int:
        return pairs_up_to(band.first_place, band.seqlen_q, int(self.number))

    def keys(self, place: Tensor) -> Tensor:
        """Return the keys of queries at places (...) in ascending order: (..., number), -1 beyond the last."""
        raise NotImplementedError


class TopK(Chosen):
    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        n, keys = int(self.number), place + 1
        return (keys <= n) | (key == self._key_of(place, key * n // keys))

    def keys(self, place: Tensor) -> Tensor:
        import torch

        n, place = int(self.number), place[..., None]
        part = torch.arange(n, device=place.device)
        few = torch.where(part <= place, part, -1)
        return torch.where(place < n, few, self._key_of(place, part))

    def _key_of(self, place: Any, part: Any) -> Any:
        """Return the key chosen from a part of a query's keys; numbers and products stay below 2**31."""
        n, keys = int(self.number), place + 1
        first, end = (part * keys + n - 1) // n, ((part + 1) * keys + n - 1) // n
        size = end - first
        drawn = (place % PRIME * 7919 + part % PRIME * 15_331 % PRIME + 13) % PRIME
        return first + drawn * drawn % PRIME % (size + (size < 1))


class TopKRecent(Chosen):
    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        return (place - key < self.number) & (key <= place)

    def keys(self, place: Tensor) -> Tensor:
        import torch

        n, place = int(self.number), place[..., None]
        first = (place - n + 1).clamp(min=0)
        key = first + torch.arange(n, device=place.device)
        return torch.where(key <= place, key, -1)


class Random(Numbered):
    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        row, column = place // BLOCK, key // BLOCK
        return blocks[row][column] if isinstance(row, int) else blocks[row, column]

    def pairs(self, band: Band) -> int:
        found, last_place = 0, band.seqlen_k - 1
        for row in range(band.first_place // BLOCK, last_place // BLOCK + 1):
            places = range(max(band.first_place, row * BLOCK), min(last_place, row * BLOCK + BLOCK - 1) + 1)
            (first, last_of_all), (first_of_all, last) = band.keys(places[0]), band.keys(places[-1])
            blocks = range(first // BLOCK, last // BLOCK + 1)  # blocks of keys that some of the places see
            start = min(-(-first_of_all // BLOCK), blocks.stop)
            stop = max(start, (last_of_all + 1) // BLOCK)  # from start to stop, every place sees the whole block
            kept = _drawn_row(self.number, row, blocks.stop)
            found += len(places) * BLOCK * sum(kept[start:stop])
            for block in filter(kept.__getitem__, (*range(blocks.start, start), *range(stop, blocks.stop))):
                width, offset = min(BLOCK, band.seqlen_k - block * BLOCK), places[0] - block * BLOCK
                found += pairs_up_to(offset + band.right, len(places), width)
                found -= pairs_up_to(offset - band.left - 1, len(places), width)
        return found

    def kept_blocks(self, seqlen_k: int) -> Sequence[Sequence[bool]]:
        return _drawn(self.number, seqlen_k)


@dataclass(frozen=True)
class Own(Mask):
    """A mask_mod in a person's own file. Its pairs are known only where it runs; `pairs` counts the whole band."""

    path: str
    name: str
    digest: str

    @property
    def spec(self) -> str:
        """The mask as --mask names it: "FILE.py:NAME"."""
        return f"{self.path}:{self.name}"

    def check(self) -> None:
        """Raise MaskChangedError where a file of the mask is gone, or was changed since the run was planned."""
        why = f"{self.path}, or a file that it imports, was changed after the run was planned"
        try:
            if _digest(self.path) == self.digest:
                return
        except OSError as error:
            why = f"cannot read {self.path}: {error.strerror}"
        raise MaskChangedError(f"mask: {why}; restore the file as it was and resume, or start a new run")

    def picks(self, place: Any, key: Any, blocks: Any = None) -> Any:
        zero = place * 0  # stands for any batch entry and head
        return self.function(zero, zero, place, key)

    def pairs(self, band: Band) -> int:
        return band.pairs()

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself. Raises UserError where the file lacks it, and the errors of `check` and the import."""
        return _own_function(self)


MASKS: Mapping[str, type[Numbered]] = {
    "prefix": Prefix,
    "sink_tokens": SinkTokens,
    "strided": Strided,
    "dilated": Dilated,
    "random": Random,
    "topk": TopK,
    "topk_recent": TopKRecent,
}
EXAMPLES = "prefix:1k, sink_tokens:4, strided:256, dilated:2, random:0.1 or topk:2k"


def parse_masks(text: str, what: str = "mask") -> tuple[str, ...]:
    """Return the masks of text such as "none,prefix:1k,random:0.1", as `Case.mask` has them. Raises UserError."""
    return tuple(dict.fromkeys(_parse(part.strip(), what) for part in str(text).split(",")))


def _parse(text: str, what: str) -> str:
    """Return one mask as `Case.mask` has it: "" for none, and one spelling for each number. Raises UserError."""
    name, colon, number = text.partition(":")
    if text == "none":
        return ""
    if is_own(f"{text}:"):
        return _parse_own(text, what)
    if name not in MASKS:
        hint = did_you_mean(name, MASKS) or f"; it is {EXAMPLES}, or FILE.py:NAME, or none"
        raise UserError(f"{what}: unknown mask {text!r}{hint}")
    if name == "random":
        (share,) = parse_numbers(number or "none", f"{what} random", below=1)
        if not share:
            raise UserError(f"{what}: {text!r} needs the share of blocks that it keeps, as in random:0.1")
        return f"random:{share:g}"
    if not colon and name == "dilated":
        return "dilated:2"
    if not number:
        raise UserError(f"{what}: {text!r} needs a number, as in {EXAMPLES}")
    size = parse_size(number, f"{what} {name}")
    if size < 2 and name in ("strided", "dilated"):
        raise UserError(f"{what}: {text!r} keeps every key; give 2 or more")
    return f"{name}:{format_size(size)}"


def _parse_own(text: str, what: str) -> str:
    """Return a person's own mask as "/FOLDER/FILE.py:NAME@HASH". Raises UserError."""
    path, name, _ = _parts(text if is_own(text) else f"{text}:")
    path = os.path.expanduser(path)
    if not name.isidentifier():
        raise UserError(f"{what}: which function of {path}? Write {path}:my_mask")
    try:
        return f"{os.path.abspath(path)}:{name}@{_digest(path)}"
    except OSError as error:
        raise UserError(f"{what}: cannot read {path}: {error.strerror}") from None


def _digest(path: str) -> str:
    """Return a hash of a file and of a person's files that its import statements name. Raises OSError."""
    if not can_name_a_file(path):
        raise OSError(errno.EINVAL, "a file cannot have that name")
    if not stat.S_ISREG(os.stat(path).st_mode):  # a device has no end, and reading a pipe waits
        raise OSError(errno.EINVAL, "it is not a plain file")
    folder, file, others = _files(path)
    digest = hashlib.sha256(content_of(file))
    for other in others:
        digest.update(os.fsencode(f"\0{os.path.relpath(other, folder)}\0") + content_of(other))
    return digest.hexdigest()[:8]


def _files(path: str) -> tuple[Path, Path, list[Path]]:
    """Return the folder of a file, the file, and a person's files that its import statements name."""
    folder, file = Path(path).parent.resolve(), Path(path).resolve()
    return folder, file, sorted(named_by([file], (str(folder), *_PATH), [folder]) - {file})


@cache
def _own_function(own: Own) -> Callable[..., Any]:
    own.check()
    function = getattr(module := load_file(Path(own.path)), own.name, None)
    own.check()  # again, as files may have changed during the load
    folder, _, others = _files(own.path)
    for other in (other for other in others if other.is_relative_to(folder)):
        name = ".".join(other.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded and Path(loaded).resolve() not in others:
            raise MaskChangedError(f"mask: {own.path} imports {loaded} in place of {other}; give it another name")
    if not callable(function):
        raise UserError(f"mask: {own.path} has no function {own.name!r}{functions_of(module, own.name)}")
    found: Callable[..., Any] = function
    return found


def is_own(text: str) -> bool:
    """Return whether a mask is a function in a person's own file."""
    return ".py:" in text


def _parts(text: str) -> tuple[str, str, str]:
    """Return the file, the function and the hash of a person's own mask; a folder's name may have any character."""
    path, python, rest = text.rpartition(".py:")
    name, _, digest = rest.partition("@")
    return f"{path}{python.removesuffix(':')}", name, digest


def without_folder(text: str) -> str:
    """Return a mask without its folder: for a person's own mask, the file's name, the function and the hash."""
    return os.path.basename(text) if is_own(text) else text


def chooses(text: str) -> bool:
    """Return whether a mask keeps a number of keys of each query."""
    return issubclass(MASKS.get(text.partition(":")[0], Mask), Chosen)


def chosen(text: str) -> int:
    """Return the number of keys that a mask of chosen keys keeps of each query."""
    return int(_choice(text).number)


def chosen_keys(text: str, place: Tensor) -> Tensor:
    """Return the keys that a mask keeps of queries at places (...), ascending: (..., number), -1 beyond the last."""
    return _choice(text).keys(place)


def _choice(text: str) -> Chosen:
    found = find(text)
    assert isinstance(found, Chosen)
    return found


def own_of(texts: Iterable[str]) -> list[Own]:
    """Return the persons' own masks among masks, each once."""
    found = (find(text) for text in dict.fromkeys(texts) if is_own(text))
    return [mask for mask in found if isinstance(mask, Own)]


@cache
def find(text: str) -> Mask:
    """Return the mask of a text of `Case.mask` that is not "". Raises UserError."""
    if is_own(text):
        return Own(*_parts(text))
    name, _, number = _parse(text, "mask").partition(":")
    return MASKS[name](float(number) if name == "random" else parse_size(number, "mask"))


def problem(text: str, seqlen_k: int, *, causal: bool, window: tuple[int | None, int | None]) -> str:
    """Return a mask's condition that its keys, causal or window break; "" where none is broken. Raises UserError."""
    find(text)
    name = text.partition(":")[0]
    if name == "random" and seqlen_k > MOST_DRAWN:
        return f"random blocks need at most {format_size(MOST_DRAWN)} keys"
    if chooses(name) and (not causal or window != (None, None)):
        return f"{name} needs causal, and no window"
    if chooses(name) and seqlen_k > (most := 2**31 // (chosen(text) + 1)):
        return f"{text} needs at most {most} keys"
    if name == "prefix" and (not causal or window != (None, None)):
        return "a prefix needs causal, and no window"
    if name == "sink_tokens" and (not causal or window[0] is None):
        return "sink tokens need causal and a window"
    return ""


@cache
def count_pairs(text: str, seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int | None, int | None]) -> int:
    """Return the number of (query, key) pairs of one head of one batch entry."""
    left, right = (seqlen_k if side is None else side for side in window)
    return find(text).pairs(Band(seqlen_q, seqlen_k, left, 0 if causal else right))


def count_keys(
    text: str, seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int | None, int | None], of_band: int
) -> int:
    """Return the number of keys that some query sees; `of_band` of the keys are in the band of some query.

    The number is exact for masks that add keys and for a single query; else it is `of_band`.
    """
    if seqlen_q == 1:
        return count_pairs(text, seqlen_q, seqlen_k, causal, window)
    mask, (left, _) = find(text), window
    if not (isinstance(mask, Numbered) and mask.adds):
        return of_band
    first = 0 if left is None else max(0, seqlen_k - seqlen_q - left)  # first key of the band
    return of_band + min(int(mask.number), first)


def kept_blocks(text: str, seqlen_k: int, device: torch.device) -> Tensor | None:
    """Return which blocks of places and keys a mask keeps, as a bool tensor; None where it is not made of blocks."""
    import torch

    blocks = find(text).kept_blocks(seqlen_k)
    return None if blocks is None else torch.tensor(blocks, device=device)


def sees(mask: Mask, in_band: Any, place: Any, key: Any, blocks: Any = None) -> Any:
    """Return whether a query sees a key; `in_band` says whether causal and window leave the key."""
    picked = mask.picks(place, key, blocks)
    return in_band | picked if mask.adds else in_band & picked


def _sum_quotients(low: int, high: int, top: int, n: int) -> int:
    """Return the sum of min(x, top) // n over the integers x from `low` to `high`; `low` is at least 0."""

    def up_to(x: int) -> int:
        quotient, rest = divmod(min(x, top) + 1, n)
        return n * quotient * (quotient - 1) // 2 + quotient * rest + max(0, x - top) * (top // n)

    return up_to(high) - up_to(low - 1)


@lru_cache(maxsize=2)
def _drawn(share: float, seqlen_k: int) -> Sequence[Sequence[bool]]:
    blocks = -(-seqlen_k // BLOCK)
    return [_drawn_row(share, row, blocks) for row in range(blocks)]


def _drawn_row(share: float, row: int, blocks: int) -> list[bool]:
    """Return, for one row of blocks, which of the first `blocks` blocks of keys are kept."""
    draw = random.Random(row).random
    kept = [draw() < share for _ in range(blocks)]
    if row < blocks:
        kept[row] = True
    return kept
