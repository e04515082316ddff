"""The same suite on every GPU of a Ray cluster, with one run file per device, as attnbench run would write it.

One Ray task per node reserves the whole node and runs the children (cluster_node.py), so that no other task computes
beside them and all GPUs of the node are known. Records come back line by line, so that they are kept when a node dies.
A node is retried once, if it is alive or comes back, and continues with the jobs that its files lack.

The only file that imports ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from attnbench.core.captured_stderr import captured_stderr
from attnbench.core.errors import (
    EXIT_BAD_INPUT,
    EXIT_CANNOT_WRITE,
    EXIT_DONE,
    EXIT_NOTHING_MEASURED,
    EXIT_WRONG_RESULT,
    Interrupted,
    UserError,
)
from attnbench.core.files import below_home
from attnbench.core.record import WRONG
from attnbench.core.text import count, one_line, some
from attnbench.results import decode, run_file
from attnbench.run import cluster_node

CONNECT = 5.0  # seconds for a connection
LONGEST_NAME = 200  # most characters of a node's name in the name of its file, which has at most 255
LOOK = 120.0  # seconds for the first answer of all nodes, on each of which Ray starts a Python
SETTLE = 5.0  # seconds after the death of a process of Ray until it is known whether the node died too
BUSY = 10.0  # seconds without a message until a node is reported as waiting
# Exit codes of a child that ended by itself.
ENDINGS = (EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_BAD_INPUT, EXIT_WRONG_RESULT)

WITH_TOKENS = (2, 52)  # the first version of Ray that can ask for a token
# The folder of Ray's objects, and the bytes for them where they lie in another folder.
SHARED_MEMORY, OBJECTS = "/dev/shm", 2**28

State = Literal["waiting", "measuring", "died", "done", "lost"]


@dataclass(frozen=True)
class Node:
    """A node of the cluster that was alive at the first look."""

    name: str  # unique in the cluster
    id: str  # Ray's id; it changes when the node comes back
    gpus: int
    cpus: int
    model: str  # the model of its GPUs, as Ray names it, or of its CPU
    version: str  # the version of attnbench there
    why_not: str  # why there is no version


@dataclass
class Unit:
    """One device of a node, and the progress of its run."""

    node: Node
    gpu: int | None  # its number on the node
    path: Path
    state: State = "waiting"
    jobs: int = 0  # jobs of the plan, once it is known
    done: int = 0
    wrong: int = 0
    measured: int = 0
    unread: int = 0  # lines of a newer attnbench, kept unread
    code: int = EXIT_DONE
    reason: str = ""  # why it is lost, or the last line of its run
    file: run_file.RunFile | None = None  # open from its first line on

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def has_file(self) -> bool:
        """Whether its run file exists and is unchanged."""
        return self.file is not None and not self.file.lost

    def close(self) -> None:
        """Close its run file; the device is lost where another program has changed the file."""
        try:
            if self.file:
                self.file.close()
        except UserError as error:
            self.state, self.code, self.reason = "lost", EXIT_CANNOT_WRITE, str(error)


@dataclass(frozen=True)
class Plan:
    """The checked options of `attnbench run`, and the folder of the run files."""

    words: tuple[str, ...]
    resume_words: tuple[str, ...]  # options of a resumed run
    device: str  # "cuda", "cpu" or "fake"
    out: Path
    one_per_model: bool = False
    at_once: int = 1
    patience: float = 120.0  # seconds for a node that died to come back
    allow_wrong: bool = False


class ClusterObserver(Protocol):
    """Receives the events on a cluster; render/progress shows them to a person."""

    def say(self, text: str, *, also_in_a_pipe: bool = False) -> None:
        """Take a text about the present activity."""

    def planned(self, units: Sequence[Unit], out: Path, notes: Sequence[str]) -> None:
        """Take the devices that will be measured."""

    def changed(self, unit: Unit, what: str) -> None:
        """Take a device whose progress changed; `what` is the event in a few words, "" for one more job."""


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to the cluster at `address`, else at RAY_ADDRESS, else start one on this machine. Raises UserError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        os.environ["RAY_AUTH_MODE"] = "token"  # Ray reads it at import
    try:
        import ray
    except ImportError as error:
        raise UserError(f"cluster run needs Ray ({error}): pip install ray") from None
    _check_address(address)
    options = _options_of_a_local_cluster(ray.__version__) if address == "local" else {}
    with tempfile.TemporaryDirectory(prefix="attnbench-cluster-") as empty:
        _connect(address, options, empty)
        try:
            ray.cloudpickle.register_pickle_by_value(cluster_node)
            yield
        finally:
            ray.shutdown()


def _connect(address: str, options: Mapping[str, Any], empty: str) -> None:
    """Connect to a cluster, or start one, from an empty folder, since Ray's processes import from their start folder.

    Raises UserError.
    """
    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    here = os.getcwd()
    try:
        os.chdir(empty)
        with captured_stderr() as said:  # Ray logs a line per second of trying
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True, **options)
    except (Exception, SystemExit) as error:  # a failed start raises a bare Exception
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # raised by Ray's signal handler
            raise Interrupted(signal.SIGTERM) from None
        why = one_line(str(error))[:200]
        if not (home := below_home()) or not os.access(home, os.W_OK):
            why += "; Ray keeps its token in the home folder: set HOME to a folder that can be written"
        if "InvalidAuthToken" in "".join(said):
            why = "the cluster asks for a token: set RAY_AUTH_MODE=token, with the head's ~/.ray/auth_token here"
        raise UserError(f"--address {address}: {why}") from None
    finally:
        os.chdir(here)
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray replaces the handlers


def _options_of_a_local_cluster(version: str) -> dict[str, Any]:
    """Return the options of `ray.init` that start a cluster on this machine alone. Raises UserError for an old Ray.

    The cluster listens on all interfaces and must therefore ask for a token. Where the system forbids shared memory,
    its objects lie in a folder.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < WITH_TOKENS:
        oldest = ".".join(map(str, WITH_TOKENS))
        raise UserError(f"Ray {version} would let anybody on the network run code here: pip install 'ray>={oldest}'")
    options: dict[str, Any] = {"include_dashboard": False}
    try:
        tempfile.TemporaryFile(dir=SHARED_MEMORY).close()
    except OSError:
        options |= {"_plasma_directory": tempfile.gettempdir(), "object_store_memory": OBJECTS}
    return options


