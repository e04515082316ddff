"""Import Triton and attnbench's kernels for its interpreter where there is no GPU, before anything else imports them.

Triton reads TRITON_INTERPRET at its import, and again at the import of a kernel. This module removes needless steps of
the interpreter, which take most of its time: it patches triton.language again at each call of a function from a kernel,
makes a table of dtypes for each operation, and computes integer overflows, which matter in debug mode only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from typing import Any

import pytest
import torch

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()


def _without_vain_work(interpreter: Any) -> None:
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    find, of_scalar = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda dtype: (of_scalar if dtype.__hash__ else find)(dtype)


def _patch_once_a_launch(interpreter: Any) -> None:
    languages = {id(interpreter.tl), id(interpreter.tl.core)}
    patch_lang, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()  # of the running launch

    @functools.cache
    def languages_of(function: Any) -> set[int]:
        return {id(value) for value in function.__globals__.values() if inspect.ismodule(value)} & languages

    def patch(function: Any) -> Any:
        modules = languages_of(function)
        if modules and modules <= patched:
            return interpreter._LangPatchScope()
        patched.update(modules)
        return patch_lang(function)

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()  # the interpreter restores the modules at the end of a launch
        launch(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch, call


if INTERPRET:
    with pytest.MonkeyPatch.context() as environment, contextlib.suppress(ImportError):
        environment.setenv("TRITON_INTERPRET", "1")
        from triton.runtime import interpreter

        if hasattr(interpreter, "_LangPatchScope"):  # some versions lack it
            _patch_once_a_launch(interpreter)
            _without_vain_work(interpreter)
        from attnbench.backends.triton import attention, paged  # noqa: F401
