"""`python -m attnbench`: the command line, for an interpreter whose command `attnbench` is not on PATH.

`-m` puts the working directory first on sys.path. It is removed here, unless PYTHONPATH names it, so that a file
`json.py` in a checkout is not taken for that of the standard library. One thing cannot be prevented here: a folder
`attnbench` in the working directory replaces this package and this file. The command `attnbench` has no such problem.
"""

import os
import sys

try:
    here = os.getcwd()
except OSError:  # it was removed
    here = ""
if sys.path[0] in {"", here} - {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}:
    del sys.path[0]

from attnbench.cli import main

main()