def _check_address(address: str) -> None:
    """Raise UserError where nothing answers at an address, for which Ray would try two minutes and end the process."""
    if address == "local":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not re.fullmatch("[0-9]{1,5}", port):
        raise UserError(
            f"--address: {address!r} is not HOST:PORT of a Ray cluster's head, as in 10.0.0.1:6379; "
            "the Ray Client (ray://) is not supported; run this command on a node of the cluster"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: an impossible host name
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--address {address}: no Ray cluster answers there ({why}); `ray status` shows one") from None


def units(plan: Plan, observer: ClusterObserver) -> tuple[list[Unit], list[str]]:
    """Return the devices to measure, and notes on nodes that are left out or differ. Raises UserError without any."""
    from attnbench import __version__

    observer.say("asking the nodes")
    nodes = _nodes()
    usable = [node for node in nodes if node.gpus] if plan.device == "cuda" else nodes
    if not nodes:
        raise UserError("the cluster has no living node; start its nodes")
    if not usable:
        raise UserError(f"none of {count(len(nodes), 'node')} has a GPU; --device cpu measures their CPUs")
    notes = []
    if idle := len(nodes) - len(usable):
        notes.append(f"{count(idle, 'node')} without a GPU left out")
    if others := [f"{node.name} has {node.version}" for node in usable if node.version not in ("", __version__)]:
        notes.append(f"attnbench is {__version__} here, and {some(others)}; figures of another method are shown apart")
    found, taken = [], set[str]()
    for node in usable:
        for gpu in range(node.gpus) if plan.device == "cuda" else (None,):
            name = re.sub(r"[^\w.-]+", "-", node.name)[:LONGEST_NAME] + ("" if gpu is None else f"-gpu{gpu}")
            name = _unique(name, taken)  # for nodes such as rack1/a and rack1-a
            found.append(Unit(node, gpu, plan.out / f"{name}.jsonl"))
    if plan.one_per_model:
        found = list({unit.node.model: unit for unit in reversed(found)}.values())[::-1]
    for unit in found:
        if unit.node.why_not:
            unit.state, unit.code, unit.reason = "lost", EXIT_NOTHING_MEASURED, unit.node.why_not
    return found, notes


def _nodes() -> list[Node]:
    """Return the living nodes in the order of their names, each with its own facts."""
    import ray

    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: (_name(node), node["NodeID"]))
    asked = [ray.remote(cluster_node.look).options(num_cpus=0, **_pinned(node["NodeID"])).remote() for node in alive]
    ray.wait(asked, num_returns=len(asked), timeout=LOOK)
    found, taken = [], set[str]()
    for node, answer in zip(alive, asked, strict=True):
        try:
            said = ray.get(answer, timeout=1)
        except ray.exceptions.RayError as error:
            said = {"version": "", "cpu": "", "why": f"the node does not answer: {_why(error)}"}
        # Nodes on one machine, as in tests, share a host name, so the name is made unique.
        amounts, name = node["Resources"], _unique(_name(node), taken)
        models = [key.partition(":")[2] for key in amounts if key.startswith("accelerator_type:")]
        gpus = int(amounts.get("GPU", 0))
        model = (models or ["GPU"])[0] if gpus else said["cpu"]
        cpus = int(amounts.get("CPU", 0))
        found.append(Node(name, node["NodeID"], gpus, cpus, model, said["version"], said["why"]))
    return found


