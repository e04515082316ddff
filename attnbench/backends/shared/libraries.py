"""Code for backends that call an installed library: its version, and why it cannot be imported.

A backend's own file has only the particulars of its library: names, limits, and the call.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from attnbench.backends.base import BackendBase
from attnbench.core.backend import Probe, Unsupported, Workspace, cu_seqlens
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch

# Options of pip install: for a version that is too old, and for a build that does not fit or is incomplete. Neither
# replaces torch.
UPGRADE, REINSTALL = "--upgrade", "--force-reinstall --no-deps --no-cache-dir"

FOLDER = Path(__file__).parents[1]  # the folder with the folders of own kernels
PADDING = 128  # queries; blocks of up to this size are loaded without a mask

# Code that calls flash-attn's function for variable lengths
VARLEN = (
    "flash_attn_varlen_func(\n    q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,\n"
    "    max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k{options}\n)"
)


def deterministic_option(case: Case, function: Callable[..., object]) -> dict[str, Any]:
    """Return flash-attn's option by which a backward gives the same bits each time, where the case asks for it.

    Raises Unsupported where the installed version of the function lacks the option.
    """
    if case.deterministic and "deterministic" not in inspect.signature(function).parameters:
        raise Unsupported("this version has no option deterministic")
    return {"deterministic": True} if case.deterministic else {}


class Library(BackendBase):
    """A backend that calls one module of one installed distribution."""

    module = ""  # the module to import
    install = ""  # the command that installs it
    min_version = ""  # the oldest version accepted
    below_version = ""  # the oldest version that is too new
    probe_imports = True
    required_name = ""  # a name that the module must have, for versions that numbers do not distinguish
    kernel_folders: ClassVar[tuple[str, ...]] = ()  # folders beside this one with attnbench's own kernels

    def load(self) -> Any:
        """Import and return the module, or any object with the functions that the backend calls."""
        return importlib.import_module(self.module)

    def probe(self) -> Probe:
        if importlib.util.find_spec("torch") is None:  # some libraries can be imported without torch
            return super().probe()
        build, version = installed_build(self.distributions, self.module)
        found = self._judged(build, version)
        if not found.usable:
            return found
        try:
            module = self.load()
        except Exception as error:  # a broken extension may raise any error
            return probe_of_failed_import(self.module, error, self.install, self.distributions)
        if self.required_name and not hasattr(module, self.required_name):
            named = f"{self.module} {version}" if version else self.module
            reason = f"{named} has no {self.required_name}: another version is needed"
            return Probe(reason=reason, install=_with_pip_options(self.install, UPGRADE))
        return found

    def installed(self) -> Probe | None:
        if importlib.util.find_spec("torch") is None:
            return super().probe()
        if importlib.util.find_spec(self.module.partition(".")[0]) is None:
            absent = ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)
            return probe_of_failed_import(self.module, absent, self.install, self.distributions)
        build, version = installed_build(self.distributions, self.module)
        return self._judged(build, version) if version else None

    def _judged(self, build: str, version: str | None) -> Probe:
        """Return the probe of an installed version of a distribution; not usable where it is too old or too new."""
        if version and self.min_version and version_numbers(version) < version_numbers(self.min_version):
            reason = f"{build} {version} is older than {self.min_version}"
            return Probe(reason=reason, install=_with_pip_options(self.install, UPGRADE))
        if version and self.below_version and version_numbers(version) >= version_numbers(self.below_version):
            return Probe(reason=f"{build} {version} is not below {self.below_version}", install=self.install)
        return Probe(version=", ".join(filter(None, (f"{build} {version}" if version else "unknown", self._code()))))

    def _code(self) -> str:
        """Return the first digits of a SHA-256 of the own kernels, so that a change of one is another version."""
        files = [file for folder in self.kernel_folders for file in sorted((FOLDER / folder).glob("*.py"))]
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files))
        return f"code {digest.hexdigest()[:8]}" if files else ""

    def workspace(self, case: Case) -> Workspace:
        return flash_workspace(case)


P = TypeVar("P", Probe, Probe | None)


def probe_of_both(own: P, kernels: P) -> P:
    """Return one probe for two that are both needed: the first unusable one, else one with both versions."""
    for found in (own, kernels):
        if found is None or not found.usable:
            return found
    return Probe(version=", ".join(str(found.version) for found in (own, kernels) if found))


class OwnKernels(Library):
    """Base of a backend with attnbench's own kernels, which Triton compiles. Its version has Triton's number alone."""

    module = "triton"
    distributions = ("triton", "pytorch-triton", "pytorch-triton-rocm")

    def _judged(self, build: str, version: str | None) -> Probe:
        found = super()._judged(build, version)
        return replace(found, version=str(found.version).removeprefix(f"{build} ")) if found.usable else found


def padded_queries(seqlen_q: int) -> int:
    """Return the padded length of a backward's log-sum-exp and delta: the next multiple of PADDING."""
    return -(-seqlen_q // PADDING) * PADDING


def is_interpreted() -> bool:
    """Return whether TRITON_INTERPRET=1 is set, by which Triton runs kernels on a CPU in Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def refusal_of_interpreter(device: Device) -> str | None:
    """Return why TRITON_INTERPRET=1 excludes a GPU, where both are there; else None."""
    if device.kind == "cpu" or not is_interpreted():
        return None
    return "TRITON_INTERPRET=1 is set, so its kernels would not run on the GPU"


def refusal_when_interpreted(case: Case) -> str | None:
    """Return why the interpreter of Triton, if it is on, computes a case wrongly; else None."""
    if is_interpreted() and case.dtype == "fp8":
        return "Triton's interpreter rounds to e4m3 wrongly"
    wrong = is_interpreted() and case.dtype == "bf16"
    return "Triton's interpreter computes bf16 dot products wrongly: check fp32 and fp16 there" if wrong else None


def probe_of_failed_import(module: str, error: Exception, install: str, distributions: tuple[str, ...]) -> Probe:
    """Return the probe of a library whose import failed.

    Its command is `install` where the library or a package that it requires is not installed. Otherwise the command
    forces a reinstallation, because pip would find nothing to do.
    """
    reason = reason_of_failed_import(module, error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        absent = f"{module}.".startswith(f"{error.name}.")
        if absent or _requirement_missing(distributions):
            return Probe(reason=reason, install=install)
        if error.name == "triton":  # torch for CUDA brings Triton, so libraries do not list it as a requirement
            return Probe(reason=reason, install="pip install triton")
    if "NVIDIA's driver" in reason:
        return Probe(reason=reason, install="install the driver (nvidia-smi shows it), or leave the backend out")
    return Probe(reason=reason, install=_with_pip_options(install, REINSTALL))


def _requirement_missing(distributions: tuple[str, ...]) -> bool:
    """Return whether a package that the installed distribution always requires is missing.

    The name of the module that failed to import does not answer it, because its distribution may have another name.
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
    """Return the version of the first of these distributions that is installed, or None.

    Metadata does not count where it has no version, which an incomplete removal leaves, or is not UTF-8.
    """
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, KeyError, UnicodeDecodeError):
            if version := importlib.metadata.version(name):
                return version
    return None


