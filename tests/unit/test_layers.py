"""The layers of ARCHITECTURE.md, held: who imports what, seen in fresh processes and in the source."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import attnbench
from attnbench import cli
from attnbench.commands import compare, gate, report

PACKAGE = Path(attnbench.__file__).parent
RUN, AGAIN = (str(PACKAGE.parent / "results" / "ci-experiment" / f"alike-0{i}.jsonl") for i in (0, 1))
HEAVY = {"torch", "triton", "numpy", "scipy", "pandas", "pydantic", "pydantic_core", "rich", "yaml", "typer"}
HEAVY |= {"pynvml", "msgspec"}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(module: str) -> set[str]:
    """All modules in sys.modules after a bare import of it, less what Python itself starts with."""
    return set(python(f"import sys; old = set(sys.modules); import {module}; print(*(set(sys.modules) - old))").split())


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether it is for the type checker only) of every import in a file, wherever it stands."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((name, id(node) in typing_only) for name in names)


def sources(*parts: str) -> list[Path]:
    """The files of those modules and folders of the package."""
    found = [p for part in parts for p in (PACKAGE / part).glob("**/*.py")]
    found += [path for part in parts if (path := PACKAGE / f"{part}.py").is_file()]
    assert len(found) >= len(parts)
    return found


# A worker's: may touch the device, and needs the standard library and torch only.
WORKER = ("worker", "bench", "instruments", "proof", "inputs", "reference", "environment", "measure", "kernels")
WORKER += ("evidence", "profiling", "once", "fp8")
# The parent's: what makes and reads values, and what starts workers. fitness.py belongs to both, each to its half.
PARENT = ("stats", "work", "metrics", "hardware", "store", "report", "plan", "suite", "sizes", "choose", "errors")
PARENT += ("derive", "resolution", "verdicts", "jsonable", "columns", "decode", "gate", "baseline", "compare")
PARENT += ("arrays", "lines", "apart", "batch", "made", "axes", "matrix", "venvs", "caches", "yamls")
RUNS = ("run", "execute", "look", "process", "commands", "cli", "doctor", "trial", "profile", "ncu", "ab")
# Of these, a worker may use all the same: standard library only.
NEITHER = ("stats", "work", "sizes", "errors", "jsonable")

MODULES = [
    ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for p in sorted(PACKAGE.glob("**/*.py"))
    if p.stem != "__main__" and "kernels" not in p.parts
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one process for each module takes a minute")
def test_importing_loads_no_torch() -> None:
    """None does at import, the worker's neither: what needs torch asks for it when it runs.

    Each is imported in a fork of its own, of a Python that has imported nothing but what all of them do.
    """
    code = f"""