def _unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, numbered where necessary, and take it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


def _name(node: Mapping[str, Any]) -> str:
    """Return a node's name for a person: from `ray start --node-name`, else its host's name."""
    name = str(node.get("NodeName") or "")
    return name if name and name != node["NodeManagerAddress"] else str(node["NodeManagerHostname"])


def _pinned(node_id: str) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False), "max_retries": 0}


def measure(found: Sequence[Unit], plan: Plan, observer: ClusterObserver) -> None:
    """Measure the devices, each to its file; the result of each is then in its Unit.

    On an interrupt (core/errors.py) it stops the children on all nodes and raises the interrupt again.
    """
    nodes = {unit.node.name: _NodeRun([], plan, observer) for unit in found}
    for unit in found:
        nodes[unit.node.name].units.append(unit)
    runs = [*nodes.values()]
    try:
        for run in runs:
            run.launch()
        while any(run.open for run in runs):
            _next_events(runs)
    except Exception as error:
        if isinstance(error.__cause__, Interrupted):  # Ray wraps exceptions of signal handlers while it waits
            raise error.__cause__ from None
        raise
    finally:
        for run in runs:
            run.stop()
        for unit in (unit for unit in found if unit.file):
            unit.close()


def _next_events(runs: Sequence[_NodeRun]) -> None:
    """Wait half a second at most, and take the messages of the nodes."""
    import ray

    tasks = {run.task: run for run in runs if run.task is not None}
    if not tasks:
        time.sleep(0.5)
    for task in ray.wait([*tasks], num_returns=1, timeout=0.5, fetch_local=False)[0] if tasks else ():
        tasks[task].take()
    for run in runs:
        run.look()


