"""Virtual environments for libraries that cannot share one: `attnbench env create|list|remove`.

An environment holds the packages of one of attnbench's extras. It also sees, after its own packages, those of the
interpreter that created it, torch above all, through a .pth file. pip counts that torch as installed, and is asked for
its version. uv is not used, because it does not see packages that a .pth file adds, and would install another torch.

flash-attn 3 has no extra: its environment has a wheel of a package index, or builds one from source (fa3_build.py).

A file lists the created environments, so that later runs use them.
"""

from __future__ import annotations

import collections
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path

from attnbench.backends import BACKENDS
from attnbench.core.checkout import without_repository
from attnbench.core.documents import with_addresses
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.files import below_home, read_plain, write_whole
from attnbench.core.json import from_json
from attnbench.run import fa3_build
from attnbench.run.process import child_environment, isolated_command

EXTRAS = ("fa1", "fa2", "fa4", "sdpa-fa4", "xformers", "flashinfer", "cudnn", "transformer-engine", "hf")
FROM_SOURCE, WHEEL = "fa3", "flash_attn_3-*.whl"
ALSO_IN = {FROM_SOURCE: ("sdpa-fa3",), "fa4": ("flex-flash",)}  # backends whose names differ from the environment's
COMPILED = ("fa1", "fa2", "transformer-engine")  # extras that pip compiles against the present torch
NEED_TOOLKIT = ("fa1", "transformer-engine", FROM_SOURCE)  # CUDA's; fa2 may have a wheel for this torch
BUILD_TOOLS = ("setuptools", "wheel", "packaging", "psutil", "ninja")  # packages for compilation
PRESENT = "zz-attnbench-present.pth"
CUDA_RUNTIME = "zz-attnbench-cuda-runtime.pth"
REMEDIES = {  # a pattern in pip's output -> what to do
    "ResolutionImpossible|conflicting dependencies": "it does not go with torch {made.torch}; attnbench env create "
    "{made.name} -- --no-deps tries it all the same, or make an environment with the torch that it wants by hand and "
    "give --python",
    "No matching distribution|Could not find a version": "check that a package index is reachable; pip's own "
    "options go after --, as in attnbench env create {made.name} -- --no-index --find-links FOLDER",
    "died due to signal 9|Killed": "a compilation ran out of memory; run one at a time: MAX_JOBS=1 attnbench env "
    "create {made.name}",
    "subprocess-exited-with-error|metadata-generation-failed|Failed building": "it is compiled here, which needs "
    f"nvcc (CUDA_HOME) of torch's CUDA and a compiler; see {with_addresses('docs/backends.md')}",
}


@dataclass(frozen=True)
class Venv:
    """A virtual environment made by `attnbench env create`."""

    name: str  # the name of the extra
    path: str
    requirements: tuple[str, ...]
    torch: str  # the version of torch that it sees
    created: str  # ISO 8601 date

    @property
    def python(self) -> str:
        """The path of its interpreter."""
        return str(Path(self.path) / "bin" / "python")

    @property
    def exists(self) -> bool:
        """Whether its interpreter can be started."""
        return os.access(self.python, os.X_OK)


@dataclass(frozen=True)
class Step:
    """One command in making an environment; `python -m pip` stands for pip without the working directory."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)  # variables set for the command

    def __str__(self) -> str:
        words = [*(f"{name}={value}" for name, value in self.variables.items()), *self.command]
        return " ".join(word if WHEEL in word else shlex.quote(word) for word in words)


def data_folder() -> Path:
    """Return the folder of the list and of the environments: $XDG_DATA_HOME/attnbench, ~/.local/share/attnbench.

    Raises UserError for a user without a home folder.
    """
    if found := user_folder():
        return found
    raise UserError("env: this user has no home folder for environments; set XDG_DATA_HOME to a folder")


def user_folder() -> Path | None:
    """Return attnbench's folder for this user; None without a home folder."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return Path(base, "attnbench") if os.path.isabs(base) else below_home(".local", "share", "attnbench")


def known_venvs() -> dict[str, Venv]:
    """Return the environments that were created, by name. Raises UserError if their list is damaged."""
    folder = user_folder()
    if not folder or not os.path.exists(path := folder / "environments.json"):  # or in an unreadable home
        return {}
    try:
        entries = json.loads(read_plain(path))
        found = [from_json(Venv, entry) for entry in entries]
        if any("\0" in text for made in found for text in (made.name, made.path, *made.requirements)):
            raise ValueError
        return {made.name: made for made in found}
    except PermissionError:
        raise UserError(f"{path} cannot be read: no permission; change it by chmod u+r") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}); delete it, and make the environments again"
        ) from None


