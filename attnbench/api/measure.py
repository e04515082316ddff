"""`attnbench.measure` and `attnbench.check`: what `attnbench run` and `attnbench check` do, from Python."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.api.arguments import (
    LIST,
    MAPPING,
    NONE,
    NUMBER,
    PATH,
    SWITCH,
    TEXT,
    WHOLE,
    Kind,
    Values,
    check_texts,
    check_types,
    path_of,
    settings,
)
from attnbench.api.results import Results, of_runs
from attnbench.api.shown import Shown
from attnbench.api.subjects import Subjects, What, caller_scope, each, subjects
from attnbench.api.watching import interruptible, watched
from attnbench.core.errors import EXIT_BY_SIGNAL, EXIT_DONE, UserError

if TYPE_CHECKING:
    from attnbench.core.record import Record, Run
    from attnbench.run.run_suite import Outcome

_KINDS: Mapping[str, Sequence[Kind]] = {  # types of the arguments of `check` and `measure`
    "device": (TEXT,),
    "python": (MAPPING, NONE),
    "allow_busy": (SWITCH,),
    "in_process": (SWITCH, NONE),
    "progress": (SWITCH,),
}
_KINDS_OF_CHECK = {**_KINDS, "timeout": (NUMBER,)}
_KINDS_OF_MEASURE = {
    **_KINDS,
    "suite": (PATH,),
    "model": (TEXT, LIST, NONE),
    "tp": (WHOLE, NONE),
    "phase": (TEXT, NONE),
    "tokens": (WHOLE, TEXT, NONE),
    "rounds": (WHOLE,),
    "time_limit": (TEXT, NUMBER, NONE),
    "policy": (MAPPING, NONE),
    "out": (PATH, NONE),
}


def measure(
    what: What | Subjects = (),
    *,
    backends: What = (),
    seqlen: Values = None,
    headdim: Values = None,
    dtype: Values = None,
    causal: Values = None,
    direction: Values = None,
    suite: str = "default",
    model: str | Sequence[str] | None = None,
    tp: int | None = None,
    phase: str | None = None,
    tokens: int | str | None = None,
    rounds: int = 1,
    time_limit: str | None = None,
    policy: Mapping[str, Any] | None = None,
    device: str = "auto",
    python: Mapping[str, str] | None = None,
    allow_busy: bool = False,
    out: str | Path | None = None,
    in_process: bool | None = None,
    progress: bool = True,
    **axes: Values,
) -> Results:
    """Measure attention implementations over shapes, as `attnbench run` does, and return the results.

    Args:
        what: a backend's name or a pattern ("sdpa-*"), own code ("file.py:function"), a function f(q, k, v, *, causal,
            softmax_scale) of tensors (batch, seqlen, nheads, headdim), an nn.Module, a compiled function, or several
            of these; every backend that works here by default.
        backends: further ones, measured beside `what`.
        seqlen, headdim, dtype, causal, direction, and any other axis by its name: one value, a list, or a text as
            the option takes it ("1k-64k"). They multiply. `attnbench run --help` lists the axes.
        suite: the name of a shipped suite or a YAML file, whose axes these replace.
        model, tp, phase, tokens, rounds, time_limit, device, allow_busy: as the options of the same names.
        policy: how to measure, as in a suite file: {"max_seconds": 0.5, "l2": "warm"}, in seconds.
        python: the interpreter of a backend, by its name.
        out: the run file; a new one in results/ by default, named by `Results.files`.
        in_process: True: measure functions in this process; False: never; by default only those of which no other
            process can have the source. The report then says what is not guarded against.
        progress: whether stderr, or the notebook, shows the progress.

    A function of a script or a notebook runs in a worker, which gets its source and everything that this needs. An
    interrupt (Ctrl-C) returns the results so far, and raises KeyboardInterrupt where there are none. Raises UserError
    for mistakes that a person can mend.

    >>> import attnbench
    >>> found = attnbench.measure("fake", device="fake", seqlen=[1024, 2048], headdim=128, dtype="bf16", causal=True,
    ...                           direction="fwd", out="measured.jsonl", progress=False)
    >>> [f"{cell.value('latency') * 1e6:.1f} us" for cell in found.cells]  # doctest: +ELLIPSIS
    ['... us', '... us']
    """
    from attnbench.run.run_suite import Request, run_suite

    check_types(locals(), _KINDS_OF_MEASURE)
    if isinstance(what, (list, set)) and not what and not backends:
        raise UserError("what is to be measured? The list is empty; without it all backends that work here are")
    check_texts("policy", policy)
    check_texts("model", model)
    check_texts("python", python, "the name of a backend")
    own = (
        what
        if isinstance(what, Subjects)
        else subjects([*each(what), *each(backends)], caller_scope(), in_process=in_process)
    )
    given = {"seqlen": seqlen, "headdim": headdim, "dtype": dtype, "causal": causal, "direction": direction, **axes}

    def measured(own: Subjects) -> Outcome:
        if own.here and (rounds > 1 or (policy or {}).get("caches") == "fresh"):
            name, why = next(iter(own.why.items()))
            raise UserError(f"rounds and fresh caches need new processes, and {name} is measured in this one: {why}")
        replaced = settings(
            given,
            backends=[*own.patterns] or None,
            models=[model] if isinstance(model, str) else model,
            tp=tp,
            phase=phase,
            tokens=tokens,
            time_limit=None if time_limit is None else str(time_limit),
            policy=dict(policy or {}),
        )
        request = Request(
            suite=str(suite),
            settings=replaced,
            device=device,
            rounds=int(rounds),
            out=path_of(out) if out is not None else None,
            pythons=tuple(f"{name}={path}" for name, path in (python or {}).items()),
            allow_busy=allow_busy,
            here=own.here,
            live=own.live,
        )
        with watched(progress) as observer, interruptible():
            _tell(own, progress)
            return run_suite(request, observer)

    outcome = own.measured(measured)
    if outcome.exit_code in EXIT_BY_SIGNAL and not outcome.run.records:
        raise KeyboardInterrupt
    if outcome.exit_code in EXIT_BY_SIGNAL and progress:
        where = f", and is in {outcome.path}; attnbench run --resume {outcome.path} goes on" if outcome.path else ""
        print(f"attnbench: interrupted; what was measured is returned{where}", file=sys.stderr)
    return of_runs([outcome.run], [outcome.path] if outcome.path else [])


@dataclass(frozen=True, repr=False)
class CheckResult(Shown):
    """The result of `check`. It is true where every case that could be checked is right.

    records: one for each case on each backend, with its status, its reason, and its errors in `accuracy.errors`:
        {"out": TensorError(max_error, tolerance, ...)}, of the tensors' own unit.

    >>> import attnbench
    >>> found = attnbench.check("fake", device="fake", seqlen=1024, progress=False)
    >>> bool(found), found.exit_code, found.wrong
    (True, 0, ())
    >>> found.raise_if_wrong() is found
    True
    """

    run: Run
    code: int = EXIT_DONE

    def __bool__(self) -> bool:
        return self.exit_code == EXIT_DONE

    @property
    def exit_code(self) -> int:
        """0: right; 1: a case failed, or nothing could be checked; 5: wrong; 130: interrupted."""
        return self.code or self.document.exit_code

    @property
    def records(self) -> tuple[Record, ...]:
        """The record of each case."""
        return tuple(self.run.records)

    @property
    def wrong(self) -> tuple[Record, ...]:
        """The records of the cases whose results are wrong."""
        from attnbench.results.exit_codes import wrong_records

        return tuple(wrong_records(self.run))

    @property
    def reasons(self) -> dict[str, str]:
        """Why cases are not right, by the name of the case on its backend."""
        from attnbench.results.case_names import case_name

        bad = (record for record in self.records if record.status not in ("ok", "skipped"))
        return {case_name(record.backend, record.case, True): record.reason or "" for record in bad}

    def raise_if_wrong(self) -> CheckResult:
        """Return this, or raise WrongResultError with the verdict and the first reasons."""
        __tracebackhide__ = True  # pytest then shows the line of the test
        if not self:
            said = self.document.verdict.text if self.document.verdict else "nothing could be checked"
            reasons = [f"{name}: {why}" for name, why in self.reasons.items()]
            raise WrongResultError("\n".join([said, *reasons[:MOST_REASONS]]))
        return self


MOST_REASONS = 5


class WrongResultError(AssertionError):
    """A kernel's results are wrong, or could not be checked."""


