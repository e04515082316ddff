"""Code that all backends share: defaults of the protocol, and `autograd_prepared` for differentiable functions."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from attnbench.backends.limits import Limits
from attnbench.backends.paste import Paste
from attnbench.core.backend import Prepared, Probe, Signature, Unsupported, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.layouts import find_packed, lay_out, parts_of_packed, split_packed
from attnbench.core.machine import Device
from attnbench.core.text import listed

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

Order = Literal["bshd", "bhsd", "thd"]


class BackendBase:
    """Defaults for a backend that needs only torch and allocates nothing large."""

    name = ""
    steps = False  # whether it computes steps of a whole model
    several = False  # whether it can split one sequence over several devices: several_devices.py
    exact = True  # whether it computes attention; if not, it is an Approximate (approximate/base.py)
    limits: ClassVar[Limits | None] = None  # the cases that it takes; None for all
    # Regular expressions for the names of its own kernels (on a CPU, operators), and of kernels of other backends that
    # might run instead.
    forward_kernels: ClassVar[str] = ""
    backward_kernels: ClassVar[str] = ""
    other_kernels: ClassVar[tuple[str, ...]] = ()
    kernels_of: ClassVar[type[BackendBase] | None] = None  # another backend, whose kernels and library it uses
    order: Order = "bshd"  # order of dimensions of a dense batch, as in autograd_prepared
    efficiency = 0.4  # rough fraction of a matmul's rate, for the forecast of time only
    compiles = 0.0  # seconds that a first call of a kind of case takes on a GPU, for the forecast of time only
    starts_compiler = False  # a first call may compile for minutes (nvcc); its jobs then have a longer timeout
    # For a backend that chooses an implementation for each case: name -> regular expression for its kernels. The first
    # entry that matches a kernel that ran is the choice.
    choices: ClassVar[Mapping[str, str]] = {}
    # Names in pip of libraries, beside torch, whose versions can change the results.
    distributions: ClassVar[tuple[str, ...]] = ()  # the names of one library, the usual one first
    uses: ClassVar[tuple[str, ...]] = ()  # other libraries that it may run
    paste: ClassVar[Paste | None] = None  # the code that calls it, as a person would write it
    # Engine -> the name under which the engine runs these kernels. Keys: "sdpa" (a member of SDPBackend, and the name
    # of an implementation that must be activated), "transformers" (attn_implementation), "vllm" and "vllm mla" (a
    # member of AttentionBackendEnum, and other keys of AttentionConfig: "NAME key=value"), "sglang" and "sglang mla"
    # (--attention-backend), "diffusers" (a value of AttentionBackendName). "mla" is for latent attention.
    engine_names: ClassVar[Mapping[str, str]] = {}
    probe_imports = False  # whether `probe` imports the library and finds more than `installed`
    # Name of the library that may refuse, in `prepare` or the first launch, a case that `unsupported` accepts; "" if
    # none does.
    runtime_checker: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # Not inherited, because a subclass runs other kernels.
        super().__init_subclass__()
        cls.choices = vars(cls).get("choices", {})
        if of := vars(cls).get("kernels_of"):
            cls.forward_kernels, cls.backward_kernels = of.forward_kernels, of.backward_kernels
            cls.other_kernels, cls.choices = of.other_kernels, of.choices
            cls.uses = (*of.distributions, *of.uses)
        cls.paste = vars(cls).get("paste")
        cls.engine_names = vars(cls).get("engine_names", {})

    def probe(self) -> Probe:
        try:
            return Probe(version=f"torch {importlib.metadata.version('torch')}")
        except importlib.metadata.PackageNotFoundError:
            return Probe(reason="torch is not installed", install="pip install torch")

    def installed(self) -> Probe | None:
        """Return the probe that needs no import of the library; None where only `probe` can find it out.

        With `probe_imports` a backend that is usable by this probe may still fail at import.
        """
        return self.probe() if type(self).probe is BackendBase.probe else None

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.limits.refusal(case, device) if self.limits else None

    def workspace(self, case: Case) -> Workspace:
        return Workspace()

    def signature(self, case: Case, device: Device) -> Signature:
        forward = self.forward_kernels if case.has_forward else ""
        backward = self.backward_kernels if case.has_backward else ""
        runs = tuple(filter(None, dict.fromkeys((forward, backward))))
        own = not type(self).__module__.startswith("attnbench.")  # a person chooses his backend's precision
        return Signature(runs, never=self.other_kernels, float32=own and not runs)

    def chosen(self, kernels: Iterable[str]) -> str:
        """Return the first of `choices` that ran one of these kernels; "" where none did."""
        names = list(kernels)
        ran = (choice for choice, pattern in self.choices.items() if any(re.search(pattern, name) for name in names))
        return next(ran, "")

    def engine_name(self, engine: str, case: Case) -> str:
        """Return the name of its kernels in an engine, a key of `engine_names`; "" where it runs others for a case."""
        return self.engine_names.get(engine, "")

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        raise NotImplementedError


def autograd_prepared(
    case: Case,
    inputs: Inputs,
    fn: Callable[..., Tensor],
    order: Order = "bshd",
    *,
    strided: bool = False,
    plan: Callable[[], object] | None = None,
    pairs: Callable[[], int] | None = None,
) -> Prepared:
    """Return the prepared call of a function that autograd can differentiate, or that is forward only.

    `fn` takes q, k, v (and the sink, where the case has one) and returns out. All but the sink have the dimensions of
    `order`: "bshd" is (batch, seqlen, nheads, headdim), "bhsd" is (batch, nheads, seqlen, headdim), "thd" is
    (batch * seqlen, nheads, headdim), in which the sequences of a ragged batch follow each other. They are contiguous;
    with `strided` the function takes any strides of which the last is 1.

    In the layout "native" the copies that this needs are made here and are not timed. In other layouts the launch gets
    the inputs as they are and makes the copies. Gradients come from torch.autograd.grad, which returns new tensors, so
    nothing accumulates and nothing must be cleared.

    `plan` and `pairs` are fields of core/backend.py's Prepared.

    The launch raises Unsupported where the case has a backward and the output of `fn` has no gradient, or its backward
    is not implemented. `canonical`, which is not timed, raises ValueError where `fn` did not return a dense tensor on
    the device.
    """
    call = _Call(case, inputs, fn, order, strided)
    if not case.has_backward:
        canonical = lambda out: {"out": call.view(call.dense(out))}  # noqa: E731
        return Prepared(call.forward, canonical, reads=call.reads, plan=plan, pairs=pairs)
    call.take_dout(inputs.dout)
    return backward_prepared(case, call.forward, call.gradients, call.named, reads=call.reads, plan=plan, pairs=pairs)


def backward_prepared(
    case: Case, forward: Callable[[], Any], gradients: Callable[..., tuple[Any, ...]], named: Any, **others: Any
) -> Prepared:
    """Return the prepared call of a case that has a backward, alone or with the forward.

    `gradients` takes the result of `forward`, and `keep`: whether a later call will differentiate the same graph again.
    `named` takes that result and the gradients, and returns the results by name. `others` are fields of Prepared.
    """
    if case.direction == "fwd_bwd":

        def both() -> tuple[Any, ...]:
            out = forward()
            return (out, *gradients(out, keep=False))

        return Prepared(both, lambda raw: named(*raw), forward, **others)
    out = forward()  # every timed backward runs over this one graph
    return Prepared(lambda: gradients(out, keep=True), lambda raw: named(out, *raw), forward, **others)


class _Call:
    """The call of a function on the inputs of a case, and its gradients, for `autograd_prepared`."""

    def __init__(self, case: Case, inputs: Inputs, fn: Callable[..., Tensor], order: Order, strided: bool) -> None:
        self._s, self._fn, self._order, self._strided = case.extent, fn, order, strided
        self._native, self._packed = case.layout == "native", case.layout == "packed"
        self._device = inputs.q.device
        self.reads: dict[str, Tensor] = {}  # the copies of inputs that the launch reads: Prepared.reads
        self._leaves = tuple(t.detach() for t in (inputs.q, inputs.k, inputs.v))
        if self._native:
            self._leaves = tuple(map(self._accepted, self._leaves))
            self.reads.update(zip("qkv", map(self.view, self._leaves), strict=True))
        elif self._packed:
            if (qkv := find_packed(inputs)) is None:
                qkv = cast("Tensor", find_packed(lay_out("packed", inputs)))
                self.reads.update(zip("qkv", parts_of_packed(qkv, self._s.nheads_k), strict=True))
            self._leaves = (qkv.detach(),)
        self._sink = () if inputs.sink is None else (inputs.sink.detach(),)

    def _accepted(self, t: Tensor, *, keep: bool | None = None) -> Tensor:
        """Return a tensor in the order of the function; with `keep` it keeps its strides, if the function takes any."""
        t = t.transpose(1, 2) if self._order == "bhsd" else t.flatten(0, 1) if self._order == "thd" else t
        keep = not self._native if keep is None else keep
        return t if self._strided and keep else t.contiguous()

    def view(self, t: Tensor) -> Tensor:
        """Return a tensor in the order of the function as (batch, seqlen, nheads, headdim)."""
        if self._order == "thd":
            return t.view(self._s.batch, -1, *t.shape[1:])
        return t.transpose(1, 2) if self._order == "bhsd" else t

    def dense(self, out: Tensor) -> Tensor:
        """Return `out` unchanged. Raises ValueError where it is no plain dense tensor on the device."""
        import torch

        if type(out) is not torch.Tensor:
            raise ValueError(f"out is a {type(out).__name__}, expected a plain torch.Tensor")
        layout = "torch.nested" if out.is_nested else str(out.layout)
        if layout != "torch.strided" or out.device != self._device:
            raise ValueError(f"out is of {layout} on {out.device}, expected torch.strided on {self._device}")
        return out

    def forward(self) -> Tensor:
        """Call the function."""
        given = self._leaves
        if not self._native:
            parts = split_packed(given[0], self._s.nheads_k) if self._packed else given
            given = tuple(map(self._accepted, parts))
        return self._fn(*given, *self._sink)

    def take_dout(self, dout: Tensor | None) -> None:
        """Take the gradient of out that `gradients` starts from. Raises ValueError where there is none."""
        if dout is None:
            raise ValueError("a backward needs inputs.dout")
        self._dout = dout
        if self._native:
            self._dout = self._accepted(dout, keep=not dout.is_contiguous())  # dout has other strides in a check only
            self.reads["dout"] = self.view(self._dout)
        for t in (*self._leaves, *self._sink):
            t.requires_grad_()

    def gradients(self, out: Tensor, *, keep: bool) -> tuple[Tensor, ...]:
        """Return the gradients of the function's arguments; with `keep` the graph stays for another call."""
        import torch

        if not getattr(out, "requires_grad", False):
            self.dense(out)
            raise Unsupported("not differentiable: its output has no gradient")
        dout, arguments = self._dout if self._native else self._accepted(self._dout), (*self._leaves, *self._sink)
        try:
            found = torch.autograd.grad(out, arguments, dout, retain_graph=keep, allow_unused=True)
        except RuntimeError as refusal:
            self.dense(out)
            raise no_backward(refusal) from None
        if any(of_one is None for of_one in found):
            names = (["q, k and v"] if self._packed else ["q", "k", "v"]) + ["the sink"]
            lacking = listed(name for name, of_one in zip(names, found, strict=False) if of_one is None)
            raise RuntimeError(f"no gradient of {lacking}: the backward returns None, or out does not depend on it")
        return found

    def named(self, out: Tensor, *found: Tensor) -> dict[str, Tensor]:
        """Return out and its gradients by name."""
        ours, of_sink = (found[:-1], {"dsink": found[-1]}) if self._sink else (found, {})
        if self._native:
            ours = tuple(map(self.view, ours))
        elif self._packed:
            ours = tuple(parts_of_packed(ours[0], self._s.nheads_k))
        return {
            "out": self.view(self.dense(out).detach()),
            **dict(zip(("dq", "dk", "dv"), ours, strict=True)),
            **of_sink,
        }


