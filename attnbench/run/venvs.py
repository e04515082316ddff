"""`attnbench env`: virtual environments for libraries that cannot share one, remembered for later runs.

Each holds the packages of one of attnbench's extras. Through a .pth file it sees what the interpreter that made it
sees, torch above all, after its own: pip takes that torch as installed, and a constraint keeps out any other.
"""

from __future__ import annotations

import collections
import fnmatch
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from attnbench.backends import BACKENDS
from attnbench.core.errors import UserError, did_you_mean

SERVES: Mapping[str, tuple[str, ...]] = {  # extra -> the backends that run in its environment
    "fa1": ("fa1",),
    "fa2": ("fa2",),
    "fa4": ("fa4",),
    "sdpa-fa4": ("sdpa-fa4",),
    "xformers": ("xformers", "xformers-*"),
    "flashinfer": ("flashinfer", "flashinfer-*"),
    "cudnn": ("cudnn", "cudnn-fp8"),
    "transformer-engine": ("transformer-engine",),
    "hf": ("hf-*",),
}
COMPILED = ("fa1", "fa2", "transformer-engine")  # by pip, against the torch that is there
BUILD = ("setuptools", "wheel", "packaging", "psutil", "ninja")  # what that takes
PRESENT = "zz-attnbench-present.pth"
RUNTIME = "zz-attnbench-cuda-runtime.pth"
LOOK = """
import importlib.metadata, importlib.util, json, pathlib, re, sys, sysconfig
own = {sysconfig.get_path(k) for k in ("stdlib", "platstdlib")}
own |= {p + "/lib-dynload" for p in own}
paths = [p for p in dict.fromkeys(sys.path) if p and p not in own and pathlib.Path(p).is_dir()]
spec = importlib.util.find_spec("torch")
text = pathlib.Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
cuda = re.search(r"^cuda\\b.*= *['\\"]([\\d.]+)", text, re.M)
torch = importlib.metadata.version("torch") if spec else None
print(json.dumps({"paths": paths, "torch": torch, "cuda": cuda and cuda[1]}))
"""


@dataclass(frozen=True)
class Venv:
    name: str  # of the extra
    path: str
    requirements: tuple[str, ...]
    torch: str  # the version it was made to see
    created: str  # ISO 8601 date

    @property
    def python(self) -> str:
        return str(Path(self.path) / "bin" / "python")

    @property
    def there(self) -> bool:
        return os.access(self.python, os.X_OK)


def home() -> Path:
    """Where environments are kept and remembered: $XDG_DATA_HOME/attnbench, ~/.local/share/attnbench."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "attnbench"


def known() -> dict[str, Venv]:
    """The environments that were made, by name. Raises UserError where their list is damaged."""
    path = home() / "environments.json"
    try:
        entries = json.loads(path.read_text())
        return {e["name"]: Venv(**{**e, "requirements": tuple(e["requirements"])}) for e in entries}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}); delete it, and make the environments again"
        ) from None


def remembered(names: Iterable[str]) -> dict[str, str]:
    """Backend -> the Python of its environment, of these backends; one that is gone is passed over."""
    return {
        backend: made.python
        for made in known().values()
        if made.there
        for backend in names
        if backend in served(made.name)
    }


def lost(names: Iterable[str]) -> list[str]:
    """Of these backends those whose environment is gone, a line for each environment."""
    names = list(names)
    return [
        f"{', '.join(own)}: the environment is gone, {made.path}; attnbench env remove {made.name}, and create it again"
        for made in known().values()
        if not made.there and (own := [backend for backend in names if backend in served(made.name)])
    ]


def served(name: str) -> list[str]:
    """The backends that run in the environment of an extra."""
    return [b for b in BACKENDS if any(fnmatch.fnmatchcase(b, glob) for glob in SERVES.get(name, ()))]


def extra(word: str) -> str:
    """The extra of this name, or the one that serves the backend of this name."""
    if word in SERVES:
        return word
    for name in SERVES:
        if word in served(name):
            return name
    if word in ("fa3", "sdpa-fa3"):
        raise UserError(
            f"env create {word}: flash-attn 3 is built from source; make it by hand (docs/backends.md), then "
            f"--python {word}=PATH"
        )
    raise UserError(f"env create: no environment for {word!r}{did_you_mean(word, SERVES)}")


def requirements(name: str, cuda: str | None = None, declared: Sequence[str] | None = None) -> tuple[str, ...]:
    """What attnbench's own metadata declares for an extra, and what CUDA 13 needs beside it.

    flash-attn-4 has another set of libraries for it; xFormers' wheel is built for CUDA 12 and wants its runtime.
    """
    if declared is None:
        try:
            declared = importlib.metadata.requires("attnbench") or []
        except importlib.metadata.PackageNotFoundError:
            raise UserError(
                "env create: attnbench is not installed, so its extras are not known; pip install -e ."
            ) from None
    found = [
        text.partition(";")[0].strip()
        for text in declared
        if re.search(rf"""\bextra\s*==\s*['"]{re.escape(name)}['"]""", text.partition(";")[2])
    ]
    if not found:
        raise UserError(f"env create: this installation of attnbench declares no extra {name!r}; install it again")
    if cuda and int(cuda.partition(".")[0]) >= 13:
        found = [re.sub(r"^flash-attn-4\b(?!\[)", "flash-attn-4[cu13]", text) for text in found]
        found += ["nvidia-cuda-runtime-cu12"] if name == "xformers" else []
    return tuple(found)


