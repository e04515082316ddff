"""The selection of backends, interpreters and devices by options."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from attnbench import backends
from attnbench.backends import BACKENDS, NOT_BY_DEFAULT
from attnbench.core import own_files
from attnbench.core.errors import UserError
from attnbench.core.own_code import load_file
from attnbench.results import run_file
from attnbench.run import select
from attnbench.run.run_suite import Request, RunObserver, run_suite
from attnbench.run.select import check_trusted
from attnbench.run.suite import parse_suite
from builders import case, job, run

USUAL = [name for name in BACKENDS if name not in NOT_BY_DEFAULT]
SDPA = [name for name in USUAL if name.startswith("sdpa-")]


@pytest.fixture(autouse=True)
def _nothing_else_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "available", lambda: dict(BACKENDS))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["*"], USUAL),
        (["all", "!eager"], [n for n in USUAL if n != "eager"]),
        (["eager"], ["eager"]),
        (["triton", "eager"], ["triton", "eager"]),  # the order of the request
        (["triton,eager", " eager "], ["triton", "eager"]),
        (["sdpa-*"], SDPA),
        (["sdpa-*", "!sdpa-math"], [n for n in SDPA if n != "sdpa-math"]),
        (["!eager"], [n for n in USUAL if n != "eager"]),
        (["!eager,!sdpa-*"], [n for n in USUAL if n != "eager" and n not in SDPA]),
        (["*", "!sdpa-*", "sdpa-math"], [*(n for n in USUAL if n not in SDPA), "sdpa-math"]),
        (["fake"], ["fake"]),
        (["*,fake"], [*USUAL, "fake"]),
        ([], USUAL),
    ],
)
def test_names_and_globs(patterns: list[str], names: list[str]) -> None:
    chosen = select.select_backends(patterns)
    assert list(chosen) == names
    assert all(chosen[name] == BACKENDS[name] for name in names)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("tritn", "no backend 'tritn'; did you mean \"triton\"?"),
        ("!eagr", "no backend 'eagr'; did you mean \"eager\"?"),
        ("sdpa_*", "no backend 'sdpa_*'"),
        ("hf", "no backend 'hf'; did you mean \"hf-*\" (hf-eager, hf-sdpa, "),
        ("flash_attn", "no backend 'flash_attn'; did you mean \"fa2\"?"),
        ("pytorch", 'did you mean "sdpa-*"?'),
        ("FA3", "no backend 'FA3'; did you mean \"fa3\"?"),
        ("", "--backend: no name is given; leave it out for every backend that works here"),
        (" , ", "--backend: no name is given"),
        ("zzz", "known: eager"),
        ("eager,!eager", "'eager,!eager' leaves no backend"),
    ],
)
def test_what_matches_nothing_is_an_error(pattern: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        select.select_backends([pattern])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["./a.py:f,g"], "no backend 'g'; for a function of the same file write ./a.py:g"),
        (["./a.py:f[block=64,128]", "g"], "no backend 'g'; for a function of the same file write ./a.py:g"),
        (["./a.py:f,flash"], """'flash'; did you mean "fa2"?; for a function of the same file write ./a.py:flash"""),
        (["./a.py:f,zz-*"], "no backend 'zz-*'; known: eager"),
    ],
)
def test_a_second_function_of_a_file_has_the_file_too(
    patterns: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")
    with pytest.raises(UserError) as error:
        select.select_backends(patterns)
    assert said in str(error.value)


def test_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        Path(name).write_text("def mine(q, k, v): ...\n")
    chosen = select.select_backends(["./a.py:mine", "eager", "pkg.mod:Class"])
    assert chosen == {"mine": f"{tmp_path}/a.py:mine", "eager": BACKENDS["eager"], "Class": "pkg.mod:Class"}
    assert [select.is_user_code(spec) for spec in chosen.values()] == [True, False, True]


def test_commas_in_the_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a,b, c.py", "b.py", "Mine.PY"):
        (tmp_path / name).write_text("")
    chosen = select.select_backends(["eager,./a,b, c.py:f[n=1,2],~/b.py:g,sdpa"])
    assert [*chosen] == ["eager", "f[n=1]", "f[n=2]", "g", "sdpa"]
    assert chosen["f[n=2]"] == f"{tmp_path}/a,b, c.py:f[n=2]"
    with pytest.raises(UserError, match=r"\./Mine\.PY: Python imports files whose names end with \.py; rename it"):
        select.select_backends(["./Mine.PY:f"])


def test_own_code_of_one_name_from_several_files_is_told_apart(tmp_path: Path) -> None:
    """Own code of one name from several files is named with its file, in any order, so that versions are compared."""
    files = {name: f"{tmp_path}/{name}" for name in ("a.py", "b.py", "old/c.py", "new/c.py")}
    for path in files.values():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("")
    for order in itertools.permutations(files):
        chosen = select.select_backends([f"{files[name]}:mine" for name in order])
        assert chosen == {f"{name}:mine": f"{files[name]}:mine" for name in order}
    assert [*select.select_backends([f"{files['a.py']}:mine,{files['old/c.py']}:mine"])] == ["a.py:mine", "c.py:mine"]
    assert [*select.select_backends([f"{files['a.py']}:mine,{files['b.py']}:other"])] == ["mine", "other"]


def test_values_of_a_kernels_parameters_are_backends(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("")
    chosen = select.select_backends([f"eager,{path}:f[m=64,128;w=4,8],{path}:f"])
    names = ["f[m=64;w=4]", "f[m=64;w=8]", "f[m=128;w=4]", "f[m=128;w=8]", "f"]
    assert chosen == {"eager": BACKENDS["eager"], **{name: f"{path}:{name}" for name in names}}
    assert [*select.select_backends([f"{path}:f[m=64,128,w=4]"])] == ["f[m=64;w=4]", "f[m=128;w=4]"]
    assert [*select.select_backends([f"ulysses-{path}:f[m=1]"])] == ["ulysses-f[m=1]"]
    found = select.select_interpreters([f"f[m=64;w=4]={sys.executable}"], names)
    assert found == {"f[m=64;w=4]": sys.executable}
    suite = parse_suite({"axes": {"seqlen": 256}, "backends": f"eager,{path}:f[m=64,128]"}, "own")
    assert suite.backends == ["eager", f"{path}:f[m=64,128]"]


def test_own_code_does_not_replace_a_backend_of_its_name() -> None:
    chosen = select.select_backends(["eager", "pkg.mod:eager"])
    assert chosen["eager"] == BACKENDS["eager"]
    assert "pkg.mod:eager" in chosen.values()
    assert len(chosen) == 2


def test_a_backend_of_one_device_is_one_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        Path(name).write_text("def mine(q, k, v): ...\n")
    shipped = select.select_backends(["ulysses-flex,ulysses-xformers-f*,ulysses-sdpa-*"])
    of_torch = [f"ulysses-sdpa-{kernel}" for kernel in ("math", "flash", "cudnn", "efficient")]
    assert [*shipped] == ["ulysses-flex", "ulysses-xformers-fa2", "ulysses-xformers-fa3", *of_torch]
    assert all(spec == BACKENDS[name.removeprefix("ulysses-")] for name, spec in shipped.items())
    assert [*select.select_backends(["ulysses-*"])] == [n for n in backends.SEVERAL if n.startswith("ulysses-")]
    own = select.select_backends(["ulysses-./a.py:mine,./a.py:mine"])
    assert own == {"ulysses-mine": f"{tmp_path}/a.py:mine", "mine": f"{tmp_path}/a.py:mine"}
    two = select.select_backends(["ulysses-./a.py:mine,ulysses-./b.py:mine"])
    assert two == {f"ulysses-{name}:mine": f"{tmp_path}/{name}:mine" for name in ("a.py", "b.py")}
    for name in ("ulysses-nsa", "ulysses-step-sdpa", "ulysses-ring-flash-attn", "ulysses-fake"):
        with pytest.raises(UserError, match=f"no backend '{name}'"):
            select.select_backends([name])


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("./gone.py:mine", "no such file: ./gone.py"),
        ("ulysses-./gone.py:mine", "no such file: ./gone.py"),
        ("./q\udce9.py:mine", "this path is not UTF-8"),
        ("pkg.mod:", "is not pkg.mod:object or file.py:function"),
        ("pkg.mod:a-b", "is not pkg.mod:object or file.py:function"),
        ("pkg.mod:a()", "is not pkg.mod:object or file.py:function"),
        ("./kernel.py", "which function of it?"),
        ("./kernel.py::f", "one colon separates file and function; write ./kernel.py:f"),
        (f"{__file__.removesuffix('.py')}:f", f"did you mean {__file__}:f?"),
        (f"{Path(__file__).parents[2]}/README.md:f", "Python imports files whose names end with .py"),
        (".:f", "'.:f' is not pkg.mod:object or file.py:function"),
        ("pkg.mod:f[m]", "give parameters and their values as in pkg.mod:f[block_m=64,128;num_warps=4,8]"),
        ("pkg.mod:f[m=]", "give parameters and their values"),
        ("pkg.mod:f[m=1", "give parameters and their values"),
        ("pkg.mod:f[m=1;m=2]", "'m' is not a parameter, or is given twice"),
        (f"pkg.mod:f[a={','.join(map(str, range(9)))};b={','.join(map(str, range(9)))}]", "that is 81 kernels"),
        ("triton[block_m=64]", "only own code has parameters"),
    ],
)
def test_own_code_that_is_not_there(pattern: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        select.select_backends([pattern])
    assert said in str(error.value)


@pytest.mark.parametrize(("make", "said"), [(os.mkdir, "is a folder"), (os.mkfifo, "is not a plain file")])
def test_what_is_there_and_is_no_file(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path / "mine.py")
    with pytest.raises(UserError, match=f"mine.py {said} "):
        select.select_backends([f"{tmp_path}/mine.py:mine"])


def test_links_in_a_circle_have_no_code(tmp_path: Path) -> None:
    """A symbolic link to itself is no file of code, and no folder from which code is imported."""
    circle, kernel = tmp_path / "circle.py", tmp_path / "kernel.py"
    circle.symlink_to(circle)
    kernel.write_text("import circle")
    with pytest.raises(UserError, match="is a broken link"):
        select.select_backends([f"{circle}:mine"])
    assert own_files.named_by([kernel], [str(circle)], ()) == {kernel}


def test_interpreters(tmp_path: Path) -> None:
    names = ["eager", "sdpa-math", "sdpa-flash"]
    assert select.select_interpreters([], names) == {}
    assert select.select_interpreters([f"eager={sys.executable}"], names) == {"eager": sys.executable}
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    found = select.select_interpreters([f"sdpa-*={sys.executable}", f"sdpa-flash={other}"], names)
    assert found == {"sdpa-math": sys.executable, "sdpa-flash": str(other)}
    plain = tmp_path / "plain"
    plain.write_text("")
    script = tmp_path / "script"
    script.write_text("echo hello")
    script.chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    for pair, said in (
        ("eager", "is not NAME=PATH"),
        ("eager=", "is not NAME=PATH"),
        (f"triton={sys.executable}", "not among the backends of this run"),
        (f"sdpa-mth={sys.executable}", 'did you mean "sdpa-math"?'),
        (f"eager={plain}", "is not an executable file"),
        (f"eager={tmp_path}", "is not an executable file"),
        (f"eager={tmp_path / 'venv'}", f"did you mean {tmp_path / 'venv' / 'bin' / 'python'}?"),
        (f"eager={script}", "is a script without an interpreter"),
    ):
        with pytest.raises(UserError) as error:
            select.select_interpreters([pair], names)
        assert said in str(error.value)


SOURCE = """
import neighbour