def no_backward(refusal: RuntimeError) -> Exception:
    """Return Unsupported for torch's error where a function has no backward, else the error itself."""
    text = str(refusal).partition("\n")[0]
    if isinstance(refusal, NotImplementedError) or "no autograd formula was registered" in text:
        return Unsupported(f"no backward: {text}")
    return refusal


def mask_workspace(case: Case) -> Workspace:
    """Return the workspace of a bool mask of all pairs, and of the additive mask that torch makes of it."""
    s = case.extent
    nbytes = s.seqlen_q * s.seqlen_k * (1 + ITEMSIZE[case.dtype])
    return Workspace(nbytes=nbytes, what="mask", passes=1.0, dense=True)


def scores_workspace(case: Case, *, copies_fwd: float, copies_bwd: float) -> Workspace:
    """Return the workspace of an implementation that writes the seqlen_q x seqlen_k score matrix to memory.

    `copies_fwd` and `copies_bwd` are the numbers of such matrices alive at the peak, without and with a backward; the
    matrices of all sequences count as one. Each is assumed to be written one time and read two times.
    """
    pairs = sum(count * seqlen_q * seqlen_k for count, seqlen_q, seqlen_k in case.sequences)
    one = case.shape.nheads * pairs * ITEMSIZE[case.dtype]
    copies = copies_bwd if case.has_backward else copies_fwd
    return Workspace(nbytes=int(one * copies), what="scores", passes=3.0, dense=True)
