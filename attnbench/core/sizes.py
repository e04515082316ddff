"""Sizes, windows and durations as people write them: parsers for options and suites, and the formats back.

- sizes: 8k, 3000, a list 1k,3000,8k, a range of powers of two 1k-64k, a range with a step 1k-8k:1k (k = 1024)
- head dims: 64, or 192-128 for headdim and headdim_v
- windows: 1k (1024 keys to the left, and without a causal mask to the right too), 1k/0 or 512/512 (left and right, as
  flash-attn's window_size), 512/open, or none. There is no colon, since YAML reads 1024:0 as the number 61440.
- durations: 90, 90s, 10m, 1h
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from attnbench.core.errors import UserError
from attnbench.core.text import shortened

LARGEST = 2**27
MOST_SECONDS = 366 * 86400
MAX_SIZES = 1000  # the most sizes of one range
SUFFIX = {"": 1, "k": 2**10, "m": 2**20}
Window = tuple[int | None, int | None]


def parse_size(text: str, what: str = "size") -> int:
    """Return 8192 for "8192" or "8k"; k = 1024, m = 1024^2.

    `what` names the option in error lines. Raises UserError for text that is not a size, and outside of 1 to 2^27.
    """
    match = re.fullmatch(r"([+-]?\d+)([kKmM]?)", str(text).strip())
    if not match:
        raise UserError(f"{what}: {str(text)!r} is not a size; write 4096, 4k or 1m (k = 1024)")
    if len(match[1]) > 20:  # Python refuses to parse thousands of digits
        raise UserError(f"{what}: {shortened(text)} is beyond anything that can be measured (largest: 128m)")
    value = int(match[1]) * SUFFIX[match[2].lower()]
    if value < 1:
        raise UserError(f"{what}: {text} is not at least 1")
    if value > LARGEST:
        raise UserError(f"{what}: {text} is beyond anything that can be measured (largest: 128m)")
    return value


def parse_sizes(text: str, what: str = "size") -> tuple[int, ...]:
    """Return the sizes of a comma-separated list, in the order given, each one time.

    An entry is a size, a range a-b of powers of two, both ends included, or a range with a step, a-b:step. Raises
    UserError.
    """
    found: list[int] = []
    for part in str(text).split(","):
        match = re.fullmatch(r"([^-:]+)-([^-:]+)(?::([^-:]+))?", part.strip())
        if match:
            low, high = parse_size(match[1], what), parse_size(match[2], what)
            if low > high:
                raise UserError(f"{what}: the range {part.strip()} descends; write {match[2]}-{match[1]}")
            if match[3]:
                steps = range(low, high + 1, parse_size(match[3], what))
                if len(steps) > MAX_SIZES:
                    raise UserError(
                        f"{what}: {part.strip()} is {len(steps)} sizes; at most {MAX_SIZES}, take larger steps"
                    )
                found += steps
                continue
            powers = [2**i for i in range(28) if low <= 2**i <= high]
            if not powers:
                raise UserError(f"{what}: there is no power of two in {part.strip()}; give a step, as in {part}:64")
            if (low, high) != (powers[0], powers[-1]):
                raise _no_power_of_two(part.strip(), (low, high), powers, what)
            found += powers
        elif re.search(r"[-:\s]", part.strip().lstrip("+-")):  # more than a number was meant
            raise UserError(
                f"{what}: {part.strip()!r} is not a size; write 4k, a list with commas, 1k,3000,8k, or a range with "
                "both its ends, 1k-64k or 1k-8k:1k"
            )
        else:
            found.append(parse_size(part, what))
    return tuple(dict.fromkeys(found))


def _no_power_of_two(part: str, ends: Sequence[int], powers: Sequence[int], what: str) -> UserError:
    """Return the error for a range with an end that is not a power of two, and would be left out."""
    inner = "-".join(dict.fromkeys(map(format_size, (powers[0], powers[-1]))))
    low, high = ([format_size(end)] if end not in powers else [] for end in ends)
    return UserError(
        f"{what}: {part} is a range of powers of two and leaves out {' and '.join([*low, *high])}; "
        f"write {inner}, or {','.join([*low, inner, *high])}"
    )


def parse_headdims(text: str, what: str = "headdim") -> tuple[tuple[int, int], ...]:
    """Return ((headdim, headdim_v), ...) for text such as "64,128,192-128"; a single number stands for both."""
    found = []
    for part in str(text).split(","):
        match = re.fullmatch(r"(\d+[kKmM]?)(?:-(\d+[kKmM]?))?", part.strip())
        if not match:
            raise UserError(f"{what}: {part.strip()!r} is not a head dim; write 128, or 192-128 for queries and values")
        pair = parse_size(match[1], what), parse_size(match[2] or match[1], what)
        if max(pair) > 2048:
            raise UserError(f"{what}: {part.strip()} is beyond anything that can be measured (largest: 2048)")
        found.append(pair)
    return tuple(dict.fromkeys(found))


def parse_optional_sizes(text: str, what: str = "size", none: Collection[str] = ("none",)) -> tuple[int, ...]:
    """Return the sizes of text such as "none,16,64"; 0 for a word of `none`. Raises UserError."""
    each = ((0,) if part.strip() in none else parse_sizes(part, what) for part in str(text).split(","))
    return tuple(dict.fromkeys(size for sizes in each for size in sizes))


def parse_windows(text: str, what: str = "window") -> tuple[Window | None, ...]:
    """Return the windows of text such as "1k,512/512,none": each (left, right), None for an open side, or None.

    None instead of a pair means no window. A single size means (size, size); under a causal mask the right side has no
    effect. Raises UserError.
    """
    found: list[Window | None] = []
    for part in str(text).split(","):
        texts = [text.strip() for text in part.split("/")]
        if texts in (["none"], ["open", "open"]):
            found.append(None)
            continue
        if len(texts) > 2 or texts in (["open"], ["0"]):
            raise _not_a_window(part.strip(), what)
        sides = [_parse_side(side, part.strip(), what) for side in texts]
        found.append((sides[0], sides[-1]))
    return tuple(dict.fromkeys(found))


def _parse_side(side: str, part: str, what: str) -> int | None:
    if side == "open":
        return None
    if side == "0":
        return 0
    if not re.fullmatch(r"\d+[kKmM]?", side):
        raise _not_a_window(part, what)
    return parse_size(side, what)


def _not_a_window(part: str, what: str) -> UserError:
    hint = ""
    if part == "0":  # YAML's [256, 0] is two windows
        hint = " (left and right of one window: 256/0)"
    elif "-1" in part:
        hint = " (flash-attn's -1 is open)"
    return UserError(f"{what}: {part!r} is not a window; write 1024, 1024/0, 512/512, 512/open or none{hint}")


def parse_numbers(text: str, what: str, below: float = math.inf, *, zero: bool = True) -> tuple[float, ...]:
    """Return the numbers of text such as "none,30,50.5", where none is 0.

    Raises UserError for a number below 0 or not less than `below`. With `zero` false it also refuses 0, which would
    silently mean none.
    """
    found = []
    for part in map(str.strip, str(text).split(",")):
        try:
            value = 0.0 if part == "none" else float(part)
        except ValueError:
            example = "30" if below == math.inf else f"{below / 10:g}"
            raise UserError(f"{what}: {part!r} is not a number; write {example}, or none") from None
        if not 0 <= value < below or (not zero and not value and part != "none"):
            limit = "" if below == math.inf else f" and below {below:g}"
            least = "from 0" if zero else "above 0"
            raise UserError(f"{what}: {part} is out of range; a number {least}{limit}, or none")
        found.append(value)
    return tuple(dict.fromkeys(found))


def parse_duration(text: str, what: str = "duration") -> float:
    """Return the seconds of "90", "90s", "10m", "1h" or "3m20s". Raises UserError."""
    number = r"(\d+(?:\.\d+)?)\s*"
    match = re.fullmatch(rf"{number}|(?:{number}h)?\s*(?:{number}m)?\s*(?:{number}s)?", str(text).strip())
    seconds = (
        sum(float(n or 0) * unit for n, unit in zip(match.groups(), (1, 3600, 60, 1), strict=True)) if match else 0
    )
    if seconds <= 0:
        raise UserError(f"{what}: {shortened(repr(text))} is not a duration; write 90s, 10m or 1h30m")
    if seconds > MOST_SECONDS:
        raise UserError(f"{what}: {shortened(repr(text))} is longer than a year")
    return seconds


def format_size(n: int) -> str:
    """Return 1k for 1024, 64k for 65536, 1m for 1048576, and 3000 for 3000."""
    if n >= 2**20 and n % 2**20 == 0:
        return f"{n // 2**20}m"
    return f"{n // 2**10}k" if n >= 2**10 and n % 2**10 == 0 else str(n)


def format_bytes(nbytes: float) -> str:
    """Return bytes as people read them: 137 GiB, 1.5 GiB, 24 MiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            value = nbytes / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{nbytes:.0f} B"


def format_duration(seconds: float) -> str:
    """Return seconds as people read them: 0.4s, 12s, 3m05s, 1h02m."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def format_seconds(seconds: float) -> str:
    """Return the seconds of a call: 8.1 ms, 2.3s."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else format_duration(seconds)
