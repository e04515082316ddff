"""Uses a module of `attnbench tune` on the GPU that it is of: its cost a call, graphs, torch.compile, both passes.

    python tests/gpu/use_choice.py attention_choice.py

The module is of llama-3.1-8b: 32 query heads, 8 key heads, headdim 128, bf16, causal. Prints a line for each check, and
ends with 1 where one fails.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

import torch

REFERENCE = 0.02  # most difference of bf16 results of two implementations, of values of about 1


def main(path: str) -> int:
    """Run the checks of a module's file, and return the exit code."""
    spec = importlib.util.spec_from_file_location("attention_choice", path)
    assert spec
    assert spec.loader
    choice: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = choice  # where torch.compile looks for it
    spec.loader.exec_module(choice)
    print("check:", choice.check())
    cost = _cost(choice)
    found = {"a choice costs under 2 us": cost < 2e-6, **_right(choice)}
    found |= {"a CUDA graph replays it": _graph(choice), "torch.compile takes it whole": _compiled(choice)}
    print(f"cost of a choice: {cost * 1e6:.2f} us")
    for what, holds in found.items():
        print("ok  " if holds else "FAIL", what)
    return 0 if all(found.values()) else 1


def _inputs(seqlen_q: int, seqlen_k: int, grad: bool = False) -> list[torch.Tensor]:
    sizes = ((1, seqlen_q, 32, 128), (1, seqlen_k, 8, 128), (1, seqlen_k, 8, 128))
    return [torch.randn(of, device="cuda", dtype=torch.bfloat16, requires_grad=grad) for of in sizes]


def _cost(choice: Any) -> float:
    """Return the seconds that a call adds to the implementation's."""
    q, k, v = _inputs(1024, 1024)
    choice.attention(q, k, v, causal=True)
    calls = dict(choice._SEEN)
    choice._SEEN.update({key: (lambda q, k, v, scale: q) for key in calls})
    best = 1.0
    for _ in range(5000):
        start = time.perf_counter()
        for _ in range(20):
            choice.attention(q, k, v, causal=True)
        best = min(best, (time.perf_counter() - start) / 20)
    choice._SEEN.update(calls)
    return best


def _right(choice: Any) -> dict[str, bool]:
    found = {}
    for seqlen_q, seqlen_k, grad in ((700, 700, 0), (3000, 3000, 0), (12000, 12000, 0), (1, 3000, 0), (3000, 3000, 1)):
        q, k, v = _inputs(seqlen_q, seqlen_k, bool(grad))
        out = choice.attention(q, k, v, causal=True)
        other = choice._of_sdpa(True, (None, None), q, k, v, None)
        holds = (out - other).abs().max() < REFERENCE
        if grad:
            given = torch.randn_like(out)
            grads = [torch.autograd.grad(of, (q, k, v), given) for of in (out, other)]
            holds &= all((one - same).norm() < REFERENCE * same.norm() for one, same in zip(*grads, strict=True))
        name = choice.choose(q, k, v, causal=True, train=bool(grad))
        found[f"{seqlen_q} queries, {seqlen_k} keys{', gradients' if grad else ''}: {name}"] = bool(holds)
    return found


def _graph(choice: Any) -> bool:
    q, k, v = _inputs(1500, 1500)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        choice.attention(q, k, v, causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        out = choice.attention(q, k, v, causal=True)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    return torch.equal(out, choice.attention(q, k, v, causal=True))


def _compiled(choice: Any) -> bool:
    compiled = torch.compile(lambda q, k, v: choice.attention(q, k, v, causal=True), fullgraph=True)
    q, k, v = _inputs(1500, 1500)
    return torch.equal(compiled(q, k, v), choice.attention(q, k, v, causal=True))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