def installed_build(distributions: tuple[str, ...], module: str) -> tuple[str, str | None]:
    """Return name and version of the distribution that a module is from; of the first name and None without one.

    Of several that are installed it is the one whose list of files has the file of the module, with its hash.
    """
    present = [(name, version) for name in distributions if (version := installed_version((name,)))]
    if len(present) > 1:
        spec = importlib.util.find_spec(module.partition(".")[0])
        origin = Path(spec.origin if spec and spec.origin else "")
        present.sort(key=lambda build: not _has_file(build[0], origin))
    return present[0] if present else (distributions[0], None)


def _has_file(distribution: str, path: Path) -> bool:
    """Return whether a distribution installed this file, as its list of files says, and nothing changed it since."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(distribution) or ():
            if file.hash and file.name == path.name and Path(str(file.locate())) == path:
                return _encoded(file.hash.mode, path) == file.hash.value
    return False


def _encoded(mode: str, path: Path) -> str:
    digest = hashlib.new(mode, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def version_numbers(version: str) -> tuple[int, ...]:
    """Return (2, 8, 3) for "2.8.3.post1+cu12"; suffixes do not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def varlen_options(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the arguments for the lengths of a case in flash-attn's functions for variable lengths."""
    cu_seqlens_q, cu_seqlens_k = cu_seqlens(case, device)
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": case.shape.seqlen_q,
        "max_seqlen_k": case.shape.seqlen_k,
    }


def flash_workspace(case: Case) -> Workspace:
    """Return FlashAttention's workspace.

    It holds the log-sum-exp; for a backward also delta, dq in float32 and, with grouped heads, dk and dv of every query
    head.
    """
    s = case.extent
    rows = s.batch * s.nheads * s.seqlen_q
    nbytes = 4 * rows
    if case.has_backward:
        nbytes += 4 * rows * (1 + s.headdim)
        if s.nheads != s.nheads_k:
            nbytes += ITEMSIZE[case.dtype] * s.batch * s.nheads * s.seqlen_k * (s.headdim + s.headdim_v)
    return Workspace(nbytes=nbytes, what="log-sum-exp and float32 dq", passes=2.0)
