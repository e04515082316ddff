"""The module to vendor: plain Python, without attnbench, that calls the backend of each region.

attention_choice.py.txt is its text without the calls and the table. A backend can be called there if its code to paste
(backends/paste.py) is one stateless call of dense tensors: a call that needs a plan, a graph, a block mask or a
compiler for each shape is left out, and so is attnbench's own code.
"""

from __future__ import annotations

import ast
import builtins
import functools
import pprint
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.analysis.choose.regions import Eligible, Kind, Region, regions
from attnbench.analysis.recommend.findings import TRAINING, Problem
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.run.shipped_backends import code, libraries

TEMPLATE = Path(__file__).with_name("attention_choice.py.txt")
NAME = "attention_choice"  # of the module, unless a person gives its file another
CALLS_NONE = (
    "a module would call none of these backends: it takes single calls of libraries on dense tensors, such as "
    "sdpa-*, fa2, fa3 and fa4 (docs/tune.md)"
)
SCALE = "softmax_scale"
STEPS = {"fwd": "fwd", TRAINING: "train", "fwd_bwd": "train"}  # step of a problem -> step of the module
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
ORDERS = {  # the comment of a pasted call -> whether heads come before the sequence
    "# q, k, v: (batch, seqlen, nheads, headdim)": False,
    "# q, k, v: (batch, nheads, seqlen, headdim)": True,
}


@dataclass(frozen=True)
class Call:
    """A stateless call of a backend: its imports, its statement, and whether heads come before the sequence."""

    imports: str
    statement: str
    heads_first: bool


