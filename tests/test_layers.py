"""The layers of ARCHITECTURE.md: which folder may import which, wherever the import stands."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attnbench
from attnbench.commands.command_line import COMMANDS

PACKAGE = Path(attnbench.__file__).parent
MAY_IMPORT: dict[str, set[str]] = {  # folder -> the folders of ours that it may import, beside itself
    "core": set(),
    "backends": {"core"},
    "worker/measure": {"core"},
    "judge": {"core"},
    "worker": {"core", "backends", "worker/measure", "judge"},
    "results": {"core"},
    "run": {"core", "results", "backends"},
    "render": {"core", "results"},
    "analysis": {"core", "results", "render", "run"},
    "commands": {"core", "results", "render", "run", "analysis", "backends"},
    "api": {"core", "results", "render", "run", "analysis", "worker"},
}
KNOW_BACKENDS = ("backends", "worker")  # others may import only the map in attnbench/backends/__init__.py
ON_TOP = {"__init__", "__main__", "cli", "pytest_plugin"}
NO_TORCH = ("results", "run", "render", "analysis", "commands")
WORKER_SIDE = ("core", "backends", "judge", "worker")
HEAVY = {"torch", "triton", "numpy", "scipy", "pandas", "pydantic", "rich", "yaml", "pynvml", "msgspec"}
FILES = sorted(PACKAGE.glob("**/*.py"))


def folder_of(parts: tuple[str, ...]) -> str:
    """Return the folder of a module or file, as MAY_IMPORT names it: worker/measure, or the first part of the path."""
    deep = "/".join(parts[:2])
    return deep if deep in MAY_IMPORT else parts[0]


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports, inside functions and for the type checker too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def ours(path: Path) -> set[str]:
    """Return the folders of this package that a file imports."""
    names = (name.split(".")[1:] for name in imports(path) if name.startswith("attnbench."))
    return {folder_of(tuple(parts)) for parts in names if (PACKAGE / parts[0]).is_dir()}


def broken_rules(path: Path) -> Iterator[str]:
    """Return the imports of a file that its folder may not have."""
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        if path.stem not in ON_TOP:
            yield "it lies in no folder"
        return
    folder, names = folder_of(parts), imports(path)
    if parts[0] not in KNOW_BACKENDS:
        found = {name.split(".")[2] for name in names if name.startswith("attnbench.backends.")}
        if found & {module.stem for module in (PACKAGE / "backends").iterdir()}:
            yield "more than the map of backends"
    yield from ours(path) - MAY_IMPORT[folder] - {folder}
    libraries = {name.partition(".")[0] for name in names}
    if folder in NO_TORCH and libraries & {"torch", "triton", "pynvml"}:
        yield "the parent never touches the device"
    if parts[0] in WORKER_SIDE and libraries & (HEAVY - {"torch", "triton", "pynvml"}):
        yield "a worker needs the standard library and torch only"


def test_a_file_imports_only_what_its_folder_may() -> None:
    assert {str(path): found for path in FILES if (found := [*broken_rules(path)])} == {}


def test_a_session_alone_makes_workers_and_runs() -> None:
    made = {
        (name, str(path.relative_to(PACKAGE)))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and (name := getattr(node.func, "id", None)) in ("WorkerPool", "Run")
    }
    assert made == {("WorkerPool", "run/session.py"), ("Run", "run/session.py")}


def test_analysis_does_not_measure() -> None:
    """The analysis may ask run/ab for an A/B, whose turns it judges, but it reaches no worker itself."""
    measuring = {f"attnbench.run.{name}" for name in ("session", "workers", "process", "rank_workers", "device_probe")}
    for path in (PACKAGE / "analysis").rglob("*.py"):
        assert not {name for name in imports(path) if name.startswith((*measuring,))}, path


def test_no_two_files_import_each_other() -> None:
    """No chain of imports, for the type checker included, comes back to its first file.

    Imports from the packages that contain a module do not count.
    """
    names = {".".join(("attnbench", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in FILES}
    known = {name.removesuffix(".__init__"): path for name, path in names.items()}
    uses = {
        name: {
            found
            for module in imports(path)
            for found in (module, module.rpartition(".")[0])
            if found in known and not f"{name}.".startswith(f"{found}.")
        }
        for name, path in known.items()
    }
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle of imports: {' -> '.join((*way[way.index(name) :], name))}"
        if name not in done:
            for other in sorted(uses[name]):
                walk(other, (*way, name))
            done.add(name)

    for name in uses:
        walk(name, ())


def loaded_by(code: str) -> set[str]:
    """Return the libraries in sys.modules after some code in a fresh process."""
    code = f"import sys\n{code}\nprint(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_no_module_loads_torch_when_it_is_imported() -> None:
    """Functions that need torch import it when they run, in the worker too; attnbench's kernels are the exception.

    Modules of a worker load no other library either, because a worker may have torch only. numpy and scipy are for the
    analyses, which a command imports when it runs.
    """
    kernels = [PACKAGE / "backends" / name for name in ("triton", "gluon", "tilelang", "helion")]
    light = ("__init__", "backend", "backward_tiles", "forward_tiles", "padding")
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in FILES
        if path.stem != "__main__" and (path.parent not in kernels or path.stem in light)
    ]
    workers = [module for module in modules if module.split(".")[1] in ("__init__", *WORKER_SIDE)]
    analyses = [module for module in modules if ".analysis." in module]
    code = f"""
import sys
for modules, never in (
    ({workers!r}, {HEAVY!r}),
    ({sorted({*modules} - {*workers, *analyses})!r}, {{"torch", "triton", "pynvml", "pandas", "scipy", "numpy"}}),
    ({analyses!r}, {{"torch", "triton", "pynvml", "pandas"}}),
):
    for module in modules:
        __import__(module)
        assert not never & {{*sys.modules}}, f"{{module}} loads {{never & {{*sys.modules}}}}"
"""
    loaded_by(code)


def test_a_command_starts_without_what_it_may_need_later() -> None:
    code = "from attnbench.commands.command_line import command_line"
    loaded = loaded_by("\n".join([code, *(f"command_line({command!r})" for command in COMMANDS)]))
    assert loaded & HEAVY <= {"rich", "pydantic"}  # typer imports these


def test_what_reads_run_files_loads_nothing_heavy_when_it_runs() -> None:
    one, other = (str(PACKAGE.parent / "results" / "ci-experiment" / f"alike-0{i}.jsonl") for i in (0, 1))
    given = [("report", one, "--html", "/dev/null"), ("compare", one, other), ("gate", one, other)]
    given += [("recommend", one), ("history", one)]
    code = f"""
import attnbench
from attnbench.cli import main
attnbench.load({one!r}).cells
for given in {given!r}:
    sys.argv = ["attnbench", *given]
    try:
        main()
    except SystemExit:
        pass
"""
    assert not loaded_by(code) & {"torch", "triton", "pynvml", "pandas"}
