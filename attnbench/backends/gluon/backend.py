"""The backend `gluon`: what attention.py can compute, and the prepared call.

Checked against Triton 3.6.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.gluon.backward_tiles import choose_tiles, query_parts
from attnbench.backends.libraries import installed_version, missing, probe_of_failed_import, version_numbers
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, Paste
from attnbench.core.backend import Prepared, Probe, Workspace
from attnbench.core.case import Case

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

MIN_TRITON = (3, 6)  # the first with the warp-specialised Gluon that the kernels use
MULTIPROCESSORS = 132  # of an H100 or H200
INSTALL = "pip install 'triton>=3.6'"


class Gluon(BackendBase):
    name = "gluon"
    paste = Paste(
        ("from attnbench.backends.gluon.attention import attention",),
        {"dense": f"{BSHD}out = attention(q, k, v{{options}})"},
        causal="causal=True",
        scale="softmax_scale={scale}",
    )
    verified: ClassVar = ("NVIDIA H100, torch 2.11, Triton 3.6",)
    limits: ClassVar = Limits(capability=(9, 0), capability_below=(10, 0), headdim=(16, 256), headdim_v=True)
    efficiency = 0.6
    forward_kernels = "^_forward_hopper$"
    backward_kernels = "^_backward_hopper(_wide)?$"
    probe_imports = True

    def probe(self) -> Probe:
        try:
            import triton
            import triton.experimental.gluon
        except Exception as error:  # a broken build may raise any error
            return probe_of_failed_import("triton", error, INSTALL, ("triton",))
        return _judged(triton.__version__)

    def installed(self) -> Probe | None:
        if importlib.util.find_spec("triton") is None:
            return probe_of_failed_import("triton", missing("triton"), INSTALL, ("triton",))
        version = installed_version(("triton",))
        return _judged(version) if version else None

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        row = 4 * s.batch * s.nheads * s.seqlen_q  # one float32 per query
        if not case.has_backward:
            return Workspace(nbytes=row, what="log-sum-exp", passes=2.0)
        # A backward has a padded copy of the log-sum-exp, delta, a float32 sum of dq, which is cleared, added to and
        # read, and parts of dk and dv, where the query heads of a key head are split.
        tiles = choose_tiles(s.headdim, s.headdim_v)
        dq = 4 * s.batch * s.nheads * tiles.blocks(s.seqlen_q) * tiles.queries * tiles.width
        heads_k = s.batch * s.nheads_k
        parts = query_parts(s.nheads // s.nheads_k, heads_k * -(-s.seqlen_k // tiles.keys), MULTIPROCESSORS)
        dkv = 4 * heads_k * s.seqlen_k * parts * (s.headdim + s.headdim_v) if parts > 1 else 0
        what = "log-sum-exp, delta, and float32 sums of dq" + (" and parts of dk and dv" if dkv else "")
        return Workspace(nbytes=3 * row + dq + dkv, what=what, passes=4.0)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from attnbench.backends.gluon.attention import attention

        call = functools.partial(attention, causal=case.causal, softmax_scale=case.softmax_scale)
        return autograd_prepared(case, inputs, call, strided=True)


def _judged(version: str) -> Probe:
    """Return the probe of a version of Triton, which may be too old."""
    if version_numbers(version) < MIN_TRITON:
        return Probe(version=version, reason=f"needs Triton 3.6 or newer, this is {version}", install=INSTALL)
    return Probe(version=version)