def for_module(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of the module: of deterministic variants only where nothing else was measured."""
    found = [problem for problem in problems if _is_of_module(problem)]
    return [problem for problem in found if not problem.case.deterministic] or found


def _is_of_module(problem: Problem) -> bool:
    """Return whether the module can be asked for such a problem: dense attention of a known step.

    It may have a scale, which a call of the module gives, and no other option.
    """
    case = problem.case
    special = [what for what in problem.special if what not in ("deterministic", "softmax_scale")]
    plain = not (special or problem.model or case.latent or case.step) and case.ranks == 1
    return problem.step in STEPS and case.is_softmax and case.dtype in DTYPES and plain


def callable_by(run: Run) -> Eligible:
    """Return whether a backend of a run can be called in the module for a case, as a function of both."""
    return lambda backend, case: call_of(run, backend, case) is not None


def call_of(run: Run, backend: str, case: Case) -> Call | None:
    """Return the stateless call of a backend for a case; None where its code to paste is none."""
    return _parsed(code(run, backend, replace(case, direction="fwd"), SCALE))


@functools.cache
def _parsed(text: str) -> Call | None:
    comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    if len(comments) != 1 or comments[0] not in ORDERS or "attnbench" in text or "#" in text.replace(comments[0], ""):
        return None
    *imports, statement = ast.parse(text).body
    if not all(isinstance(one, ast.Import | ast.ImportFrom) for one in imports) or not _gives_out(statement):
        return None
    bound = {name.asname or name.name for one in imports for name in one.names}  # type: ignore[attr-defined]
    used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if used - bound - {*dir(builtins), "q", "k", "v", "out", "_", SCALE} or "lambda" in text:
        return None
    lines = [ast.get_source_segment(text, one) or "" for one in imports]
    return Call("\n".join(lines), ast.get_source_segment(text, statement) or "", ORDERS[comments[0]])


def _gives_out(statement: ast.stmt) -> bool:
    """Return whether a statement only assigns `out`, within a `with` at most."""
    if isinstance(statement, ast.With):
        return len(statement.body) == 1 and _gives_out(statement.body[0])
    return isinstance(statement, ast.Assign) and "out" in ast.unparse(statement.targets[0])


def check_plan(run: Run) -> None:
    """Raise UserError where a module could call no backend for a case that a run has planned."""
    if not any(call_of(run, job.backend, job.case) for job in run.plan if not job.skip):
        raise UserError(CALLS_NONE)


def module_regions(problems: Sequence[Problem], run: Run, *, vary: bool) -> list[Region]:
    """Return the regions of the module, of one kind for each key of its table: of several that with most problems.

    `vary` is as for `regions`.
    """
    found = regions(for_module(problems), callable_by(run), vary=vary)
    kept: list[Region] = []
    for own in grouped(found, lambda region: _key(region.kind)).values():
        kinds = grouped(own, lambda region: region.kind).values()
        kept += max(kinds, key=lambda of: sum(len(region.problems) for region in of if region.use))
    return kept


def module(problems: Sequence[Problem], runs: Sequence[Run], command: str, *, vary: bool, name: str = NAME) -> str:
    """Return the text of the module for the problems of one machine, from its runs, of which the newest comes last.

    `vary` is as for `regions`; `command` is the command that makes it again; `name` is the module's. Raises UserError
    where it would call nothing.
    """
    run = runs[-1]
    found = module_regions(problems, run, vary=vary)
    if not any(region.use for region in found):
        raise UserError(CALLS_NONE)
    names: dict[Call, str] = {}
    rows = {_key(kind): _rows(own, run, names) for kind, own in grouped(found, lambda region: region.kind).items()}
    environment = run.environment
    meta = {
        "schema": 1,
        "attnbench": environment.attnbench,
        "command": command,
        "runs": sorted({one.run.started for problem in problems for one in problem.candidates}),
        "kind": "cpu" if environment.device.kind == "cpu" else "cuda",
        "gpu": environment.device.name,
        "driver": environment.driver or "none",
        "packages": {"torch": environment.torch or ""} | _packages(found, runs),
    }
    values = {
        "meta": pprint.pformat(meta, sort_dicts=False, width=110),
        "calls": "\n\n\n".join(_function(own, call) for call, own in names.items()),
        "table": _table(rows),
        "module": name,
    }
    return re.sub(r"\{(" + "|".join(values) + r")\}", lambda of: values[of[1]], TEMPLATE.read_text())


def _packages(found: Sequence[Region], runs: Sequence[Run]) -> dict[str, str]:
    """Return library -> version, for the libraries beside torch of the backends that regions use."""
    packages: dict[str, str] = {}
    for name in sorted({region.use for region in found if region.use}):
        for run in runs:
            known = dict(run.environment.packages)
            distribution, _, version = run.versions.get(name, "").partition(" ")  # "flash-attn-4 4.0.0b36, ..."
            known |= {distribution: version.partition(",")[0]} if version else {}
            packages |= {one: known[one] for one in libraries(name) if one in known}
    return packages


def _key(kind: Kind) -> tuple[Any, ...]:
    case, shape = kind.case, kind.case.shape
    left, right = case.window_size
    alone = kind.is_decode and shape.seqlen_q == 1
    causal = case.causal and not alone
    window = (left, None if alone else right)
    queries = shape.seqlen_q if kind.is_decode else 0
    step, heads = STEPS[kind.step], (shape.nheads, shape.nheads_k, shape.headdim, shape.headdim_v)
    return (step, DTYPES[case.dtype], *heads, causal, window, queries)


def _rows(own: Sequence[Region], run: Run, names: dict[Call, str]) -> list[str]:
    """Return the rows of a kind as text, and add the calls that they need to `names`."""
    rows = []
    for (first, last), of_batch in grouped(own, lambda region: region.batches).items():
        lines = [f"        ({first}, {last}, ("]
        for region in of_batch:
            case = replace(region.problems[0].case, deterministic=region.deterministic)
            call = call_of(run, region.use, case) if region.use else None
            name = names.setdefault(call, _name(region.use, names)) if call else "None"
            (low, high), backend = region.lengths, region.use or "sdpa"
            lines.append(f"            ({low}, {high}, {backend!r}, {name}),{_comment(region)}")
        rows.append("\n".join([*lines, "        )),"]))
    return rows


def _comment(region: Region) -> str:
    """Return the evidence of a region as a comment."""
    ends = (region.problems[0], region.problems[-1])[: len(region.problems)]
    timed = [(problem.case.shape.seqlen_k, one) for problem in ends if (one := region.candidate(problem))]
    parts = [f"{length}: {one.latency * 1e6:.1f} us" for length, one in timed]
    gains = [
        problem.default.latency / one.latency
        for problem in region.problems
        if problem.default and (one := region.candidate(problem)) and one.backend != problem.default.backend
    ]
    parts += (
        [f"{min(gains):.2f} to {max(gains):.2f}x of sdpa" if len(gains) > 1 else f"{gains[0]:.2f}x of sdpa"]
        if gains
        else []
    )
    parts += [f"at worst {region.loss:.2f}x as long as the fastest"] if region.for_all and region.loss > 1.005 else []
    return f"  # {', '.join(parts)}" if parts else ""


def _name(backend: str, names: dict[Call, str]) -> str:
    """Return a name for a function that no other call has: "_make_fa3", "_make_fa3_2"."""
    stem = "_make_" + re.sub(r"\W", "_", backend)
    taken = {*names.values()}
    return next(
        name for number in range(1, len(taken) + 2) if (name := stem + f"_{number}" * (number > 1)) not in taken
    )


def _function(name: str, call: Call) -> str:
    body = call.statement.splitlines()
    turned = ["q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)"] if call.heads_first else []
    lines = [*turned, *body, f"return out{'.transpose(1, 2)' if call.heads_first else ''}"]
    imports = "".join(f"    {line}\n" for line in call.imports.splitlines())
    return (
        f"def {name}():\n{imports}\n    def call(q, k, v, {SCALE}):\n"
        + "".join(f"        {line}\n" for line in lines)
        + "\n    return call"
    )


def _table(rows: dict[tuple[Any, ...], list[str]]) -> str:
    lines = ["{"]
    for key, of_key in rows.items():
        lines += [f"    {key!r}: (", *of_key, "    ),"]
    return "\n".join([*lines, "}"])
