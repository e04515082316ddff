"""Fences around a process whose code may cheat or do harm: what Linux lets a process forbid itself without root.

A candidate's program calls `enter` before it imports torch or a person's code, and then tells its parent which fences
hold. No process can leave them, and each that it starts has them too. It leads a group of processes that none of these
can leave; the parent ends them all by core/process_tree.kill_all. `python -m attnbench.worker.fence` tries the fences.

    files            reads what a program needs, writes its scratch folder only; no home folder (Landlock, seccomp)
    devices          opens the named device files only (Landlock)
    network          makes no socket (seccomp); with devices, sockets within this machine only
    other processes  neither reads, traces nor signals a process outside (Landlock, seccomp)
    memory           private memory of each process, without a GPU only (RLIMIT_DATA)
    processes        processes and threads of the user beyond the present ones (RLIMIT_NPROC)
    disk             size of each file (RLIMIT_FSIZE); their number is not limited
    time             processor time of each process (RLIMIT_CPU); the parent limits the time on the clock

They contain a program and are no proof against faults of the kernel or of a GPU's driver, whose calls stay open.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attnbench.worker.refused_calls import call, number_of, prctl, refuse_calls

NAMES = ("files", "devices", "network", "other processes", "memory", "processes", "disk", "time")

# What any program reads. Of /etc only the files of the loader and of names, as root could read the others too. PRIVATE
# folders are never readable as a whole.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/sys", "/proc")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "nsswitch.conf", "localtime", "alternatives")
PRIVATE = ("/", "/root", "/home", "/tmp", "/var", "/var/tmp", "/dev", "/dev/shm", "/etc", "/run")
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
UNLISTED = "/dev/full"  # a device that anyone may open and nothing needs, to try the fence
HOMES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")

# Landlock: numbers of the calls, the same on all processors, and rights by bit (linux/landlock.h)
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE, READ, LIST, REFER, TRUNCATE, IOCTL = (1 << bit for bit in (0, 1, 2, 3, 13, 14, 15))
CHANGE = 0x37B0  # remove and make entries of a folder, move them between folders; no device files
ALL_FILE_RIGHTS = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)  # by version of Landlock
OF_FILES = EXECUTE | WRITE | READ | TRUNCATE | IOCTL  # the rights that a file can have, not a folder
TCP, SIGNALS = 0b11, 0b10  # bind and connect, from version 4; signals, from version 6

CHILD_SUBREAPER, NO_NEW_PRIVILEGES = 36, 38  # of prctl
CAPSET, CAPABILITY_VERSION = {"x86_64": 126, "aarch64": 91}, 0x20080522


@dataclass(frozen=True)
class Fence:
    """What a process may do behind its fences.

    `scratch` is the folder that it may write, and its working, home and temporary folder. `readable` are files and
    folders to read beside the system's, the interpreter's and those of sys.path, such as the folder of its code.
    `devices` are device files, as /dev/nvidia0, /dev/nvidiactl and /dev/nvidia-uvm; with these, sockets within the
    machine are allowed, since the CUDA driver uses one to share memory. /dev/shm, where all of the user's programs
    share memory by name, can be named too. It is left out because what core/shared_tensors.py shares has no name.
    `memory` and `file_size` are bytes, `seconds` processor time; `processes` counts threads too.
    """

    scratch: str
    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    memory: int | None = None
    processes: int = 512
    file_size: int = 2**32
    seconds: int = 3600

    @property
    def has_gpu(self) -> bool:
        """Whether a device file is named, not only a folder as /dev/shm."""
        return any(not os.path.isdir(path) for path in self.devices)


def enter(fence: Fence) -> dict[str, str]:
    """Put this process behind its fences, for good. Return each name -> "" if it was seen to hold, else why not.

    Sets the working, home and temporary folder to the scratch folder, and gives up root's special rights. Call it while
    the process has one thread. Raises OSError where the scratch folder cannot be used, RuntimeError with more threads.
    """
    if sys.platform != "linux":
        return dict.fromkeys(NAMES, "only Linux has these fences")
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("the process has several threads already, and a fence would hold for one only")
    homes = _homes()
    scratch = os.path.abspath(fence.scratch)
    fence = replace(fence, scratch=scratch, readable=tuple(map(os.path.abspath, fence.readable)))
    readable = [*fence.readable, *_found(homes)]
    around = (tempfile.gettempdir(), os.path.dirname(scratch))
    outside = [*homes, *(path for path in around if not _within(path, readable))]
    outside = [path for path in outside if not _within(path, [scratch])]
    os.chdir(scratch)
    os.environ.update(dict.fromkeys(HOMES, scratch))
    tempfile.tempdir = None
    with contextlib.suppress(PermissionError):  # the leader of a session leads its group already
        os.setpgid(0, 0)
    prctl(CHILD_SUBREAPER, 1)
    prctl(NO_NEW_PRIVILEGES, 1)
    if platform.machine() in CAPSET:
        call(CAPSET[platform.machine()], struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24))
    reasons = _limits(fence)
    landlock, version = _landlock(fence, readable)
    seccomp = refuse_calls(local_sockets=fence.has_gpu)
    reasons["files"] = landlock or seccomp or _files(outside, version)
    reasons["devices"] = landlock or _devices(fence)
    reasons["network"] = seccomp or _network()
    reasons["other processes"] = landlock or seccomp or _other_processes(version)
    return {name: reasons[name] for name in NAMES}


def _homes() -> list[str]:
    """Return the home folders of the user: by the environment, and by the list of users."""
    import pwd

    homes = [os.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return [os.path.realpath(home) for home in dict.fromkeys(homes) if os.path.isdir(home)]


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _found(homes: Iterable[str]) -> Iterator[str]:
    """Yield the folders of the interpreter, of its modules and libraries, but none that contains a home folder."""
    yield from SYSTEM
    yield from (f"/etc/{name}" for name in ETC)
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    ours = (str(Path(__file__).parents[1]), os.path.dirname(os.path.realpath(sys.executable)))
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    for path in dict.fromkeys((*prefixes, *sys.path, *libraries, *ours)):
        real = Path(path).resolve()
        if path and not any(Path(private).is_relative_to(real) for private in (*PRIVATE, *homes)):
            yield str(real)


def _limits(fence: Fence) -> dict[str, str]:
    """Set the limits of this process; return why memory, processes, disk and time have none, "" where they have."""
    import resource

    def limit(name: int, value: int) -> str:
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(name, (value, value))
        except (OSError, ValueError) as error:
            return f"the system refuses the limit: {error}"
        return ""

    def memory() -> str:
        if fence.memory is None or fence.has_gpu:
            return "a GPU's driver reserves more than it uses" if fence.has_gpu else "no limit was asked for"
        if refused := limit(resource.RLIMIT_DATA, fence.memory):
            return refused
        try:
            mmap.mmap(-1, fence.memory, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except (OSError, OverflowError):
            return ""
        return "this system does not keep the limit"

    def processes() -> str:
        most = _tasks_of_user() + fence.processes
        resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
        if _forks():  # though this process itself is one
            limit(resource.RLIMIT_NPROC, most)
            return "root's processes are not limited" if os.getuid() == 0 else "this system does not keep the limit"
        if refused := limit(resource.RLIMIT_NPROC, most):
            return refused
        return "" if _forks() else "the user has more processes than are seen here, so none can be started"

    def disk() -> str:
        if refused := limit(resource.RLIMIT_FSIZE, fence.file_size):
            return refused
        with tempfile.TemporaryFile(dir=fence.scratch) as file, contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), fence.file_size + 1)
            return "this system does not keep the limit"
        return ""

    limit(resource.RLIMIT_CORE, 0)
    found = {"memory": memory(), "processes": processes(), "disk": disk()}
    return {**found, "time": limit(resource.RLIMIT_CPU, fence.seconds)}


def _tasks_of_user() -> int:
    """Return the number of processes and threads of this user that are seen here."""
    tasks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                tasks += len(os.listdir(process / "task"))
    return tasks


def _forks() -> bool:
    """Return whether this process can start another one."""
    try:
        child = os.fork()
    except OSError:
        return False
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def _landlock(fence: Fence, readable: Iterable[str]) -> tuple[str, int]:
    """Forbid all files but those of the fence; return why that fails, "" where it does not, and Landlock's version."""
    version = call(CREATE_RULESET, None, 0, 1)
    if version < 1:
        is_off = ctypes.get_errno() == errno.EOPNOTSUPP
        return "Landlock was turned off when this system started" if is_off else "this kernel has no Landlock", 0
    handled = ALL_FILE_RIGHTS[min(version, len(ALL_FILE_RIGHTS) - 1)]
    rules = struct.pack("QQQ", handled, TCP if version >= 4 else 0, SIGNALS if version >= 6 else 0)
    ruleset = call(CREATE_RULESET, rules, 8 if version < 4 else 16 if version < 6 else 24, 0)
    rights = dict.fromkeys(readable, READ | LIST | EXECUTE)
    rights |= dict.fromkeys((*PLAIN_DEVICES, *fence.devices), READ | LIST | WRITE | TRUNCATE | IOCTL | CHANGE)
    # CUDA fails (error 304) where it cannot name its threads, by files in /proc. All of /proc would be too much, so it
    # works in this process only. Linux knows the rule's folder as long as it is open, so it stays open.
    rights["/proc/self"] = READ | LIST | WRITE | TRUNCATE
    rights[fence.scratch] = READ | LIST | WRITE | TRUNCATE | EXECUTE | CHANGE
    for path, right in rights.items():
        with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = handled & (right if os.path.isdir(path) else right & OF_FILES)
            failed = call(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, folder), 0)
            if path != "/proc/self":
                os.close(folder)
            if failed:
                return f"Landlock refuses {path}: {os.strerror(ctypes.get_errno())}", version
    failed = call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return (f"Landlock is refused: {os.strerror(ctypes.get_errno())}" if failed else ""), version


