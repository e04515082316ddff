"""The reference of the documentation site, made of the code: commands, API, metrics, exit codes, models, run files, and
a page for each backend. Nothing of it is typed, and no library but attnbench's own dependencies is imported.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import measured

import attnbench
from attnbench.analysis.models import document as models_document
from attnbench.backends import APPROXIMATE, BACKENDS, SEVERAL, STEPS, ULYSSES, load
from attnbench.commands.command_line import COMMANDS, command_line
from attnbench.core import case, errors, machine, models, policy, record
from attnbench.render import markdown
from attnbench.results.metrics import METRICS
from attnbench.results.where_tried import UNVERIFIED, trials
from attnbench.run import suite
from attnbench.run.shipped_suites import shipped_suites
from attnbench.run.support_matrix import (
    ARCHITECTURES,
    CPU,
    FEATURES,
    LEGEND,
    PLAIN,
    SupportMatrix,
    named_device,
    support_matrix,
)
from attnbench.run.venvs import extra_for

REPOSITORY = "https://github.com/OWNER/attnbench"
DOCUMENTS = Path(__file__).parents[1]
BY_FEATURE = "Hopper"  # the GPU whose support a page shows feature by feature
KINDS = {  # groups of backends in the navigation
    "Approximations": APPROXIMATE,
    "Steps of a model": STEPS,
    "Several GPUs": SEVERAL,
}


def navigation() -> list[Any]:
    """Return the part of the navigation that leads to the pages made here."""
    of_one = [name for name in _backends() if not _kind(name)]
    return [
        {
            "Backends": [
                "backends/index.md",
                *(f"backends/{name}.md" for name in of_one),
                *({title: [f"backends/{name}.md" for name in names]} for title, names in KINDS.items()),
            ]
        },
        {
            "Reference": [
                {"Commands": ["commands/index.md", *(f"commands/{name}.md" for name in COMMANDS)]},
                *(f"reference/{name}.md" for name in REFERENCE),
            ]
        },
    ]


def pages() -> dict[str, str]:
    """Return the pages: address below the site -> markdown."""
    found = {"commands/index.md": _commands()}
    found |= {f"commands/{name}.md": _command(name) for name in COMMANDS}
    found |= {f"reference/{name}.md": page() for name, page in REFERENCE.items()}
    found |= {f"backends/{name}.md": backend_page(name) for name in _backends()}
    return found


# Commands


def _program(*names: str) -> Any:
    import typer

    program = typer.main.get_command(command_line(*names))
    return program, program.context_class(program, info_name="attnbench")


def _commands() -> str:
    program, _ = _program()
    rows = (
        (f"[`{name}`]({name}.md)", _prose(_paragraphs(of.help)[0]), ", ".join(f"`{sub}`" for sub in _subcommands(of)))
        for name, of in program.commands.items()
    )
    options = _options([param for param in program.params if param.help])
    return _joined("# Commands", _prose(program.help), _table(("command", "what it does", "with"), rows), options)


def _command(name: str) -> str:
    program, context = _program(name)
    return f"# attnbench {name}\n\n" + _help(program.commands[name], context, name, "##")


def _subcommands(of: Any) -> Mapping[str, Any]:
    return getattr(of, "commands", {})


def _help(of: Any, parent: Any, name: str, level: str) -> str:
    """Return the help of a command, its options by panel, and those of its subcommands."""
    context = of.context_class(of, info_name=name, parent=parent)
    params = of.get_params(context)
    usage = f"{context.command_path} {' '.join(of.collect_usage_pieces(context))}"
    parts = [_code(usage), *map(_paragraph, _paragraphs(of.help or ""))]
    panels: dict[str, list[Any]] = {}
    for param in params:
        if not getattr(param, "hidden", False) and param.name != "help":
            panels.setdefault(_panel(param), []).append(param)
    for title, inside in panels.items():
        parts += [f"{level} {title}", _options(inside)]
    parts.append(_prose(of.epilog or ""))
    for sub, command in _subcommands(of).items():
        parts += [f"{level} attnbench {name} {sub}", _help(command, context, sub, level + "#")]
    return _joined(*parts)


def _panel(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or "Options"


def _options(params: Sequence[Any]) -> str:
    rows = []
    for param in params:
        names = [param.metavar or param.name.upper()] if param.param_type_name == "argument" else param.opts
        flags = ", ".join(f"`{name}`" for name in (*names, *param.secondary_opts))
        value = f" `{param.metavar}`" if param.param_type_name != "argument" and param.metavar else ""
        rows.append((flags + value, _prose(_help_of(param)), _default(param)))
    kind = params[0].param_type_name if params else ""
    return _table((kind, "what it does", "default"), rows)


def _help_of(param: Any) -> str:
    required = "" if not param.required or param.param_type_name == "argument" else " Required."
    return (getattr(param, "help", "") or "") + required


def _default(param: Any) -> str:
    default = param.default
    if default in (None, False, True, (), [], "") or callable(default) or "UNSET" in repr(default):
        return ""
    return f"`{default}`"


def _paragraphs(text: str) -> list[str]:
    return [part for part in inspect.cleandoc(text).split("\n\n") if part]


def _paragraph(text: str) -> str:
    return _code(text) if text.startswith("attnbench ") else _prose(text)


# API, metrics, exit codes, models, suites, run files


def _api() -> str:
    names = [name for name in attnbench.__all__ if not name.startswith("_")]
    functions = sorted(names, key=lambda name: (not name[0].islower(), name.endswith("Error"), name))
    about = _prose("\n".join(_paragraphs(attnbench.__doc__ or "")[-1:]))
    return _joined(
        "# Python API", _code("import attnbench", "python"), about, *(f"::: attnbench.{n}" for n in functions)
    )


def _metrics() -> str:
    rows = ((f"`{of.name}`", of.unit, of.better or "", _prose(of.doc)) for of in METRICS.values())
    doc = _paragraphs(import_module("attnbench.results.metrics").__doc__ or "")
    table = _table(("metric", "unit", "better", "what it is"), rows)
    return _joined("# Metrics", "`attnbench report FILE -m NAME,NAME` shows those that are named.", table, *doc[1:])


def _exit_codes() -> str:
    first, table, *_ = _paragraphs(errors.__doc__ or "")
    rows: list[list[str]] = []
    for line in table.splitlines()[2:]:
        code, meaning = (cell.strip() for cell in line.strip("|").split("|"))
        if code:
            rows.append([code, meaning])
        else:
            rows[-1][1] += f" {meaning}"
    return _joined("# Exit codes", first, _table(("code", "meaning"), ((code, _prose(text)) for code, text in rows)))


def _models() -> str:
    known = [*models.MODELS.values()]
    sources = ((f"`{of.name}`", _linked(of.source), _prose(of.read), of.date, _prose(of.note)) for of in known)
    return _joined(
        "# Models",
        _shown(models_document.listed(known)),
        "## Sources",
        _table(("model", "published configuration", "read as", "on", "note"), sources),
    )


def _suites() -> str:
    parts = ["# Suites", "`attnbench run --suite NAME` measures one, `attnbench suites NAME` prints it."]
    for name, path in shipped_suites().items():
        loaded = suite.load_suite(name)
        parts += [
            f"## {name}",
            _prose(f"{loaded.description} ({suite.describe_suite(loaded)})"),
            _code(path.read_text(encoding="utf-8").rstrip("\n"), "yaml"),
        ]
    return _joined(*parts)


FIELDS = {  # heading -> the dataclasses whose fields have these names in JSON
    "The first line": (record.Run, machine.Environment, machine.Device, policy.Policy, record.Search),
    "Jobs and records": (record.Job, record.Forecast, record.Record, record.Measurement, record.Accuracy,
                         record.TensorError, record.Approximation),
    "Cases": (case.Case, case.Shape),
}  # fmt: skip


def _run_file() -> str:
    parts = [
        "# Fields of run files",
        "Names and meaning of every field. A field at its default is left out. The first line has the run without its "
        "records, each other line one record. [Run files](../run-files.md) says how files are read.",
    ]
    for title, classes in FIELDS.items():
        parts.append(f"## {title}")
        for cls in classes:
            first, *rest = _paragraphs(cls.__doc__ or "")
            parts += [f"### {cls.__name__}", _prose(first), _fields(cls), *map(_listed, rest)]
    return _joined(*parts)


def _fields(cls: Any) -> str:
    said = _comments(cls)
    rows = []
    for field in dataclasses.fields(cls):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        default = "`{}`" if field.default_factory is not dataclasses.MISSING else default
        holds = _prose(said.get(field.name, "")) or ", ".join(_linked_classes(str(field.type)))
        rows.append((f"`{field.name}`", holds, f"`{field.type}`", default))
    return _table(("field", "what it holds", "type", "default"), rows)


def _linked_classes(kind: str) -> list[str]:
    """Return links to the sections of the classes that a type names."""
    known = [cls.__name__ for classes in FIELDS.values() for cls in classes]
    return [f"[{name}](#{name.lower()})" for name in re.findall(r"\w+", kind) if name in known]


def _comments(cls: Any) -> dict[str, str]:
    """Return the comment at each field of a dataclass: behind it, or in lines of its own before it."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    behind = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    (body,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            start = node.lineno
            while lines[start - 2].strip().startswith("#"):
                start -= 1
            found[node.target.id] = " ".join(behind[n] for n in range(start, node.lineno + 1) if n in behind)
    return found


