"""A person's function as a backend: other signatures, the hash of its source, Triton on a CPU."""

from __future__ import annotations

import _ctypes
import functools
import os
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench import backends
from attnbench.backends.shared.function import Function
from attnbench.backends.shared.own_signature import objection
from attnbench.backends.shared.own_source import hash_of_source
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.judge import inputs
from attnbench.run.process import WorkerProcess

CPU, GPU = Device("cpu", 0, "CPU", 2**34, 2**34), Device("cuda", 0, "GPU", 2**34, 2**34, capability=(9, 0))


def taken(q: Any, k: Any, v: Any, *, causal: Any, softmax_scale: Any) -> Any: ...
def unscaled(q: Any, k: Any, v: Any, *, causal: Any) -> Any: ...
def any_arguments(*args: Any, **kwargs: Any) -> Any: ...
def by_names(query: Any, key: Any, value: Any, is_causal: Any = False, sm_scale: Any = None) -> tuple[Any, ...]:
    return query, key, value, is_causal, sm_scale


def swapped(v: Any, q: Any, k: Any, causal: Any, scale: Any) -> tuple[Any, ...]:
    return q, k, v, causal, scale


def by_keyword(*, q: Any, k: Any, v: Any, attn_mask: Any, causal: Any, scale: Any) -> tuple[Any, ...]:
    return q, k, v, causal, scale if attn_mask is None else None


def by_place(x: Any, y: Any, z: Any, /, causal: Any, scale: Any, dropout_p: Any) -> tuple[Any, ...]:
    return x, y, z, causal, scale if dropout_p == 0 else None


def sized(q: Any, k: Any, v: Any, causal: Any, scale: Any, block_m: Any) -> tuple[Any, ...]:
    return q, k, v, causal, scale if block_m == 64 else None


class Called:
    def __call__(self, q: Any, k: Any, v: Any, is_causal: Any, scale: Any) -> tuple[Any, ...]:
        return q, k, v, is_causal, scale


class Module:
    """A class like nn.Module, whose __call__ takes any arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, query: Any, key: Any, value: Any, causal: Any, scale: Any) -> tuple[Any, ...]:
        return query, key, value, causal, scale


def heads_first(q: Any, k: Any, v: Any, is_causal: Any) -> Any:
    B, H, N, D = q.shape  # noqa: N806
    return B, H, N, D, k, v, is_causal


def of_one(x: Any) -> Any: ...


@pytest.mark.parametrize(
    ("function", "parameters"), [(taken, {}), (unscaled, {}), (any_arguments, {"block_m": 64}), (max, {})]
)
def test_what_takes_these_arguments_or_is_not_known_is_no_objection(
    function: Callable[..., Any], parameters: dict[str, Any]
) -> None:
    assert objection(function, "f", "mine.py", parameters) is None


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        *((f, {}) for f in (by_names, swapped, by_keyword, by_place, Called(), Module())),
        (sized, {"block_m": 64}),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if callable(value) else "",
)
def test_the_line_that_is_offered_calls_the_function_with_what_it_takes(
    function: Callable[..., Any], parameters: dict[str, Any]
) -> None:
    name = getattr(function, "__name__", type(function).__name__)
    said = objection(function, name, "mine.py", parameters)
    assert said is not None
    assert f"add this line to mine.py and give mine.py:{name}_adapted" in said
    names = dict(globals())
    exec(said[said.index("def ") :], names)
    adapted = names[f"{name}_adapted"]
    assert adapted(1, 2, 3, causal=True, softmax_scale=0.5, **parameters) == (1, 2, 3, True, 0.5)
    assert objection(adapted, "adapted", "mine.py", parameters) is None


def test_what_the_line_cannot_know_is_said() -> None:
    said = str(objection(sized, "sized", "mine.py", {}))
    assert "(with values for block_m): def " in said
    assert said.endswith("block_m=...)")
    said = str(objection(heads_first, "heads_first", "mine.py", {}))
    assert "heads_first_adapted(q, k, v, *, causal): return heads_first(" in said
    assert "if it scales by 1/sqrt(headdim) itself" in said
    assert 'with heads_first_adapted.order = "bhsd" below it' in said
    assert str(objection(of_one, "of_one", "mine.py", {})).endswith(
        "write a function of q, k, v, *, causal, softmax_scale that calls it"
    )


SOURCE = """
import functools
from library import Base, decorated, wrapped

