"""The interface of a backend: the `Backend` protocol, which every attention implementation fulfils, and its values.

Tensors are (batch, seqlen, nheads, headdim). torch is imported inside functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.core.case import KINDS, Case
from attnbench.core.machine import Device
from attnbench.core.record import Accuracy, Bitwise

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Most launches by which the check of a case with dropout reads the mask. The forecast of time uses this too.
MASK_LAUNCHES = 128


class Backend(Protocol):
    """An attention implementation: one file in backends/ and one line in its map. CONTRIBUTING.md shows an example.

    `unsupported`, `workspace` and `signature` are pure functions of their arguments and import nothing heavy, so that
    support for any GPU can be listed on a machine without that GPU. backends/base.py has defaults.
    """

    name: str

    @property
    def exact(self) -> bool:
        """Whether the backend computes exact attention; an `ApproximateBackend` does not."""

    def probe(self) -> Probe:
        """Return the library's version, or why the backend cannot be used in this interpreter.

        It may import the library.
        """

    def unsupported(self, case: Case, device: Device) -> str | None:
        """Return why the backend cannot run the case on the device, or None where it can."""

    def workspace(self, case: Case) -> Workspace:
        """Return the memory that the backend allocates beyond inputs, outputs and gradients, for the forecast."""

    def signature(self, case: Case, device: Device) -> Signature:
        """Return the names of the kernels that the case must run; other kernels make the record `wrong-kernel`."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        """Do everything that is not part of the timed call (masks, compilation, plans) and return the call.

        Copies and transposes of the inputs belong here where the case's layout is "native", and to the call otherwise.

        Raises Unsupported for a case whose limits only the library itself knows.
        """


class ApproximateBackend(Backend, Protocol):
    """A backend that computes an approximation of attention: `exact` is False. docs/approximate.md explains its check.

    Its results are compared with its own definition, and reports show its error against exact attention beside its
    time. A definition computes one query head: q, k and v are (seqlen_q, headdim), (seqlen_k, headdim) and (seqlen_k,
    headdim_v). Selection and quantisation are part of the timed launch.

    A method that chooses among candidates (blocks, buckets) returns the choice of the launch as "selected" in
    `Prepared.canonical`, whole numbers of shape (batch, nheads_k, ...), because rounding may decide between two nearly
    equal candidates. A choice may hold for one query head, or for all query heads of a key head. A definition gets the
    choice for its query head; None for a method that chooses nothing.
    """

    what: str  # the computation in place of attention, for messages: "softmax over 256 projected keys"

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        """Return `out` of one query head, (seqlen_q, headdim_v), by torch operators that autograd can differentiate.

        Its code is written to be compared with the paper. It computes in the dtype of its inputs, and needs less
        memory than all scores would.
        """

    def unrounded(self) -> ApproximateBackend | None:
        """Return the method without its rounding of computed values to 8 bits; None for a method without it.

        Where a value lies between two values of 8 bits, a right kernel may round it to either. So the largest error
        may be the whole distance, twice the distance from the unrounded value.
        """

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        """Return the scores (..., candidates) by which the method selects, -inf for a hidden candidate; else None.

        q is (seqlen_q, group, headdim), with the query heads of the key head as `group`. `selected` (..., count) holds
        the indices of the largest scores in the last dimension, padded with -1: no index twice, and none of a hidden
        candidate.
        """

    def selected_count(self, case: Case) -> int | None:
        """Return how many candidates the method selects in a case; None without selection.

        Where fewer candidates are visible, it selects all of them. A launch that selected another number is wrong.
        """

    def selected_indices(self, selected: Tensor) -> Tensor:
        """Return the indices for the "selected" of a launch, where a library names its selection in another form."""

    def selected_for(self, case: Case, selected: Tensor, head: int) -> Tensor:
        """Return the part of a (batch entry, key head)'s `selected` that belongs to query head `head` of the group."""

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        """Return the keys to which query rows `rows` (count,) attend: (count, seqlen_k) bool, True where attended.

        q, k and `selected` are as for `definition`. None where the method does not attend to keys themselves.
        """


class Unsupported(Exception):
    """The library refuses this case, for the reason given. The record is then `skipped`.

    `Backend.prepare` or the first launch raises it.
    """