def _listed(text: str) -> str:
    """Return a paragraph of a docstring that may be a list."""
    return re.sub(r'"([a-z]\w*)"', r"`\1`", re.sub(r"^  (?=\S)", "    ", text, flags=re.M))


REFERENCE = {
    "api": _api,
    "metrics": _metrics,
    "exit-codes": _exit_codes,
    "models": _models,
    "suites": _suites,
    "run-file": _run_file,
}


# Backends


def _backends() -> list[str]:
    return [name for name in BACKENDS if name != "fake"]


def _kind(name: str) -> str:
    """Return the group of a backend in the navigation; "" for one of a single device."""
    return next((title for title, names in KINDS.items() if name in names), "")


def with_links_to_backends(text: str) -> str:
    """Return the text of docs/backends.md, with a link from each backend in the first column of a table to its page."""
    known = {*_backends()}

    def link(match: re.Match[str]) -> str:
        return f"| [`{match[1]}`]({match[1]}.md)" if match[1] in known else match[0]

    return re.sub(r"^\| `([\w-]+)`", link, text, flags=re.M)


@functools.cache
def _matrices() -> Sequence[SupportMatrix]:
    devices = (*map(named_device, ARCHITECTURES), replace(CPU, name="CPU"))
    return tuple(support_matrix(device, _backends()) for device in devices)