class Full:
    def prepare(self, case, inputs): ...

class Module:
    def __call__(self, q, k, v, *, causal, softmax_scale):
        return "called"

made = Full()
number = 3

class Mine:
    forward = backward = staticmethod(lambda ctx, *_: None)

def function(q, k, v, *, causal, softmax_scale, factor=1, kind="a"):
    return neighbour.answer * factor

class Sized:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, q, k, v, *, causal, softmax_scale):
        return self.factor
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour.py").write_text("answer = 42\n")
    path = tmp_path / "own_kernels.py"
    path.write_text(SOURCE)
    for name in ("neighbour", "own_kernels"):
        monkeypatch.setitem(sys.modules, name, None)  # undoes the load at the end
        del sys.modules[name]
    return os.fspath(path)


def test_loading_what_was_chosen(own: str) -> None:
    function = backends.load("f", f"{own}:function")
    assert function.name == "f"
    assert function.probe().usable
    assert function.fn(1, 2, 3, causal=False, softmax_scale=1.0) == 42
    assert backends.load("m", f"{own}:Module").fn(1, 2, 3, causal=True, softmax_scale=1.0) == "called"
    for name in ("Full", "made"):
        loaded = backends.load("full", f"{own}:{name}")
        assert type(loaded).__name__ == "Full"
        assert loaded.name == "full"


