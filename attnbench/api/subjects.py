"""The subjects of a measurement, as a person gives them: names of backends, own code, functions of this process."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import sys
import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from keyword import iskeyword
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

from attnbench.api.definitions import NotSource, definition, told
from attnbench.api.sources import is_script, module_source
from attnbench.core.errors import OtherStateError, UserError
from attnbench.core.files import write_file
from attnbench.core.live_state import UNTOLD, live_state
from attnbench.core.own_code import IN_PROCESS, WRITTEN
from attnbench.core.own_files import is_own
from attnbench.core.text import printable, shortened
from attnbench.run.venvs import user_folder

LONGEST = 100  # most bytes of a name, which becomes part of file names
T = TypeVar("T")
What: TypeAlias = "str | Callable[..., Any] | Iterable[str | Callable[..., Any]]"


@dataclass(frozen=True)
class Subjects:
    """The subjects of a measurement.

    patterns: as --backend takes them. here: spec -> a function that makes its worker in this process. why: name -> why
    it is measured in this process. live: spec -> the state that a worker's function is to have. given, scope,
    in_process: the arguments of `subjects`, from which they can be made again.
    """

    patterns: tuple[str, ...]
    here: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    live: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    given: Sequence[Any] = ()
    scope: Mapping[str, Any] = field(default_factory=dict)
    in_process: bool | None = None

    def measured(self, measure: Callable[[Subjects], T]) -> T:
        """Return the result of `measure`. A subject whose state differs in another process is measured in this one.

        Raises UserError where another measurement is under way in this process, and a subject is measured in it.
        """
        own, unlike = self, dict[str, str]()
        while True:
            try:
                with own._place():
                    return measure(own)
            except OtherStateError as error:
                if error.name in unlike:
                    raise
                unlike[error.name] = f"{error.differs} is not the same in another process"
                own = subjects(self.given, self.scope, in_process=self.in_process, unlike=unlike)

    def _place(self) -> contextlib.AbstractContextManager[None]:
        from attnbench.api.in_process import one_at_a_time

        return one_at_a_time() if self.here else contextlib.nullcontext()


def subjects(
    given: What, scope: Mapping[str, Any], *, in_process: bool | None = None, unlike: Mapping[str, str] | None = None
) -> Subjects:
    """Return the subjects that `given` stands for: names and patterns, functions, modules of torch, or several of them.

    A function that another process can import is named by its file; one of a script or a notebook is written to a file
    with everything that it needs; any other is measured in this process. With `in_process` True all are, with False
    none is. `unlike`: name -> why another process has another state; these are measured in this process too. `scope`
    has the names of the caller. Raises UserError for any other value, and, with in_process=False, for a function that
    another process cannot have.
    """
    patterns, here, why = list[str](), dict[str, Callable[[], Any]](), dict[str, str]()
    live = dict[str, Mapping[str, str]]()
    for one in each(given):
        if isinstance(one, (str, Path)):
            patterns.append(str(one))
            continue
        if not callable(one):  # type: ignore[unreachable, unused-ignore]
            raise UserError(f"{shown(one)} is neither a backend's name nor a function of (q, k, v)")
        name = _name(one, scope, {text.rpartition(":")[2] for text in patterns})
        reason = "in_process=True" if in_process else (unlike or {}).get(name, "")
        if not reason:
            try:
                spec = _importable(one, scope) or _written(one, name, scope)
                live[spec] = _state(one)
                patterns.append(spec)
                continue
            except NotSource as error:
                reason = str(error)
            except UserError:
                raise
            except Exception as error:  # an error of the person's object
                raise UserError(f"{name}: reading it {_raises(error)}; in_process=True measures it unread") from None
        if in_process is False:
            raise UserError(
                f"{name}: no other process can have it: {reason}; put it in a file, or measure it in this process "
                "(in_process=True of measure and check)"
            )
        spec = f"{IN_PROCESS}:{name}"
        patterns.append(spec)
        here[spec], why[name] = partial(_in_process, name, one), reason
    return Subjects(tuple(patterns), here, why, live, each(given), scope, in_process)


def _state(function: Any) -> Mapping[str, str]:
    """Return the state of a function that another process must have too. Raises NotSource where none can have it."""
    state = live_state(function)
    hidden = next((text for text in state.values() if text.startswith(UNTOLD)), "")
    if hidden:
        raise NotSource(f"not known is {hidden}")
    return state


def each(given: What) -> list[Any]:
    """Return `given`, one subject or several, as a list. Raises UserError where iterating over it raises an error."""
    if isinstance(given, (str, Path, bytes, Mapping)) or callable(given) or not isinstance(given, Iterable):
        return [given]
    try:
        return list(given)
    except Exception as error:
        raise UserError(f"iterating over the {type(given).__name__} {_raises(error)}; give a list") from None


def shown(given: Any) -> str:
    """Return the repr of an object, for an error line; its type where there is none."""
    try:
        return shortened(repr(given))
    except Exception:  # an error of the person's object
        return f"an object of type {type(given).__name__}"


def _raises(error: Exception) -> str:
    try:
        text = f": {error}"
    except Exception:  # a person's own exception
        text = ""
    return printable(f"raises {type(error).__name__}{text}")


def _in_process(name: str, function: Any) -> Any:
    from attnbench.api.in_process import worker_of  # it imports torch when it is first asked

    return worker_of(name, function)


def _name(given: Any, scope: Mapping[str, Any], taken: Iterable[str]) -> str:
    """Return a name for an object: the variable that holds it, or its own name, with a number where it is taken.

    It is an identifier of at most LONGEST bytes; where the object has no name, the name of its type is used.
    """
    own = told(given, "__name__")
    held = [name for name, value in scope.items() if value is given and not name.startswith("_")]
    is_name = own.isidentifier() and own not in scope  # a name in scope may belong to another object
    name = own if own in held or is_name else (held or [own])[0]
    if not _can_be_bound(name):
        name = re.sub(r"\W", "_", type(given).__name__, flags=re.ASCII)
        name = name if _can_be_bound(name) else f"_{name}"
    name = name.encode()[:LONGEST].decode(errors="ignore")
    taken = {*taken}
    return next(one for one in (name, *(f"{name}_{n}" for n in range(2, 1000))) if one not in taken)


def _can_be_bound(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)


def _importable(given: Any, scope: Mapping[str, Any]) -> str:
    """Return "file.py:function" or "pkg.mod:object" of an object of an importable module; "" for one of the script."""
    of = str(scope.get("__name__", ""))
    places = [(told(given, "__module__"), told(given, "__qualname__"))]
    places += [(of, name) for name, value in scope.items() if value is given]
    for module_name, name in places:
        module = sys.modules.get(module_name)
        file = getattr(module, "__file__", None) or ""
        if module is None or is_script(module) or getattr(module, name, None) is not given or not name.isidentifier():
            continue
        if not file.endswith(".py") or not is_own(Path(file).resolve(), ()):
            return f"{module_name}:{name}"
        if getattr(module, "__package__", ""):
            raise NotSource(f"{module_name} is of a package that is not installed")
        if isinstance(given, FunctionType):
            definition(given)  # raises NotSource where its file was edited since
        return f"{file}:{name}"
    return ""


def _written(given: Any, name: str, scope: Mapping[str, Any]) -> str:
    """Write the source of an object to a file, and return "file.py:name". Raises NotSource.

    The file stays, so that commands named by a report find it: `attnbench run --resume`, `check --wrong`.
    """
    source = module_source(given, name, scope)
    folder = (user_folder() or Path(tempfile.gettempdir(), "attnbench")) / WRITTEN
    path = folder / hashlib.sha256(source.encode()).hexdigest()[:16] / f"{name}.py"
    if not path.is_file() or path.read_text(encoding="utf-8") != source:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, source)
        except (OSError, UserError):  # the home folder cannot be written to
            path = Path(tempfile.mkdtemp(prefix="attnbench-"), WRITTEN, f"{name}.py")
            path.parent.mkdir()
            write_file(path, source)
    return f"{path}:{name}"


def caller_scope(depth: int = 2) -> Mapping[str, Any]:
    """Return the variables of the caller `depth` levels up, local ones first."""
    frame: Any = inspect.currentframe()
    for _ in range(depth):
        frame = frame.f_back if frame else None
    if not frame:
        return {}
    return ChainMap({**frame.f_locals}, frame.f_globals) if frame.f_locals is not frame.f_globals else frame.f_globals