def check(
    what: What | Subjects,
    *,
    seqlen: Values = None,
    headdim: Values = None,
    dtype: Values = None,
    causal: Values = None,
    direction: Values = None,
    timeout: float = 60.0,
    device: str = "auto",
    python: Mapping[str, str] | None = None,
    allow_busy: bool = False,
    in_process: bool | None = None,
    progress: bool = True,
    **axes: Values,
) -> CheckResult:
    """Check whether a kernel is right, on small shapes that show bugs, by the reference and tolerance of `measure`.

    Nothing is timed. `timeout` is of one case, in seconds; the other arguments are those of `measure`, and axes replace
    the axes of the cases. Raises UserError for mistakes that a person can mend.

    >>> import attnbench
    >>> import torch
    >>> def plain(q, k, v, *, causal, softmax_scale):
    ...     q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    ...     return torch.nn.functional.scaled_dot_product_attention(
    ...         q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)
    >>> bool(attnbench.check(plain, seqlen=128, headdim=64, direction="fwd", dtype="fp32", causal=False, nheads=2,
    ...                      nheads_k=2, seqlen_q=128, layout="native", device="cpu", progress=False))
    True
    """
    from attnbench.analysis.check.document import document
    from attnbench.run.check import check as checked

    check_types(locals(), _KINDS_OF_CHECK)
    if not 0 < timeout < math.inf:
        raise UserError(f"timeout: {timeout!r} is not a number of seconds above 0")
    check_texts("python", python, "the name of a backend")
    own = what if isinstance(what, Subjects) else subjects(what, caller_scope(), in_process=in_process)
    given = {"seqlen": seqlen, "headdim": headdim, "dtype": dtype, "causal": causal, "direction": direction, **axes}

    def measured(own: Subjects) -> tuple[Run, int]:
        with watched(progress) as observer, interruptible():
            _tell(own, progress)
            return checked(
                own.patterns,
                settings(given),
                observer.say,
                device=device,
                timeout=timeout,
                pythons=tuple(f"{name}={path}" for name, path in (python or {}).items()),
                allow_busy=allow_busy,
                here=own.here,
                live=own.live,
            )

    run, interrupt = own.measured(measured)
    return CheckResult(document(run), run, interrupt)


def _tell(own: Subjects, progress: bool) -> None:
    for name, why in own.why.items() if progress else ():
        print(f"attnbench: {name} is measured in this process: {why}", file=sys.stderr)
