"""The fences around a process that may cheat, each tried from inside, and the end of all that it started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.process_tree import family, kill_all
from attnbench.core.shared_tensors import Arena
from attnbench.run.process import child_environment
from attnbench.worker.fence import NAMES
from attnbench.worker.refused_calls import IN_PART, REFUSED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")

SECONDS = 60.0
STRANGER = "if os.getuid() == 0:\n    os.setgid(61234)\n    os.setuid(61234)\n"  # a user of no other process
PRELUDE = """
import ctypes, errno, getpass, json, os, pwd, resource, signal, socket, subprocess, sys, time
from attnbench.worker.fence import Fence, enter
def refused(do, *numbers):
    try:
        do()
    except OSError as error:
        return not numbers or error.errno in numbers
    return False
"""
Fenced = Callable[..., Any]


@pytest.fixture
def scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="attnbench-test-") as folder:
        os.chmod(folder, 0o777)
        yield folder


@pytest.fixture
def fenced(scratch: str) -> Fenced:
    """Return a function that runs code behind fences and returns the value that it prints as JSON."""

    def run(code: str, *, before: str = "", fence: str = "", needs: tuple[str, ...] = (), **how: Any) -> Any:
        entered = f"held = enter(Fence({scratch!r}, {fence}))\nprint(json.dumps(held), flush=True)"
        done = subprocess.run(
            [sys.executable, "-c", f"{PRELUDE}\n{before}\n{entered}\n{code}\nprint(json.dumps(found))"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**child_environment(), **how.pop("variables", {})},
            **how,
        )
        assert done.stdout, done.stderr
        held, *found = map(json.loads, done.stdout.splitlines())
        assert tuple(held) == NAMES
        for name in needs:
            if held[name]:
                pytest.skip(f"{name}: {held[name]}")
        assert done.returncode == 0, done.stderr
        return found[0]

    return run


def test_files_outside_can_be_neither_read_nor_written(fenced: Fenced, tmp_path: Path) -> None:
    """Every kind of access to a home folder and a file in it fails, and in the scratch folder all of them work."""
    secret = tmp_path / "secret"
    secret.write_text("17")
    code = f"""
home, secret = {str(tmp_path)!r}, {str(secret)!r}
tries = {{
    "list": lambda: os.listdir(home),
    "read": lambda: open(secret),
    "write": lambda: open(secret, "r+"),
    "empty": lambda: os.truncate(secret, 0),
    "make": lambda: open(home + "/new", "w"),
    "remove": lambda: os.unlink(secret),
    "rename": lambda: os.rename(secret, home + "/other"),
    "move in": lambda: os.rename(secret, "moved"),
    "link": lambda: os.link(secret, "linked"),
    "mode": lambda: os.chmod(secret, 0o777),
    "the home of the user": lambda: os.listdir(os.path.expanduser("~" + getpass.getuser())),
    "passwords": lambda: open("/etc/shadow"),
    "by a link": lambda: open(f"/proc/self/root{secret}"),
    "by a link of its own": lambda: (os.path.islink("to") or os.symlink(secret, "to"), open("to")),
    "itself": lambda: open({str(Path(__file__))!r}, "r+"),
    "code": lambda: open(enter.__code__.co_filename, "r+"),
}}
found = [name for name, do in tries.items() if not refused(do, errno.EACCES, errno.EPERM, errno.EXDEV)]
open("mine", "w").write("1")
os.mkdir("folder")
os.rename("mine", "folder/mine")
assert open("folder/mine").read() == "1" and os.getcwd() == os.path.expanduser("~")
os.unlink("folder/mine")
subprocess.run([sys.executable, "-c", "import json"], check=True)
assert subprocess.run(["sh", "-c", f"cat {{secret}}"], capture_output=True).returncode
"""
    assert fenced(code, variables={"HOME": str(tmp_path)}, needs=("files", "other processes")) == []
    assert secret.read_text() == "17"
    assert os.listdir(tmp_path) == ["secret"]


def test_what_is_named_can_be_read_only(fenced: Fenced, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 5")
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
import mine
found = [mine.x, refused(lambda: open(mine.__file__, "w"))]
"""
    assert fenced(code, fence=f"readable=({str(tmp_path)!r},)", needs=("files",)) == [5, True]