def test_loading_with_parameters(own: str) -> None:
    case = {"causal": False, "softmax_scale": 1.0}
    function = backends.load("f", f"{own}:function[factor=2;kind=b]")
    assert function.fn(1, 2, 3, **case) == 84
    assert function.probe().usable
    assert backends.load("s", f"{own}:Sized[factor=0.5]").fn(1, 2, 3, **case) == 0.5
    said = backends.load("f", f"{own}:function[facter=2]").probe().reason
    assert said == "function has no parameter 'facter'; did you mean \"factor\"?"
    assert "comes from each case" in str(backends.load("f", f"{own}:function[causal=True]").probe().reason)
    with pytest.raises(
        TypeError, match=r"missing a required argument: 'factor'; give Sized\[factor=...\], or an object"
    ):
        backends.load("s", f"{own}:Sized")
    with pytest.raises(TypeError, match="is an object already"):
        backends.load("m", f"{own}:made[factor=2]")


def test_loading_a_backend_of_one_device_as_one_of_several(own: str) -> None:
    for name, spec in (("ulysses-f", f"{own}:function"), ("ulysses-flex", BACKENDS["flex"])):
        loaded = backends.load(name, spec)
        assert loaded.name == name
        assert loaded.several  # type: ignore[attr-defined]
        assert loaded.on_one.name == name.removeprefix("ulysses-")  # type: ignore[attr-defined]
    te = "ulysses-transformer-engine"  # the library's own all-to-all
    assert type(backends.load(te, BACKENDS[te])).__module__.endswith(".several_devices.ring_transformer_engine")
    with pytest.raises(TypeError, match="a function or a subclass of BackendBase"):
        backends.load("ulysses-full", f"{own}:Full")


