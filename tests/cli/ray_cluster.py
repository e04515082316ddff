"""A Ray cluster of several nodes on this machine, in a process of its own, which a test tells what to do.

python ray_cluster.py
add NAME [ATTNBENCH_FAKE]     start a node of one CPU; the first is the head
kill NAME                     end it as a power cut does
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Nodes:
    """The cluster as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: str) -> str:
        """Send a command and return the answer, the address of the head."""
        assert self._process.stdin
        assert self._process.stdout
        print(*words, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("done "):
                return line.split()[1]
        raise AssertionError(f"the cluster ended at {words}")


@contextmanager
def nodes(*names: tuple[str, str], asks_for_token: bool = False) -> Iterator[tuple[Nodes, str]]:
    """Give a cluster with these nodes, of (name, ATTNBENCH_FAKE), and the address of its head.

    One that asks for a token asks for that in RAY_AUTH_TOKEN.
    """
    command = [sys.executable, str(Path(__file__))]
    environment = {**os.environ, "RAY_AUTH_MODE": "token" if asks_for_token else "disabled"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            cluster, address = Nodes(process), ""
            for name in names:
                address = cluster.tell("add", *name)
            yield cluster, address
        finally:
            assert process.stdin
            process.stdin.close()
            process.wait(30)


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster, running = Cluster(), {}
    for line in sys.stdin:
        what, name, *fake = line.split()
        if what == "add":
            own = {"include_dashboard": False} if not running else {}
            variables = {"ATTNBENCH_FAKE": fake[0]} if fake else {}
            memory = 80 * 2**20
            running[name] = cluster.add_node(
                node_name=name, num_cpus=1, num_gpus=0, object_store_memory=memory, env_vars=variables, **own
            )
        else:
            cluster.remove_node(running[name], allow_graceful=False)
        print("done", cluster.address, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
