"""What a backend is: the protocol that each attention implementation fulfils, and the values that it gives.

Tensors are (batch, seqlen, nheads, headdim); names are flash-attn's. torch is imported inside functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.record import Accuracy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MASK_LAUNCHES = 128  # at most, that read which probabilities dropout keeps (reference/dropout.py)


@dataclass(frozen=True)
class Inputs:
    """q, dout: (batch, seqlen_q, nheads, headdim[_v]); k, v: (batch, seqlen_k, nheads_k, headdim[_v]), contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.q, self.k, self.v, self.dout) if t is not None)


def torch_dtype(case: Case) -> torch.dtype:
    """Of the inputs and the results; those of fp8 are bf16, and backends round q, k and v themselves."""
    import torch

    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.bfloat16}
    return names[case.dtype]


def operand_dtype(case: Case) -> torch.dtype:
    """Of what is multiplied."""
    import torch

    return torch.float8_e4m3fn if case.dtype == "fp8" else torch_dtype(case)


@dataclass(frozen=True)
class Probe:
    """What a backend says of itself on this machine: a version, or why it cannot be used and what would help."""

    version: str | None = None
    reason: str | None = None
    install: str | None = None  # the command that would make it usable, where there is one

    @property
    def usable(self) -> bool:
        return self.reason is None

    @property
    def why_not(self) -> str | None:
        """The reason, and what to do; None where it can be used."""
        return None if self.usable else "; ".join(filter(None, [self.reason, self.install]))


@dataclass(frozen=True)
class Workspace:
    """Memory that a backend needs beyond inputs, outputs and gradients, and what it is for."""

    nbytes: int = 0
    what: str = "workspace"
    passes: float = 0.0  # how often one call reads or writes all of it, for the time forecast
    dense: bool = False  # masked pairs are computed too, as when the scores are a matmul


@dataclass(frozen=True)
class Script:
    """What a simulated backend says in place of a real measurement; see backends/fake.py."""

    clock: Callable[[], int]  # ns
    accuracy: Accuracy
    memory: Mapping[str, int]


@dataclass(frozen=True)
class Prepared:
    """One case made ready on one backend: closures that launch, and nothing else.

    `launch` runs one pass of the case's direction and returns its raw results; `canonical` names them
    ("out"; "dq", "dk", "dv") as views in (batch, seqlen, nheads, headdim); an e4m3 "out" of an fp8 case comes with
    "descale_out", the float32 to multiply it by. `forward` runs the forward alone, keeping for backward what it keeps,
    and returns what holds that alive. `reads` are the tensors "q", "k", "v" and "dout" that `launch` reads, where they
    are not the inputs' own memory but copies made for it, headdim last: the check changes them in place, and the
    results must follow. In fp8 the e4m3 copies of q, k and v must be named.
    """

    launch: Callable[[], Any]
    canonical: Callable[[Any], Mapping[str, Tensor]]
    forward: Callable[[], Any] | None = None
    script: Script | None = None
    reads: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """What a backend's kernels look like, as regular expressions to be found in their names (operators on a CPU)."""

    runs: tuple[str, ...] = ()  # each in at least one
    never: tuple[str, ...] = ()  # none of these in any


class Backend(Protocol):
    """An attention implementation. One file in backends/ and one line in its map; see CONTRIBUTING.md."""

    name: str

    def probe(self) -> Probe:
        """Whether it can be used in this interpreter. May import the library."""

    def unsupported(self, case: Case, device: Device) -> str | None:
        """Why it cannot run this case, or None. Pure; imports nothing heavy."""

    def workspace(self, case: Case) -> Workspace:
        """What it allocates beyond inputs, outputs and gradients, for the forecast. Pure."""

    def signature(self, case: Case, device: Device) -> Signature:
        """What its kernels look like: a cell in which others ran is wrong-kernel. Pure."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        """All that is not the launch happens here: layouts, masks, compilation, plans. May raise Unsupported."""


class Unsupported(Exception):
    """Raised by `prepare` or a first launch: the library refuses this case, with its own reason. A skip."""
