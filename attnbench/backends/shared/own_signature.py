"""Check whether a person's function takes attnbench's arguments, and write the line of code that adapts it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from attnbench.core.errors import did_you_mean
from attnbench.core.text import listed, one_line

CALL = "(q, k, v, *, causal, softmax_scale)"
GIVEN = ("q", "k", "v", "causal", "softmax_scale")
# Names of each argument in other people's code, in lower case
NAMES: Mapping[str, tuple[str, ...]] = {
    "q": ("q", "query", "queries", "query_states", "query_layer", "xq"),
    "k": ("k", "key", "keys", "key_states", "key_layer", "xk"),
    "v": ("v", "value", "values", "value_states", "value_layer", "xv"),
    "causal": ("causal", "is_causal", "use_causal", "causal_mask", "apply_causal_mask"),
    "softmax_scale": ("softmax_scale", "scale", "sm_scale", "scaling", "scale_factor", "softmax_scaling", "attn_scale"),
    "None": ("mask", "attn_mask", "attention_mask", "bias", "attn_bias"),
    "0.0": ("dropout", "dropout_p", "dropout_rate", "attn_dropout"),
}
HEADS_FIRST = re.compile(  # matches "B, H, N, D = q.shape", "(batch, num_heads, seq_len, head_dim)" and "bhsd"
    r"\b(?:z|b|bs|bsz|bh?_?sz|batch\w*)\s*,\s*(?:h|hq|nh|n_?heads?\w*|num_\w*heads?\w*|heads?\w*)\s*,\s*"
    r"(?:n|s|t|l|m|n_?ctx|seq\w*|\w*len\w*)\s*,|\bbh[snlt]d\b",
    re.IGNORECASE,
)


def objection(function: Callable[..., Any], attribute: str, file: str, parameters: Mapping[str, Any]) -> str | None:
    """Return why a function cannot be called with the arguments of CALL, and what to do, in one line; else None.

    `attribute` is its name in `file` ("" for a function given from Python), `parameters` are the additional arguments
    that a person sets. The result is None too where the signature cannot be read.
    """
    signature = _signature(function)
    if signature is None:
        return None
    if unknown := _unknown_parameter(signature, attribute, parameters):
        return unknown
    options = GIVEN[3:] if takes_scale(function) else GIVEN[3:4]
    try:
        signature.bind(*GIVEN[:3], **dict.fromkeys(options), **parameters)
    except TypeError as error:
        call = ", ".join((*GIVEN[:3], *(f"{name}=..." for name in options)))
        why = f"cannot be called with ({call}): {one_line(str(error))}"
        return f"{why}; {_adapter(function, signature, attribute, file, parameters)}"
    return None


def takes_scale(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter softmax_scale, takes any keyword, or has an unreadable signature."""
    signature = _signature(function)
    return signature is None or any(
        p.kind == p.VAR_KEYWORD or _value_of(p.name) == "softmax_scale" for p in signature.parameters.values()
    )


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None where it cannot be read."""
    module_call = getattr(function, "forward", None)  # an nn.Module's __call__ takes any arguments
    try:
        return inspect.signature(module_call if callable(module_call) else function)
    except (TypeError, ValueError):
        return None


def _unknown_parameter(signature: inspect.Signature, attribute: str, parameters: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the names of the parameters that a person sets; None if all are right."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    own = [
        name
        for name, parameter in signature.parameters.items()
        if name not in GIVEN and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    for name in parameters:
        if name in GIVEN:
            return f"{name} comes from each case and cannot be set"
        if name not in own and inspect.Parameter.VAR_KEYWORD not in kinds:
            known = did_you_mean(name, own) if own else "; it has no parameter to set"
            return f"{attribute} has no parameter {name!r}{known}"
    return None


def _adapter(
    function: Callable[..., Any],
    signature: inspect.Signature,
    attribute: str,
    file: str,
    parameters: Mapping[str, Any],
) -> str:
    """Return advice for a signature that does not fit, with a line of code that calls the function by its own names."""
    named = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    values = {p.name: value for p in named if (value := _value_of(p.name)) is not None}
    if not {"q", "k", "v"} <= {*values.values()}:  # q, k and v are passed by position
        first = [p.name for p in named if p.kind != p.KEYWORD_ONLY and values.get(p.name) in (None, *GIVEN[:3])][:3]
        if len(first) < 3:
            return f"write a function of {CALL[1:-1]} that calls it"
        values = {
            **{name: v for name, v in values.items() if v not in GIVEN[:3]},
            **dict(zip(first, GIVEN, strict=False)),
        }
    arguments, by_place, unknown = [], True, []
    for parameter in named:
        value = values.get(parameter.name)
        if value not in GIVEN and parameter.name in parameters:
            value = parameter.name
        elif value not in GIVEN and parameter.default is not parameter.empty:
            by_place = False
            continue
        if value is None:
            value = "..."
            unknown.append(parameter.name)
        by_place = by_place and parameter.kind != parameter.KEYWORD_ONLY and value in GIVEN[:3]
        arguments.append(
            value if by_place or parameter.kind == parameter.POSITIONAL_ONLY else f"{parameter.name}={value}"
        )
    name = f"{attribute}_adapted"
    hints = []
    if unknown:
        hints.append(f"with values for {listed(unknown)}")
    if "causal" not in values.values():
        options = "--full or --causal" if file else "causal=False or causal=True"
        hints.append(f"with {options}, whichever mask it computes")
    if "softmax_scale" not in values.values():
        hints.append("if it scales by 1/sqrt(headdim) itself")
    if HEADS_FIRST.search(_text_of(function)):
        hints.append(f'with {name}.order = "bhsd" below it, as it seems to take (batch, nheads, seqlen, headdim)')
    beside = f" ({', and '.join(hints)})" if hints else ""
    made_of_class = not inspect.isroutine(function) and type(function).__name__ == attribute
    more = [*parameters, *([f"made={attribute}()"] if made_of_class else [])]
    called = "made" if made_of_class else attribute
    call = CALL if "softmax_scale" in values.values() else CALL.replace(", softmax_scale", "")
    code = f"def {name}{call[:-1]}{''.join(f', {one}' for one in more)}): return {called}({', '.join(arguments)})"
    where = f"add this line to {file} and give {file}:{name}" if file else f"define and give {name}"
    return f"{where}{beside}: {code}"


def _value_of(name: str) -> str | None:
    """Return the value that a parameter of that name gets, as code; None for an unknown name."""
    return next((value for value, names in NAMES.items() if name.lower().strip("_") in names), None)


def _text_of(function: Callable[..., Any]) -> str:
    """Return the source of a function or of an object's class; "" where there is none."""
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return ""
