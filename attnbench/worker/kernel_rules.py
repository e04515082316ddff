"""The kernel rules: whether the kernels that ran in a traced call are the kernels that the backend declares.

A time under a false name is worse than none. Libraries choose kernels by heuristics and fall back silently: SDPA to
another of its backends, a compiled FlexAttention to its eager form, a half-precision case to float32. So every measured
cell is traced once, untimed (kernel_trace.py). The trace must show that

- something ran, and all of it within the launch: nothing in `canonical`, which only names the results, and nothing that
  still runs after the stream has passed the launch, because neither would be in the measured time;
- each kernel that the backend's signature requires ran, and no kernel that it excludes;
- the required kernels together took at least 2 % of the call's time on a GPU, else other kernels do the work;
- no float32 matrix product ran in a half-precision case, unless the signature names it. Own code that declares no
  kernels may choose its precision: there it is a note beside the time.

On a CPU the operators of torch's profiler take the kernels' place. Their times decide nothing, because they contain all
other work of the CPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from attnbench.core.activity import Activity, busy_seconds
from attnbench.core.backend import Signature
from attnbench.core.case import Case

# The names of matrix products of float32 operands: cuBLAS's and CUTLASS's (ampere_sgemm_128x64,
# sm80_xmma_gemm_f32f32_...), and the name by measure/cpu_operators.py (aten::bmm<float>). sgemmEx names its operands
# second.
FLOAT32_PRODUCT = (
    r"mm<float>|sgemm(?!Ex_kernel<\w+, __(?:nv_bfloat16|half))|gemm_f32f32_|s1688gemm(?!_(?:bf16|fp?16))|tf32"
)
FLOAT32_ADVICE = "; give the product 16-bit operands, or declare it as one of your kernels if it is meant"
NAME_LENGTH = 120  # most characters of a name
# Share of a call's busy time. Eager declares only its softmax, which takes 4 % beside float32 products, and more beside
# others.
MIN_DECLARED_SHARE = 0.02
# Operators that only make views of tensors
VIEWS = re.compile(
    r"(aten::)?(_?unsafe_view|_reshape_alias|alias|as_strided|chunk|detach_?|expand|flatten|movedim|narrow|permute|"
    r"reshape|select|slice|split|split_with_sizes|squeeze|swapaxes|t|transpose|unbind|unflatten|unsqueeze|view|view_as)"
)
NO_WORK = re.compile(rf"{VIEWS.pattern}|aten::empty\w*")  # operators that compute nothing
PRODUCT = re.compile("mm<|gemm|attention")


def count_by_name(names: Iterable[str]) -> dict[str, int]:
    """Return short name -> number of runs of each kernel, in the order of first appearance."""
    return dict(Counter(short_name(name) for name in names))


def short_name(name: str) -> str:
    """Return a C++ kernel's name without return type and parameters, cut to 120 characters."""
    text = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth and i and text[i - 1] != " ":  # the parameter list, but not in "Memset (Device)"
            text = text[:i]
            break
    return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 3] + "..."


def first_computing_operator(operators: Iterable[str]) -> str | None:
    """Return the first operator that computes something; None where all only make views of tensors."""
    return next((name for name in operators if not VIEWS.fullmatch(name)), None)


def find_broken_rule(case: Case, signature: Signature, names: Iterable[str]) -> str | None:
    """Return the rule that the kernels of one call break, in one line; None where they break none.

    `names` are the full names of the kernels. `find_low_share` judges their time on a GPU.
    """
    kernels = list(dict.fromkeys(names))
    if not kernels:
        return "nothing ran on the device during the launch: its answer was computed before, or elsewhere"
    work = sorted((k for k in kernels if not NO_WORK.fullmatch(k)), key=lambda k: not PRODUCT.search(k)) or kernels
    ran = ", ".join(map(short_name, work[:4])) + (f" and {len(work) - 4} more" if len(work) > 4 else "")
    for pattern in signature.runs:
        if not any(re.search(pattern, name) for name in kernels):
            return f"no kernel like {pattern!r} ran; instead: {ran}"
    for pattern in signature.never:
        if found := [name for name in kernels if re.search(pattern, name)]:
            return f"{short_name(found[0])} ran, which is another implementation's"
    product = None if signature.float32 else _float32_product(case, signature, kernels)
    return product and product + FLOAT32_ADVICE


def float32_notes(case: Case, signature: Signature, names: Iterable[str]) -> tuple[str, ...]:
    """Return a note on a float32 product in a half-precision case, where the code may choose its precision."""
    product = _float32_product(case, signature, names) if signature.float32 else None
    return (product,) if product else ()


def _float32_product(case: Case, signature: Signature, names: Iterable[str]) -> str | None:
    """Return the undeclared float32 product that ran in a half-precision case, in one line; None without one."""
    if case.dtype != "fp32":
        for name in names:
            if re.search(FLOAT32_PRODUCT, name) and not any(re.search(p, name) for p in signature.runs):
                return f"{short_name(name)} ran: a float32 product in a {case.dtype} case"
    return None


def find_low_share(signature: Signature, activities: Sequence[Activity]) -> str | None:
    """Return a line where the declared kernels took under 2 % of one call's busy time on a GPU; else None.

    Such kernels only have the declared name, and others do the work.
    """
    declared = [a for a in activities if any(re.search(pattern, a.name) for pattern in signature.runs)]
    part = busy_seconds(declared) / (busy_seconds(activities) or 1.0)
    if not signature.runs or part >= MIN_DECLARED_SHARE:
        return None
    longest = max((a for a in activities if a not in declared), key=lambda a: a.end - a.start)
    return f"its declared kernels took {part:.2%} of the time; {short_name(longest.name)} did more of the work"