import os, sys
import attnbench.types
for module in {MODULES!r}:
    if os.fork() == 0:
        __import__(module)
        print(module, *{{"torch", "triton", "pynvml", "pandas", "scipy", "numpy"}} & {{*sys.modules}}, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, module
"""
    assert python(code).splitlines() == MODULES


def test_the_list_of_modules_is_not_empty() -> None:
    wanted = "cli types stats work metrics hardware store plan suite report.terminal report.markdown report.export "
    wanted += "bench instruments proof measure.events measure.graph measure.cupti"
    assert set(MODULES) >= {f"attnbench.{name}" for name in wanted.split()}


def test_every_module_has_its_side() -> None:
    """A new one is put into one of the lists above, and is held by the rules of its side from then on."""
    ours = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in PACKAGE.glob("**/*.py")}
    sides = [*WORKER, *PARENT, *RUNS]
    assert len(sides) == len({*sides})
    assert ours - {*sides} == {"__init__", "__main__", "types", "backends", "fitness"}


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_starts_light(command: str) -> None:
    loaded = loaded_by(f"attnbench.cli; attnbench.cli.command_line({command!r})")
    assert loaded & HEAVY <= {"typer"}
    ours = {name.removeprefix("attnbench.") for name in loaded if name.startswith("attnbench.")}
    beside = {"cli", "errors", "commands", "commands.shared", "commands.options", "baseline"}
    assert ours - beside == {f"commands.{name}" for name in (command, "gate" if command == "ab" else command)}


def test_the_command_that_is_asked_for_is_the_only_one_made() -> None:
    code = """
import sys
from attnbench.cli import main
sys.argv = ["attnbench", "suites"]
try:
    main()
except SystemExit as end:
    assert not end.code
print(*(name for name in sys.modules if name.startswith("attnbench.commands.")))
"""
    assert {*python(code).splitlines()[-1].split()} <= {"attnbench.commands.suites", "attnbench.commands.shared"}


@pytest.mark.parametrize(
    ("command", "then"),
    [
        (["gate", RUN, AGAIN], gate.THEN),
        (["compare", RUN, AGAIN], compare.THEN),
        (["report", RUN], report.THEN["table"]),
        (["report", "-f", "md", RUN], report.THEN["md"]),
        (["report", "-f", "csv", RUN], ()),
    ],
)
def test_what_a_command_needs_next_is_imported_while_others_read(command: list[str], then: Sequence[str]) -> None:
    code = f"""
import sys
from attnbench import lines
from attnbench.cli import main
from attnbench.commands import shared
asked, imported = [], shared.import_module
shared.import_module = lambda name: (asked.append(name), imported(name))
lines._processes = lambda size: 2
sys.argv = ["attnbench", *{command!r}]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None)
print()
print("asked:", *asked)
"""
    assert python(code).splitlines()[-1].split() == ["asked:", *then]


def test_each_file_of_commands_is_one_and_all_are_there() -> None:
    files = {path.stem for path in (PACKAGE / "commands").glob("*.py")} - {"__init__", "shared", "options"}
    assert files == {*cli.COMMANDS}


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["--version"]])
def test_help_needs_nothing_heavy(command: list[str]) -> None:
    heavy = HEAVY - {"rich", "pydantic", "pydantic_core"}  # typer's own
    code = f"""
