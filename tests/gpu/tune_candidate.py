"""A child process of tune_triton.py that compiles, checks and times candidates, and answers each line of JSON.

    {"row": "d64 16k causal bwd", "blocks": {"dkdv": "64x64x4x3-t"}, "check": true}

"check" requests only a check on odd lengths; without it the row is checked and timed. The answer has "failed" (the
reason) or "wrong" (the error), or else "largest" (error), "seconds" and "rate" (FLOP/s, as counted by tune_triton.py).

    {"candidates": {"dkdv d64": ["64x128x8x3", "64x64x4x3-t"]}}

This requests a description of the machine, and the candidates that block_sizes.py has for it. With the argument --dry
everything is tiny and runs on a CPU, for which TRITON_INTERPRET=1 must be set.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor

from attnbench.backends.triton import backward as backward_module
from attnbench.backends.triton import block_sizes as config
from attnbench.backends.triton.backward import attention_backward
from attnbench.backends.triton.block_sizes import Blocks
from attnbench.backends.triton.forward import attention_forward
from attnbench.backends.triton.problem import LOG2_E, dense_problem
from attnbench.core.backend import Inputs
from attnbench.core.case import Case, Shape
from attnbench.core.flops import flops
from attnbench.core.policy import Policy
from attnbench.core.stats import median
from attnbench.judge import inputs
from attnbench.worker import environment, serve
from attnbench.worker.instruments import Instruments, TimedLaunch

# In textbook attention of 4096 tokens on a CPU, rounding the same values as the kernels to bf16 (P, dS, results)
# changes the whole by up to 2.6e-3 and the worst row by 8e-3. The tolerance is 3 times the first, and 10 times the
# second, of which error_of takes a tenth.
TOLERANCE = 8e-3
CHUNK = 4096  # queries whose scores are in memory at once
# Rows that a headdim does not describe: headdim, headdim_v, nheads, nheads_k
SHAPES = {"d192": (192, 128, 16, 16), "d64-mqa": (64, 64, 32, 1), "d128-gqa": (128, 128, 16, 2)}
SHORT = Policy(max_seconds=0.1)
ONCE = Policy(warmup_s=0.0, min_samples=1, max_samples=1)
Results = dict[str, Tensor]


def case_of(row: str, dry: bool) -> Case:
    """Return the case of a row, to be timed: 16k tokens in all, nheads x headdim = 2048 or the sizes of SHAPES."""
    width, length, mask, direction = row.split()
    d, d_v, heads, heads_k = sizes_of(width)
    n = int(length[:-1])
    tokens = 6 * n if dry else 1024 * n
    if dry:
        heads, heads_k = 2, 2 if heads == heads_k else 1
    shape = Shape(16 // n, tokens, tokens, heads, heads_k, d, d_v)
    return Case(shape, "fp16" if dry else "bf16", direction, mask == "causal")  # type: ignore[arg-type]


def sizes_of(width: str) -> tuple[int, int, int, int]:
    """Return (headdim, headdim_v, nheads, nheads_k) of a row's first word, such as d128."""
    return SHAPES[width] if width in SHAPES else (int(width[1:]), int(width[1:]), *[2048 // int(width[1:])] * 2)


def share(kernels: tuple[str, ...], shape: Shape) -> float:
    """Return the FLOPs that these kernels compute, over the FLOPs that count for a backward.

    S, dQ and dK have the headdim, dP and dV headdim_v. Both dk/dv and dq compute S and dP.
    """
    d, d_v = shape.headdim, shape.headdim_v
    return {("dkdv",): 2 * d + 2 * d_v, ("dq",): 2 * d + d_v}.get(kernels, 3 * d + 2 * d_v) / (3 * d + 2 * d_v)


def odd_lengths(case: Case, dry: bool) -> list[Case]:
    """Return the cases that are checked first, with a last block that is not full and grouped heads.

    Triton compiles a forward separately for log-sum-exps whose length is a multiple of 16. The second case has such a
    length, so that the kernel of the row is compiled too.
    """
    d, d_v, heads, heads_k = case.shape.headdim, case.shape.headdim_v, case.shape.nheads, case.shape.nheads_k
    heads, heads_k = (4, 2) if heads == heads_k else (heads, heads_k)
    lengths = ((1000, 1300), (1040, 1040))
    shapes = [Shape(1, 70, 90, 2, 1, d, d_v)] if dry else [Shape(2, *n, heads, heads_k, d, d_v) for n in lengths]
    return [replace(case, shape=shape) for shape in shapes]


def blocks_of(text: str) -> Blocks:
    """Parse block sizes such as 64x128x4x3-tra (tune_triton.py explains the format)."""
    sizes, _, options = text.partition("-")
    m, n, warps, stages = map(int, sizes.split("x"))
    return Blocks(m, n, warps, stages, tma="t" in options, resident="r" in options, ahead="a" in options)


def is_padded(text: str) -> bool:
    """Return whether a candidate pads the headdim in one tile."""
    return "p" in text.partition("-")[2]


def splits_of(text: str) -> int | None:
    """Return the number of parts into which a candidate splits the query heads of a key head; None if unspecified."""
    found = re.search(r"-[a-z]*s(\d+)", text)
    return int(found[1]) if found else None


@functools.lru_cache(maxsize=2)
def float32_reference(case: Case, device: str) -> tuple[Inputs, Results]:
    """Return inputs and float32 results: out, the log-sum-exp in base 2 and, for a backward, dq, dk and dv."""
    torch.set_float32_matmul_precision("highest")
    given, s = inputs.make(case, device, 0), case.shape
    q, k, v, dout = given.q, given.k, given.v, given.dout
    want = {name: torch.zeros(t.shape, device=device) for name, t in (("dq", q), ("dk", k), ("dv", v))}
    want["out"] = torch.zeros((*q.shape[:3], v.shape[3]), device=device)
    want["lse"] = torch.zeros(s.batch, s.nheads, s.seqlen_q, device=device)
    key_positions = torch.arange(s.seqlen_k, device=device)
    for b, h in ((b, h) for b in range(s.batch) for h in range(s.nheads)):
        h_k = h * s.nheads_k // s.nheads
        keys, values = k[b, :, h_k].float(), v[b, :, h_k].float()
        for rows in (slice(i, i + CHUNK) for i in range(0, s.seqlen_q, CHUNK)):
            queries = q[b, rows, h].float()
            scores = queries @ keys.T * case.softmax_scale
            if case.causal:
                last = torch.arange(s.seqlen_q, device=device)[rows] + s.seqlen_k - s.seqlen_q
                scores.masked_fill_(key_positions > last[:, None], float("-inf"))
            lse = scores.logsumexp(1, keepdim=True)
            p = (scores - lse).exp()
            out = p @ values
            want["lse"][b, h, rows], want["out"][b, rows, h] = lse[:, 0] * LOG2_E, out
            if dout is not None:
                g = dout[b, rows, h].float()
                ds = p * (g @ values.T - (out * g).sum(1, keepdim=True)) * case.softmax_scale
                want["dq"][b, rows, h] = ds @ keys
                want["dk"][b, :, h_k] += ds.T @ queries
                want["dv"][b, :, h_k] += p.T @ g
    return given, want


def error_of(name: str, got: Tensor, want: Tensor) -> float:
    """Return the relative error of a result: of the whole, or a tenth of the worst row's, whichever is larger.

    A row is one token of one head. For the log-sum-exp it is the largest difference, which is about the relative error
    of the sum.
    """
    difference = got.float() - want
    if not difference.isfinite().all():
        return float("inf")
    if name == "lse":
        return float(difference.abs().max())
    norms = want.norm(dim=-1)
    rows = difference.norm(dim=-1) / (norms + norms.mean())  # a row may be zero, but not its rounding
    return max(float(rows.max()) / 10, float(difference.norm() / want.norm()))


def launcher(case: Case, kernels: set[str], device: str) -> Callable[[], Results]:
    """Return a launch of these kernels. A backward gets the out and the log-sum-exp of the float32 reference."""
    given, want = float32_reference(case, device)
    q, k, v, dout = given.q, given.k, given.v, given.dout
    problem = dense_problem(q, k, v, case.causal, (None, None), softcap=0.0, softmax_scale=None, descale=None)
    if dout is None:
        return lambda: dict(zip(("out", "lse"), attention_forward(q, k, v, problem), strict=True))
    out, lse = want["out"].to(q.dtype), want["lse"]
    need = {"need_dq": kernels != {"dkdv"}, "need_dkv": kernels != {"dq"}}

    def backward() -> Results:
        found = attention_backward(dout, q, k, v, out, lse, problem, **need)
        grads = zip(("dq", "dk", "dv", "dsink"), found, strict=True)
        return {name: grad for name, grad in grads if grad is not None}

    return backward


@functools.lru_cache(maxsize=1)
def instruments(device: str) -> Instruments:
    """Return the instruments of the device, opened once."""
    return Instruments(environment.with_quick_rates(environment.describe(device).device))


def judge(row: str, blocks: dict[str, str], check: bool, dry: bool) -> dict[str, Any]:
    """Return the answer for one candidate. Raises the errors of its compilation or launch."""
    device, case = "cpu" if dry else "cuda:0", case_of(row, dry)
    chosen = {kernel: blocks_of(text) for kernel, text in blocks.items()}
    empty = torch.empty
    answer: dict[str, Any] = {"largest": 0.0}

    def empty_filled_with_nan(*args: Any, **options: Any) -> Tensor:
        return empty(*args, **options).fill_(float("nan"))

    with ExitStack() as stack:
        stack.enter_context(patch.object(config, "candidates", lambda kernel, *_: (chosen[kernel],)))
        if any(map(is_padded, blocks.values())):
            stack.enter_context(patch.object(config, "column_parts", lambda _: (0, 1)))
        if (splits := splits_of(blocks.get("dkdv", ""))) is not None:
            group = 2 if dry else case.shape.nheads // case.shape.nheads_k
            stack.enter_context(patch.object(backward_module, "query_splits", lambda *_: min(splits, group)))
        for checked_case in odd_lengths(case, dry) if check else [case]:
            launch, want = launcher(checked_case, set(chosen), device), float32_reference(checked_case, device)[1]
            with patch.object(torch, "empty", empty_filled_with_nan):
                results = launch()
            error = max(error_of(name, got, want[name]) for name, got in results.items())
            answer["largest"] = max(error, answer["largest"])
            if not error <= TOLERANCE:
                return {"wrong": f"off by {error:.1e} at {checked_case.shape.seqlen_q} x {checked_case.shape.seqlen_k}"}
        if not check:
            del results
            timing = instruments(device).time(TimedLaunch(launch, lambda _: [], 0, 0), ONCE if dry else SHORT)
            seconds = median(timing.measurements["time"].values)
            answer |= {"seconds": seconds, "rate": flops(case) * share(tuple(chosen), case.shape) / seconds}
    return answer


def machine(candidates: dict[str, list[str]], dry: bool) -> dict[str, Any]:
    """Return the machine of this process, and the candidates that block_sizes.py has.

    Raises an error without a GPU.
    """
    device, index, table = "cpu, interpreted" if dry else torch.cuda.get_device_name(0), None if dry else 0, {}
    for key, texts in candidates.items():
        kernel, width = key.split()
        d, d_v, *_ = sizes_of(width)
        sizes: Any = (kernel, d, d_v, 2, index, not dry)
        for mask in ("full", "causal"):
            now = config.candidates(*sizes, mask)[0]
            chosen = (t for t in texts if blocks_of(t) == now and not is_padded(t) and splits_of(t) is None)
            table[f"{key} {mask}"] = next(chosen, None)
    return {"device": device, "torch": torch.__version__, "triton": triton.__version__, "table": table}


def main() -> None:
    """Answer questions, one line of JSON each, until stdin ends."""
    dry = "--dry" in sys.argv
    serve._die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    for line in sys.stdin:
        question = json.loads(line)
        number = question.pop("number")
        try:
            answer = judge(**question, dry=dry) if "row" in question else machine(**question, dry=dry)
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:100]}
            try:
                if not dry:
                    torch.cuda.synchronize()
            except RuntimeError:  # the CUDA context is broken, so this process cannot run another candidate
                answer["ends"] = True
        print(json.dumps({**answer, "number": number}), file=answers, flush=True)
    os._exit(0)  # skip destructors, which may crash or hang in a broken CUDA context


if __name__ == "__main__":
    main()