def plain(q, k, v, **options): ...

class Module(Base): ...

made = Module()
part = functools.partial(plain, block=64)
of_library = Base(1)
with_wraps = decorated(plain)
"""
LIBRARY = """
import functools

class Base:
    def __init__(self, *args): ...
    def __call__(self, q, k, v, **options): ...

def wrapped(q, k, v, **options): ...

def decorated(f):
    @functools.wraps(f)
    def inside(*args, **options):
        return f(*args, **options)
    return inside
"""


@pytest.mark.parametrize("name", ["plain", "Module", "made", "part", "of_library", "with_wraps"])
def test_the_version_is_that_of_the_persons_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "library", raising=False)
    (tmp_path / "library.py").write_text(LIBRARY)
    path, versions = tmp_path / "mine_versions.py", set()
    for of_file, of_neighbour in (("", ""), ("# changed\n", ""), ("", "# changed\n")):
        path.write_text(SOURCE + of_file)
        (tmp_path / "library.py").write_text(LIBRARY + of_neighbour)
        sys.modules.pop("library", None)  # as in another process, because a version covers imported files
        versions.add(backends.load("own", f"{path}:{name}").probe().version)
    assert len(versions) == 3
    assert not any("unknown" in str(version) for version in versions)
    monkeypatch.delitem(sys.modules, "library")


def test_the_order_is_seen_through_what_wraps_a_function() -> None:
    def heads_first(q: Any, k: Any, v: Any, *, block: int = 0) -> Any: ...

    heads_first.order = "bhsd"  # type: ignore[attr-defined]
    assert Function("f", functools.partial(heads_first, block=1)).order == "bhsd"


def test_what_is_loaded_is_what_was_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaded code is the hashed code, even if two sources have one time and size, Python's key of cached code."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, neighbour = tmp_path / "mine_kept.py", tmp_path / "beside_kept.py"
    found = []
    for number in ("1", "2"):
        path.write_text(f"import beside_kept as b\ndef f(q, k, v, **options): ...\nf.number = {number}, b.number\n")
        neighbour.write_text(f"number = {number}\n")
        for file in (path, neighbour):
            os.utime(file, (10**9, 10**9))
            if number == "1":
                py_compile.compile(str(file))
        sys.modules.pop("beside_kept", None)
        loaded = backends.load("own", f"{path}:f")
        found.append((loaded.fn.number, loaded.probe().version))  # type: ignore[attr-defined]
    assert [number for number, _ in found] == [(1, 1), (2, 2)]
    assert len({version for _, version in found}) == 2
    sys.modules.pop("beside_kept")


def test_the_version_is_of_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is a hash of the text that was imported, not of the file's text after the import."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path, versions = tmp_path / "mine_slow.py", []
    changes_itself = f"""from pathlib import Path
