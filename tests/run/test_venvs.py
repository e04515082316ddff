"""`attnbench env`: environments that see the present torch, with the tests' own wheels and no network."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import typer

from attnbench.backends import BACKENDS
from attnbench.commands import env
from attnbench.core.errors import UserError
from attnbench.run import select, venvs
from attnbench.run.venvs import Venv
from hostile_folder import hijacked, hostile

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
MADE = Venv("fa4", "/envs/fa4", ("flash-attn-4>=4.0.0b36",), "2.11.0", "2026-11-21")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "attnbench"


def wheel(folder: Path, name: str, version: str, files: dict[str, str], *needs: str) -> None:
    """Write a pure Python wheel that pip can install."""
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {need}\n" for need in needs)
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in contents.items():
            file.writestr(path, text)


FA4 = {"flash_attn/cute/__init__.py": "def flash_attn_func(*args, **options): ...\n"}


def offline(folder: Path) -> list[str]:
    return ["--no-index", "--find-links", str(folder)]


def test_it_sees_the_present_torch_and_is_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment sees the present torch and is remembered, in a working directory with a `pip` and a `torch`."""
    checkout = hostile(tmp_path / "checkout")
    monkeypatch.chdir(checkout)
    wheel(tmp_path / "wheels", "flash_attn_4", "4.0.0b40", FA4, "torch>=2", "helper")
    wheel(tmp_path / "wheels", "helper", "1.0", {"helper.py": ""})
    with pytest.raises(typer.Exit) as done:
        env.create("fa4", offline(tmp_path / "wheels"), tmp_path / "env")
    assert done.value.exit_code == 0
    said = capsys.readouterr().out
    assert "fa4: flash-attn-4 4.0.0b40" in said
    made = venvs.known_venvs()["fa4"]
    assert made.path == str(tmp_path / "env")
    assert hijacked(checkout) == ""
    names = ("torch", "helper", "flash_attn.cute")
    look = f"from importlib.util import find_spec; print(*(find_spec(n).origin for n in {names}))"
    files = subprocess.check_output([made.python, "-c", look], text=True, cwd=tmp_path).split()
    assert files[0] == importlib.util.find_spec("torch").origin  # type: ignore[union-attr]
    assert [f.startswith(str(tmp_path / "env")) for f in files] == [False, True, True]
    assert select.select_interpreters([], ["eager", "fa4"]) == {"fa4": made.python}
    with pytest.raises(UserError, match="there is an environment fa4 already"):
        venvs.create("fa4", None, [], print)
    env.list_()
    assert f"torch {made.torch}" in capsys.readouterr().out
    env.remove("fa4")
    assert not Path(made.path).exists()
    assert venvs.known_venvs() == {}
    with pytest.raises(UserError, match="no environment 'fa4'; there is none"):
        venvs.remove("fa4")


def test_one_whose_backends_cannot_be_used_is_not_said_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(venvs, "create", lambda *_, **__: replace(MADE, path=str(tmp_path)))
    with pytest.raises(typer.Exit) as done:
        env.create("fa4")
    assert done.value.exit_code == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("none of its backends can be used there")
    assert len(others) == len(venvs.backends_of("fa4"))