@dataclass(eq=False)
class _NodeRun:
    """The devices of one node, and the Ray task that measures them."""

    units: list[Unit]
    plan: Plan
    observer: ClusterObserver
    task: Any = None
    _retried: bool = False
    _retry_from: float | None = None  # the time to look for the node again; None where not awaited
    _launched: float = 0.0
    _heard: bool = True
    _node_id: str = ""
    _dead: set[str] = field(default_factory=set)  # the node's past ids in Ray, even if Ray still lists them

    @property
    def left(self) -> list[Unit]:
        return [unit for unit in self.units if unit.state not in ("done", "lost")]

    @property
    def open(self) -> bool:
        return self.task is not None or self._retry_from is not None

    def launch(self, node_id: str = "") -> None:
        """Start the task for the remaining jobs, if there are any."""
        if not self.left:
            return
        import ray

        node, plan = self.units[0].node, self.plan
        self._node_id = node_id or node.id
        todo = [(unit.name, unit.gpu, unit.path.read_bytes() if unit.path.exists() else b"") for unit in self.left]
        options = {"num_returns": "streaming", "num_cpus": node.cpus, **_pinned(self._node_id)}
        if plan.device == "cuda":
            options["num_gpus"] = node.gpus
        task = ray.remote(cluster_node.measure).options(**options)
        self.task = task.remote(todo, plan.words, plan.resume_words, os.getcwd(), node.cpus, plan.at_once)
        self._launched, self._heard = time.monotonic(), False

    def look(self) -> None:
        """Report that a node is awaited, or start again on a node that died and came back."""
        if not self._heard and self.task is not None and time.monotonic() - self._launched > BUSY:
            self._heard = True
            self.observer.changed(self.left[0], "waits until the whole node is free")
        if self._retry_from is None or (waited := time.monotonic() - self._retry_from) < 0:
            return
        import ray

        name = self.units[0].node.name
        alive = {
            node["NodeID"]: _name(node) for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._dead
        }
        known = self._node_id if self._node_id in alive else next((id for id in alive if alive[id] == name), None)
        if known:
            self._retry_from = None
            for unit in self.left:
                unit.state = "waiting"
                kept = f"continues after {unit.done} of {count(unit.jobs, 'job')}" if unit.jobs else "starts anew"
                self.observer.changed(unit, f"retried: {kept}")
            self.launch(known)
        elif waited > self.plan.patience:
            self._retry_from = None
            self._lose("; it did not come back")

    def take(self) -> None:
        """Take the next message of the task, or its end."""
        import ray

        try:
            message = ray.get(next(self.task))
        except StopIteration:
            self._ended("its run was stopped")
        except ray.exceptions.RayError as error:
            gone = isinstance(error, ray.exceptions.TaskUnschedulableError)  # the node died before the task began
            if gone or isinstance(error, ray.exceptions.NodeDiedError):
                self._dead.add(self._node_id)
                self._retried = self._retried and not gone
                self._ended("the node died")
            else:
                self._ended(_why(error), SETTLE)
        else:
            name, what, content = message
            self._heard = True
            self._hear(name, what, content)

    def _hear(self, name: str, what: str, content: Any) -> None:
        """Take a message of the task about a device, unless the device is lost."""
        for unit in (unit for unit in self.left if unit.name == name):
            if what == "lines":
                self._keep(unit, content)
            else:
                self._close(unit, *content)

    def _keep(self, unit: Unit, lines: bytes) -> None:
        """Add lines to the run file of a device, written to disk when this returns, and count them.

        A device is lost if another program removes its file, or the file cannot be written.
        """
        was, unit.state = unit.state, "measuring"
        try:
            if unit.file is None:
                first, end, lines = lines.partition(b"\n")
                unit.file = run_file.RunFile.begin(unit.path, first + end)
                with contextlib.suppress(UserError):  # lines of a newer attnbench are kept
                    unit.jobs = len(run_file.head(unit.path).plan)
            unit.file.add_lines(lines)
        except UserError as error:
            unit.state, unit.code, unit.reason = "lost", EXIT_CANNOT_WRITE, str(error)
            self.observer.changed(unit, f"LOST: {error}")
            return
        if was != "measuring":
            self.observer.changed(unit, f"measures {count(unit.jobs - unit.done, 'job')}")
        for line in lines.splitlines():
            try:
                record = decode.record(line)
            except decode.DAMAGE:
                unit.unread += 1
                continue
            if record:
                unit.done += 1
                unit.measured += record.status == "ok"
                unit.wrong += record.status in WRONG
                told = f"{record.status}: {record.backend}: {record.reason}" if record.status in WRONG else ""
                self.observer.changed(unit, one_line(told))

    def _close(self, unit: Unit, code: int, said: str) -> None:
        """Take the exit code of a device's run, and its last line of output."""
        if code not in ENDINGS:
            unit.state, unit.reason = "died", f"its run ended by signal {-code}" if code < 0 else f"exit code {code}"
            self.observer.changed(unit, unit.reason)
            return
        unit.code, unit.state = code, "done"
        unit.reason = "" if code in (EXIT_DONE, EXIT_WRONG_RESULT) else said.removeprefix("attnbench: ")
        if code == EXIT_BAD_INPUT:
            unit.state = "lost"
        self.observer.changed(unit, _ending(unit))

    def _ended(self, why: str, settle: float = 0.0) -> None:
        """Take the end of the task, and retry its remaining jobs once."""
        self.task, self._heard = None, True
        for unit in self.left:
            unit.reason = unit.reason if unit.state == "died" else why
            unit.state = "died"
        if not self.left:
            return
        if self._retried:
            self._lose(", twice")
            return
        self._retried, self._retry_from = True, time.monotonic() + settle
        for unit in self.left:
            self.observer.changed(unit, f"{unit.reason}; it is retried if the node comes back")

    def _lose(self, more: str) -> None:
        for unit in self.left:
            unit.state, unit.code, unit.reason = "lost", EXIT_NOTHING_MEASURED, unit.reason + more
            self.observer.changed(unit, _ending(unit))

    def stop(self) -> None:
        """Stop the children of a running task, wait for their end, and keep their records."""
        import ray

        if self.task is None:
            return
        deadline = time.monotonic() + cluster_node.STOP
        with contextlib.suppress(ray.exceptions.RayError, StopIteration):
            ray.cancel(self.task, force=False, recursive=False)
            while ray.wait([self.task], timeout=max(0.0, deadline - time.monotonic()), fetch_local=False)[0]:
                name, what, content = ray.get(next(self.task))
                if what == "lines":
                    self._hear(name, what, content)
        self.task = None


