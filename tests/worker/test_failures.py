"""The reason of a record from an exception: one safe line, with the place in a person's own code."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from attnbench import backends
from attnbench.core.errors import UserError
from attnbench.worker import failures

MINE = """
import sys

def inner():
    raise ValueError("no")

def deep():
    inner()

def of_the_library():
    import json
    json.loads("{")

def escapes():
    raise ValueError("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x9b1mbold\\nnext line\\n\\nnext paragraph")

def long():
    raise ValueError("x" * 1000)

def leaves():
    sys.exit("a last word")

def leaves_with_a_number():
    sys.exit(3)

def interrupts():
    raise KeyboardInterrupt

class Silent(Exception):
    def __str__(self):
        raise RuntimeError

def silent():
    raise Silent

def without_a_gpu():
    raise RuntimeError("0 active drivers ([]). There should only be one.")

def does_not_compile():
    try:
        raise RuntimeError("at 4:5:\\ndef inner(q):\\n\\n    dot(q, k)\\n    ^\\nunequal dimensions")
    except RuntimeError as error:
        raise RuntimeError("at 9:5:\\ndef kernel(q):\\n    # the loop\\n\\n    inner(q)\\n    ^") from error

def does_not_build():
    command = f"[1/2] c++ {'-isystem /include ' * 500}\\nFAILED: m.o"
    raise RuntimeError(f"Error building extension 'ext': {command}\\nm.cpp: In f:\\nm.cpp:3:9: error: no x")
"""


def raised_by(name: str, folder: Path) -> str:
    """Return the reason for the exception of a function in a person's file."""
    path = folder / "mine.py"
    path.write_text(MINE)
    spec = f"{path}:{name}"
    function = backends.load("own", spec).fn  # type: ignore[attr-defined]
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return failures.reason(caught.value, spec)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deep", "ValueError: no (mine.py:5 in inner)"),
        (
            "of_the_library",
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
            "(mine.py:12 in of_the_library)",
        ),
        ("escapes", "ValueError: red bold next line (mine.py:15 in escapes)"),
        ("long", f"ValueError: {'x' * 388} (mine.py:18 in long)"),
        ("leaves", f"SystemExit: a last word (mine.py:21 in leaves); {failures.ENDS}"),
        ("leaves_with_a_number", f"SystemExit: 3 (mine.py:24 in leaves_with_a_number); {failures.ENDS}"),
        ("interrupts", "KeyboardInterrupt (mine.py:27 in interrupts)"),
        ("silent", "Silent: its text cannot be read (mine.py:34 in silent)"),
        ("does_not_compile", "RuntimeError: at 4:5: dot(q, k): unequal dimensions (mine.py:43 in does_not_compile)"),
        (
            "does_not_build",
            "RuntimeError: Error building extension 'ext': m.cpp:3:9: error: no x (mine.py:47 in does_not_build)",
        ),
    ],
)
def test_the_place_is_the_last_in_the_persons_file(name: str, said: str, tmp_path: Path) -> None:
    assert raised_by(name, tmp_path) == said


def test_triton_without_a_gpu_says_how_to_run_it(tmp_path: Path) -> None:
    said = raised_by("without_a_gpu", tmp_path)
    assert said.startswith("RuntimeError: 0 active drivers")
    assert "TRITON_INTERPRET=1" in said