def test_no_device_but_the_named(fenced: Fenced) -> None:
    code = """
found = [refused(lambda: open(path, "r+b", buffering=0)) for path in ("/dev/null", "/dev/full", "/dev/tty")]
"""
    assert fenced(code, needs=("devices",)) == [False, True, True]
    assert fenced(code, fence="devices=('/dev/full',)", needs=("devices",)) == [False, False, True]


def test_no_network(fenced: Fenced) -> None:
    """No family of sockets works; with a GPU, sockets within the machine do, and a pair of sockets always does."""
    code = """
families = [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40, socket.AF_UNIX]
kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)
found = [all(refused(lambda: socket.socket(f, k), errno.EPERM) for k in kinds) for f in families]
socket.socketpair()
"""
    assert fenced(code, needs=("network",)) == [True] * 6
    assert fenced(code, fence="devices=('/dev/full',)", needs=("network",)) == [True] * 5 + [False]


def test_other_processes_are_out_of_reach(fenced: Fenced) -> None:
    """The parent can be neither traced, read, written, signalled nor limited; no call tried would have an effect."""
    code = """
libc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    return result == -1 and ctypes.get_errno() == errno.EPERM
place = ctypes.create_string_buffer(8)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(place), 8)
found = {
    "ptrace": call("ptrace", 24, parent, None, None),
    "read": call("process_vm_readv", parent, vector, 1, vector, 1, 0),
    "write": call("process_vm_writev", parent, None, 0, None, 0, 0),
    "unshare": call("unshare", 0x10000000),
    "memory": refused(lambda: open(f"/proc/{parent}/mem", "rb")),
    "files": all(refused(lambda: os.open(f"/proc/{parent}/fd/{n}", os.O_RDONLY)) for n in range(20)),
    "signal": refused(lambda: os.kill(parent, 0), errno.EPERM),
    "handle": refused(lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 0), errno.EPERM),
    "limit": refused(lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE), errno.EPERM),
    "rank": refused(lambda: open(f"/proc/{parent}/oom_score_adj", "w")),
    "environment": refused(lambda: open(f"/proc/{parent}/environ").read()),
    "root": refused(lambda: os.listdir(f"/proc/{parent}/root")),
}
for seems_to_work in (
    lambda: os.setpriority(os.PRIO_PROCESS, parent, 7),
    lambda: os.sched_setaffinity(parent, {min(os.sched_getaffinity(0))}),
    lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0)),
):
    seems_to_work()
os.sched_setaffinity(0, os.sched_getaffinity(0))
found = [name for name, fails in found.items() if not fails]
"""
    before = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getscheduler(0))
    assert fenced(code, needs=("other processes",)) == []
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getscheduler(0)) == before


def test_a_file_has_its_limit(fenced: Fenced) -> None:
    code = """
with open("large", "wb", buffering=0) as file:
    found = [file.write(bytes(2**20)), refused(lambda: file.write(b"1"), errno.EFBIG)]
"""
    assert fenced(code, fence="file_size=2**20", needs=("disk",)) == [2**20, True]


def test_memory_has_its_limit(fenced: Fenced) -> None:
    """A hog ends with MemoryError before the machine is short of memory; a process that it starts has the limit too."""
    code = """
hog = '''
kept = []
try:
    while len(kept) < 2**10:
        kept.append(bytearray(2**24))
except MemoryError:
    pass
mib = len(kept) * 16
'''
exec(hog)
found = [mib, int(subprocess.run([sys.executable, "-c", hog + "print(mib)"], capture_output=True).stdout)]
"""
    assert max(fenced(code, fence="memory=2**28", needs=("memory",))) <= 2**8


def test_processor_time_has_its_limit(fenced: Fenced) -> None:
    code = """
found = os.waitstatus_to_exitcode(os.waitpid(os.fork() or [None for _ in iter(int, 1)], 0)[1])
"""
    assert fenced(code, fence="seconds=1", needs=("time",)) == -signal.SIGKILL


