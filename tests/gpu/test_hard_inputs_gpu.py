"""Errors of right kernels on large scores, over eager's errors and over the bounds that hold on a CPU.

    python -m pytest -s tests/gpu/test_hard_inputs_gpu.py          on a GPU: every backend that works there, in 60 s

On a GPU a run judges out on hard inputs by twice eager's error, and judges a wrong out again with the loss of sums on
tensor cores. The table shows whether the bounds of a CPU, for all results, would hold on a GPU too. It also has the
data "outliers", for which the bounds of a CPU hold on every device. All backends run in this process.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from attnbench import backends, judge  # noqa: E402
from attnbench.core.backend import Inputs, Prepared, Unsupported  # noqa: E402
from attnbench.core.case import Case, Shape  # noqa: E402
from attnbench.core.machine import Device  # noqa: E402
from attnbench.judge import inputs  # noqa: E402
from attnbench.worker import environment  # noqa: E402

LAUNCHES = 3  # launches of each case, with inputs of different seeds
MAX_SECONDS = 50.0


def cases(seqlen: int = 1024) -> Iterator[Case]:
    """Yield the cases: hard inputs where the data is "normal", else outliers."""
    for dtype, data, headdim in itertools.product(("bf16", "fp16"), ("normal", "outliers"), (64, 128)):
        for nheads_k, causal in ((4, False), (4, True), (1, False)):
            shape = Shape(1, seqlen, seqlen, 4, nheads_k, headdim, headdim)
            yield Case(shape, dtype, "fwd_bwd", causal, data=data)  # type: ignore[arg-type]


def launch(
    case: Case, device: torch.device, prepare: Callable[[Inputs], Prepared], seed: int
) -> tuple[judge.Reference, Mapping[str, torch.Tensor]]:
    """Launch once on hard inputs or on outliers, and return the reference and the results."""
    if case.data == "normal":
        check = judge.HardInputsCheck(case, device)
        on_hard = prepare(check.inputs)
        return check.reference, on_hard.canonical(on_hard.launch())
    sample = judge.choose_rows(case, device, seed, share=0.25)
    given = judge.check_inputs(case, inputs.make(case, str(device), seed), sample)
    prepared = prepare(given)
    return judge.compute_reference(case, given, sample), prepared.canonical(prepared.launch())


def errors_on_hard_inputs(name: str, which: Sequence[Case], device: Device, until: float) -> Iterator[str]:
    """Yield a line for each case that a backend takes, with the largest ratios of each result over some launches.

    Ratios are the largest error over eager's largest, the root mean square over eager's, and the error over its bound,
    for the largest error or the root mean square. No case begins after `until`, on the monotonic clock.
    """
    backend = backends.load(name, backends.BACKENDS[name])
    if not (probe := backend.probe()).usable:
        yield f"{name:18s} {probe.why_not}"
        return
    for case in which:
        if time.monotonic() > until:
            yield f"{name:18s} no time is left"
            return
        if backend.unsupported(case, device):
            continue
        found: dict[str, list[tuple[float, float, float]]] = {}
        wrong = ""
        try:
            for seed in range(LAUNCHES):
                place = torch.device(device.kind, device.index)
                answer, results = launch(case, place, partial(backend.prepare, case), seed)
                accuracy = judge.compare(answer, results)
                wrong = wrong or accuracy.problem()
                for result, error in accuracy.errors.items():
                    rms = error.relative / max(answer.relative_eager_error(result), 1e-30)
                    ratios = (error.max_error / max(error.eager_error, 1e-30), rms, error.max_error / error.tolerance)
                    found.setdefault(result, []).append(ratios)
                del answer, results
        except Unsupported as refusal:
            wrong = f"skipped: {refusal}"
        except Exception as error:  # any error of a library; the other backends go on
            wrong = f"failed: {type(error).__name__}: {error}".splitlines()[0][:120]
        s = case.shape
        texts = (
            f"{result} {max(r[0] for r in each):5.2f} {max(r[1] for r in each):5.2f} {max(r[2] for r in each):5.2f}"
            for result, each in found.items()
        )
        mask = "causal" if case.causal else "full"
        data = "hard" if case.data == "normal" else case.data
        cell = f"{name:18s} {data:8s} {case.dtype} d{s.headdim} h{s.nheads}/{s.nheads_k} {mask:6s}"
        yield " | ".join((cell, *texts, wrong or "ok"))
        gc.collect()


def print_table(names: Sequence[str], which: Sequence[Case], device: Device, seconds: float) -> list[str]:
    """Print the lines of all backends at once, and return them."""
    print("\nof each result: largest error / eager's, root mean square / eager's, error / bound")
    until, lines = time.monotonic() + seconds, []
    for name in names:
        for line in errors_on_hard_inputs(name, which, device, until):
            lines.append(line)
            print(line, flush=True)
    return lines


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_errors_of_every_backend_on_a_gpu() -> None:
    device = environment.describe("cuda:0").device
    first = ["sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "triton", "eager"]
    rest = [name for name in backends.BACKENDS if name not in (*first, *backends.NOT_BY_DEFAULT)]
    lines = print_table([*first, *rest], list(cases()), device, MAX_SECONDS)
    assert any(line.startswith("sdpa-flash") and "bf16" in line and "failed" not in line for line in lines)


def test_errors_of_backends_on_a_cpu() -> None:
    """On a CPU no case of any backend is wrong by the bounds for a CPU."""
    device = Device("cpu", 0, "CPU", 2**34, 2**34)
    names, which = ("eager", "sdpa-math", "sdpa-flash"), list(cases(64))[::3]
    lines = print_table(names, which, device, math.inf)
    assert len(lines) == len(names) * len(which)
    assert all(line.endswith("| ok") for line in lines), lines