def backend_page(name: str) -> str:
    """Return the page of a backend."""
    of = load(name, BACKENDS[name])
    module = import_module(type(of).__module__)
    about = _paragraphs(type(of).__dict__.get("__doc__") or module.__doc__ or "")
    source = f"{REPOSITORY}/blob/main/{type(of).__module__.replace('.', '/')}.py"
    if hasattr(module, "__path__"):
        source = f"{source.removesuffix('.py')}/__init__.py"
    parts = [f"# {name}", *(about and [_prose(about[0])]), _facts(name, of, source)]
    parts += ["## Where it was right", _trials(name), *_wrong(name), *_measured(name)]
    if not _kind(name):  # others have no plain case of one device
        row = {matrix.device.name: _row(matrix, name) for matrix in _matrices()}
        runs = ((where, _answer(found.overall.answer), _prose(found.overall.reason)) for where, found in row.items())
        parts += ["## Where it runs", _table(("device", "", "why not"), runs)]
        features = (
            (feature.name, _answer(cell.answer), _prose(cell.reason))
            for feature, cell in zip(FEATURES, row[BY_FEATURE].cells, strict=True)
        )
        parts += [f"## What it supports on {BY_FEATURE}", _table(("feature", "", "why not"), features), _prose(LEGEND)]
    parts += [*_limits(of), *_pasted(of), *_see_also(name, of)]
    return _joined(*parts)


def _row(matrix: SupportMatrix, name: str) -> Any:
    return next(row for row in matrix.rows if row.backend == name)


def _answer(answer: str) -> str:
    return {"yes": "**yes**", "no": "no"}.get(answer, f"**{answer}**")


def _facts(name: str, of: Any, source: str) -> str:
    lines = []
    if what := getattr(of, "what", ""):
        lines.append(f"It computes {_prose(str(what))}, an approximation of attention.")
    if libraries := ", ".join(f"`{one}`" for one in (*of.distributions, *of.uses)):
        lines.append(f"Library: {libraries}")
    command, _, remark = getattr(of, "install", "").partition("  # ")
    if command:
        lines.append(f"Installed by `{command}`{remark and f' ({_prose(remark)})'}")
    elif not libraries:
        lines.append("It needs PyTorch alone.")
    if name.startswith(ULYSSES) and (inner := name.removeprefix(ULYSSES)) in BACKENDS:
        lines.append(f"It calls the backend [`{inner}`]({inner}.md), whose page says how its library is installed.")
    with contextlib.suppress(errors.UserError):
        own = f"attnbench env create {extra_for(name)}"
        lines += [f"In an environment of its own: `{own}`"] * (own != command)
    if of.runtime_checker:
        lines.append(f"{of.runtime_checker} may refuse more, depending on its version, when a case is run.")
    lines += [f"Measured by `{_command_of(name)}`", f"[Source]({source})"]
    return "\n".join(f"- {line}" for line in lines)


def _command_of(name: str) -> str:
    """Return the command that measures a backend."""
    if name in STEPS:
        return f"attnbench step llama-3.1-8b -b {name.removeprefix('step-')}"
    return f"attnbench run -b {name}" + (" --ranks 1,2 --batch 1" if name in SEVERAL else "")


def _trials(name: str) -> str:
    rows = (
        (one.device, _prose(one.version), _prose(", ".join(one.forward)), _prose(", ".join(one.backward)))
        for one in trials().get(name, ())
    )
    return _table(("device", "version", "forward", "backward"), rows) or f"{UNVERIFIED[0].upper()}{UNVERIFIED[1:]}."


