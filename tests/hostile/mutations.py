"""Mutations of a tree of plain values, and of the bytes of a file."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from hostile.hostile_values import FIELDS, SCALARS


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """Return plain values with one place deleted, doubled, renamed, swapped, wrapped or replaced."""
    places = list(_places(tree))
    if not places:
        return rng.choice(SCALARS)
    holder, key = rng.choice(places)
    match rng.randrange(12):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 1, 2, 50))
        case 1:
            holder[rng.choice(FIELDS)] = holder[key]
        case 2:
            other, at = rng.choice(places)
            with contextlib.suppress(LookupError):  # one place may be inside the other
                holder[key], other[at] = json.loads(json.dumps([other[at], holder[key]]))
        case 3:
            holder[key] = rng.choice(([holder[key]], {rng.choice(FIELDS): holder[key]}, [], {}, [[]], [None], [{}]))
        case 4:
            nested: Any = holder[key]
            for _ in range(rng.choice((3, 20, 150))):
                nested = [nested] if rng.random() < 0.5 else {"a": nested}
            holder[key] = nested
        case 5 | 6 if type(holder[key]) is int:
            holder[key] = rng.choice((-holder[key], 0, 1, 2, holder[key] * 1000, 2**31, 2**62, 2**63, 10**30, 10**400))
        case 5 | 6 if type(holder[key]) is float:
            holder[key] *= rng.choice((-1, 0, 2, 0.5, 1e3, 1e-9, 1e15, 1e300, float("inf"), float("nan")))
        case _:  # mostly the same type, so that the file can be read
            alike = [value for value in SCALARS if type(value) is type(holder[key])]
            holder[key] = rng.choice(alike if alike and rng.random() < 0.7 else SCALARS)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (list or dict, key) for every place in a tree, but only the first ones of long lists of numbers."""
    keys = tree.keys() if isinstance(tree, dict) else range(min(len(tree), 5)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])


def mutate_bytes(rng: random.Random, content: bytes, tokens: Sequence[bytes]) -> bytes:
    """Return the content cut, with flipped bits, an inserted token or part of itself, or moved lines."""
    data = bytearray(content)
    at = rng.randint(0, len(data))
    lines = content.splitlines(keepends=True)
    match rng.randrange(8):
        case 0:
            return bytes(data[:at])
        case 1:
            return bytes(data[at:])
        case 2 if data:
            for _ in range(rng.choice((1, 1, 5, 50))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 3 if lines:
            rng.shuffle(lines) if rng.random() < 0.3 else lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            return b"".join(lines)
        case 4 if lines:
            del lines[rng.randrange(len(lines))]
            return b"".join(lines)
        case 5:
            end = min(len(data), at + rng.choice((1, 5, 40)))
            data[at:end] = data[at:end] * rng.choice((0, 2, 100))
        case 6:
            encoding = rng.choice(("utf-16", "utf-8-sig", "utf-32-be", "latin-1"))
            return content.decode("utf-8", "replace").encode(encoding, "replace")
        case _:
            data[at:at] = rng.choice(tokens)
    return bytes(data)