def refusal(backend: Backend, case: Case, device: Device) -> str | None:
    """Return why a backend cannot run a case on a device, or None where it can.

    Beside the backend's own refusals: a backend that computes attention alone cannot run a step of a model, and a
    backend that computes on one device cannot run a sequence that is split over several. A backend computes the kinds
    of attention in its `kinds`, softmax where it names none. A simulated backend runs on
    the simulated device alone, and no other backend runs there.
    """
    simulated = getattr(backend, "simulated", False)
    if device.kind == "fake" and not simulated:
        return "the simulated device runs simulated backends only"
    if device.kind != "fake" and simulated:
        return "it is simulated; only --device fake runs it"
    if case.ranks > 1 and not getattr(backend, "several", False):
        split = "-b ulysses-NAME splits it for a function or backend NAME, -b 'ring-*,ulysses-*' for those that ship"
        return f"it computes on one device, and the sequence is split over {case.ranks}; {split}"
    kinds = KINDS if simulated else getattr(backend, "kinds", KINDS[:1])
    if case.kind not in kinds:
        return f"it computes {' and '.join(kinds)}, not {case.kind}"
    if case.step and not getattr(backend, "steps", False):
        return "it computes attention alone, and the case is a step of a whole model"
    return backend.unsupported(case, device)


@dataclass(frozen=True)
class Inputs:
    """The input tensors of one case, in its layout (core/layouts.py): contiguous in the native layout.

    q is (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k,
    headdim_v). dout, the gradient of the output, is (batch, seqlen_q, nheads, headdim_v); None without a backward.

    The sequences of a ragged batch lie one after the other, so that q is (1, total_q, nheads, headdim), k (1, total_k,
    nheads_k, headdim) and so on (`Case.extent`). Sequence i has the queries cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1,
    and its keys likewise: `cu_seqlens`.

    In a paged case (`Case.page_size`) k and v are caches, (pages, page_size, nheads_k, headdim or headdim_v), and
    `page_table` (sequences, most pages of a sequence), int32, has the pages of each sequence in their order:
    core/pages.py. With a `Case.cache_dtype` the caches are e4m3, and their numbers must be multiplied by `descale`,
    which has a factor for k and one for v.

    With several ranks the tensors are this rank's part of the sequence, in the order of `Spans` (split_sequence.py).

    With `Case.sink`, `sink` has the logit of each query head, (nheads,), in the dtype of q.

    In a latent case v is a view of the first headdim_v columns of k.

    In a case that appends (`Case.append`), `new_k` and `new_v` are the keys and values of the queries, (batch,
    seqlen_q, nheads_k, headdim or headdim_v). A launch writes them to their places in the caches, which hold other
    numbers before the first launch.

    A delta rule (`Case.kind`) has the `gate`, `beta` and, in a forward, the `state` of core/delta.py. An indexer
    has the `weights` and, with fp8, the `k_scale` of core/indexer.py; its k has no dimension of heads, and its v is k.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None = None
    page_table: Tensor | None = None
    descale: tuple[float, float] = (1.0, 1.0)
    new_k: Tensor | None = None
    new_v: Tensor | None = None
    sink: Tensor | None = None
    gate: Tensor | None = None
    beta: Tensor | None = None
    state: Tensor | None = None
    weights: Tensor | None = None
    k_scale: Tensor | None = None

    @property
    def values(self) -> Mapping[str, Tensor]:
        """The input tensors by name: "q", "k", "v", "dout", ...; without the page table and views of other inputs."""
        v = None if self.v.data_ptr() == self.k.data_ptr() else self.v
        named = {"q": self.q, "k": self.k, "v": v, "dout": self.dout}
        named |= {"new_k": self.new_k, "new_v": self.new_v, "sink": self.sink}
        named |= {"gate": self.gate, "beta": self.beta, "state": self.state}
        named |= {"weights": self.weights, "k_scale": self.k_scale}
        return {name: t for name, t in named.items() if t is not None}

    def with_values(self, values: Mapping[str, Tensor]) -> Inputs:
        """Return the inputs with other tensors of values, by name; tensors that are not named stay."""
        tensors: Any = values
        return replace(self, **tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(t.numel() * t.element_size() for t in (*self.values.values(), self.page_table) if t is not None)


def cu_seqlens(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cu_seqlens_q and cu_seqlens_k of a case: int32, (number of sequences + 1,), from 0 to the totals."""
    import torch

    numbers = [of.number for of in case.sequences]
    found = []
    for lengths in ([of.seqlen_q for of in case.sequences], [of.seqlen_k for of in case.sequences]):
        each = torch.tensor(lengths).repeat_interleave(torch.tensor(numbers))
        found.append(torch.cat([torch.zeros(1, dtype=torch.int64), each.cumsum(0)]).to(device, torch.int32))
    return found[0], found[1]


def torch_dtype(case: Case) -> torch.dtype:
    """Return the dtype of the inputs and results of a case; bf16 for fp8, whose inputs the backend rounds to e4m3."""
    import torch

    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.bfloat16}
    return names[case.dtype]