def f(q, k, v, **options): ...
Path({str(path)!r}).write_text(Path({str(path)!r}).read_text() + "# more")
"""
    for source in (changes_itself, f"{changes_itself}# more"):
        path.write_text(source)
        versions.append(backends.load("own", f"{path}:f").probe().version)
    assert len({*versions}) == 2


@pytest.mark.parametrize("folder", ["", ".cache/bazel", "dist-packages-of-mine"])
def test_the_version_has_a_neighbour_that_is_imported_in_a_call(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version covers a neighbour that a call imports; one named like a standard module does not replace it."""
    (tmp_path := tmp_path / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.delitem(sys.modules, "late_of_tests", raising=False)
    own = "import colorsys\nassert colorsys.__doc__\ndef f(q, k, v, **options):\n    import late_of_tests\n"
    (tmp_path / "mine_late.py").write_text(own)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    versions = set()
    for factor in (1, 2):
        (tmp_path / "late_of_tests.py").write_text(f"FACTOR = {factor}\n")
        (tmp_path / "colorsys.py").write_text(f"# {factor}\n1 / 0\n")
        versions.add(backends.load("own", f"{tmp_path}/mine_late.py:f").probe().version)
    assert len(versions) == 2


@pytest.mark.parametrize("place", ["pkg/beside.py", "pkg/beside/part.py", "common.so"])
def test_the_version_has_folders_without_init_relative_imports_and_libraries(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version covers folders without __init__, relative imports and libraries; a folder named numpy is harmless."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "pkg" / "beside").mkdir(parents=True)
    (tmp_path / "numpy").mkdir()
    own = "import numpy, {load}\ndef f(q, k, v, **options):\n    from {of} import x\n"
    of = {"pkg/beside.py": ".beside", "pkg/beside/part.py": "pkg.beside.part"}.get(place, "json")
    load = f"ctypes; ctypes.CDLL({str(tmp_path / 'pkg' / place)!r})" if place.endswith(".so") else "math"
    (tmp_path / "pkg" / "mine_api.py").write_text(own.format(load=load, of=of))
    made = tmp_path / ("pkg/common.so" if place.endswith(".so") else place)
    versions = set()
    for end in (b"", b"\n"):
        code = Path(_ctypes.__file__).read_bytes() if place.endswith(".so") else b"x = 1"
        made.unlink(missing_ok=True)
        made.write_bytes(code + end)
        versions.add(backends.load("own", f"{tmp_path}/pkg/mine_api.py:f").probe().version)
    assert len(versions) == 2


ELSEWHERE = """
import ctypes, os, sys
sys.path.append(os.environ["ELSEWHERE"])
sys.path.append(os.path.join(os.environ["ELSEWHERE"], "archive.zip"))
import elsewhere_of_tests, zipped_of_tests
ctypes.CDLL(os.path.join(os.environ["ELSEWHERE"], "library.so"))

def f(q, k, v, **options): ...
"""


def test_the_version_has_what_is_loaded_from_another_folder(tmp_path: Path) -> None:
    """The version covers modules of another folder, with their imports in a call, and archives that contain modules."""
    (folder := tmp_path / "elsewhere").mkdir()
    (tmp_path / "kernel").mkdir()
    (mine := tmp_path / "kernel" / "mine.py").write_text(ELSEWHERE)
    (folder / "elsewhere_of_tests.py").write_text("def late():\n    import late_elsewhere\n")
    (folder / "late_elsewhere.py").write_text("x = 1\n")
    shutil.copy(_ctypes.__file__, folder / "library.so")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("zipped_of_tests.py", "x = 1\n")
    code = f"from attnbench import backends; print(backends.load('own', '{mine}:f').probe().version)"
    versions = []
    for changed in ("", "", "elsewhere_of_tests.py", "late_elsewhere.py", "archive.zip", "library.so"):
        if changed:
            with (folder / changed).open("ab") as file:
                file.write(b"\n")
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "ELSEWHERE": str(folder)}, capture_output=True, text=True
        )
        versions.append(done.stdout)
    assert versions[0] == versions[1], done.stderr
    assert len({*versions}) == 5
    assert all(version.startswith("own, source ") for version in versions)


def test_a_version_is_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    """A worker in a source checkout adds none of attnbench's files to the version, __mp_main__ included."""
    kernel = (
        "import sys, multiprocessing, torch\nsys.path.append({!r})\nimport beside_of_tests\ndef f(q, k, v, **_): ...\n"
    )
    (beside := tmp_path / "m").mkdir()
    (beside / "beside_of_tests.py").write_text("x = 1\n")
    found = []
    for folder in ("a", "z"):
        (mine := tmp_path / folder / "mine.py").parent.mkdir()
        mine.write_text(kernel.format(str(beside)))
        worker = WorkerProcess()
        found.append(worker.ask({"op": "load", "name": "own", "spec": f"{mine}:f"}, 60.0))
        worker.kill()
    assert [{Path(file).name for file in one["files"]} for one in found] == [{"mine.py", "beside_of_tests.py"}] * 2
    assert found[0]["probe"]["version"] == found[1]["probe"]["version"]