def create(word: str, path: Path | None, options: Sequence[str], say: Callable[[str], None]) -> Venv:
    """Makes and remembers it; `options` go to pip, `say` hears what goes on. What fails half-way is removed."""
    name = extra(word)
    if old := known().get(name):
        raise UserError(f"there is an environment {name} already ({old.path}); attnbench env remove {name} forgets it")
    path = (path or home() / "envs" / name).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is there already and is not empty; choose another --path")
    say("looking at the present torch")
    present = _look()
    if not present["torch"]:
        raise UserError(f"{sys.executable} has no torch for the environment to see; install torch first")
    wanted = requirements(name, present["cuda"])
    made = Venv(name, str(path), wanted, present["torch"], date.today().isoformat())
    try:
        say(f"making {path}")
        venv.EnvBuilder(symlinks=True).create(path)
        site = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(path), "platbase": str(path)}))
        (site / PRESENT).write_text("".join(f"{p}\n" for p in present["paths"]))
        if name in COMPILED:
            _pip(made, [*options, *BUILD], say)
        _pip(made, [*(["--no-build-isolation"] if name in COMPILED else []), *options, *wanted], say)
        _unhide(site, present["paths"])
        for runtime in site.glob("nvidia/cuda_runtime/lib/libcudart.so.12"):  # so that its name is known when asked for
            (site / RUNTIME).write_text(f"import ctypes; ctypes.CDLL({str(runtime)!r})\n")
        _remember([*known().values(), made])
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise UserError(f"cannot make {path}: {error.strerror}; choose another --path") from None
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return made


def remove(name: str) -> Venv:
    """Forgets an environment, and deletes its folder where it is one of those made here."""
    found = known()
    if name not in found:
        raise UserError(
            f"env remove: no environment {name!r}{did_you_mean(name, found) if found else '; there is none'}"
        )
    gone = found.pop(name)
    if any(Path(gone.path).glob(f"lib/python*/site-packages/{PRESENT}")):
        shutil.rmtree(gone.path)
    _remember(found.values())
    return gone


def _remember(made: Iterable[Venv]) -> None:
    folder = home()
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"environments.{os.getpid()}.new"
    new.write_text(json.dumps([asdict(m) for m in made], indent=1))
    new.replace(folder / "environments.json")


def _unhide(site: Path, present: Iterable[str]) -> None:
    """Gives a namespace package that a regular one of the present interpreter would hide an __init__ which joins both.

    So is flash-attn-4 hidden by flash-attn 2, which joins them itself since 2.8.4.
    """
    for folder in site.iterdir():
        own = folder / "__init__.py"
        if not folder.is_dir() or not folder.name.isidentifier() or own.exists():
            continue
        others = [path for p in present if (path := Path(p, folder.name, "__init__.py")).is_file()]
        if others and "extend_path" not in others[0].read_text(errors="replace"):
            own.write_text("from pkgutil import extend_path\n\n__path__ = extend_path(__path__, __name__)\n")


def _look() -> dict[str, Any]:
    """Where the present interpreter finds packages, and its torch, without importing it."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"cannot look at {sys.executable}: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def _pip(made: Venv, arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """pip install in the environment, by the present pip where it has one. Raises UserError with pip's own reason."""
    if subprocess.run([made.python, "-c", "import pip"], capture_output=True).returncode:
        done = subprocess.run([made.python, "-m", "ensurepip"], capture_output=True, text=True)
        if done.returncode:
            raise UserError(
                f"env create {made.name}: {sys.executable} has no pip, and no ensurepip; install pip for it"
            )
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(f"torch=={made.torch}\n")
        command = [made.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-color"]
        command += ["--progress-bar", "off", "-c", str(constraints), *arguments]
        tail: collections.deque[str] = collections.deque(maxlen=200)
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if text := line.strip():
                        tail.append(text)
                        say(f"pip: {text[:100]}")
                code = process.wait()
            finally:
                process.kill()
    if code:
        raise UserError(f"env create {made.name}: {pip_problem(made, tail)}")


def pip_problem(made: Venv, lines: Iterable[str]) -> str:
    """pip's last words in one line, and what to do."""
    lines = list(lines)
    errors = [line.partition(":")[2].strip() for line in lines if re.match(r"(?i)error:", line)]
    causes = [line for line in lines if re.match(r"The user requested|.* depends on ", line)]
    said = "; ".join(dict.fromkeys([*errors[-2:], *causes[:3]] or lines[-3:]))[:500] or "pip ended without a word"
    everything = " ".join(lines)
    if "ResolutionImpossible" in everything or "conflicting dependencies" in everything:
        todo = (
            f"it does not go with torch {made.torch}; attnbench env create {made.name} -- --no-deps tries it all the "
            "same, or make an environment with the torch that it wants by hand and give --python"
        )
    elif "No matching distribution" in everything or "Could not find a version" in everything:
        todo = (
            "is a package index within reach? pip's own options go after --, as in "
            f"attnbench env create {made.name} -- --no-index --find-links FOLDER"
        )
    elif re.search("subprocess-exited-with-error|metadata-generation-failed|Failed building", everything):
        todo = "it is compiled here: that takes nvcc (CUDA_HOME) of torch's CUDA and a compiler; see docs/backends.md"
    else:
        todo = "mend that and create it again; pip's own options go after --"
    return f"pip says: {said}; {todo}"
