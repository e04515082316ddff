"""Facts of an exception for a record: whether memory ran out, its text in one line, its place in a person's code."""

from __future__ import annotations

import bdb
import importlib.util
import re
import traceback
from pathlib import Path

from attnbench.backends import BACKENDS
from attnbench.core.errors import UserError
from attnbench.core.own_files import INSTALLED
from attnbench.core.sizes import format_bytes
from attnbench.core.text import one_line, printable

LONGEST = 400  # the most characters of a message
READ = 10 * LONGEST  # the most characters read of an exception's text, as patterns take quadratic time
ATTNBENCH = Path(__file__).resolve().parents[1]
NO_GPU_OF_TRITON = re.compile(r"\b0 active drivers|cannot be accessed from Triton \(cpu tensor")
WITHOUT_GPU = (
    "Triton runs on a GPU, or on a CPU with the environment variable TRITON_INTERPRET=1: slowly, for tests of its "
    "results in fp32 and fp16"
)
NOBODY = "input cannot be given during a measurement; use input() or a debugger in a script of your own"
ENDS = 'code that ends its process cannot be measured; in a script, put it under if __name__ == "__main__":'
REENTRANT = "gradients are taken by torch.autograd.grad here: give its checkpoint use_reentrant=False"
TODO = "_attnbench_todo"  # attribute of an exception with a remedy for a person
EXCERPT = re.compile(r"\A(at \d+:\d+:)\n(?:.*\n)*?(.*)\n *\^\n?")  # Triton's: source, then the cause
TRACED = "(most recent call last)"  # in texts of TorchScript and of torch.compile's processes
RAISED = re.compile(r"\w[\w.]*(Error|Exception)\b")
RELATIVE = "attempted relative import with no known parent"
PACKAGE = "name it by its package, as in package.module:function, in the folder that has the package"
STABLE_ALLOCATION = re.compile(r"aoti_torch_(aten_)?(new_)?(empty|zeros)\w*\(.*API call failed.*", re.DOTALL)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means out of memory, by the messages of torch's allocators, CUDA, cuDNN and cuBLAS.

    A failed allocation in a library of torch's stable interface (flash-attn 3) names only the call.
    """
    if is_of_judge(error):
        return isinstance(error, MemoryError)
    text = _text(error).lower()
    words = ("out of memory", "can't allocate memory", "cudnn_status_alloc_failed", "cublas_status_alloc_failed")
    return (
        isinstance(error, MemoryError)
        or any(word in text for word in words)
        or bool(STABLE_ALLOCATION.match(_text(error)))
    )


def is_of_judge(error: BaseException) -> bool:
    """Return whether the judge beside the worker failed, and not the backend."""
    return type(error).__name__ in (
        "JudgeError",
        "JudgeOutOfMemoryError",
    )  # its errors; it is imported only for measuring


def reason(error: BaseException, spec: str) -> str:
    """Return an exception's type, the first paragraph of its message, its place in the code, and a known remedy.

    They are one line. `spec` is the backend's "module:object" or "file.py:object".
    """
    try:
        return _reason(error, spec)
    except Exception:  # its class and attributes may fail in any way
        return f"{type(error).__name__}, whose text cannot be read"


def _reason(error: BaseException, spec: str) -> str:
    text = one_line(_cause(error)[:READ].split("\n\n")[0])
    text = re.sub(r"(Tried to allocate [\d.]+ \w+\.).*?of which ([\d.]+ \w+) is free.*", r"\1 \2 free", text)
    text = STABLE_ALLOCATION.sub("an allocation by torch's stable interface failed", text)
    text = re.sub(r".*DefaultCPUAllocator: .*?tried to allocate (\d+) bytes.*", _no_memory, text)
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    if isinstance(error, SyntaxError) and isinstance(error.text, str) and isinstance(error.offset, int):
        indented = len(error.text) - len(error.text.lstrip())
        text += f", at column {max(1, error.offset - indented)} of: {one_line(error.text)}"
    what = (f"{kind}{text}"[:LONGEST] if text else type(error).__name__) + place(error, spec)
    known = ENDS if isinstance(error, SystemExit) else NOBODY if isinstance(error, EOFError | bdb.BdbQuit) else None
    todo = known or (WITHOUT_GPU if NO_GPU_OF_TRITON.search(text) else vars(error).get(TODO))
    todo = todo or (REENTRANT if text.startswith("When use_reentrant=True") else None)
    todo = todo or (PACKAGE if text.startswith(RELATIVE) else None)
    return f"{what}; {todo}" if todo else what


def _cause(error: BaseException) -> str:
    """Return an exception's text: of a compiler's, its error without the commands or the source code before it.

    Of a text that has a traceback it is the first line and the error.
    """
    while error.__cause__ and EXCERPT.fullmatch(_text(error)[:READ]):  # the kernel's call of a function that fails
        error = error.__cause__
    text = _text(error)
    found = next((line for line in text.splitlines() if ": error: " in line or ": fatal error: " in line), "")
    if text.find(found) + len(found) > LONGEST:
        text = f"{text.partition(': ')[0]}: {found}"
    if raised := next(filter(RAISED.match, text.partition(TRACED)[2].splitlines()), ""):
        text = f"{text.splitlines()[0]} {raised}"
    return EXCERPT.sub(r"\1 \2: ", text[:READ])


def place(error: BaseException, spec: str) -> str:
    """Return the last frame in the person's file or package: " (mine.py:12 in attention)"; "" without one."""
    own = _own_code(spec)
    if own is None:
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if not file.is_file() or not file.is_relative_to(own) or file.is_relative_to(ATTNBENCH):
            continue
        if not any(part.startswith(INSTALLED) for part in file.relative_to(own).parts):
            where = "" if frame.name == "<module>" else f" in {frame.name}"
            return printable(f" ({file.name}:{frame.lineno}{where})")
    return ""


def _own_code(spec: str) -> Path | None:
    """Return the folder of a person's file or package, or their single module; None for a backend of attnbench."""
    where = spec.rpartition(":")[0]
    if spec in BACKENDS.values() or not where:
        return None
    if where.endswith(".py"):
        return Path(where).resolve().parent
    try:
        found = importlib.util.find_spec(where.partition(".")[0])
    except ValueError:  # raised for a module without a spec
        return None
    folders = list(found.submodule_search_locations or ()) if found else []
    file = folders[0] if folders else found and found.origin
    return Path(file).resolve() if file else None


def _no_memory(match: re.Match[str]) -> str:
    return f"no memory for {format_bytes(int(match[1]))}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # raised by a person's own code
        return "its text cannot be read"