def test_processes_have_their_limit(fenced: Fenced) -> None:
    """Root has no such limit, so the process belongs to another user where the tests run as root."""
    code = """
children = []
while len(children) < 100:
    try:
        child = os.fork()
    except OSError:
        break
    if not child:
        time.sleep(600)
    children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
found = len(children)
"""
    assert 0 < fenced(code, before=STRANGER, fence="processes=20", needs=("processes",)) <= 20


def test_torch_works_inside(fenced: Fenced) -> None:
    """torch computes, names its threads, compiles with Triton's and Inductor's C compiler, and reads its own memory."""
    code = """
import threading
import torch
torch.set_num_threads(2)
a = torch.arange(2**16, dtype=torch.float64).reshape(256, 256)
product = (a @ a.T).softmax(-1).sum().item()
with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
    name.write("mine")
open("x.c", "w").write("int seven(void) { return 7; }")
built = subprocess.run(["cc", "-shared", "-o", "x.so", "x.c"], capture_output=True, text=True)
seven = ctypes.CDLL("./x.so").seven() if not built.returncode else built.stderr
found = [round(product), seven, torch.multiprocessing.get_context("spawn").Pipe() is not None]
"""
    assert fenced(code, fence="memory=2**32", needs=("files",)) == [256, 7, True]


OPEN = """
from attnbench.core.shared_tensors import Mapped
def use(description):
    import torch
    tensors = Mapped(torch.device("cpu")).tensors(description)
    tensors["out"].copy_(tensors["q"] * 2)
    return tensors["q"].sum().item()
"""


def test_memory_of_another_process_is_mapped_inside(fenced: Fenced) -> None:
    """By descriptors that it opens before; by the path of the owner's it is refused."""
    import torch

    arena = Arena(torch.device("cpu"))
    q = torch.ones(1000)
    description, tensors = arena.place({"q": q, "out": torch.zeros(1000)})
    needs = ("files", "other processes")
    before = f"from attnbench.core.shared_tensors import hold\nhold({description!r})"
    assert fenced(f"{OPEN}found = use({description!r})", before=before, needs=needs) == 1000
    assert tensors["out"].sum() == 2000
    late = f"{OPEN}\ntry:\n    found = use({description!r})\nexcept Exception as error:\n    found = str(error)"
    assert "Permission denied" in fenced(late, needs=needs)


def test_memory_by_name_works_where_its_folder_is_named(fenced: Fenced) -> None:
    code = """
import multiprocessing
from multiprocessing import shared_memory
try:
    multiprocessing.Lock()
    made = shared_memory.SharedMemory(create=True, size=4096)
    made.close()
    made.unlink()
    found = "works"
except PermissionError:
    found = "refused"
"""
    assert fenced(code, needs=("files",)) == "refused"
    assert fenced(code, fence="devices=('/dev/shm',), memory=2**30", needs=("files", "memory")) == "works"


def test_shared_memory_cannot_be_cut_off(fenced: Fenced) -> None:
    """A process that could empty the file would end its owner by SIGBUS."""
    import torch

    description, _ = Arena(torch.device("cpu")).place({"q": torch.ones(1000)})
    (slab,) = description["slabs"].values()
    before = (
        f"from attnbench.core.shared_tensors import HELD, hold\nhold({description!r})\npath = HELD[{slab['key']!r}]"
    )
    descriptor = "int(path.rpartition('/')[2])"
    code = f"found = refused(lambda: os.ftruncate({descriptor}, 0)) and refused(lambda: open(path, 'w'))"
    assert fenced(code, before=before) is True


ESCAPED = """
def away(code):  # a process of a session of its own, whose parent has ended
    if not os.fork():
        os.setsid()
        if not os.fork():
            print("ready", flush=True)
            exec(code)
        os._exit(0)
    os.wait()
away("time.sleep(600)")
"""
BOMB = """
def bomb():
    while True:
        try:
            if not os.fork():
                os.setsid()
        except OSError:
            time.sleep(0.001)
"""


