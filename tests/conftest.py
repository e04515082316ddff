"""Its place puts tests/ on the path, where tests of backends find their stand-ins.

Tests run one process a core. Each of them, and what it starts, computes with one thread: else threads that wait for
one another take the cores from the other tests, and all of it lasts twice as long.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
