"""Backends that call an installed library: versions, import errors, limits, and checked versions."""

from __future__ import annotations

import importlib.metadata
import itertools
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.backends import BACKENDS, SEVERAL
from attnbench.backends.limits import Limits
from attnbench.backends.shared import libraries
from attnbench.backends.shared.libraries import (
    Library,
    flash_workspace,
    installed_version,
    probe_of_failed_import,
    reason_of_failed_import,
    version_numbers,
)
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from standins import flash_attn, install
from standins.contract import AMPERE, HOPPER, backend

LIBRARIES = [name for name in BACKENDS if name not in SEVERAL and isinstance(backend(name), Library)]
PLAIN = Case(Shape(2, 32, 64, 4, 2, 64, 64), "bf16", "fwd")
ONE_MORE = Shape(1, 33, 32, 1, 1, 64, 64)  # one more query than keys
REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir a-kernels"


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_says_what_it_was_checked_against(name: str) -> None:
    made = backend(name)
    assert "Checked against" in " ".join(str(sys.modules[type(made).__module__].__doc__).split())


@pytest.mark.parametrize("metadata", [None, b"Name: a-kernels\n", b"Name: a-kernels\nVersion: 1\nAuthor: \xff\n"])
def test_a_package_whose_metadata_tell_no_version_is_none(
    metadata: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a_kernels-1.dist-info"
    folder.mkdir()
    if metadata is not None:
        (folder / "METADATA").write_bytes(metadata)
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_version(("a-kernels",)) is None
    assert installed_version(("a-kernels", "pytest"))


def test_versions_compare_by_number() -> None:
    assert version_numbers("2.8.3.post1+cu12torch2.8") == (2, 8, 3)
    assert version_numbers("0.0.9") < version_numbers("0.0.10") < version_numbers("0.1")
    assert version_numbers("unknown") == ()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'a'", name="a"), "a.b is not installed"),
        (ModuleNotFoundError("No module named 'a.b'", name="a.b"), "a.b is not installed"),
        (
            ModuleNotFoundError("No module named 'ab'", name="ab"),
            "a.b needs ab, which is not installed",
        ),
        (
            ImportError("libcudnn.so.8: cannot open shared object file: No such file"),
            "a.b is built for another CUDA: libcudnn.so.8 is not found; install a build for torch's CUDA",
        ),
        (
            ImportError("/x.so: undefined symbol: _ZN3c10"),
            "a.b is built for another torch (/x.so: undefined symbol: _ZN3c10); install a build for this one",
        ),
        (
            OSError("/x.so: undefined symbol: cublasLtGetStatusString, version libcublasLt.so.11"),
            "a.b is built for another CUDA (/x.so: undefined symbol: cublasLtGetStatusString, version "
            "libcublasLt.so.11); install a build for this one",
        ),
        (
            ImportError("libnvJitLink.so.12: cannot open shared object file"),
            "a.b is built for another CUDA: libnvJitLink.so.12 is not found; install a build for torch's CUDA",
        ),
        (
            ImportError("libcuda.so.1: cannot open shared object file"),
            "a.b needs NVIDIA's driver: libcuda.so.1 is not found",
        ),
        (
            ImportError("libc10_cuda.so: cannot open shared object file"),
            "a.b is built for a torch with CUDA: libc10_cuda.so is not found; install such a torch",
        ),
        (
            ImportError("/lib/libm.so.6: version `GLIBC_2.38' not found (required by /x.so)"),
            "a.b is built for a newer system (/lib/libm.so.6: version `GLIBC_2.38' not found (required by /x.so)); "
            "build it here from source",
        ),
        (
            ImportError("cannot import name 'custom_op' from 'torch.hub' (unknown location)"),
            "a.b does not go with this torch (cannot import name 'custom_op' from 'torch.hub' (unknown location))"
            "; install a version for it",
        ),
        (
            ImportError("libfoo.so: cannot open shared object file"),
            "a.b fails at import: ImportError: libfoo.so: cannot open shared object file",
        ),
        (AttributeError("x" * 300), f"a.b fails at import: AttributeError: {'x' * 200}..."),
        (RuntimeError(""), "a.b fails at import: RuntimeError: RuntimeError"),
    ],
)
def test_reasons_of_failed_imports(error: Exception, said: str) -> None:
    assert reason_of_failed_import("a.b", error) == said