def test_a_namespace_is_not_hidden_by_the_present_interpreters_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of the present interpreter hides no namespace: flash_attn.cute is found beside flash-attn 2."""
    site, present = tmp_path / "site", tmp_path / "present"
    for path, text in (
        ("site/atn_pkg/cute/__init__.py", ""),
        ("site/atn_free/a.py", ""),
        ("present/atn_pkg/two.py", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    (present / "atn_pkg" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(site), str(present), *sys.path])
    assert importlib.util.find_spec("atn_pkg").origin == str(present / "atn_pkg/__init__.py")  # type: ignore[union-attr]
    venvs._join_namespace_packages(site, [str(present)])
    importlib.invalidate_caches()
    for name in ("atn_pkg.cute", "atn_pkg.two"):
        monkeypatch.setitem(sys.modules, name, None)  # removes both at the end
        monkeypatch.delitem(sys.modules, name)
        importlib.import_module(name)
    assert not (site / "atn_free" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("lines", "said", "todo"),
    [
        (
            [
                "ERROR: Could not find a version that satisfies the requirement x",
                "ERROR: No matching distribution found for x",
            ],
            "Could not find a version that satisfies the requirement x; No matching distribution found for x",
            "attnbench env create fa4 -- --no-index --find-links FOLDER",
        ),
        (
            ["error: subprocess-exited-with-error", "OSError: CUDA_HOME environment variable is not set."],
            "subprocess-exited-with-error",
            "nvcc (CUDA_HOME)",
        ),
        (["something", "went wrong"], "something; went wrong", "create the environment again"),
        ([], "pip ended without a message", "create the environment again"),
        (
            ["The user requested torch==2.11.0", "x 1 depends on torch==1.0", "ERROR: ResolutionImpossible: see", "a"],
            "ResolutionImpossible: see; The user requested torch==2.11.0; x 1 depends on torch==1.0",
            "it does not go with torch 2.11.0; attnbench env create fa4 -- --no-deps",
        ),
        (
            ["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"],
            "nvcc error   : 'cicc' died due to signal 9",
            "ran out of memory; run one at a time: MAX_JOBS=1 attnbench env create fa4",
        ),
        (["ERROR: [Errno 28] No space left on device"], "No space left on device", "create the environment again"),
    ],
)
def test_pips_errors_and_what_to_do(lines: list[str], said: str, todo: str) -> None:
    text = venvs.pip_problem(MADE, lines)
    assert said in text
    assert todo in text
    assert "\n" not in text


def test_every_library_extra_of_the_project_has_its_backends() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {*extras} - {*venvs.EXTRAS} == {"all", "cluster", "docs", "history", "plots", "parquet", "test"}
    assert {*venvs.EXTRAS} <= {*extras}
    names = (*venvs.EXTRAS, "fa3")
    served = [backend for name in names for backend in venvs.backends_of(name)]
    assert len(served) == len({*served})
    of_libraries = {
        b for b in BACKENDS if b.split("-")[0] in ("fa1", "fa2", "fa3", "fa4", "xformers", "flashinfer", "cudnn", "hf")
    }
    of_others = {b for b in BACKENDS if b.startswith("transformer-engine")} | {"sdpa-fa3", "sdpa-fa4", "flex-flash"}
    assert {*served} == of_libraries | of_others
    assert all(venvs.backends_of(name) for name in names)


def test_requirements_are_those_of_the_metadata() -> None:
    declared = [
        "torch>=2.5",
        "flash-attn-4>=4.0.0b36; extra == 'fa4'",
        'flash-attn<3,>=2.6; python_version < "4" and extra == "fa2"',
        "xformers; extra == 'all'",
    ]
    assert venvs.requirements("fa4", None, declared) == ("flash-attn-4>=4.0.0b36",)
    assert venvs.requirements("fa4", "12.8", declared) == ("flash-attn-4>=4.0.0b36",)
    assert venvs.requirements("fa4", "13.0", declared) == ("flash-attn-4[cu13]>=4.0.0b36",)
    assert venvs.requirements("fa2", "13.0", declared) == ("flash-attn<3,>=2.6",)
    xformers = ["xformers>=0.0.28; extra == 'xformers'"]
    assert venvs.requirements("xformers", "12.8", xformers) == ("xformers>=0.0.28",)
    assert venvs.requirements("xformers", "13.0", xformers) == ("xformers>=0.0.28", "nvidia-cuda-runtime-cu12")
    with pytest.raises(UserError, match="no extra 'hf'"):
        venvs.requirements("hf", None, declared)
    assert venvs.requirements("fa4")[0].startswith("flash-attn-4")


@pytest.mark.parametrize(
    ("word", "said"),
    [("fa5", 'did you mean "fa'), ("eager", "no environment for 'eager'")],
)
def test_names_that_have_no_environment(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        venvs.extra_for(word)
    names = {"fa4": "fa4", "flashinfer-fa3": "flashinfer", "hf-sdpa": "hf", "fa3": "fa3", "sdpa-fa3": "fa3"}
    assert {name: venvs.extra_for(name) for name in names} == names


def test_a_second_library_is_not_taken_for_a_package() -> None:
    with pytest.raises(UserError, match="fa4: an environment is for one library"):
        venvs.planned("xformers", None, ("fa4",))


def test_where_they_are_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert venvs.data_folder() == data
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # the standard requires to ignore it
    assert venvs.data_folder() == Path.home() / ".local/share/attnbench"


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="is not empty; choose another --path"):
        venvs.create("fa4", tmp_path, [], print)
    assert (tmp_path / "mine").exists()


def test_a_damaged_list_is_said(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.mkdir(parents=True)
    made, listed = asdict(MADE), data / "environments.json"
    odd = [[{**made, "path": 5}], [{**made, "path": "/a\0b"}], [{**made, "requirements": [5]}], [{**made, "name": []}]]
    half = json.dumps([{**made, "path": "/a\ud800"}])  # of a surrogate pair, which no terminal shows
    for text in ("{", "[1]", '[{"name": "fa4"}]', "[" * 100_000, *map(json.dumps, odd)):
        listed.write_text(text)
        with pytest.raises(UserError, match=r"environments.json cannot be read"):
            venvs.known_venvs()
    listed.write_text(half)
    assert [found.path for found in venvs.known_venvs().values()] == ["/a\ufffd"]
    listed.unlink()

    def refused(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    listed.write_text("[]")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refused)  # root may read every file
        with pytest.raises(UserError, match="cannot be read: no permission; change it"):
            venvs.known_venvs()
    listed.unlink()
    os.mkfifo(listed)
    with pytest.raises(UserError, match=r"environments.json cannot be read"):
        venvs.known_venvs()


def test_a_line_break_in_the_list_is_shown_as_a_space(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    data.mkdir(parents=True)
    (data / "environments.json").write_text(json.dumps([{**asdict(MADE), "path": "/a\n::error::b"}]))
    env.list_()
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_home_that_cannot_be_looked_into_is_as_none(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that cannot be read counts as none: root's for another user in a container, and /dev/null."""
    data.mkdir(parents=True)
    (data / "environments.json").write_text("[]")
    data.parent.chmod(0)
    user = os.geteuid()
    try:
        os.seteuid(user or 65534)  # root may read any folder
        assert venvs.known_venvs() == {}
    finally:
        os.seteuid(user)
        data.parent.chmod(0o700)
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", os.devnull)
    assert venvs.known_venvs() == {}


