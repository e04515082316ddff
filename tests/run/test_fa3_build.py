"""`attnbench env create fa3`: its checks, its commands, and a whole run with stand-ins for nvcc and the source."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import typer

from attnbench.commands import env
from attnbench.core.errors import UserError
from attnbench.run import fa3_build, venvs

BACKEND = '''
"""A build backend that prints what ninja prints, and writes a wheel."""
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    for n in (1, 2):
        print(f"[{n}/2] {os.environ['CUDA_HOME']}/bin/nvcc -c kernel{n}.cu", flush=True)
    version = "3.0.0+" + os.environ["FLASH_ATTN_LOCAL_VERSION"]
    name, info = f"flash_attn_3-{version}-py3-none-any.whl", f"flash_attn_3-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as file:
        file.writestr("flash_attn_interface.py", "def flash_attn_func(*args, **options): ...\\n")
        file.writestr("flash_attn_config.py", "CONFIG = {'build_flags': %r}\\n" % {
            f"FLASHATTENTION_DISABLE_{s}": os.environ[f"FLASH_ATTENTION_DISABLE_{s}"] == "TRUE"
            for s in ("FP16", "HDIM96")})
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: flash_attn_3\\nVersion: {version}\\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(f"{info}/RECORD", "")
    return name
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a toolkit of CUDA 13.0 and a torch for it; nothing is installed from an index."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in [n for n in os.environ if n.startswith(("FLASH_ATTENTION_", "FLASH_ATTN_", "CUDA_", "MAX_JOBS"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "cuda", "13.0")))
    monkeypatch.setattr(venvs, "BUILD_TOOLS", ())
    torch, _ = venvs._present_torch()
    monkeypatch.setattr(venvs, "_present_torch", lambda: (torch, "13.0"))
    return tmp_path


def toolkit(home: Path, release: str) -> Path:
    for file in ("bin/nvcc", "include/cuda_runtime.h"):
        (home / file).parent.mkdir(parents=True)
        (home / file).write_text(f"#!/bin/sh\necho Cuda compilation tools, release {release}, V{release}.88\n")
    (home / "bin" / "nvcc").chmod(0o755)
    return home


def clone(folder: Path) -> Path:
    (folder / "csrc/cutlass/include/cutlass").mkdir(parents=True)
    (folder / "hopper").mkdir()
    (folder / "hopper" / "setup.py").write_text("")
    (folder / "hopper" / "builder.py").write_text(BACKEND)
    project = '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'
    (folder / "hopper" / "pyproject.toml").write_text(project)
    return folder


def test_it_is_built_installed_and_probed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build is installed and probed. A person's variables have priority; the kept wheel needs no nvcc again."""
    monkeypatch.setenv("FLASH_ATTENTION_DISABLE_HDIM96", "FALSE")
    with pytest.raises(typer.Exit) as done:
        env.create("sdpa-fa3", ["--no-index"], here / "env", clone(here / "clone"))
    said = capsys.readouterr()
    assert done.value.exit_code == 0, said
    assert "fa3: flash-attn-3 3.0.0+cu130\n" in said.out
    assert "  sdpa-fa3: " in said.out
    assert "compiled 1 of 2 files" in said.err
    (wheel,) = (here / "env" / "wheels").iterdir()
    assert wheel.name == "flash_attn_3-3.0.0+cu130-py3-none-any.whl"
    assert f"the wheel is {wheel}: " in said.out
    assert zipfile.ZipFile(wheel).read("flash_attn_config.py") == (
        b"CONFIG = {'build_flags': {'FLASHATTENTION_DISABLE_FP16': True, 'FLASHATTENTION_DISABLE_HDIM96': False}}\n"
    )
    made = venvs.known_venvs()["fa3"]
    assert made.requirements == (str(wheel),)
    assert venvs.venv_interpreters(["fa3", "sdpa-fa3", "fa4"]) == {"fa3": made.python, "sdpa-fa3": made.python}
    kept = shutil.copy(wheel, here)
    env.remove("fa3")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    other, (install,) = venvs.planned("fa3", here / "other", [], Path(kept))
    assert other.requirements == (str(kept),) == tuple(word for word in install.command if word.endswith(".whl"))