BROKEN = {
    "missing": (lambda m: ModuleNotFoundError(f"No module named {m!r}", name=m), "is not installed"),
    "a dependency missing": (lambda _: ModuleNotFoundError("No module named 'einops'", name="einops"), "needs einops"),
    "another CUDA": (
        lambda _: ImportError("libcudart.so.12: cannot open shared object file"),
        "built for another CUDA",
    ),
    "another torch": (lambda _: OSError("/a.so: undefined symbol: _ZN3c105ErrorC2E\nx"), "built for another torch"),
    "broken": (lambda _: RuntimeError("first\nsecond"), "fails at import: RuntimeError: first second"),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_error_at_import_becomes_one_line_and_a_command(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = backend(name)
    top = made.module.partition(".")[0]  # type: ignore[attr-defined]
    raised, said = BROKEN[how]

    class Finder:
        def find_spec(self, asked: str, path: object = None, target: object = None) -> None:
            if asked == top:
                raise raised(top)

    for loaded in [m for m in sys.modules if m == top or m.startswith(f"{top}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    probe = made.probe()
    assert said in str(probe.reason)
    assert "\n" not in str(probe.reason)
    assert probe.version is None
    assert probe.install
    assert "\n" not in probe.install


def test_a_change_of_own_kernels_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gluon's kernels call functions of Triton's: a change of either is another version of `gluon`."""
    for folder in ("triton", "gluon"):
        shutil.copytree(libraries.FOLDER / folder, tmp_path / folder)
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)

    def versions() -> dict[str, str]:
        return {name: str(found.version) for name in ("triton", "gluon") if (found := backend(name).installed())}

    before = versions()
    (tmp_path / "gluon" / "forward.py").write_text("")
    of_gluon = versions()
    assert [name for name in before if of_gluon[name] != before[name]] == ["gluon"]
    (tmp_path / "triton" / "problem.py").write_text("")
    assert all(found not in (before[name], of_gluon[name]) for name, found in versions().items())
    assert version_numbers(before["triton"]) == version_numbers(installed_version(("triton",)) or "")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_version_that_is_too_old_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is too old is refused, by its number or by a name that its module lacks."""
    plain = backend(name)
    assert isinstance(plain, Library)
    if not plain.min_version and not plain.required_name:
        return  # it takes any version
    modules: dict[str, ModuleType | None] = {}
    for part in itertools.accumulate(plain.module.split("."), "{}.{}".format):
        modules[part] = ModuleType(part)
    install(monkeypatch, modules, {plain.distributions[0]: "0.0.1"})
    probe = plain.probe()
    assert not probe.usable
    assert probe.install
    new_environment = "attnbench env create" in probe.install
    assert new_environment or "pip install --upgrade " in probe.install, "without --upgrade pip would keep it"
    if plain.min_version:
        assert probe.reason == f"{plain.distributions[0]} 0.0.1 is older than {plain.min_version}"
    else:
        assert probe.reason == f"{plain.module} 0.0.1 has no {plain.required_name}: another version is needed"


def test_a_version_that_is_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn.version_1(), {"flash-attn": "2.8.3"})
    assert backend("fa1").probe().reason == "flash-attn 2.8.3 is not below 2"


@pytest.mark.parametrize(
    ("error", "todo"),
    [
        (ModuleNotFoundError("No module named 'a'", name="a"), "pip install a-kernels"),
        (ModuleNotFoundError("No module named 'a_2_cuda'", name="a_2_cuda"), REINSTALL),
        (ModuleNotFoundError("No module named 'triton'", name="triton"), "pip install triton"),
        (ImportError("/x.so: undefined symbol: _ZN3c10"), REINSTALL),
        (
            ImportError("libcuda.so.1: cannot open shared object file"),
            "install the driver (nvidia-smi shows it), or leave the backend out",
        ),
    ],
)
def test_the_command_makes_pip_do_something(error: Exception, todo: str) -> None:
    assert probe_of_failed_import("a.b", error, "pip install a-kernels", ("a-kernels",)).install == todo


def test_a_missing_requirement_is_installed_with_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command for a missing requirement is a plain install, because --force-reinstall would replace torch."""
    error = ModuleNotFoundError("No module named 'cutlass'", name="cutlass")
    requirements = ["torch", "pytest>=8", 'rich; extra == "more"', 'none-such; python_version < "3"']
    present = {"a-kernels": "1", "torch": "2", "pytest": "8"}
    install(monkeypatch, {}, present)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requirements)
    assert probe_of_failed_import("a.b", error, "pip install a-kernels", ("a-kernels",)).install == REINSTALL
    requirements.append("none-such-dsl[cu13]==4.8.1")
    assert (
        probe_of_failed_import("a.b", error, "pip install a-kernels", ("a-kernels",)).install == "pip install a-kernels"
    )


@pytest.mark.parametrize(
    "name", ["eager", "flex", "compile", "fa2", "sdpa-fa4", "xformers", "flashinfer", "hf-eager", "hf-flex_attention"]
)
def test_without_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(distribution: str) -> str:
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    probe = backend(name).probe()
    assert (probe.reason, probe.install) == ("torch is not installed", "pip install torch")


@pytest.mark.parametrize(
    ("limits", "case", "device", "reason"),
    [
        (Limits(), PLAIN, HOPPER, None),
        (Limits(capability=(9, 0)), PLAIN, replace(AMPERE, capability=None), None),
        (Limits(bf16_capability=(9, 0)), PLAIN, AMPERE, "no bf16 below compute capability 9.0, this GPU has 8.0"),
        (Limits(bf16_capability=(9, 0)), replace(PLAIN, dtype="fp16"), AMPERE, None),
        (Limits(headdim_multiple=48), PLAIN, HOPPER, "headdim 64 is no multiple of 48"),
        (Limits(headdim_v=True), replace(PLAIN, shape=Shape(1, 8, 8, 1, 1, 64, 300)), HOPPER, "headdim_v 300 is"),
        (Limits(empty_rows=False), replace(PLAIN, causal=True), HOPPER, None),
        (Limits(empty_rows=False), replace(PLAIN, causal=True, shape=ONE_MORE), HOPPER, "no defined output for query"),
    ],
)
def test_limits(limits: Limits, case: Case, device: Device, reason: str | None) -> None:
    """Limits refuse cases that the matrix of docs/backends.md (tests/run/test_support_matrix.py) does not have."""
    said = limits.refusal(case, device)
    assert (said is None) if reason is None else (said is not None and said.startswith(reason))


def test_flash_workspace_of_a_backward() -> None:
    rows = 2 * 4 * 32
    assert flash_workspace(PLAIN).nbytes == 4 * rows
    grouped = 2 * 2 * 4 * 64 * (64 + 64)
    assert flash_workspace(replace(PLAIN, direction="bwd")).nbytes == 4 * rows * (2 + 64) + grouped