def venv_interpreters(backends: Iterable[str]) -> dict[str, str]:
    """Return backend -> interpreter for the backends with an existing environment."""
    backends = list(backends)
    found = [made for made in known_venvs().values() if made.exists]
    return {backend: made.python for made in found for backend in backends if backend in backends_of(made.name)}


def missing_venv_notes(backends: Iterable[str]) -> list[str]:
    """Return a line for each listed environment of these backends that no longer exists."""
    backends = list(backends)
    return [
        f"{', '.join(own)}: the environment is gone, {made.path}; attnbench env remove {made.name}, and create it again"
        for made in known_venvs().values()
        if not made.exists and (own := [backend for backend in backends if backend in backends_of(made.name)])
    ]


def backends_of(extra: str) -> list[str]:
    """Return the backends of an environment: with its name, or a name that begins with it, and ALSO_IN."""
    also = ALSO_IN.get(extra, ())
    return [backend for backend in BACKENDS if backend == extra or backend.startswith(f"{extra}-") or backend in also]


def extra_for(name: str) -> str:
    """Return the extra of this name, or "fa3", or the extra whose environment runs the backend of this name.

    Raises UserError where there is none.
    """
    for extra in (*EXTRAS, FROM_SOURCE):
        if name == extra or name in backends_of(extra):
            return extra
    raise UserError(f"env create: no environment for {name!r}{did_you_mean(name, (*EXTRAS, FROM_SOURCE))}")


def requirements(extra: str, cuda: str | None = None, declared: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the packages of an extra for torch's version of CUDA. `declared` is attnbench's own metadata by default.

    CUDA 13 changes two extras: flash-attn-4 has its own extra for it, and xFormers' wheel, which is built for CUDA 12,
    needs the runtime of CUDA 12. Raises UserError where the metadata lacks the extra.
    """
    if declared is None:
        try:
            declared = importlib.metadata.requires("attnbench") or []
        except importlib.metadata.PackageNotFoundError:
            raise UserError(
                "env create: attnbench is not installed, so its extras are unknown; pip install -e ."
            ) from None
    marker = re.compile(rf"""\bextra\s*==\s*['"]{re.escape(extra)}['"]""")
    found = [text.partition(";")[0].strip() for text in declared if marker.search(text.partition(";")[2])]
    if not found:
        raise UserError(f"env create: this installation of attnbench declares no extra {extra!r}; install it again")
    if cuda and int(cuda.partition(".")[0]) >= 13:
        found = [re.sub(r"^flash-attn-4\b(?!\[)", "flash-attn-4[cu13]", text) for text in found]
        found += ["nvidia-cuda-runtime-cu12"] if extra == "xformers" else []
    return tuple(found)


def create(
    name: str,
    path: Path | None,
    options: Sequence[str],
    say: Callable[[str], None],
    source: Path | None = None,
    *,
    build: bool = False,
) -> Venv:
    """Create the environment for an extra or a backend, list it, and return it. On failure nothing is left behind.

    `options` are passed to pip, `say` receives progress, `source` and `build` are as for `planned`. Raises UserError.
    """
    made, steps = planned(name, path, options, source, build=build)
    folder = Path(made.path)
    try:
        say(f"making {folder}")
        venv.EnvBuilder(symlinks=True, with_pip=importlib.util.find_spec("pip") is None).create(folder)
        site = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": made.path, "platbase": made.path}))
        folders = _present_folders()
        lines = "".join(f"{present}\n" for present in folders)
        (site / PRESENT).write_text(lines, encoding="locale")  # as Python reads it
        for step in steps:
            _run(made, step, say)
        shutil.rmtree(folder / "src", ignore_errors=True)
        if built := [str(wheel) for wheel in (folder / "wheels").glob(WHEEL)]:
            made = replace(made, requirements=tuple(built))
        _join_namespace_packages(site, folders)
        for runtime in site.glob("nvidia/cuda_runtime/lib/libcudart.so.12"):  # xFormers uses a loaded runtime
            (site / CUDA_RUNTIME).write_text(f"import ctypes; ctypes.CDLL({str(runtime)!r})\n", encoding="locale")
        _write_list([*known_venvs().values(), made])
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, subprocess.CalledProcessError):
            raise UserError(
                f"env create {made.name}: {sys.executable} has no pip, and no ensurepip; install pip for it"
            ) from None
        if isinstance(error, OSError):
            raise UserError(f"cannot make {folder}: {error.strerror}; choose another --path") from None
        raise
    return made


