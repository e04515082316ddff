"""The backends, interpreters and devices that --backend, --python and --device select.

--backend takes names, patterns (sdpa-*), names to leave out (!sdpa-math) and a person's own code, as pkg.mod:object or
./file.py:function, or several values of its parameters, as ./file.py:function[block_m=64,128].
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnbench import backends
from attnbench.backends import present_spec as present_spec
from attnbench.core import masks
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.own_code import parameters_of, split_names, sweep
from attnbench.core.record import Run
from attnbench.core.text import fits, some
from attnbench.run import venvs

_LIBRARIES = {  # names of libraries, which people try -> backends
    **dict.fromkeys(("flash", "flash-attn", "flash-attention", "flashattention", "flash-attn-2"), "fa2"),
    **dict.fromkeys(("torch", "pytorch", "scaled-dot-product-attention"), "sdpa-*"),
    "te": "transformer-engine",
}


def select_backends(patterns: Sequence[str], ranks: int = 1) -> dict[str, str]:
    """Return the selected backends in the order of the patterns: name -> "module:object".

    Patterns, and the word "all", match all backends except simulated and approximate ones, which must be named. If all
    patterns exclude backends, they exclude them from all of these. The prefix "ulysses-" makes a backend of one device,
    own code included, a backend of several. `ranks` is the fewest devices over which any case is split. Raises
    UserError for a pattern that matches nothing, for own code that is named twice, and where no backend can split a
    sequence over `ranks` devices.
    """
    available = backends.available()
    usual = [name for name in available if name not in backends.NOT_BY_DEFAULT]
    split = {f"{backends.ULYSSES}{name}": available[name] for name in usual}
    known = {**split, **available}
    named = [p for pattern in patterns for p in split_names(pattern) if p]
    wanted = ["*" if p == "all" else p for p in named]
    chosen: dict[str, str] = {}
    own: dict[str, _Own] = {}  # the chosen own code, which gets its names at the end
    if patterns and not wanted:
        raise UserError("--backend: no name is given; leave it out for every backend that works here")
    if all(p.startswith("!") for p in wanted):
        chosen = {name: known[name] for name in usual}
    for pattern in wanted:
        if ":" in pattern or pattern.lower().endswith(".py"):
            for text in sweep(pattern):
                one = _parsed(text)
                if one.key in own:
                    raise UserError(f"--backend: {text} is named twice, and would be measured once; name it once")
                own[one.key] = one
                chosen[one.key] = one.spec
            continue
        if re.search(r"\[[^\]]*=", pattern):
            raise UserError(f"{pattern}: only own code has parameters, as in './file.py:function[block_m=64]'")
        bare = pattern.removeprefix("!")
        fitting = fnmatch.filter(known, bare) if bare in known else fnmatch.filter(usual, bare)
        rarer = (*backends.SEVERAL, *backends.OTHER_KINDS)  # ring-*, indexer-*
        fitting = fitting or fnmatch.filter(rarer, bare) or fnmatch.filter(split, bare)  # ulysses-*
        if not fitting:
            meant = _meant(bare, usual, available)
            if own and bare.isidentifier():
                file = list(own.values())[-1].pattern.rpartition(":")[0]
                close = "" if meant.startswith("; known: ") else meant
                meant = f"{close}; for a function of the same file write {file}:{bare}"
            raise UserError(f"no backend {bare!r}{meant}")
        for name in fitting:
            if pattern.startswith("!"):
                chosen.pop(name, None)
            else:
                chosen[name] = known[name]
    if not chosen:
        raise UserError(f"{','.join(wanted)!r} leaves no backend; exclude fewer")
    if ranks > 1 and all(_is_of_one_device(name, spec) for name, spec in chosen.items()):
        what = "each of these backends computes" if len(chosen) > 1 else f"{next(iter(chosen))} computes"
        raise UserError(f"ranks: {what} on one device, not on {ranks}; give -b 'ring-*,ulysses-*', or 1 rank")
    names = _names(own, known)
    return {names.get(name, name): spec for name, spec in chosen.items()}


@dataclass(frozen=True)
class Chosen:
    """The backends that a command measures."""

    specs: Mapping[str, str]  # backend -> "module:object"
    interpreters: Mapping[str, str] = field(default_factory=dict)  # backend -> its Python, if not this one


def choose(
    patterns: Sequence[str], pythons: Sequence[str] = (), ranks: int = 1, suite: Mapping[str, str] | None = None
) -> Chosen:
    """Return the backends that patterns select, and their interpreters (select_backends, select_interpreters)."""
    specs = select_backends(patterns, ranks)
    return Chosen(specs, select_interpreters(pythons, list(specs), suite))


def _is_of_one_device(name: str, spec: str) -> bool:
    """Return whether a shipped backend cannot split a sequence; false for own code, which must be loaded to know."""
    return name != "fake" and not splits_sequences(name) and not is_user_code(spec)


def splits_sequences(name: str) -> bool:
    """Return whether a backend is for several devices, by its name; on one device it is the kernel that it wraps."""
    return name in backends.SEVERAL or name.startswith(backends.ULYSSES)


def _meant(word: str, usual: Sequence[str], known: Mapping[str, str]) -> str:
    family = [name for name in usual if name.startswith(f"{word}-")]
    if family:
        return f'; did you mean "{word}-*" ({", ".join(family)})?'
    plain = word.lower().replace("_", "-")
    return f'; did you mean "{_LIBRARIES[plain]}"?' if plain in _LIBRARIES else did_you_mean(word, known)


def available_backends() -> dict[str, str]:
    """Return all known backends, shipped or from an installed package: name -> "module:object"."""
    return backends.available()


def is_approximate(name: str) -> bool:
    """Whether a shipped backend computes an approximation of attention."""
    return name in backends.APPROXIMATE


def is_user_code(spec: str) -> bool:
    """Return whether a "module:object" is neither a shipped backend nor one of an installed package."""
    return not spec.startswith(f"{backends.__name__}.") and spec not in backends.available().values()


def notes_on_strangers(specs: Iterable[str]) -> list[str]:
    """Return a note for each file of code that belongs to another user, by whom it may be meant to cheat or to harm."""
    files = dict.fromkeys(spec.rpartition(":")[0] for spec in specs if is_user_code(spec) and ".py:" in spec)
    strangers = [file for file in files if hasattr(os, "getuid") and Path(file).stat().st_uid not in (os.getuid(), 0)]
    return [f"{file} belongs to another user: --untrusted judges it from outside its process" for file in strangers]


def check_trusted(path: Path, run: Run, named: Iterable[str] = ()) -> None:
    """Raise UserError where a run file names code or interpreters that nothing else here selects.

    The code of the backends `named` was given on the command line.
    """
    usual = venvs.venv_interpreters(run.specs)
    known = {*backends.available().values()}
    given = {*named}
    found = [spec for name, spec in run.specs.items() if present_spec(name, spec) not in known and name not in given]
    found += [python for name, python in run.interpreters.items() if usual.get(name) != python]
    refuse_code(path, [*found, *(own.spec for own in masks.own_of(job.case.mask for job in run.plan))])


def refuse_code(path: Path, found: Sequence[str]) -> None:
    """Raise UserError where a run file names code or interpreters that nobody here has chosen."""
    if found:
        raise UserError(
            f"{path} names {some(dict.fromkeys(found))} to run; if you trust whoever wrote the file, add --trust"
        )


def select_interpreters(
    pairs: Sequence[str], names: Sequence[str], suite: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return backend -> interpreter for the backends among `names` that do not run in this interpreter.

    In order of priority: `pairs` of --python NAME=PATH, the suite's `interpreters`, the environments of `attnbench env
    create`. NAME is a backend or a pattern; a suite may also name other backends. Raises UserError.
    """
    found = venvs.venv_interpreters(names)
    for name, path in (suite or {}).items():
        if not fnmatch.filter(known := [*names, *backends.available()], name):
            raise UserError(f"interpreters: no backend {name!r}{did_you_mean(name, known)}")
        if fitting := [of for of in names if fits(of, name)]:
            found.update(dict.fromkeys(fitting, _executable(path, "interpreters")))
    for pair in pairs:
        name, _, path = re.fullmatch(r"([^=\[]*(?:\[[^\]]*\])?)(=?)(.*)", pair, re.DOTALL).groups()  # type: ignore[union-attr]
        if not path:
            raise UserError(f"--python: {pair!r} is not NAME=PATH, as in fa4=/opt/venvs/fa4/bin/python")
        fitting = [of for of in names if fits(of, name)]
        if not fitting:
            raise UserError(f"--python: {name!r} is not among the backends of this run{did_you_mean(name, names)}")
        found.update(dict.fromkeys(fitting, _executable(path, "--python")))
    return found


