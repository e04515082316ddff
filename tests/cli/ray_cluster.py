"""A Ray cluster of several nodes on this machine, in a separate process that takes commands from a test.

python ray_cluster.py
add NAME [ATTNBENCH_FAKE [GPUS]]     start a node of one CPU; the first is the head
kill NAME                            end it like a power cut
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Nodes:
    """The test's side of the cluster."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: str) -> str:
        """Send a command and return the answer, the address of the head."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(words), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("done "):
                return line.split()[1]
        raise AssertionError(f"the cluster ended at {words}")


@contextmanager
def nodes(*names: tuple[str, ...]) -> Iterator[tuple[Nodes, str]]:
    """Yield a cluster of nodes, each (name, ATTNBENCH_FAKE, GPUs), and the address of its head."""
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
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
        what, name, *more = json.loads(line)
        if what == "add":
            own: dict[str, Any] = {} if running else {"include_dashboard": False}
            if more[:1]:
                own["env_vars"] = {"ATTNBENCH_FAKE": more[0]}
            if more[1:]:
                own |= {"num_gpus": int(more[1]), "resources": {"accelerator_type:H100": 1}}
            memory = 80 * 2**20
            running[name] = cluster.add_node(
                **{"node_name": name, "num_cpus": 1, "num_gpus": 0, "object_store_memory": memory, **own}
            )
        else:
            cluster.remove_node(running[name], allow_graceful=False)
        print("done", cluster.address, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