def planned(
    name: str, path: Path | None, options: Sequence[str], source: Path | None = None, *, build: bool = False
) -> tuple[Venv, Sequence[Step]]:
    """Return the environment that `create` would make, and its commands after `python -m venv`.

    Flash-attn 3 is the wheel of a package index where there is one. With `build` it is compiled; `source` is a wheel,
    or a clone of its repository, which is built and keeps compiled files.

    Raises UserError where the environment cannot be made.
    """
    extra = extra_for(name)
    if another := next((word for word in options if word in (*EXTRAS, FROM_SOURCE)), None):
        raise UserError(f"{another}: an environment is for one library; attnbench env create {another} makes its own")
    if old := known_venvs().get(extra):
        raise UserError(
            f"there is an environment {extra} already ({old.path}); attnbench env remove {extra} removes it"
        )
    path = (path or data_folder() / "envs" / extra).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is there already and is not empty; choose another --path")
    if (source or build) and extra != FROM_SOURCE:
        option = "--source" if source else "--build"
        raise UserError(f"{option}: {extra} is installed by pip; give its options after --: -- --find-links FOLDER")
    torch, cuda = _present_torch()
    wheel = source.absolute() if source and source.suffix == ".whl" else None
    if source:
        fa3_build.check_source(source)
    ready = extra == FROM_SOURCE and not source and not build and fa3_build.has_wheel(cuda)
    toolkit = fa3_build.cuda_toolkit(extra, torch, cuda) if extra in NEED_TOOLKIT and not wheel and not ready else None
    if ready:
        wanted: tuple[str, ...] = (fa3_build.READY,)
    elif extra == FROM_SOURCE:
        wanted = (str(wheel or path / "wheels" / WHEEL),)
    else:
        wanted = requirements(extra, cuda)
    made = Venv(extra, str(path), wanted, torch, date.today().isoformat())
    steps = [_pip_install(made, [*options, *BUILD_TOOLS])] if toolkit or extra in COMPILED else []
    if extra == FROM_SOURCE and toolkit and cuda:
        steps += _fa3_steps(made, toolkit, cuda, source)
    isolation = ["--verbose", "--no-build-isolation"] if extra in COMPILED else []
    last = _pip_install(made, [*isolation, *options, *made.requirements])
    variables = ({"CUDA_HOME": toolkit} if toolkit else {}) | (_headers_of_torch() if extra in COMPILED else {})
    return made, [*steps, replace(last, variables=variables)]


def _fa3_steps(made: Venv, toolkit: str, cuda: str, source: Path | None) -> list[Step]:
    """Return the commands that build the wheel of flash-attn 3, in the environment's folder `wheels`."""
    clone = source.absolute() if source else Path(made.path, "src", "flash-attention")
    fa3_build.check_git(made.name)
    commit = fa3_build.commit_of(clone) if source else fa3_build.COMMIT
    build = (*_pip(made, "wheel"), "--verbose", "--no-deps", "--no-build-isolation")
    build += ("--wheel-dir", str(Path(made.path, "wheels")), str(clone / "hopper"))
    fetch = [] if source else [Step(command) for command in fa3_build.clone_commands(clone)]
    return [*fetch, Step(build, fa3_build.variables(toolkit, cuda, commit))]


def remove(name: str) -> Venv:
    """Take an environment from the list, and delete its folder if it was created here. Raises UserError."""
    found = known_venvs()
    if name not in found:
        raise UserError(
            f"env remove: no environment {name!r}{did_you_mean(name, found) if found else '; there is none'}"
        )
    gone = found.pop(name)
    _write_list(found.values())
    if any(Path(gone.path).glob(f"lib/python*/site-packages/{PRESENT}")):
        try:
            shutil.rmtree(gone.path)
        except OSError as error:
            raise UserError(
                f"{gone.path} cannot be deleted ({error.strerror}) and is no longer used; delete the rest by hand"
            ) from None
    return gone


def _write_list(venvs: Iterable[Venv]) -> None:
    listed = json.dumps([asdict(made) for made in venvs], indent=1)
    write_whole(data_folder() / "environments.json", listed.encode())