def test_which_interpreter_wins(tmp_path: Path, data: Path) -> None:
    """--python has priority over the suite's interpreter, which has priority over a created one that still exists."""
    folders = {}
    for name in ("made", "suite", "option"):
        folders[name] = tmp_path / name / "bin" / "python"
        folders[name].parent.mkdir(parents=True)
        folders[name].symlink_to(sys.executable)
    data.mkdir(parents=True)
    remembered = [replace(MADE, path=str(tmp_path / "made")), replace(MADE, name="hf", path=str(tmp_path / "gone"))]
    (data / "environments.json").write_text(json.dumps([vars(m) for m in remembered]))
    names = ["fa4", "sdpa-fa4", "hf-eager", "eager"]
    made, suite, option = map(str, folders.values())
    gone = f"hf-eager: the environment is gone, {tmp_path / 'gone'}; attnbench env remove hf, and create it again"
    assert venvs.missing_venv_notes(names) == [gone]
    assert select.select_interpreters([], names) == {"fa4": made}
    assert select.select_interpreters([], names, {"*fa4": suite, "cudnn": "/nowhere"}) == {
        "fa4": suite,
        "sdpa-fa4": suite,
    }
    found = select.select_interpreters([f"fa4={option}"], names, {"*fa4": suite})
    assert found == {"fa4": option, "sdpa-fa4": suite}
    with pytest.raises(UserError, match="interpreters: /nowhere is not an executable file"):
        select.select_interpreters([], names, {"fa4": "/nowhere"})
    with pytest.raises(UserError, match="interpreters: no backend 'fa44'; did you mean \"fa4\""):
        select.select_interpreters([], names, {"fa44": suite})