def test_the_commands_are_shown_and_not_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env.create("fa3", ["--retries", "0"], here / "env", build=True, dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert not (here / "env").exists()
    git = f"git -C {here}/env/src/flash-attention"
    fetch = [line for line in lines if line.startswith("git ")]
    assert f"{git} fetch --quiet --depth 1 {fa3_build.REPOSITORY} {fa3_build.COMMIT}" in fetch
    assert f"{git} submodule --quiet update --init --depth 1 csrc/cutlass" in fetch
    build, install = lines[-2:]
    assert "FLASH_ATTENTION_DISABLE_FP16=TRUE" in build
    assert "FLASH_ATTN_LOCAL_VERSION=cu130.g0251105" in build
    assert f"CUDA_HOME={here}/cuda" in build
    assert re.search(r"MAX_JOBS=[1-9]", build)
    assert build.endswith(f"--wheel-dir {here}/env/wheels {here}/env/src/flash-attention/hopper")
    assert f" --retries 0 {here}/env/wheels/flash_attn_3-*.whl torch==" in install
    env.create("cudnn", None, here / "env", dry_run=True)
    assert " nvidia-cudnn-frontend>=1.14" in capsys.readouterr().out.replace("'", "")


@pytest.mark.parametrize(("cuda", "machine"), [("13.0", "x86_64"), ("13.2", "aarch64"), ("12.8", "x86_64")])
def test_a_wheel_is_taken_where_there_is_one(
    here: Path, cuda: str, machine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch for CUDA 13 gets the wheel without nvcc, with a line about what it lacks; others get a build."""
    shutil.rmtree(here / "cuda")
    toolkit(here / "cuda", cuda)
    if has_wheel := cuda.startswith("13"):
        monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(venvs, "_present_torch", lambda: ("2.11.0", cuda))
    env.create("fa3", None, here / "env", dry_run=True)
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "pip" in line and not line.startswith("#")]
    if has_wheel:
        assert lines[-1].endswith("-progress-bar off tokenspeed-fa3==3.0.0.post20260810 torch==2.11.0")
    assert ("tokenspeed-fa3 has no backward, softcap or MLA; " in said) == has_wheel
    assert ("nvcc" not in said and "hopper" not in said) == has_wheel


def test_what_pip_compiles_gets_the_toolkit_and_the_headers_of_torchs_libraries(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    include = here / "site" / "nvidia" / "cudnn" / "include"
    include.mkdir(parents=True)
    monkeypatch.setattr(venvs, "_present_folders", lambda: [str(here / "site")])
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", "/mine")
    _, steps = venvs.planned("transformer-engine", here / "env", [])
    assert steps[-1].variables == {"CUDA_HOME": f"{here}/cuda", "CPLUS_INCLUDE_PATH": f"/mine:{include}"}
    assert "--no-build-isolation" in steps[-1].command
    _, steps = venvs.planned("fa4", here / "env", [])
    assert not steps[-1].variables


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("nvcc", "no nvcc with its headers is found; install the toolkit of CUDA 13.0"),
        ("header", "no nvcc with its headers is found"),
        ("release", "cuda is CUDA 12.4, but torch .* is built for CUDA 13.0; set CUDA_HOME"),
        ("git", "it is built with git, which is not installed; install it, or give --source a wheel"),
        ("c++", "there is no C\\+\\+ compiler nowhere-c\\+\\+; install g\\+\\+"),
        ("cuda", "is built without CUDA; install a torch for CUDA first"),
    ],
)
def test_what_is_missing_is_one_line(here: Path, missing: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match missing:
        case "nvcc":
            (here / "cuda/bin/nvcc").unlink()
        case "header":
            (here / "cuda/include/cuda_runtime.h").unlink()
        case "release":
            shutil.rmtree(here / "cuda")
            toolkit(here / "cuda", "12.4")
        case "git":
            monkeypatch.setenv("PATH", str(here / "bin"))
            compiler = here / "bin" / "c++"
            compiler.parent.mkdir()
            compiler.symlink_to(here / "cuda/bin/nvcc")
        case "c++":
            monkeypatch.setenv("CXX", "nowhere-c++")
        case _:
            monkeypatch.setattr(venvs, "_present_torch", lambda: ("2.13.0+cpu", None))
    with pytest.raises(UserError, match=said) as error:
        venvs.planned("fa3", here / "env", [], build=True)
    assert str(error.value).startswith("env create fa3: ")
    assert "\n" not in str(error.value)


def test_the_version_names_the_commit_of_a_clone(here: Path) -> None:
    """The version has the commit of a clone, not of a repository around a folder without history."""
    source = clone(here / "clone")

    def version() -> str:
        _, steps = venvs.planned("fa3", here / "env", [], source)
        return next(step for step in steps if step.variables).variables["FLASH_ATTN_LOCAL_VERSION"]

    def commit(folder: Path) -> None:
        git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)

    commit(here)
    assert version() == "cu130"
    commit(source)
    assert re.fullmatch(r"cu130\.g[0-9a-f]{7}", version())


def test_a_source_that_is_none(here: Path) -> None:
    (here / "flash_attn-2.8.3.whl").write_text("")
    half = clone(here / "half")
    shutil.rmtree(half / "csrc")
    for source, said in (
        (here, "is not a clone of https"),
        (half, f"has no CUTLASS; run git -C {half} submodule update"),
        (here / "flash_attn-2.8.3.whl", "is not a wheel of flash-attn 3"),
        (here / "flash_attn_3-gone.whl", "is not a wheel of flash-attn 3"),
    ):
        with pytest.raises(UserError, match=said):
            venvs.planned("fa3", here / "env", [], source)
    with pytest.raises(UserError, match="--build: fa4 is installed by pip"):
        venvs.planned("fa4", here / "env", [], build=True)
    with pytest.raises(UserError, match="--source: fa4 is installed by pip"):
        venvs.planned("fa4", here / "env", [], half)


def test_a_toolkit_is_found_as_torch_finds_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolkit is found as by torch: CUDA_HOME, else the folder of the nvcc on PATH if it has headers."""
    assert fa3_build.cuda_toolkit("fa3", "2.13.0", "13.0") == str(here / "cuda")
    other = toolkit(here / "other", "13.1")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", f"{other / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert fa3_build.cuda_toolkit("fa1", "2.13.0", "13.0") == str(other)
    monkeypatch.setenv("CUDA_PATH", str(here / "cuda"))
    assert fa3_build.cuda_toolkit("fa1", "2.13.0", "13.0") == str(here / "cuda")
