"""A filter of the system's calls (seccomp) that a process puts on itself and on all that it starts, for good.

Files are guarded by Landlock (worker/fence.py). The filter refuses what Landlock does not know: sockets, the memory of
other processes, owners and modes of files, and rarely used parts of the kernel that have had many faults.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import socket
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as in linux/audit.h
# Calls and their numbers on x86_64 and on aarch64, which lacks some.
NUMBERS = """
ptrace 101 117             process_vm_readv 310 270   process_vm_writev 311 271  pidfd_getfd 438 438
kcmp 312 272               process_madvise 440 440    perf_event_open 298 241    userfaultfd 323 282
bpf 321 280                io_uring_setup 425 425     io_uring_enter 426 426     io_uring_register 427 427
add_key 248 217            request_key 249 218        keyctl 250 219             open_by_handle_at 304 265
unshare 272 97             setns 308 268              chroot 161 51              pivot_root 155 41
mount 165 40               umount2 166 39             open_tree 428 428          move_mount 429 429
fsopen 430 430             mount_setattr 442 442
shmget 29 194              shmat 30 196               semget 64 190              msgget 68 186
mq_open 240 180
chmod 90 -                 fchmod 91 52               fchmodat 268 53            fchmodat2 452 452
chown 92 -                 fchown 93 55               lchown 94 -                fchownat 260 54
setxattr 188 5             lsetxattr 189 6            fsetxattr 190 7
removexattr 197 14         lremovexattr 198 15        fremovexattr 199 16
socket 41 198              clone 56 220               clone3 435 435             prlimit64 302 261
setsid 112 157             setpgid 109 154            setpriority 141 140        ioprio_set 251 30
sched_setaffinity 203 122  sched_setscheduler 144 119 sched_setparam 142 118     sched_setattr 314 274
"""
REFUSED = {  # name -> its number by processor
    name: {machine: int(n) for machine, n in zip(ARCHITECTURES, numbers, strict=True) if n != "-"}
    for name, *numbers in re.findall(r"(\w+) (\d+) (\S+)", NUMBERS)
}
# These do nothing and seem to succeed, because programs fail where they are refused (ninja, setpgid). Processes stay in
# their group, so that it can be ended at once, and slow no other process by its priority.
WITHOUT_EFFECT = ("setsid", "setpgid", "setpriority", "ioprio_set")
OF_OWN_THREAD = ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")  # for others no effect
IN_PART = {
    name: REFUSED.pop(name) for name in (*WITHOUT_EFFECT, *OF_OWN_THREAD, "socket", "clone", "prlimit64", "clone3")
}
NEW_NAMESPACES = 0x7E020000  # flags of clone

# An instruction of the filter is (code, steps if true, steps if false, constant).
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CALL, PROCESSOR, FIRST_ARGUMENT = 0, 4, 16  # what is loaded: offsets in struct seccomp_data
ALLOW, NOTHING, REFUSE, UNKNOWN = 0x7FFF0000, *(0x00050000 | error for error in (0, errno.EPERM, errno.ENOSYS))
X32 = 0x40000000  # first number of the calls of x32 on x86_64
SECCOMP, BY_FILTER = 22, 2  # of prctl


def number_of(name: str) -> int:
    """Return the number of a refused call on this processor. Raises KeyError."""
    return REFUSED[name][platform.machine()]


def refuse_calls(*, local_sockets: bool) -> str:
    """Put the filter on this process, which must be unable to gain rights; return why that fails, "" if it does not.

    With `local_sockets` sockets within this machine (AF_UNIX) are allowed.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES or struct.calcsize("P") != 8:
        return f"the system's calls are not known for this processor ({machine}, {8 * struct.calcsize('P')} bits)"
    program = [(LOAD, 0, 0, PROCESSOR), (EQUAL, 1, 0, ARCHITECTURES[machine]), (RETURN, 0, 0, REFUSE)]
    program += [(LOAD, 0, 0, CALL)]
    if machine == "x86_64":
        program += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE)]
    for numbers in REFUSED.values():
        if machine in numbers:
            program += [(EQUAL, 0, 1, numbers[machine]), (RETURN, 0, 0, REFUSE)]
    # The flags of clone3 lie in memory, which a filter does not see; where it is unknown, programs call clone.
    program += [(EQUAL, 0, 1, IN_PART["clone3"][machine]), (RETURN, 0, 0, UNKNOWN)]
    for name in WITHOUT_EFFECT:
        program += [(EQUAL, 0, 1, IN_PART[name][machine]), (RETURN, 0, 0, NOTHING)]
    family = int(socket.AF_UNIX) if local_sockets else 2**32 - 1
    for name, test, value, if_true, if_false in (
        ("socket", EQUAL, family, ALLOW, REFUSE),
        ("clone", ANY_BIT, NEW_NAMESPACES, REFUSE, ALLOW),
        ("prlimit64", EQUAL, 0, ALLOW, REFUSE),  # limits of this process only
        *((name, EQUAL, 0, ALLOW, NOTHING) for name in OF_OWN_THREAD),
    ):
        program += [(EQUAL, 0, 4, IN_PART[name][machine]), (LOAD, 0, 0, FIRST_ARGUMENT), (test, 0, 1, value)]
        program += [(RETURN, 0, 0, if_true), (RETURN, 0, 0, if_false)]
    program.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    failed = prctl(SECCOMP, BY_FILTER, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    return f"seccomp is refused: {os.strerror(ctypes.get_errno())}" if failed else ""


def prctl(*arguments: int | bytes) -> int:
    """Return the result of Linux's prctl with up to five arguments; -1 for an error."""
    return int(ctypes.CDLL(None, use_errno=True).prctl(*map(_argument, (*arguments, 0, 0, 0, 0)[:5])))


def call(number: int, *arguments: int | bytes | None) -> int:
    """Return the result of a call of the system by its number; -1 for an error."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return int(syscall(*map(_argument, (number, *arguments))))


def _argument(value: int | bytes | None) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value