def _files(outside: Iterable[str], version: int) -> str:
    """Try to read and write folders outside; return what is possible, "" for nothing."""
    for folder in outside:
        with contextlib.suppress(OSError):
            os.listdir(folder)
            return f"{folder} can be read"
        with contextlib.suppress(OSError):
            os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
            return f"{folder} can be written"
    return "" if version >= 3 else f"files can be emptied: Landlock is version {version} here, and 3 guards against it"


def _devices(fence: Fence) -> str:
    """Try to open devices that are not in the list; return what is possible, "" for nothing."""
    gpus = [f"/dev/{name}" for name in ("nvidiactl", *(f"nvidia{n}" for n in range(16)), "kfd", "dxg")]
    for path in (UNLISTED, *gpus):
        if not _within(path, fence.devices):
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDWR))
                return f"{path} can be opened"
    return ""


def _network() -> str:
    """Try to make sockets; return what is possible, "" for nothing."""
    for family in (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_VSOCK", 40)):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind):
                return "sockets can be made"
    return ""


def _other_processes(version: int) -> str:
    """Try to reach this process's parent; return what is possible, "" for nothing."""
    parent = os.getppid()
    if call(number_of("process_vm_readv"), parent, None, 0, None, 0, 0) >= 0:
        return "the memory of other processes can be read"
    with contextlib.suppress(OSError), open(f"/proc/{parent}/mem", "rb"):
        return "the memory of other processes can be opened"
    with contextlib.suppress(OSError):
        os.kill(parent, 0)
        return f"they can be ended: Landlock is version {version} here, and 6 guards against it"
    return ""


def main() -> None:
    """Try all fences without a GPU in this process, and print their names and reasons as JSON."""
    with tempfile.TemporaryDirectory(prefix="attnbench-") as scratch:
        if sys.platform == "linux" and (child := os.fork()):
            os.waitpid(child, 0)
            return
        print(json.dumps(enter(Fence(scratch, memory=2**30))), flush=True)
        if sys.platform == "linux":
            os._exit(0)


if __name__ == "__main__":
    main()
