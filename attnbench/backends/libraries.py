"""Shared by backends that call an installed library: its limits as data, its version, and why it cannot be imported.

A backend's file then holds only what is particular to its library: names, limits, and the call.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from typing import ClassVar

from attnbench.backends.base import BackendBase, has_empty_rows
from attnbench.core.backend import Probe, Signature, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

Capability = tuple[int, int]
# Options of pip install: for a version that is too old, and for a build that does not fit or is incomplete. Neither
# replaces torch.
UPGRADE, REINSTALL = "--upgrade", "--force-reinstall --no-deps --no-cache-dir"


@dataclass(frozen=True)
class Limits:
    """The cases that a library takes. Without `on_cpu` it needs a CUDA GPU."""

    dtypes: tuple[str, ...] = ("bf16", "fp16")
    capability: Capability = (8, 0)  # the oldest compute capability
    capability_below: Capability | None = None  # the oldest compute capability that is too new
    bf16_capability: Capability = (5, 0)  # the oldest compute capability for bf16
    headdim: tuple[int, int] = (8, 256)  # least and most, for headdim and headdim_v
    headdim_multiple: int = 8  # headdim and headdim_v must be multiples of this
    headdim_v: bool = False  # headdim_v may differ from headdim
    headdim_pairs: tuple[tuple[int, int], ...] = ()  # the only (headdim, headdim_v), if any are named
    backward: bool = True
    gqa: bool = True  # grouped heads: nheads_k < nheads
    gqa_backward: bool = True
    window: bool = False
    softcap: bool = False
    dropout: bool = False
    unequal_causal: bool = True  # its causal mask is aligned bottom-right when seqlen_q != seqlen_k
    empty_rows: bool = True  # a query that sees no key gets output 0
    on_cpu: bool = False

    def refusal(self, case: Case, device: Device) -> str | None:
        """Return why the library cannot run the case on the device, or None where it can."""
        return (
            self._device_refusal(device)
            or self._bf16_refusal(case, device)
            or self._tensor_refusal(case)
            or self._mask_refusal(case)
        )

    def _device_refusal(self, device: Device) -> str | None:
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

    def _bf16_refusal(self, case: Case, device: Device) -> str | None:
        if case.dtype == "bf16" and device.capability is not None and device.capability < self.bf16_capability:
            oldest, this = _dotted(self.bf16_capability), _dotted(device.capability)
            return f"no bf16 below compute capability {oldest}, this GPU has {this}"
        return None

    def _tensor_refusal(self, case: Case) -> str | None:
        s = case.shape
        if case.dtype not in self.dtypes:
            return f"no {case.dtype}, only {' and '.join(self.dtypes)}"
        if case.has_backward and not self.backward:
            return "forward only"
        if self.headdim_pairs and (s.headdim, s.headdim_v) not in self.headdim_pairs:
            known = ", ".join(str(d) if d == d_v else f"{d}-{d_v}" for d, d_v in self.headdim_pairs)
            return f"headdim {s.headdim} with headdim_v {s.headdim_v}: only {known}"
        for name, size in (("headdim", s.headdim), ("headdim_v", s.headdim_v)):
            if not self.headdim_pairs and not self.headdim[0] <= size <= self.headdim[1]:
                return f"{name} {size} is outside {self.headdim[0]} to {self.headdim[1]}"
            if not self.headdim_pairs and size % self.headdim_multiple:
                return f"{name} {size} is no multiple of {self.headdim_multiple}"
        if not self.headdim_pairs and s.headdim != s.headdim_v and not self.headdim_v:
            return f"v must have the headdim of q and k ({s.headdim}), not {s.headdim_v}"
        if s.nheads != s.nheads_k and not self.gqa:
            return "no grouped heads (nheads_k must equal nheads)"
        if s.nheads != s.nheads_k and case.has_backward and not self.gqa_backward:
            return "grouped heads are forward only"
        return None

    def _mask_refusal(self, case: Case) -> str | None:
        s = case.shape
        if case.window_size != (None, None) and not self.window:
            return "no sliding window"
        if case.softcap and not self.softcap:
            return "no softcap"
        if case.dropout_p and not self.dropout:
            return "no dropout"
        if case.causal and 1 < s.seqlen_q != s.seqlen_k and not self.unequal_causal:
            return "its causal mask is not bottom-right aligned when seqlen_q != seqlen_k"
        if has_empty_rows(case) and not self.empty_rows:
            return "no defined output for query rows that see no key (seqlen_q > seqlen_k)"
        return None


class Library(BackendBase):
    """A backend that calls one module of one installed distribution."""

    limits: ClassVar[Limits] = Limits()
    module = ""  # the module to import
    distributions: ClassVar[tuple[str, ...]] = ()  # names under which pip may know it, the usual one first
    install = ""  # the command that installs it
    min_version = ""  # the oldest version accepted
    below_version = ""  # the oldest version that is too new
    required_names: ClassVar[
        tuple[str, ...]
    ] = ()  # names that the module must have; for versions that numbers do not tell
    checked_versions: ClassVar[tuple[str, ...]] = ()  # the versions whose source the backend was written against
    forward_kernels = ""  # regular expression for the names of its forward kernels
    backward_kernels = ""  # and of its backward kernels
    other_kernels: ClassVar[tuple[str, ...]] = ()  # and of kernels of others that might run instead

    def probe(self) -> Probe:
        if importlib.util.find_spec("torch") is None:  # some libraries can be imported without torch
            return super().probe()
        try:
            module = importlib.import_module(self.module)
        except Exception as error:  # a broken extension may raise any error
            return probe_of_failed_import(self.module, error, self.install, self.distributions)
        version = installed_version(self.distributions)
        if version and self.min_version and version_numbers(version) < version_numbers(self.min_version):
            reason = f"{self.distributions[0]} {version} is older than {self.min_version}"
            return Probe(reason=reason, install=_with_pip_options(self.install, UPGRADE))
        if version and self.below_version and version_numbers(version) >= version_numbers(self.below_version):
            return Probe(
                reason=f"{self.distributions[0]} {version} is not below {self.below_version}", install=self.install
            )
        if lacking := [name for name in self.required_names if not hasattr(module, name)]:
            reason = f"{self.module} {version or ''} has no {' and no '.join(lacking)}: another version is needed"
            return Probe(reason=" ".join(reason.split()), install=_with_pip_options(self.install, UPGRADE))
        return Probe(version=f"{self.distributions[0]} {version}" if version else "unknown")

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.limits.refusal(case, device)

    def signature(self, case: Case, device: Device) -> Signature:
        forward = (self.forward_kernels,) if case.has_forward else ()
        backward = (self.backward_kernels,) if case.has_backward else ()
        return Signature(runs=forward + backward, never=self.other_kernels)

    def workspace(self, case: Case) -> Workspace:
        return flash_workspace(case)


def probe_of_failed_import(module: str, error: Exception, install: str, distributions: tuple[str, ...]) -> Probe:
    """Return the probe of a library whose import failed.

    Its command is `install` where the library, or a package that it requires, is not installed. Otherwise it forces a
    reinstallation, because pip would find nothing to do.
    """
    reason = reason_of_failed_import(module, error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        absent = f"{module}.".startswith(f"{error.name}.")
        if absent or _requirement_missing(distributions):
            return Probe(reason=reason, install=install)
    if "NVIDIA's driver" in reason:
        return Probe(reason=reason, install="install the driver (nvidia-smi shows it), or leave the backend out")
    return Probe(reason=reason, install=_with_pip_options(install, REINSTALL))


def _requirement_missing(distributions: tuple[str, ...]) -> bool:
    """Return whether a package that the installed distribution always requires is missing.

    The name of a module that failed to import cannot tell, as it may differ from the name of its distribution.
    """
    present = [name for name in distributions if installed_version((name,))]
    always = [r for name in present for r in importlib.metadata.requires(name) or () if ";" not in r]
    return any(installed_version((re.split(r"[^\w.-]", r, maxsplit=1)[0],)) is None for r in always)


def _with_pip_options(install: str, options: str) -> str:
    return install.replace("pip install ", f"pip install {options} ", 1)


def reason_of_failed_import(module: str, error: Exception) -> str:
    """Return in one line why a module cannot be imported: not installed, built for another CUDA or torch, or broken."""
    text = " ".join(str(error).split()) or type(error).__name__
    message = text if len(text) <= 200 else f"{text[:200]}..."
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
        return f"{module} is built for another {what} ({message}); install a build for this one"
    if re.search(r"version `?(GLIBC|GLIBCXX|CXXABI)_", text):
        return f"{module} is built for a newer system ({message}); build it here from source"
    if isinstance(error, ImportError) and "cannot import name" in text and re.search(r"'torch[.\w]*'", text):
        return f"{module} does not go with this torch ({message}); install a version for it"
    return f"{module} fails at import: {type(error).__name__}: {message}"


def installed_version(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first of these distributions that is installed, or None."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def version_numbers(version: str) -> tuple[int, ...]:
    """Return (2, 8, 3) for "2.8.3.post1+cu12"; suffixes do not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def flash_workspace(case: Case) -> Workspace:
    """Return FlashAttention's workspace.

    It holds the log-sum-exp; for a backward also delta, dq in float32 and, with grouped heads, dk and dv of every query
    head.
    """
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
