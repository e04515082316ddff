"""Masks by name on a GPU, up to more than 46k tokens: over 2^31 pairs of one head, where 32-bit indices overflow.

python -m pytest tests/gpu/test_masks_gpu.py          on a GPU: triton and FlexAttention, in 2 minutes
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from attnbench import judge  # noqa: E402
from attnbench.backends import BACKENDS, load  # noqa: E402
from attnbench.core.case import Case, Shape  # noqa: E402
from attnbench.judge import inputs  # noqa: E402
from attnbench.judge.tolerance import compare  # noqa: E402
from attnbench.worker import environment  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("default"),  # torch's compiler uses deprecated functions of torch
]
LONG = Shape(1, 49_664, 49_664, 2, 1, 64, 64)
CHUNK = Shape(1, 1000, 49_700, 2, 1, 64, 64)
PLAIN = Shape(2, 1000, 1000, 4, 2, 128, 128)


@pytest.mark.parametrize("shape", [PLAIN, CHUNK, LONG], ids=["plain", "chunk", "long"])
@pytest.mark.parametrize("mask", ["prefix:1k", "sink_tokens:4", "strided:256", "dilated:2", "random:0.1"])
@pytest.mark.parametrize("name", ["triton", "flex"])
def test_results(name: str, mask: str, shape: Shape) -> None:
    window = (500, 0) if mask.startswith("sink") else (None, None)
    case = Case(shape, "bf16", "fwd_bwd", True, window, mask=mask)
    device = torch.device("cuda")
    backend = load(name, BACKENDS[name])
    if reason := backend.unsupported(case, environment.describe("cuda:0").device):
        pytest.skip(reason)
    sample = judge.choose_rows(case, device, 1, share=0.25)
    given = judge.check_inputs(case, inputs.make(case, "cuda", 1), sample)
    prepared = backend.prepare(case, given)
    accuracy = compare(judge.compute_reference(case, given, sample), prepared.canonical(prepared.launch()))
    assert accuracy.ok, accuracy.problem()
    assert prepared.pairs is not None
    assert prepared.pairs() <= shape.seqlen_q * (shape.seqlen_k + 256) + 256 * shape.seqlen_k
