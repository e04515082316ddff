"""Flash-attn 3 for Hopper: the wheel of a package index, or a build from source with its switches and commands.

The wheel tokenspeed-fa3 has no backward. A build with one takes one commit of flash-attn's repository and its setup.py.
Both depend on the major version of CUDA, but on no version of torch (2.9 or newer) or Python.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from attnbench.core import cgroups
from attnbench.core.checkout import without_repository
from attnbench.core.errors import UserError

REPOSITORY = "https://github.com/Dao-AILab/flash-attention"
COMMIT = "0251105a2fb19d2957484b7f023cd8c115286ced"  # main of 2026-08-15; its csrc/cutlass is 7127592 (4.3.4)
WHEEL = "tokenspeed-fa3"
READY = f"{WHEEL}==3.0.0.post20260810"  # has wheels for Linux and CUDA 13, on x86-64 and Arm
LACKS = (
    f"{WHEEL} has no backward, softcap or MLA; attnbench env create fa3 --build compiles flash-attn 3, by default with "
    "the backward and without pages"
)
# Features left out, unless the environment says otherwise. Each kept dtype, head dim and feature multiplies the files,
# each of which takes 1 to 3 minutes of a core.
LEFT_OUT = (
    *("FP16", "HDIM96", "HDIM192", "HDIMDIFF64", "HDIMDIFF192", "SOFTCAP"),
    *("VARLEN", "SPLIT", "PAGEDKV", "APPENDKV"),  # ragged batches and caches of pages: many more kernels
    "SM80",  # kernels for Ampere
)
BYTES_A_JOB = 7e9  # memory of one compilation, up to 6.2 GiB


def has_wheel(cuda: str | None) -> bool:
    """Return whether READY has a wheel for this machine and torch's version of CUDA."""
    known = ("x86_64", "aarch64")
    return (cuda or "").partition(".")[0] == "13" and platform.system() == "Linux" and platform.machine() in known


def variables(toolkit: str, cuda: str, commit: str | None) -> Mapping[str, str]:
    """Return the environment variables of the build for torch's version of CUDA; variables that are already set stay.

    The version of the wheel then names CUDA and the commit: 3.0.0+cu130.g0251105.
    """
    wanted = (
        {f"FLASH_ATTENTION_DISABLE_{switch}": "TRUE" for switch in LEFT_OUT}
        | {
            "FLASH_ATTENTION_FORCE_BUILD": "TRUE",  # do not look for a ready wheel
            "FLASH_ATTN_LOCAL_VERSION": "cu" + cuda.replace(".", "") + (f".g{commit[:7]}" if commit else ""),
            "CUDA_HOME": toolkit,
            "MAX_JOBS": str(_jobs()),
            "NVCC_THREADS": "1",  # one architecture only
        }
    )
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def clone_commands(folder: Path) -> list[tuple[str, ...]]:
    """Return the commands that fetch the commit and its CUTLASS into a new folder, without their history."""
    git = ("git", "-C", str(folder))
    return [
        ("git", "init", "--quiet", str(folder)),
        (*git, "fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT),
        (*git, "checkout", "--quiet", "FETCH_HEAD"),
        (*git, "submodule", "--quiet", "update", "--init", "--depth", "1", "csrc/cutlass"),
    ]


def commit_of(clone: Path) -> str | None:
    """Return the commit that a clone has checked out; None where it has no history."""
    if not (clone / ".git").exists():  # else git would look in the folders above
        return None
    words = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    said = subprocess.run(
        words, capture_output=True, encoding="utf-8", errors="replace", env=without_repository(os.environ)
    )
    return said.stdout.strip() or None if said.returncode == 0 else None


def check_source(source: Path) -> None:
    """Raise UserError where a path is neither a clone of flash-attention with CUTLASS nor a wheel of flash-attn 3."""
    if source.suffix == ".whl":
        if not (source.is_file() and source.name.startswith(("flash_attn_3-", "tokenspeed_fa3-"))):
            raise UserError(f"--source: {source} is not a wheel of flash-attn 3 (flash_attn_3-*.whl)")
    elif not (source / "hopper" / "setup.py").is_file():
        raise UserError(f"--source: {source} is not a clone of {REPOSITORY} (it has no hopper/setup.py)")
    elif not (source / "csrc" / "cutlass" / "include" / "cutlass").is_dir():
        raise UserError(
            f"--source: {source} has no CUTLASS; run git -C {source} submodule update --init --depth 1 csrc/cutlass"
        )


def cuda_toolkit(name: str, torch: str, cuda: str | None) -> str:
    """Return the folder of the CUDA toolkit that compiles for this torch, in the form of CUDA_HOME.

    Raises UserError without a toolkit of torch's major version of CUDA, or without a C++ compiler.
    """
    if not cuda:
        raise UserError(f"env create {name}: torch {torch} is built without CUDA; install a torch for CUDA first")
    home = next(filter(_is_toolkit, _toolkits()), None)
    if home is None:
        raise UserError(
            f"env create {name}: it is compiled here, but no nvcc with its headers is found; install the toolkit of "
            f"CUDA {cuda}, for which torch {torch} is built, and set CUDA_HOME to it"
        )
    said = subprocess.run(
        [home / "bin" / "nvcc", "--version"], capture_output=True, encoding="utf-8", errors="replace"
    ).stdout
    release = re.search(r"release (\d+\.\d+)", said)
    if release and release[1].partition(".")[0] != cuda.partition(".")[0]:
        raise UserError(
            f"env create {name}: {home} is CUDA {release[1]}, but torch {torch} is built for CUDA {cuda}; set CUDA_HOME"
            " to a toolkit of that version"
        )
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise UserError(f"env create {name}: it is compiled here, but there is no C++ compiler {compiler}; install g++")
    return str(home)


def check_git(name: str) -> None:
    """Raise UserError where there is no git."""
    if shutil.which("git") is None:
        raise UserError(
            f"env create {name}: it is built with git, which is not installed; install it, or give --source a wheel "
            "that was built elsewhere"
        )


def _toolkits() -> list[Path]:
    """Return the folders in which torch.utils.cpp_extension looks for a toolkit."""
    if named := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return [Path(named)]
    nvcc = shutil.which("nvcc")
    return [*([Path(nvcc).parents[1]] if nvcc else []), Path("/usr/local/cuda")]


def _is_toolkit(home: Path) -> bool:
    return os.access(home / "bin" / "nvcc", os.X_OK) and (home / "include" / "cuda_runtime.h").is_file()


def _jobs() -> int:
    """Return the number of compilations at a time: one per core, as far as memory suffices."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = cgroups.machine_free()
    return 1 if free is None else max(1, min(cores, int(free / BYTES_A_JOB)))