def _executable(path: str, option: str) -> str:
    where = shutil.which(os.path.expanduser(path))
    if where is None:
        inside = os.path.join(path, "bin", "python")
        meant = f"; did you mean {inside}?" if os.access(os.path.expanduser(inside), os.X_OK) else ""
        raise UserError(f"{option}: {path} is not an executable file{meant}")
    first = b""
    with contextlib.suppress(OSError), open(where, "rb") as file:  # it may be executable and not readable
        start = file.read(2)
        if start.isalnum() and start != b"MZ":  # of a program of Windows
            raise UserError(f"{option}: {path} is a script without an interpreter in its first line (#!)")
        first, *_ = (file.readline(1024) if start == b"#!" else b"").split() or [b""]
    if first and not os.path.exists(first):
        raise UserError(f"{option}: {path} names {os.fsdecode(first)} in its first line, which is not there")
    return where


def is_executable(python: str) -> bool:
    """Return whether an interpreter is an executable file here."""
    return "\0" not in python and os.access(python, os.X_OK)


def parse_device(text: str) -> str:
    """Return the text of --device if it names a device. Raises UserError."""
    if not re.fullmatch(r"auto|cpu|fake|cuda(:\d+)?", text):
        meant = f"; did you mean cuda:{text}?" if text.isdigit() else ""
        raise UserError(f"--device: {text!r} is not auto, cpu, cuda, cuda:N or fake{meant}")
    return text


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the devices of --device for several ranks, which "cuda:0-3" or "cuda:0,2" names.

    Raises UserError.
    """
    if not (found := re.fullmatch(r"cuda:(\d{1,3}([-,]\d{1,3})+)", text)):
        return (parse_device(text),)
    indexes: list[int] = []
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        if not (last or first).isdigit() or int(last or first) < int(first):
            raise UserError(f"--device: {part!r} is not a range of devices, as in cuda:0-3")
        indexes += range(int(first), int(last or first) + 1)
    if len({*indexes}) < len(indexes):
        raise UserError(f"--device: {text} names a device twice")
    return tuple(f"cuda:{index}" for index in indexes)


def possible_kinds(device: str) -> tuple[str, ...]:
    """Return the possible kinds of device of a checked text of --device, the likeliest first."""
    kinds: Mapping[str, tuple[str, ...]] = {"auto": ("cuda", "cpu"), "cpu": ("cpu",), "fake": ("fake",)}
    return kinds.get(device, ("cuda",))


@dataclass(frozen=True)
class _Own:
    """One function of a person, as given."""

    pattern: str
    split: str  # "ulysses-" for a backend of several devices, else ""
    spec: str  # "/path/file.py:function[parameters]" or "pkg.mod:object"

    @property
    def key(self) -> str:
        return self.split + self.spec

    @property
    def short(self) -> str:
        """The name without its file, for a function whose name is unique: the part after the colon."""
        return self.split + self.spec.rpartition(":")[2]


def _parsed(pattern: str) -> _Own:
    split = backends.ULYSSES if pattern.startswith(backends.ULYSSES) else ""
    return _Own(pattern, split, _own_spec(pattern.removeprefix(split)))


def _names(own: Mapping[str, _Own], known: Mapping[str, str]) -> dict[str, str]:
    """Return key -> name of own code: the function with its parameters, and with its prefix "ulysses-" if given.

    Where a backend of attnbench has this name, the given text is used. Functions of one name in several files are
    preceded by the file and as much of its path as is necessary, as in good.py:tiled and slow.py:tiled.
    """
    places: dict[str, set[str]] = {}  # function -> its files
    for one in own.values():
        places.setdefault(_function(one), set()).add(one.spec.rpartition(":")[0])
    found = {}
    for key, one in own.items():
        where, _, function = one.spec.rpartition(":")
        if others := places[_function(one)] - {where}:
            depth = next(n for n in itertools.count(1) if _end(where, n) not in {_end(place, n) for place in others})
            found[key] = f"{one.split}{_end(where, depth)}:{function}"
        else:
            found[key] = one.pattern if one.short in known else one.short
    return found


def _function(one: _Own) -> str:
    return parameters_of(one.short)[0]


def _end(place: str, parts: int) -> str:
    """Return the last parts of a path; a module's name as it is."""
    return "/".join(place.split(os.sep)[-parts:])


