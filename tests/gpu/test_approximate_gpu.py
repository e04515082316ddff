"""Approximate backends on a GPU are right by their own definitions, on all data; prints their errors.

    python -m pytest -s tests/gpu/test_approximate_gpu.py          in about a minute

All backends run in this process.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from attnbench import backends, judge  # noqa: E402
from attnbench.core.case import Case, Shape  # noqa: E402
from attnbench.core.machine import Device  # noqa: E402
from attnbench.core.renewed_inputs import InputRenewal  # noqa: E402
from attnbench.judge import inputs  # noqa: E402
from attnbench.worker import environment  # noqa: E402


def cases() -> Iterator[Case]:
    shapes = [Shape(2, 4096, 4096, 4, 2, 64, 64), Shape(1, 4000, 4000, 4, 4, 128, 128)]
    shapes += [Shape(1, 4096, 4096, 16, 1, 128, 128), Shape(1, 16384, 16384, 2, 2, 64, 64)]
    for shape, causal, dtype in itertools.product(shapes, (False, True), ("bf16", "fp16")):
        yield Case(shape, dtype, "fwd_bwd", causal)  # type: ignore[arg-type]
        for data in ("normal", "outliers", "decaying"):
            yield Case(shape, dtype, "fwd", causal, data=data)  # type: ignore[arg-type]


def check(name: str, case: Case, device: Device) -> str:
    """Return the text of a backend's error against attention, "" for a refused case. Fails where a launch is wrong."""
    made = backends.load(name, backends.BACKENDS[name])
    if made.unsupported(case, device):
        return ""
    given = inputs.make(case, "cuda", seed=0)
    check = judge.make_check(case, given, 0, made)
    prepared = made.prepare(case, given)
    first = check.check_first(prepared.canonical(prepared.launch()))
    assert first.ok, f"{name}, {case}: {first.problem()}"
    renewal = InputRenewal(case, given, prepared, seed=0)
    renewal.renew()
    found = check.check_renewed(
        renewal.now, renewal.apply_to(inputs.make(case, "cuda", seed=0)), prepared.canonical(prepared.launch())
    )
    assert found.ok, f"{name}, {case}, renewed: {found.problem()}"
    near = check.approximation
    assert near is not None
    kept = "" if near.mass_kept is None else f", mass kept {near.mass_kept:.0%}"
    used = max(error.max_error / error.tolerance for error in first.errors.values())
    return f"error {near.error:.1%}{kept}; {used:.0%} of the error allowed"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", backends.APPROXIMATE)
def test_results(name: str) -> None:
    made = backends.load(name, backends.BACKENDS[name])
    if not made.probe().usable:
        pytest.skip(made.probe().reason or "")
    device = environment.describe("cuda:0").device
    for case in cases():
        said = check(name, case, device)
        gc.collect()
        torch.cuda.empty_cache()
        if said:
            s = case.shape
            mask = "causal" if case.causal else "full"
            print(f"{name:12} {s.seqlen_k} d{s.headdim} h{s.nheads}/{s.nheads_k} {mask} {case.dtype} {case.direction} "
                  f"{case.data}: {said}")  # fmt: skip
