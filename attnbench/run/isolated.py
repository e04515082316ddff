"""Run a module as `python -m MODULE` does, but without the working directory on sys.path:

    python .../attnbench/run/isolated.py MODULE [ARGUMENT ...]

`-m` and `-c` put the working directory first on sys.path, so that a folder `attnbench` or a file `json.py` in a
checkout would replace the real one. For a program that is started by its path, the first entry is the program's own
folder, which this program removes before it imports anything. Python 3.10 has no option for this: -P is new in 3.11,
and -I ignores PYTHONPATH too.

`attnbench` is imported from the package of this file, whatever the interpreter has installed. An interpreter without
attnbench can therefore be a worker, and parent and worker have the same version.

This file is started by its path and imports nothing of attnbench.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder, whose select.py would replace the standard library's


def main() -> None:
    """Run the module that the first argument names, with the other arguments as its own."""
    import runpy

    _import_attnbench()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _import_attnbench() -> None:
    """Put the package attnbench of this file into sys.modules, through whose __path__ its modules are found."""
    import importlib.util
    import os

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "attnbench", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["attnbench"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