def _ending(unit: Unit) -> str:
    """Return the result of a device, and for a lost one the command that continues."""
    files = f"{unit.done} of {unit.jobs or '?'} jobs are in {unit.path}" if unit.path.exists() else "nothing measured"
    if unit.state == "lost":
        on = f"; to continue there: attnbench run --resume {shlex.quote(unit.path.name)}" if unit.path.exists() else ""
        return f"LOST: {unit.reason}; {files}{on}"
    wrong = f", {unit.wrong} WRONG" if unit.wrong else ""
    why = f"; {unit.reason}" if unit.reason else ""
    why += f"; {count(unit.unread, 'line')} of another attnbench, not read here" if unit.unread else ""
    return f"done: {unit.measured} of {count(unit.jobs, 'job')} measured{wrong}{why}"


def twins(found: Sequence[Unit]) -> list[str]:
    """Return a line for each two run files that prove to be of the same GPU: another GPU was then not measured."""
    lines, seen = [], dict[str, str]()
    for unit in found:
        uuid = run_file.head(unit.path).environment.device.uuid if unit.path.exists() else None
        if uuid and uuid in seen:
            lines.append(f"{unit.name} and {seen[uuid]} are one GPU ({uuid}), so another GPU was not measured")
        elif uuid:
            seen[uuid] = unit.name
    return lines


def exit_code(found: Sequence[Unit], allow_wrong: bool) -> int:
    """Return the exit code of a cluster's run: for wrong results, else bad input on all devices, else lost devices."""
    codes = [unit.code for unit in found]
    if any(unit.wrong for unit in found) and not allow_wrong:
        return EXIT_WRONG_RESULT
    if all(code == EXIT_BAD_INPUT for code in codes):
        return EXIT_BAD_INPUT
    failed = any(unit.state != "done" or not unit.measured for unit in found)
    return EXIT_NOTHING_MEASURED if failed else EXIT_DONE


def _why(error: BaseException) -> str:
    """Return the first line of an error of Ray, as the rest names its log files."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0])[:200] if lines else type(error).__name__
