"""The code that calls an implementation, for a person to paste into a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.core import masks
from attnbench.core.axes import AXES, LIMITED
from attnbench.core.case import Case

LONG = 100  # characters of a line; in longer ones each option has its own line
# Comments with the shapes of the tensors, before a call
BSHD = "# q, k, v: (batch, seqlen, nheads, headdim)\n"
BHSD = "# q, k, v: (batch, nheads, seqlen, headdim)\n"
CACHES = "k_cache, v_cache: (pages, page_size, nheads_k, headdim)\n"
PAGES = f"# q: (batch, seqlen_q, nheads, headdim); {CACHES}"
PAGES_THD = f"# q: (total, nheads, headdim), one sequence after the other; {CACHES}"
THD = "# q, k, v: (total, nheads, headdim), one sequence after the other\n"
FLASH: dict[str, str] = {  # options by the names of flash-attn, for every library with these names
    "causal": "causal=True",
    "window": "window_size=({left}, {right})",
    "softcap": "softcap={softcap}",
    "scale": "softmax_scale={scale}",
}


@dataclass(frozen=True)
class Paste:
    """The code that calls an implementation, as its library spells it.

    `calls` maps a kind of batch to statements that compute `out` from q, k and v, or load a model. Kinds are "dense",
    "ragged" (with cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), "paged" (with page_table and seqlens_k),
    "latent" and "fp8"; and, where the call differs, "single" for one dense sequence and "unlike" for unlike numbers of
    queries over pages. A delta rule has its kind, "gdn", or "gdn token" for one token with a state. An indexer has
    "indexer" or "indexer fp8", and `{chosen}` marks its number of keys. `{prefix}` marks the tokens of a
    shared prefix, and `{options}` the place of the case's options; a call without it takes none. The other fields are
    these options, "" where the implementation lacks one.
    """

    imports: tuple[str, ...]  # each is "from MODULE import NAME"; the text has only the imports that the call uses
    calls: Mapping[str, str]
    full: str = ""  # option of a case without a mask, if it needs one
    causal: str = ""
    unequal: str = ""  # causal where seqlen_q != seqlen_k, if it differs from `causal`
    window: str = ""  # has {left}, or {keys} = left + 1, and {right}, 0 where causal; without {right} causal only
    open_side: str = "-1"  # value of a side of a window without a limit
    grouped: str = ""  # for grouped heads, if they need an option
    softcap: str = ""  # contains {softcap}
    dropout: str = ""  # contains {dropout}
    scale: str = ""  # contains {scale}
    sink: str = ""
    alibi: str = ""  # with alibi_slopes, a tensor (nheads,) of float32
    # Option of a call that gives the same bits in each launch, or statements before it, which end with a line break; ""
    # where every call does, None where none can
    deterministic: str | None = None

    def text(self, case: Case, scale: str = "") -> str:
        """Return the code for a case; "" where `calls` has none.

        With `scale`, an expression, the call takes it as the scale of the softmax.
        """
        call = self.calls.get(self._kind(case), "")
        options = self._options(case, scale) if "{options}" in call else () if not scale else None
        if not call or options is None:
            return ""
        if case.deterministic and self.deterministic and self.deterministic.endswith("\n"):
            call = f"{self.deterministic}{call}"
        lines = [_filled(line, options) for line in call.splitlines()]
        used = [line for line in self.imports if re.search(rf"\b{line.split()[-1]}\b", call + "".join(options))]
        text = "\n".join((*_merged(used), "", *lines) if used else lines)
        text = text.replace("{prefix}", str(case.shared_prefix))
        return text.replace("{chosen}", str(masks.chosen(case.mask))) if case.is_indexer else text

    def _kind(self, case: Case) -> str:
        if case.is_indexer:
            return "indexer fp8" if case.dtype == "fp8" else "indexer"
        if case.is_delta:
            of_token = f"{case.kind} token"
            return of_token if case.shape.seqlen_k == 1 and of_token in self.calls else case.kind
        if case.append or case.cache_dtype != "same":
            return "append" if case.append else "fp8 cache"
        if case.is_paged and not case.latent and not case.has_like_queries and "unlike" in self.calls:
            return "unlike"
        if case.latent and not case.has_like_queries:
            return "latent unlike"
        if case.latent or case.is_paged or case.is_ragged:
            return "latent" if case.latent else "paged" if case.is_paged else "ragged"
        if case.dtype == "fp8":
            return "fp8"
        return "single" if case.shape.batch == 1 and "single" in self.calls else "dense"

    def _options(self, case: Case, scale: str) -> tuple[str, ...] | None:
        """Return the options of a case; None where the implementation lacks one of them."""
        needed: dict[str, Any] = {
            name.removeprefix("softmax_"): AXES[name].of(case)
            for name in (*LIMITED, "softmax_scale")
            if AXES[name].label(case)
        } | ({"scale": scale} if scale else {})
        repeats = self.deterministic if needed.pop("deterministic", False) else ""
        mask = self._mask(case) if case.is_softmax else ""
        lacks = not all(getattr(self, name, "") for name in needed)
        if mask is None or case.mask or repeats is None or lacks:
            return None  # no implementation has a mask by name
        grouped = case.shape.nheads != case.shape.nheads_k and case.is_softmax
        found = [mask, self.grouped if grouped else ""]
        texts = {name: value if isinstance(value, str) else f"{value:.9g}" for name, value in needed.items()}
        found += [getattr(self, name).replace(f"{{{name}}}", text) for name, text in texts.items()]
        found += [] if repeats.endswith("\n") else [repeats]
        return tuple(filter(None, found))

    def _mask(self, case: Case) -> str | None:
        left, right = case.window_size
        right = 0 if case.causal else right
        alone = case.shape.seqlen_q == 1  # a single query sees all keys
        if left is None and (right is None or alone):
            return self.full
        if left is None and case.causal:
            return (self.causal if case.has_equal_lengths else self.unequal or self.causal) or None
        causal_only = "{right}" not in self.window
        if not self.window or (causal_only and not case.causal) or (left is None and "{keys}" in self.window):
            return None
        sides = {"left": left, "keys": (left or 0) + 1, "right": None if alone else right}
        text = {name: self.open_side if tokens is None else str(tokens) for name, tokens in sides.items()}
        return re.sub(r"{(left|keys|right)}", lambda side: text[side[1]], self.window)


def _filled(line: str, options: tuple[str, ...]) -> str:
    """Return a line with the options in place of {options}, each on its own line where the line would be too long."""
    whole = line.replace("{options}", "".join(f", {option}" for option in options))
    if len(whole) <= LONG or "{options}" not in line:
        return whole
    indent = " " * (4 + len(line) - len(line.lstrip()))
    return line.replace("{options}", "".join(f",\n{indent}{option}" for option in options))


def _merged(imports: list[str]) -> list[str]:
    """Return the imports with all names of a module on one line."""
    names: dict[str, list[str]] = {}
    for line in imports:
        module, _, name = line.rpartition("import ")
        names.setdefault(f"{module}import ", []).append(name)
    return [start + ", ".join(sorted(found)) for start, found in names.items()]
