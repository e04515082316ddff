"""attnbench's Triton attention at random shapes and features, against float64; interpreted where there is no GPU."""

from __future__ import annotations

import itertools

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from triton_attention import (
    DEVICE,
    attention_varlen,
    check,
    interpreter,  # noqa: F401  a fixture for every test here
    kernels,
    make,
    ours,
    poisoned,
)

# No shrinking: it takes minutes in the interpreter, and sizes are small anyway.
quick = settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
side = st.none() | st.integers(0, 60)
options = st.fixed_dictionaries(
    {
        "causal": st.booleans(),
        "window_size": st.just((None, None)) | st.tuples(side, side),
        "softcap": st.just(0.0) | st.floats(0.5, 30.0),
    }
)
size, flag = st.sampled_from([16, 32]), st.booleans()
blocks = st.fixed_dictionaries({"block_m": size, "block_n": size, "tma": flag, "resident": flag, "ahead": flag})
length = st.integers(1, 70)
seed = st.integers(0, 2**32)
headdim = st.integers(16, 40)
dtype = st.sampled_from([torch.float32, torch.float16])
heads = st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1)])


@quick
@given(length, length, heads, headdim, headdim, dtype, options, blocks, st.booleans(), seed)
def test_dense(sq, sk, heads, d, d_v, dtype, options, blocks, short, seed) -> None:
    inputs = make(sq, sk, *heads, d, d_v, dtype, seed=seed)
    with kernels(**blocks, short=short), poisoned():
        result = ours(*inputs, **options)
    check(result, inputs, **options)


@quick
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=3),
    heads,
    headdim,
    dtype,
    options,
    blocks,
    st.booleans(),
    seed,
)
def test_sequences_of_different_lengths(lengths, heads, d, dtype, options, blocks, short, seed) -> None:
    lengths = [*lengths, (5, 7)]
    cu_q, cu_k = ([0, *itertools.accumulate(n)] for n in zip(*lengths, strict=True))
    inputs = tuple(t[0] for t in make(cu_q[-1], cu_k[-1], *heads, d, 16, dtype, seed=seed))
    q, k, v = (t.detach().requires_grad_() for t in inputs[:3])
    ends = (torch.tensor(cu, dtype=torch.int32, device=DEVICE) for cu in (cu_q, cu_k))
    longest = (max(n) for n in zip(*lengths, strict=True))
    with kernels(**blocks, short=short), poisoned():
        out, lse = attention_varlen(q, k, v, *ends, *longest, **options, return_lse=True)
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), inputs[3])
    out = out.detach()
    for (q0, q1), (k0, k1) in zip(itertools.pairwise(cu_q), itertools.pairwise(cu_k), strict=True):
        if k0 == k1:  # no keys
            assert torch.all(out[q0:q1] == 0)
            assert torch.all(dq[q0:q1] == 0)
            assert torch.all(lse[:, q0:q1] == -torch.inf)
        elif q0 == q1:
            assert torch.all(torch.cat([dk[k0:k1].flatten(), dv[k0:k1].flatten()]) == 0)
        else:
            one = (t[None] for t in (out[q0:q1], lse[:, q0:q1], dq[q0:q1], dk[k0:k1], dv[k0:k1]))
            own = tuple(
                t[None, a:b] for t, (a, b) in zip(inputs, [(q0, q1), (k0, k1), (k0, k1), (q0, q1)], strict=True)
            )
            check(tuple(one), tuple(own), **options)