def _own_spec(pattern: str) -> str:
    if pattern.lower().endswith(".py"):
        raise UserError(f"{pattern}: which function of it? Write {pattern}:my_attention")
    where, _, name = pattern.rpartition(":")
    where = os.path.expanduser(where)
    if where.endswith(":"):  # as in pytest
        raise UserError(f"{pattern}: one colon separates file and function; write {where.rstrip(':')}:{name}")
    if not parameters_of(name)[0].isidentifier():
        raise UserError(f"{pattern!r} is not pkg.mod:object or file.py:function")
    if where.lower().endswith(".py"):
        if not where.endswith(".py"):
            raise UserError(f"{where}: Python imports files whose names end with .py; rename it")
        path = os.path.realpath(where)  # Path.resolve raises RuntimeError for links in a circle
        if path != path.encode(errors="replace").decode():
            raise UserError(f"{where}: this path is not UTF-8, as the text of run files must be; rename it")
        if not os.path.lexists(where):
            raise UserError(f"no such file: {where} (in {pattern})")
        if not os.path.isfile(where):
            what = "not a plain file" if os.path.exists(where) else "a broken link"
            what = "a folder" if os.path.isdir(where) else what
            raise UserError(f"{where} is {what} (in {pattern}); give a file of Python source")
        return f"{path}:{name}"
    is_module = all(part.isidentifier() for part in where.split("."))
    if os.path.isfile(where) and not (is_module and "." not in where):  # "torch" may also be a file
        raise UserError(f"{where}: Python imports files whose names end with .py; put {name} in such a file")
    if not is_module:
        meant = f"; did you mean {where}.py:{name}?" if os.path.isfile(f"{where}.py") else ""
        raise UserError(f"{pattern!r} is not pkg.mod:object or file.py:function{meant}")
    return pattern
