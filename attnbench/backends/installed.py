"""What backends over an installed library share: what the library takes, said as data, and how its absence is said.

A backend's file then holds what is particular to its library: names, limits, and the call.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from typing import ClassVar

from attnbench.backends.base import BackendBase, sees_no_key
from attnbench.core.backend import Probe, Signature, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

Capability = tuple[int, int]
# Options of pip install, for what is too old, and for what is of another build or not whole: torch stays as it is.
NEWER, AGAIN = "--upgrade", "--force-reinstall --no-deps --no-cache-dir"


@dataclass(frozen=True)
class Limits:
    """What a library takes; `refuses` says it of a case. Without `on_cpu` it needs a CUDA GPU."""

    dtypes: tuple[str, ...] = ("bf16", "fp16")
    capability: Capability = (8, 0)  # the oldest compute capability
    capability_below: Capability | None = None  # the first that is too new
    bf16: Capability = (5, 0)  # the oldest compute capability for it
    headdim: tuple[int, int] = (8, 256)  # of q and k, and of v
    multiple: int = 8  # that headdim and headdim_v must be of
    headdim_v: bool = False  # v may have another headdim than q and k
    pairs: tuple[tuple[int, int], ...] = ()  # (headdim, headdim_v) in full, where it takes those only
    backward: bool = True
    gqa: bool = True
    gqa_backward: bool = True
    window: bool = False
    softcap: bool = False
    dropout: bool = False
    unequal_causal: bool = True  # bottom-right aligned when seqlen_q != seqlen_k
    empty_rows: bool = True  # a query that sees no key gets output 0
    on_cpu: bool = False

    def refuses(self, case: Case, device: Device) -> str | None:
        return self._device(device) or self._narrow(case, device) or self._tensors(case) or self._mask(case)

    def _device(self, device: Device) -> str | None:
        if device.kind == "cpu":
            return None if self.on_cpu else "needs a CUDA GPU"
        if device.capability is None:
            return None
        this = f"this GPU has {_dotted(device.capability)}"
        if device.capability < self.capability:
            return f"needs compute capability {_dotted(self.capability)} or newer, {this}"
        if self.capability_below is not None and device.capability >= self.capability_below:
            return f"needs a compute capability below {_dotted(self.capability_below)}, {this}"
        return None

    def _narrow(self, case: Case, device: Device) -> str | None:
        if case.dtype == "bf16" and device.capability is not None and device.capability < self.bf16:
            return f"no bf16 below compute capability {_dotted(self.bf16)}, this GPU has {_dotted(device.capability)}"
        return None

    def _tensors(self, case: Case) -> str | None:
        s = case.shape
        if case.dtype not in self.dtypes:
            return f"no {case.dtype}, only {' and '.join(self.dtypes)}"
        if case.has_backward and not self.backward:
            return "forward only"
        if self.pairs and (s.headdim, s.headdim_v) not in self.pairs:
            known = ", ".join(str(d) if d == d_v else f"{d}-{d_v}" for d, d_v in self.pairs)
            return f"headdim {s.headdim} with headdim_v {s.headdim_v}: only {known}"
        for name, size in (("headdim", s.headdim), ("headdim_v", s.headdim_v)):
            if not self.pairs and not self.headdim[0] <= size <= self.headdim[1]:
                return f"{name} {size} is outside {self.headdim[0]} to {self.headdim[1]}"
            if not self.pairs and size % self.multiple:
                return f"{name} {size} is no multiple of {self.multiple}"
        if not self.pairs and s.headdim != s.headdim_v and not self.headdim_v:
            return f"v must have the headdim of q and k ({s.headdim}), not {s.headdim_v}"
        if s.nheads != s.nheads_k and not self.gqa:
            return "no grouped heads (nheads_k must equal nheads)"
        if s.nheads != s.nheads_k and case.has_backward and not self.gqa_backward:
            return "grouped heads are forward only"
        return None

    def _mask(self, case: Case) -> str | None:
        s = case.shape
        if case.window_size != (None, None) and not self.window:
            return "no sliding window"
        if case.softcap and not self.softcap:
            return "no softcap"
        if case.dropout_p and not self.dropout:
            return "no dropout"
        if case.causal and 1 < s.seqlen_q != s.seqlen_k and not self.unequal_causal:
            return "its causal mask is not bottom-right aligned when seqlen_q != seqlen_k"
        if sees_no_key(case) and not self.empty_rows:
            return "no defined output for query rows that see no key (seqlen_q > seqlen_k)"
        return None


class Library(BackendBase):
    """A backend over one module of one installed distribution.

    `checked` are the versions whose source its file was written against.
    """

    limits: ClassVar[Limits] = Limits()
    module = ""  # what is imported
    distributions: ClassVar[tuple[str, ...]] = ()  # what it may be installed as, the usual one first
    install = ""  # the command that installs it
    oldest = ""  # version, inclusive
    before = ""  # version, exclusive
    needs: ClassVar[tuple[str, ...]] = ()  # names that the module must have; for versions that numbers do not tell
    checked: ClassVar[tuple[str, ...]] = ()
    forward_kernels = ""  # regular expressions found in the names of its kernels
    backward_kernels = ""
    other_kernels: ClassVar[tuple[str, ...]] = ()  # in those of others that could run in its place

    def probe(self) -> Probe:
        if importlib.util.find_spec("torch") is None:  # without which some libraries can be imported, and none can run
            return super().probe()
        try:
            module = importlib.import_module(self.module)
        except Exception as error:  # a broken extension raises what it likes
            return broken_import(self.module, error, self.install, self.distributions)
        version = installed_version(self.distributions)
        if version and self.oldest and numbers(version) < numbers(self.oldest):
            reason = f"{self.distributions[0]} {version} is older than {self.oldest}"
            return Probe(reason=reason, install=_pip(self.install, NEWER))
        if version and self.before and numbers(version) >= numbers(self.before):
            return Probe(reason=f"{self.distributions[0]} {version} is not below {self.before}", install=self.install)
        if lacking := [name for name in self.needs if not hasattr(module, name)]:
            reason = f"{self.module} {version or ''} has no {' and no '.join(lacking)}: another version is needed"
            return Probe(reason=" ".join(reason.split()), install=_pip(self.install, NEWER))
        return Probe(version=f"{self.distributions[0]} {version}" if version else "unknown")

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.limits.refuses(case, device)

    def signature(self, case: Case, device: Device) -> Signature:
        forward = (self.forward_kernels,) if case.has_forward else ()
        backward = (self.backward_kernels,) if case.has_backward else ()
        return Signature(runs=forward + backward, never=self.other_kernels)

    def workspace(self, case: Case) -> Workspace:
        return flash_workspace(case)


def broken_import(module: str, error: Exception, install: str, distributions: tuple[str, ...]) -> Probe:
    """`install` is the command for where it, or what it requires, is not there: else pip would find nothing to do."""
    reason = import_problem(module, error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        absent = f"{module}.".startswith(f"{error.name}.")
        if absent or _lacks_what_it_requires(distributions):
            return Probe(reason=reason, install=install)
    if "NVIDIA's driver" in reason:
        return Probe(reason=reason, install="install the driver (nvidia-smi shows it), or leave the backend out")
    return Probe(reason=reason, install=_pip(install, AGAIN))


def _lacks_what_it_requires(distributions: tuple[str, ...]) -> bool:
    """In any case: a module's name is no distribution's, so what could not be imported does not tell."""
    there = [name for name in distributions if installed_version((name,))]
    always = [r for name in there for r in importlib.metadata.requires(name) or () if ";" not in r]
    return any(installed_version((re.split(r"[^\w.-]", r, maxsplit=1)[0],)) is None for r in always)


def _pip(install: str, options: str) -> str:
    return install.replace("pip install ", f"pip install {options} ", 1)


def import_problem(module: str, error: Exception) -> str:
    """One line on why a module cannot be imported: not there, built for another CUDA or torch, or broken."""
    text = " ".join(str(error).split()) or type(error).__name__
    said = text if len(text) <= 200 else f"{text[:200]}..."
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{module}.".startswith(f"{error.name}."):
            return f"{module} is not installed"
        return f"{module} needs {error.name}, which is not installed"
    if missing := re.search(r"(lib\S+\.so\S*): cannot open shared object", text):
        library = missing[1]
        if library.startswith("libcuda.so"):
            return f"{module} needs NVIDIA's driver: {library} is not found"
        if re.match(r"lib(c10|torch)_", library):
            return f"{module} is built for a torch with CUDA: {library} is not found; install such a torch"
        if re.match(r"lib(cu|nv|nccl)", library):
            return f"{module} is built for another CUDA: {library} is not found; install a build for torch's CUDA"
    if symbol := re.search(r"undefined symbol: (\S+)", text):
        what = "torch" if re.match(r"_Z\S*(3c10|2at|5torch)", symbol[1]) else "CUDA"
        return f"{module} is built for another {what} ({said}); install a build for this one"
    if re.search(r"version `?(GLIBC|GLIBCXX|CXXABI)_", text):
        return f"{module} is built for a newer system ({said}); build it here from source"
    if isinstance(error, ImportError) and "cannot import name" in text and re.search(r"'torch[.\w]*'", text):
        return f"{module} does not go with this torch ({said}); install a version for it"
    return f"{module} fails at import: {type(error).__name__}: {said}"


def installed_version(distributions: tuple[str, ...]) -> str | None:
    """The version of the first of these that is installed."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def numbers(version: str) -> tuple[int, ...]:
    """(2, 8, 3) of "2.8.3.post1+cu12"; a suffix does not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def flash_workspace(case: Case) -> Workspace:
    """FlashAttention's: the log-sum-exp; backward also delta, dq in float32, and dk, dv of every query head."""
    s = case.shape
    rows = s.batch * s.nheads * s.seqlen_q
    nbytes = 4 * rows
    if case.has_backward:
        nbytes += 4 * rows * (1 + s.headdim)
        if s.nheads != s.nheads_k:
            nbytes += ITEMSIZE[case.dtype] * s.batch * s.nheads * s.seqlen_k * (s.headdim + s.headdim_v)
    return Workspace(nbytes=nbytes, what="log-sum-exp and float32 dq", passes=2.0)


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))
