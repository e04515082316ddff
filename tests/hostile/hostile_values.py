"""Values that often break programs: as text, as plain values, and as names of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _words(text: str) -> list[str]:
    return text.split(" ")


TEXTS = (
    *_words(
        "0 -1 -0 +5 1e308 1e999 nan inf -inf NaN% 1_000 0x10 1.5 007 ٣ １２ ½ ² 🙂 \udcff \x1b[31m [red] [/red] %s"
    ),
    *_words("* ? [ [!] ! !* , ,, = == =x x= : :: - -- none None true 1,1 1k- -1k 1k-1k 8k-1k 1-128m:1 1k-64k:0"),
    *_words("1-128m 12:30 64-128 1/1 0/0 auto cpu cuda cuda:0 cuda:99 fake \u202e a,b,c ' \" \\ bf16=1e308 fake=x"),
    *("", " ", "\t", "a\nb", "9" * 25, "9" * 5000, "a" * 3000),
)
SCALARS: Sequence[Any] = (
    *(None, True, False, 0, -1, 1, 2, 3, 1.5, -0.0, 1e308, -1e308, 5e-324, 1e-300, 2**31, 2**63, 2**64, 10**30),
    *(10**400, float("nan"), float("inf"), float("-inf"), "", " ", "a\nb", "9" * 5000, "x" * 5000),
    *_words("x nan inf 1k 🙂 \x1b[31m [red] \ud800 none null 1e999 -1 <b>& %s * !* 12:30 bf16 fwd \u202e|`"),
)
FIELDS = _words("seqlen name type schema 🙂 case values runs round backend status axes on_cpu")