import sys
from attnbench.cli import main
sys.argv = ["attnbench", *{command!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
print("loaded:", *sorted({{m.partition(".")[0] for m in sys.modules}} & {heavy!r}),
      *("attnbench.run.suite" for m in sys.modules if m == "attnbench.run.suite"))
"""
    assert python(code).splitlines()[-1].split() == ["loaded:", "typer"]


def test_types_import_nothing_of_ours() -> None:
    assert {n for n in loaded_by("attnbench.core.types") if n.startswith("attnbench")} == {
        "attnbench",
        "attnbench.core.types",
    }
    assert not [name for name, typing in imports(PACKAGE / "types.py") if name.startswith("attnbench") and not typing]


WITHOUT = ("typer", "click", "rich", "pandas", "numpy", "scipy", "pydantic", "pydantic_core", "yaml", "msgspec")


def test_a_worker_needs_only_torch() -> None:
    """Any interpreter with a torch can be a worker: everything it may reach imports with the rest blocked."""
    ours = [m for m in MODULES if m.removeprefix("attnbench.").split(".")[0] in (*WORKER, "fitness", "backends")]
    assert {"attnbench.worker.instruments", "attnbench.worker.kernel_rules", "attnbench.worker.measure.cupti"} <= {
        *ours
    }
    code = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {WITHOUT!r}:
            raise AssertionError("imports " + name)

sys.meta_path.insert(0, Blocked())
import importlib
for module in {ours!r}:
    importlib.import_module(module)
import attnbench.worker
from attnbench.backends import BACKENDS, load
from attnbench.jsonable import to_json
from attnbench.types import Case, Device, Forecast, Job, Policy, Shape
for name, spec in BACKENDS.items():
    load(name, spec)
worker = attnbench.worker.serve.Worker()
worker.answer({{"op": "load", "name": "fake", "spec": BACKENDS["fake"]}})
job = Job(Case(Shape(1, 8, 8, 1, 1, 8, 8), "bf16", "bwd"), "fake", 0, Forecast(1.0, 1.0, 1))
request = {{"op": "run", "policy": to_json(Policy()), "job": to_json(job), "device": {{
    "kind": "fake", "index": 0, "name": "x", "memory": 1, "free": 1}}}}
print(worker.answer(request)["record"]["status"])
"""
    assert python(code).split() == ["ok"]


@pytest.mark.parametrize("path", sources(*WORKER, "fitness", "backends"))
def test_the_workers_side_imports_nothing_of_the_parents(path: Path) -> None:
    """Neither a library of the parent's nor a module of ours that has one, not even inside a function."""
    parents = {f"attnbench.{m}" for m in (*PARENT, *RUNS) if m not in NEITHER}
    for name, _ in imports(path):
        assert name.partition(".")[0] not in WITHOUT, f"{path.name} imports {name}"
        assert not any(f"{name}.".startswith(f"{p}.") for p in parents), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sources("backends"))
def test_backends_do_not_know_measure(path: Path) -> None:
    assert not [name for name, _ in imports(path) if name.startswith("attnbench.worker.measure")]
    above = (
        "attnbench.worker.measure_cell",
        "attnbench.worker.serve",
        "attnbench.worker.instruments",
        "attnbench.worker.kernel_rules",
    )
    assert not [name for name, _ in imports(path) if name.startswith(above)]


@pytest.mark.parametrize("path", sources("measure"))
def test_measure_does_not_know_backends(path: Path) -> None:
    """Nor who joins the two: an instrument is handed a launch and says how long it takes."""
    above = ("backends", "kernels", "bench", "worker", "instruments", "proof", "inputs", "reference", "profiling")
    for name, _ in imports(path):
        assert not name.startswith(tuple(f"attnbench.{m}" for m in above)), f"{path.name}: {name}"
    assert "attnbench.backends" not in loaded_by(f"attnbench.worker.measure.{path.stem}".removesuffix(".__init__"))


@pytest.mark.parametrize("path", sources("instruments", "proof"))
def test_instruments_and_proof_do_not_know_backends_nor_the_bench(path: Path) -> None:
    above = (
        "attnbench.backends",
        "attnbench.backends.triton",
        "attnbench.worker.measure_cell",
        "attnbench.worker.serve",
        "attnbench.worker.reference",
    )
    assert not [name for name, _ in imports(path) if name.startswith(above)]


@pytest.mark.parametrize("path", sources(*PARENT, *RUNS))
def test_the_parent_never_imports_torch(path: Path) -> None:
    """Not lazily either: it reads results on laptops, and must not touch the GPU that is measured."""
    for name, typing_only in imports(path):
        assert name.partition(".")[0] not in ("torch", "triton", "pynvml") or typing_only, f"{path.name}: {name}"
        assert not any(f"{name}.".startswith(f"attnbench.{w}.") for w in WORKER) or typing_only, f"{path.name}: {name}"


@pytest.mark.parametrize("module", ["run", "execute", "commands.run", "suite", "report.terminal", "report.markdown"])
def test_the_parent_loads_nothing_of_the_workers(module: str) -> None:
    loaded = {name.removeprefix("attnbench.").split(".")[0] for name in loaded_by(f"attnbench.{module}")}
    assert loaded & {*WORKER} == set()


@pytest.mark.parametrize("path", sources(*PARENT))
def test_nothing_downstream_reaches_back_up(path: Path) -> None:
    """Values flow suite -> plan -> execute -> store -> report: these make or read values, and run nothing."""
    above = (
        "attnbench.run.run_suite",
        "attnbench.commands",
        "attnbench.cli",
        "attnbench.worker.serve",
        "attnbench.worker.measure_cell",
    )
    for name, _ in imports(path):
        assert not any(f"{name}.".startswith(f"{a}.") for a in above), f"{path.name}: {name}"
