"""Run a module as `python -m MODULE` does, but without the working directory on sys.path:

    python .../attnbench/run/isolated.py MODULE [ARGUMENT ...]

`-m` and `-c` put the working directory first on sys.path, so that a folder `attnbench` or a file `json.py` in a
checkout would replace the real one. For a program that is started by its path the first entry is the program's own
folder, and this program removes it before it imports anything. Python 3.10 has no option that does the same: -P is new
in 3.11, and -I ignores PYTHONPATH too.

`attnbench` is imported from the package that this file belongs to, whatever the interpreter has installed. So an
interpreter without attnbench can be a worker, and parent and worker are of one version.

It is started by its path and imports nothing of attnbench.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder: its select.py would replace the standard library's


def main() -> None:
    """Run the module that the first argument names, with the other arguments as its own."""
    import runpy

    _import_attnbench()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _import_attnbench() -> None:
    """Put the package attnbench of this file into sys.modules; its modules are found through its __path__."""
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