def test_loading_what_is_not_there(own: str) -> None:
    with pytest.raises(AttributeError, match="has no 'missing'"):
        backends.load("x", f"{own}:missing")
    with pytest.raises(TypeError, match="neither a function"):
        backends.load("x", f"{own}:number")
    with pytest.raises(TypeError, match=r"is a torch.autograd.Function; give a function that calls Mine.apply"):
        backends.load("x", f"{own}:Mine")
    with pytest.raises(FileNotFoundError, match="no such file"):
        backends.load("x", f"{own[:-3]}_gone.py:function")
    with pytest.raises(ModuleNotFoundError):
        backends.load("x", "no_such_package_of_ours:f")


@pytest.mark.parametrize(("made", "named"), [("torch.py", "torch.py"), ("numpy/__init__.py", "numpy")])
def test_a_neighbour_that_would_replace_a_library_is_refused(
    made: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour that would replace a library is refused; a folder without modules, or the library, is not."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text("x = 1\n")
    (tmp_path / "torch").symlink_to(Path(torch.__file__).parent)
    (tmp_path / "numpy").mkdir()
    assert load_file(tmp_path / "mine.py").x == 1
    (tmp_path / made).touch()
    with pytest.raises(UserError, match=rf"/{named} would be imported in place of {named[:5]}; give it another name"):
        load_file(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"specs": {"fa2": "/tmp/evil.py:f"}}, "/tmp/evil.py:f"),
        ({"specs": {"triton": "os:system"}}, "os:system"),
        ({"specs": {"fa2": BACKENDS["fa2"]}, "interpreters": {"fa2": "/bin/rm"}}, "/bin/rm"),
        ({"plan": [job(replace(case(), mask="evil.py:mask@0"), "flex")]}, "evil.py:mask"),
    ],
)
def test_what_a_strangers_file_names_is_not_run(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=f"^run.jsonl names {named} to run; .*add --trust$"):
        check_trusted(Path("run.jsonl"), run([], **changes))
    check_trusted(Path("run.jsonl"), run([], specs={"fa2": BACKENDS["fa2"]}))


@pytest.mark.parametrize(
    ("name", "spec"),
    [("fa2", "attnbench.backends.fa2:FlashAttention2"), ("ulysses-flex", "attnbench.backends.compiled:Flex")],
)
def test_a_file_may_name_a_module_of_ours_that_has_moved(name: str, spec: str) -> None:
    check_trusted(Path("run.jsonl"), run([], specs={name: spec}))
    assert not select.is_user_code(spec)
    assert backends.load(name, spec).name == name
    with pytest.raises(UserError, match="names attnbench"):
        check_trusted(Path("run.jsonl"), run([], specs={"mine": "attnbench.backends.gone:Mine"}))


def test_a_file_that_changes_before_it_is_locked_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = {"plan": [job(case(), "fake")]}
    path, reopen = tmp_path / "run.jsonl", run_file.RunFile.reopen
    path.write_bytes(run_file.encoded(run([], specs={"fake": BACKENDS["fake"]}, **planned)))

    def changed(file: Path) -> run_file.RunFile:
        file.write_bytes(run_file.encoded(run([], specs={"fake": "/tmp/evil.py:f"}, **planned)))
        return reopen(file)

    monkeypatch.setattr(run_file.RunFile, "reopen", changed)
    with pytest.raises(UserError, match=r"names /tmp/evil.py:f"):
        run_suite(Request(resume=path), cast(RunObserver, None))


def test_code_of_another_user_gets_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "theirs.py").write_text("")
    specs = [f"{file}:one", f"{file}:two", BACKENDS["sdpa"]]
    assert select.notes_on_strangers(specs) == []
    stranger = os.stat_result((*file.stat()[:4], 61234, *file.stat()[5:10]))
    monkeypatch.setattr(Path, "stat", lambda _: stranger)
    (said,) = select.notes_on_strangers(specs)
    assert "theirs.py belongs to another user" in said
    monkeypatch.setattr(os, "getuid", lambda: 61234)
    assert select.notes_on_strangers(specs) == []