def started(scratch: str, code: str, before: str = "") -> subprocess.Popen[str]:
    """Start code behind fences under a keeper and wait for its line "ready"."""
    program = f"{PRELUDE}\n{before}held = enter(Fence({scratch!r}, processes=60))\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def marked(scratch: str) -> list[int]:
    """Return the processes that work in a scratch folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == scratch:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_all_that_a_candidate_started_ends_with_it(scratch: str) -> None:
    """At the parent's wish, also processes of other sessions whose parents have ended."""
    with started(scratch, f"{ESCAPED}\ntime.sleep(600)") as process:
        assert len(family(process.pid)) == 2
        assert len(marked(scratch)) == 2
        assert kill_all(process.pid) == []
        assert process.wait(SECONDS) == -signal.SIGKILL
        assert marked(scratch) == []


@pytest.mark.parametrize(("ending", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 11)", -11), ("", 0)])
def test_a_candidate_that_has_ended_leaves_nothing(scratch: str, ending: str, code: int) -> None:
    """Its orphan is found by its group, which it could not leave."""
    with started(scratch, f"{ESCAPED}\n{ending}") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert len(marked(scratch)) == 1
        assert kill_all(process.pid) == []
        assert process.wait(SECONDS) == code
        assert marked(scratch) == []


def test_processes_without_fences_end_too(scratch: str) -> None:
    """Where a group can be left, a process that adopts orphans is enough to find them."""
    code = f"os.chdir({scratch!r})\nctypes.CDLL(None).prctl(36, 1)\n{ESCAPED}\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}\n{code}"], stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(marked(scratch)) == 2
        assert kill_all(process.pid) == []
        assert marked(scratch) == []


def test_a_fork_bomb_ends(scratch: str) -> None:
    """Of processes that start others all the time, each in a session of its own, none is left."""
    bomb = f'{BOMB}\nprint(held["processes"] or "ready", flush=True)\nbomb()'
    with started(scratch, bomb, STRANGER) as process:
        time.sleep(0.5)
        assert len(marked(scratch)) > 30
        assert kill_all(process.pid) == []
        process.wait(SECONDS)
        assert marked(scratch) == []


def test_several_threads_are_refused() -> None:
    code = f"{PRELUDE}\nimport threading\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nenter(Fence('/tmp'))"], capture_output=True, text=True, timeout=SECONDS
    )
    assert "RuntimeError: the process has several threads already" in done.stderr


@pytest.mark.parametrize(
    ("version", "files", "others"),
    [
        (-1, "this kernel has no Landlock", "this kernel has no Landlock"),
        (1, "files can be emptied: Landlock is version 1 here, and 3 guards against it", "they can be ended"),
        (2, "files can be emptied: Landlock is version 2 here, and 3 guards against it", "they can be ended"),
        (3, "", "they can be ended: Landlock is version 3 here, and 6 guards against it"),
        (5, "", "they can be ended: Landlock is version 5 here, and 6 guards against it"),
        (6, "", ""),
        (9, "", ""),
    ],
)
def test_an_older_kernel_holds_less_and_says_so(fenced: Fenced, version: int, files: str, others: str) -> None:
    """The number of Landlock's version is replaced, and this kernel does what is asked of the older one."""
    before = f"""
from attnbench.worker import fence
real = fence.call
fence.call = lambda n, *given: {version} if (n, *given) == (444, None, 0, 1) else real(n, *given)
"""
    held = fenced("found = held", before=before, fence="memory=2**30", needs=("files",) if not files else ())
    assert held["files"] == files
    assert held["other processes"].startswith(others)
    assert bool(others) == bool(held["other processes"])
    assert held["network"] == ""


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_calls_are_the_systems(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"no {HEADERS[machine]}")
    text = re.sub(r"__NR3264_", "__NR_", HEADERS[machine].read_text())
    real = {name: int(number) for name, number in re.findall(r"define __NR_(\w+) (\d+)", text)}
    ours = {name: numbers[machine] for name, numbers in {**REFUSED, **IN_PART}.items() if machine in numbers}
    assert {name: number for name, number in ours.items() if name in real and real[name] != number} == {}
    assert len({*ours} & {*real}) > 40