def operand_dtype(case: Case) -> torch.dtype:
    """Return the operands' dtype in a case's matrix products: float8_e4m3fn for fp8, else the dtype of the inputs."""
    import torch

    return torch.float8_e4m3fn if case.dtype == "fp8" else torch_dtype(case)


@dataclass(frozen=True)
class Probe:
    """Whether a backend can be used in this interpreter: a version, or a reason why not."""

    version: str | None = None  # library and version, such as "flash-attn 2.8.3"
    reason: str | None = None  # why it cannot be used; None where it can
    install: str | None = None  # the command that makes it usable, where there is one

    @property
    def usable(self) -> bool:
        """Whether the backend can be used."""
        return self.reason is None

    @property
    def why_not(self) -> str | None:
        """The reason and a remedy, in one line; None where the backend can be used."""
        return None if self.usable else "; ".join(filter(None, [self.reason, self.install]))


@dataclass(frozen=True)
class Workspace:
    """Memory that a backend needs beyond inputs, outputs and gradients. Used for forecasts only."""

    nbytes: int = 0
    what: str = "workspace"  # its content, for messages
    passes: float = 0.0  # how often one call reads or writes all of it, for the forecast of time
    dense: bool = False  # masked pairs are computed too, as in one matrix product for all scores


@dataclass(frozen=True)
class Signature:
    """Regular expressions for the names of the kernels that one call runs (on a CPU, its operators).

    Each pattern is searched for, so it may match a part of a name.
    """

    runs: tuple[str, ...] = ()  # each must be found in at least one name
    never: tuple[str, ...] = ()  # none may be found in any name
    float32: bool = False  # a float32 product in a half-precision case is allowed, and gets a note


@dataclass(frozen=True)
class Prepared:
    """One case, made ready on one backend: functions that do nothing but launch.

    `launch` runs the case's direction one time and returns its raw results. `canonical` names these ("out"; "dq", "dk",
    "dv") as views of shape (batch, seqlen, nheads, headdim), and "dsink" (nheads,), which may be float32 where a
    library takes no other sink. core/delta.py and core/indexer.py have the results of other kinds of attention. Where
    "out" of an fp8 case has 8 bits, "descale_out" is the float32 by which it must be multiplied; "descale_dq" is the
    factor of dq, and so on. For an `ApproximateBackend` that selects, "selected" is the choice of this launch.

    `forward` runs the forward alone, keeps what the backward needs, and returns the object that holds it.

    `reads` names the copies of tensors ("q", "k", "v", "dout", "sink"; headdim is the last dimension) that `launch`
    reads in place of the inputs' own memory. The check changes them in place, and the results must follow. For fp8 the
    copies of q, k, v and, for a backward, dout must be named. A copy whose columns of headdim lie in several tensors is
    a tuple of these.

    `plan` builds again the part of `prepare` that depends on the lengths of the batch, and that a model builds once a
    step for all its layers: offsets, masks, a library's plan. Launches after it give the same results. None where there
    is nothing to build.

    `pairs` returns the number of (query, key) pairs that one head of one batch entry computes in a forward of a case
    with a mask by name, all pairs of its blocks counted; it is called after launches. None where the number is not
    known.

    With several ranks, `moved` is the number of bytes that this rank sends in one launch, and `compute` is the launch
    without its communication, whose results mean nothing; None where a library cannot leave communication out.
    """

    launch: Callable[[], Any]
    canonical: Callable[[Any], Mapping[str, Tensor]]
    forward: Callable[[], Any] | None = None
    simulation: Simulation | None = None  # set by a simulated backend only
    reads: Mapping[str, Tensor | tuple[Tensor, ...]] = field(default_factory=dict)
    plan: Callable[[], object] | None = None
    pairs: Callable[[], int] | None = None
    moved: int = 0
    compute: Callable[[], Any] | None = None

    def whole_copy(self, name: str) -> Tensor | None:
        """Return the copy of a tensor that `launch` reads, in one tensor; None where there is no such copy."""
        copy = self.reads.get(name)
        return None if isinstance(copy, tuple) else copy


@dataclass(frozen=True)
class Simulation:
    """The simulated measurements of a simulated backend; see backends/fake.py."""

    clock: Callable[[], int]  # returns the time in nanoseconds
    accuracy: Accuracy
    memory: Mapping[str, int]  # measurement name -> bytes
    attention: float | None = None  # the share of attention in a step of a model
    compute: float | None = None  # with several ranks, the share of the time without communication
    bitwise: Bitwise | None = None  # how its results compare bit by bit, without another process