def _measured(name: str) -> Iterator[str]:
    """Yield the table of the fastest measured cells."""
    rows = [
        (device, f"`{cell}`", rate, latency, f"[{path.name.split('.')[0]}]({REPOSITORY}/blob/main/results/{path.name})")
        for device, cell, rate, latency, path in measured.rows(name)
    ]
    if rows:
        yield "## The fastest measured cells"
        yield (
            "The cell with the highest rate in the run files of `results/`, for each device, pass and dtype; decode "
            "steps have GB/s. `attnbench report results/FILE --cell 'NAME'` shows it in full."
        )
        yield _table(("device", "cell", "rate", "latency", "run file"), rows)


def _wrong(name: str) -> Iterator[str]:
    """Yield the table of wrong results."""
    if rows := [
        (device, _prose(version), f"`{cell}`", _prose(why)) for _, version, device, cell, why in measured.wrong(name)
    ]:
        yield "## Wrong results"
        yield "The first wrong cell of each kind in the run files of `results/`."
        yield _table(("device", "version", "cell", "reason"), rows)


def _see_also(name: str, of: Any) -> Iterator[str]:
    """Yield links to the documents that name a backend, and to the other backends of its library."""
    documents = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("*.md"))}
    naming = [stem for stem, text in documents.items() if f"`{name}`" in text and stem != "backends"]
    same = [
        other
        for other in _backends()
        if other != name and of.distributions and _kind(other) == _kind(name)
        if load(other, BACKENDS[other]).distributions == of.distributions
    ]
    lines = (
        ("Documents", [f"[{stem}](../{stem}.md)" for stem in naming]),
        ("Of the same library", [f"[`{other}`]({other}.md)" for other in same]),
        ("All backends", ["[what each supports](index.md)"]),
    )
    yield "## See also"
    yield "\n".join(f"- {title}: {', '.join(links)}" for title, links in lines if links)


def _limits(of: Any) -> Iterator[str]:
    """Yield the limits that a backend declares, where they are not the defaults."""
    if not of.limits:
        return
    said = _comments(type(of.limits))
    rows = [
        (f"`{field.name}`", f"`{value}`", _prose(said.get(field.name, "") or field.name))
        for field in dataclasses.fields(of.limits)
        for value in [getattr(of.limits, field.name)]
    ]
    yield "## Limits"
    yield "As the backend declares them; it may refuse more by the case."
    yield _table(("limit", "value", "what it means"), rows)


PASTED = {  # heading -> a case whose call is shown
    "Causal": replace(PLAIN, causal=True),
    "A batch of unlike lengths": replace(PLAIN, causal=True, lengths=((1, 512, 512), (1, 1024, 1024))),
    "Decoding over pages": replace(
        PLAIN, causal=True, page_size=64, shape=replace(PLAIN.shape, seqlen_q=1, nheads_k=4)
    ),
}


def _pasted(of: Any) -> Iterator[str]:
    """Yield the code that calls the library."""
    found = {title: of.paste.text(one) for title, one in PASTED.items()} if of.paste else {}
    if any(found.values()):
        yield "## The call"
        for title, text in found.items():
            if text:
                yield f"### {title}"
                yield _code(text, "python")


# Markdown


def _shown(document: Any) -> str:
    """Return a document of a command as markdown of the site, with the names of its first column as code."""
    return re.sub("\u200b", "", markdown.render(replace(document, title="")))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without the columns that are empty in every row; "" without rows."""
    lines = list(rows)
    if not lines:
        return ""
    kept = [i for i in range(len(headings)) if any(line[i] for line in lines)]
    rows = [[line[i].replace("\n", " ") for i in kept] for line in lines]
    head = [headings[i] for i in kept]
    return "\n".join([markdown.row(*head), "|---" * len(kept) + "|", *(markdown.row(*row) for row in rows)])


def _prose(text: str) -> str:
    """Return a text of the code as markdown: what is in backquotes is code, all else is as it stands."""
    parts = re.split(r"(`[^`\n]+`)", " ".join(text.replace("\\[", "[").split()))
    text = "".join(part if i % 2 else re.sub(r"([\\*_\[\]<>|~&$])", r"\\\1", part) for i, part in enumerate(parts))
    return re.sub(r"(?<![/\w])docs/([\w-]+)\.md", _document, text)


def _document(match: re.Match[str]) -> str:
    """Return the link to a document that a text names, from a page in a folder of the site."""
    page = "backends/index" if match[1] == "backends" else match[1]
    return f"[{match[1]}](../{page}.md)"


def _linked(address: str) -> str:
    return f"<{address}>" if address.startswith("http") else _prose(address)


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def _joined(*parts: str) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"