def test_without_a_parameter_for_the_scale_there_are_no_cases_of_another() -> None:
    usual = Case(Shape(1, 64, 64, 1, 1, 64, 64), "fp32", "fwd")
    cases = (usual, replace(usual, scale=0.125), replace(usual, scale=0.3))
    own, other = Function("own", unscaled), Function("other", taken)
    assert [own.unsupported(case, CPU) for case in cases] == [
        None,
        None,
        "no parameter softmax_scale; this case has 0.3",
    ]
    assert [other.unsupported(case, CPU) for case in cases] == [None] * 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_what_is_no_dense_tensor_on_the_device_is_named_alike_in_each_direction(direction: str) -> None:
    case = Case(Shape(1, 8, 8, 1, 1, 16, 16), "fp32", direction)  # type: ignore[arg-type]
    said = {
        (lambda t: [t]): "out is a list, expected a plain torch.Tensor",
        torch.Tensor.to_sparse: "out is of torch.sparse_coo on cpu, expected torch.strided on cpu",
        (lambda t: t.to("meta")): "out is of torch.strided on meta, expected torch.strided on cpu",
        (lambda t: torch.nested.as_nested_tensor([*t])): "out is of torch.nested on cpu, expected torch.strided on cpu",
    }

    def results(made: Callable[[Any], Any]) -> None:
        own = Function("own", lambda q, k, v, *, causal, softmax_scale: made(q + k + v))
        prepared = own.prepare(case, inputs.make(case, "cpu", seed=0))
        prepared.canonical(prepared.launch())

    for made, why in said.items():
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            results(made)


@pytest.mark.parametrize("kernels", ["bmm(", ("mm", "["), 5, (b"mm",)])
def test_kernels_that_are_no_regular_expression(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken, "kernels", kernels, raising=False)
    reason = Function("own", taken).probe().reason
    assert str(reason).startswith("own.kernels is not one or several regular expressions: ")


def test_tritons_interpreter_is_no_judge_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {dtype: Case(Shape(1, 64, 64, 1, 1, 64, 64), dtype, "fwd") for dtype in ("bf16", "fp16", "fp32")}
    monkeypatch.setitem(sys.modules, "triton.language", sys)
    of_triton = Function("own", taken)
    monkeypatch.delitem(sys.modules, "triton.language")
    other = Function("own", taken)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    refused = {dtype: of_triton.unsupported(case, CPU) for dtype, case in cases.items()}
    assert "computes bf16 dot products wrongly" in str(refused.pop("bf16"))
    assert refused == {"fp16": None, "fp32": None}
    taken.kernels = "my_kernel"  # type: ignore[attr-defined]
    seen = [(of.signature(cases["fp32"], on).runs) for of, on in ((of_triton, CPU), (of_triton, GPU), (other, CPU))]
    assert seen == [(), ("my_kernel",), ("my_kernel",)], "the interpreter runs no kernel of that name"
    del taken.kernels  # type: ignore[attr-defined]
    assert "would not run on the GPU" in str(of_triton.unsupported(cases["fp16"], GPU))
    assert other.unsupported(cases["bf16"], CPU) is None
    monkeypatch.delenv("TRITON_INTERPRET")
    assert of_triton.unsupported(cases["bf16"], CPU) is None


def test_a_kernel_of_triton_is_not_what_is_called(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "mine.py").write_text("import triton\n@triton.jit\ndef kernel(q): ...\n")
    with pytest.raises(
        TypeError, match=r"kernel is a kernel of Triton; give the function of \(q, k, v\) that launches"
    ):
        backends.load("own", f"{tmp_path}/mine.py:kernel")


def test_an_object_that_has_any_attribute_is_no_backend_by_that(tmp_path: Path) -> None:
    file = tmp_path / "any.py"
    file.write_text("class Any:\n def __getattr__(self, name): return 3\n def __call__(self, q, k, v): ...\nf = Any()")
    assert backends.load("f", f"{file}:f").probe().reason == "f.order is 3, neither bshd nor bhsd"


def test_an_object_that_wraps_objects_without_end_has_a_version(tmp_path: Path) -> None:
    """An object whose __getattr__ makes a new object for any name ends the search for what it wraps."""
    file = tmp_path / "any.py"
    file.write_text("class Any:\n def __getattr__(self, name): return Any()\n def __call__(self): ...\nf = Any()")
    assert hash_of_source(backends.load("f", f"{file}:f").fn)  # type: ignore[attr-defined]