def _present_torch() -> tuple[str, str | None]:
    """Return the versions of this interpreter's torch and of its CUDA (None without CUDA), without importing torch."""
    spec = importlib.util.find_spec("torch")
    if not spec or not spec.origin:
        raise UserError(f"{sys.executable} has no torch for the environment to see; install torch first")
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b.*= *['\"]([\d.]+)", text, re.MULTILINE)
    return importlib.metadata.version("torch"), cuda[1] if cuda else None


def _present_folders() -> list[str]:
    """Return the folders of sys.path with packages: without the standard library and the program's own folder."""
    standard = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")}
    others = {*standard, *(f"{folder}/lib-dynload" for folder in standard), os.path.dirname(sys.argv[0]), ""}
    return [folder for folder in dict.fromkeys(sys.path) if folder not in others and os.path.isdir(folder)]


def _headers_of_torch() -> dict[str, str]:
    """Return the compilers' variable for the headers of torch's own CUDA libraries, such as cuDNN and NCCL.

    A toolkit may lack these libraries; its own headers come first.
    """
    found = [str(path) for folder in _present_folders() for path in sorted(Path(folder).glob("nvidia/*/include"))]
    name = "CPLUS_INCLUDE_PATH"
    return {name: os.pathsep.join(filter(None, (os.environ.get(name), *found)))} if found else {}


def _join_namespace_packages(site: Path, folders: Iterable[str]) -> None:
    """Give a namespace package in `site` an __init__.py where a regular package of the same name would hide it.

    The __init__.py joins both. Flash-attn 2 before 2.8.4 hides flash-attn-4 in this way.
    """
    for package in site.iterdir():
        own = package / "__init__.py"
        if not package.is_dir() or not package.name.isidentifier() or own.exists():
            continue
        others = [path for folder in folders if (path := Path(folder, package.name, "__init__.py")).is_file()]
        if others and "extend_path" not in others[0].read_text(encoding="utf-8", errors="replace"):
            own.write_text(
                "from pkgutil import extend_path\n\n__path__ = extend_path(__path__, __name__)\n", encoding="utf-8"
            )


def _pip(made: Venv, what: str) -> tuple[str, ...]:
    options = ("--disable-pip-version-check", "--no-input", "--no-color")
    return (made.python, "-m", "pip", what, *options, "--progress-bar", "off")


def _pip_install(made: Venv, arguments: Sequence[str]) -> Step:
    """Return the command that installs into an environment and keeps its torch."""
    return Step((*_pip(made, "install"), *arguments, f"torch=={made.torch}"))


def _run(made: Venv, step: Step, say: Callable[[str], None]) -> None:
    """Run a command. Raises UserError with the reason of its failure."""
    command: Sequence[str] = step.command
    if command[1:3] == ("-m", "pip"):
        words = [str(w) for word in command[3:] for w in (Path(word).parent.glob(WHEEL) if WHEEL in word else [word])]
        command = isolated_command("pip", *words, python=command[0])
    program = "git" if step.command[0] == "git" else "pip"
    output: collections.deque[str] = collections.deque(maxlen=5000)
    say(f"{program}: {' '.join(step.command)[:100]}")
    with subprocess.Popen(
        command,
        env={**without_repository(child_environment()), **step.variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in filter(None, map(str.strip, process.stdout or ())):
            output.append(line)
            if done := re.match(r"\[(\d+)/(\d+)\] ", line):
                say(f"compiled {done[1]} of {done[2]} files of {made.name}; each takes up to some minutes")
            elif len(line) < 200:  # commands of a compiler are longer
                say(f"{program}: {line[:100]}")
    if process.returncode:
        raise UserError(f"env create {made.name}: {pip_problem(made, output, program)}")


def pip_problem(made: Venv, output: Iterable[str], program: str = "pip") -> str:
    """Return one line with the errors at the end of a program's output, and what to do about them."""
    lines = list(output)
    errors = [line.partition(":")[2].strip() for line in lines if re.match(r"(?i)(error|fatal):", line)]
    causes = [line for line in lines if re.match(r"The user requested|.* depends on |.*\bfatal error: ", line)]
    said = (
        "; ".join(dict.fromkeys([*errors[-2:], *causes[:3]] or lines[-3:]))[:500]
        or f"{program} ended without a message"
    )
    everything = " ".join(lines)
    if program == "git":
        return f"git says: {said}; check that the repository is reachable, or give --source a clone or a wheel"
    for pattern, remedy in REMEDIES.items():
        if re.search(pattern, everything):
            return f"pip says: {said}; {remedy.format(made=made)}"
    return f"pip says: {said}; correct this and create the environment again; pip's own options go after --"