@pytest.mark.parametrize(
    ("helper", "place"),
    [
        ("helper.py", "helper.py:2 in fails"),
        ("deep/below/helper.py", "helper.py:2 in fails"),
        ("venv/lib/site-packages/helper.py", "mine.py:5 in calls"),  # a library, although it is in the person's folder
    ],
)
def test_a_neighbour_is_own_code_and_a_virtual_environment_is_not(helper: str, place: str, tmp_path: Path) -> None:
    (tmp_path / helper).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / helper).write_text("def fails():\n    raise ValueError('no')\n")
    (tmp_path / "mine.py").write_text(
        f"import runpy\nfails = runpy.run_path({str(tmp_path / helper)!r})['fails']\n\ndef calls():\n    fails()\n"
    )
    spec = f"{tmp_path}/mine.py:calls"
    with pytest.raises(ValueError, match="no") as caught:
        backends.load("own", spec).fn()  # type: ignore[attr-defined]
    assert failures.place(caught.value, spec) == f" ({place})"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit('not here')\n", f"SystemExit: not here (mine.py:2); {failures.ENDS}"),
        ("def f():\n  import no_such_module_of_ours\nf()\n", "(mine.py:2 in f)"),
        (
            "from .util import f\n",
            "(mine.py:1); name it by its package, as in package.module:function, in the folder that has the package",
        ),
        ("def f(:\n", "(mine.py, line 1), at column 7 of: def f(:"),  # Python's message, and the line
    ],
)
def test_what_fails_at_import(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    spec = f"{tmp_path}/mine.py:f"
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        backends.load("own", spec)
    assert failures.reason(caught.value, spec).endswith(said)


def test_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "package_of_ours"  # installed, but the person's own
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text("import json\n\ndef attention():\n    json.loads('{')\n")
    monkeypatch.syspath_prepend(package.parent)
    spec = "package_of_ours.kernels:attention"
    with pytest.raises(ValueError, match="Expecting") as caught:
        backends.load("own", spec).fn()  # type: ignore[attr-defined]
    assert failures.place(caught.value, spec) == " (kernels.py:4 in attention)"
    assert failures.place(caught.value, "no_such_module_of_ours:f") == ""
    assert failures.place(caught.value, backends.BACKENDS["eager"]) == ""


def test_a_long_text_takes_no_long_time() -> None:
    began = time.monotonic()
    assert failures.reason(ValueError("x" * 1_000_000), "") == f"ValueError: {'x' * 388}"
    assert failures.is_out_of_memory(RuntimeError("x" * 1_000_000 + "out of memory"))
    assert time.monotonic() - began < 5


def test_an_exception_that_is_not_as_python_makes_it() -> None:
    class Nameless(Exception):
        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            raise ValueError

    assert failures.reason(Nameless(), "no_such_module_of_ours:f") == "Nameless, whose text cannot be read"
    assert failures.reason(UserError("torch.py is in the way; rename it"), "") == "torch.py is in the way; rename it"
    assert failures.reason(SyntaxError("x", ("f", 1, 5, b"abc")), "") == "SyntaxError: x (f, line 1)"  # type: ignore[arg-type]


def test_out_of_memory() -> None:
    allocator = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 67108864 bytes. Error code 12 (Cannot allocate memory)"
    )
    assert failures.is_out_of_memory(allocator)
    assert failures.reason(allocator, "") == "RuntimeError: no memory for 64 MiB"
    assert failures.is_out_of_memory(MemoryError())
    assert not failures.is_out_of_memory(ValueError("memory"))


def test_an_allocation_of_flash_attn_3_that_fails_is_out_of_memory() -> None:
    """A failed allocation of flash-attn 3, whose message (of torch's stable interface) has no reason, is an oom."""
    said = "{}( self.get(), size.data(),\n &target_dtype, &ret0) API call failed at torch/csrc/stable/ops.h, line 139"
    for name in ("aoti_torch_aten_new_empty", "aoti_torch_empty_strided", "aoti_torch_new_zeros"):
        error = RuntimeError(said.format(name))
        assert failures.is_out_of_memory(error)
        assert failures.reason(error, "") == "RuntimeError: an allocation by torch's stable interface failed"
    for name in ("aoti_torch_call_dispatcher", "aoti_torch_get_device_type"):
        assert not failures.is_out_of_memory(RuntimeError(said.format(name)))


def test_a_checkpoint_that_torch_does_not_differentiate_so() -> None:
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="use_reentrant") as caught:
        torch.autograd.grad(checkpoint(torch.neg, x, use_reentrant=True), x)
    assert failures.reason(caught.value, "").endswith(f"; {failures.REENTRANT}")


def test_a_text_that_has_a_traceback_is_its_error() -> None:
    """The reason has the error that TorchScript, or a process of torch.compile, puts below its traceback."""
    add = torch.jit.CompilationUnit("def add(a, b):\n  return a + b\n").add
    with pytest.raises(RuntimeError) as caught:
        add(torch.ones(2), torch.ones(3))
    said = failures.reason(caught.value, "")
    assert said.startswith("RuntimeError: The following operation failed")
    assert "RuntimeError: The size of tensor a (2) must match the size of tensor b (3)" in said
    traced = 'Name=triton_0\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n    1 / 0\n'
    compiler = RuntimeError(f"An exception occurred in a subprocess:\n\n{traced}ZeroDivisionError: division by zero\n")
    assert failures.reason(compiler, "") == (
        "RuntimeError: An exception occurred in a subprocess: ZeroDivisionError: division by zero"
    )
