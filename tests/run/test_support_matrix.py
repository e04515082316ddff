"""The support matrix, without a GPU, and its table in the documents."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from attnbench.analysis.backends import support_document as shown
from attnbench.backends import BACKENDS, load
from attnbench.commands.backends import backends
from attnbench.core import gpus
from attnbench.core.backend import refusal
from attnbench.core.errors import UserError
from attnbench.render import json_and_csv, terminal
from attnbench.results import where_tried
from attnbench.results.where_tried import Trial
from attnbench.run.support_matrix import (
    FEATURES,
    PLAIN,
    case_of,
    named_device,
    support_matrix,
)

DOCS = Path(__file__).parents[2] / "docs" / "backends.md"


@pytest.fixture(scope="module", autouse=True)
def _one_matrix() -> Iterator[None]:
    """Return the answers of all backends for all architectures, computed once in a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown, "matrices_by_architecture", functools.cache(shown.matrices_by_architecture))
        yield


@pytest.mark.parametrize(
    ("backend", "feature", "gpu", "answer", "reason"),
    [
        ("fa4", "d192-128", "b200", "yes", ""),
        ("fa4", "causal q>k", "b200", "yes", ""),
        ("fa1", "causal q<k", "a100", "no", "its causal mask is not bottom-right aligned when seqlen_q != seqlen_k"),
        ("sdpa-flash", "fp32", "cpu", "yes", ""),
        ("eager", "causal q>k", "cpu", "yes", ""),
        ("eager", "paged 1", "cpu", "yes", ""),
        ("fla", "gdn bwd", "a100", "yes", ""),
        ("fla", "kda", "cpu", "no", "needs a CUDA GPU"),
        ("indexer-deepgemm", "indexer fp8 decode", "h100", "yes", ""),
        ("triton", "indexer", "h100", "no", "it computes softmax, not indexer"),
        ("sdpa-efficient", "bf16", "t4", "no", "no bf16 below compute capability 8.0, this GPU has 7.5"),
    ],
)
def test_cells_of_other_devices_than_that_of_the_docs(
    backend: str, feature: str, gpu: str, answer: str, reason: str
) -> None:
    (row,) = support_matrix(named_device(gpu), [backend]).rows
    cell = row.cells[[f.name for f in FEATURES].index(feature)]
    assert (cell.answer, cell.reason) == (answer, reason)


def test_every_cell_is_what_a_run_would_hear() -> None:
    """Every entry agrees with a run: with the answer of `refusal` for the column's case and each pass."""
    for of in (
        support_matrix(named_device("h100")),
        support_matrix(named_device("turing")),
        support_matrix(named_device("cpu")),
    ):
        for found in of.rows:
            made = load(found.backend, BACKENDS[found.backend])
            assert (refusal(made, found.plain or PLAIN, of.device) is None) == (found.plain is not None)
            for feature, cell in zip(FEATURES, found.cells, strict=True):
                case = case_of(feature, made, of.device, found.plain or PLAIN)
                if found.plain is None and case.is_softmax:
                    continue
                asked = ("fwd", "bwd") if case.is_softmax and not case.is_paged else (case.direction,)
                passes = {d for d in asked if refusal(made, replace(case, direction=d), of.device) is None}
                if feature.name == "fwd":
                    assert cell.answer == ("yes" if "fwd" in passes else "no")
                elif feature.name == "bwd":
                    assert cell.answer == ("yes" if "bwd" in passes else "no")
                elif len(asked) == 1:
                    assert cell.answer == ("yes" if passes else "no")
                elif cell.answer == "yes":
                    assert "fwd" in passes
                    assert "bwd" in passes or found.cells[1].answer == "no"
                else:
                    assert passes == ({cell.answer} - {"no"})
                    assert cell.reason


def test_features_are_different_cases() -> None:
    cases = [f.of(PLAIN) for f in FEATURES]
    plain = [f.name for f, case in zip(FEATURES, cases, strict=True) if case == PLAIN]
    assert plain == ["fwd", "bf16", "d128"]
    assert len({*cases}) == len(cases) - 2


def test_gpus_by_name_architecture_and_capability() -> None:
    names = {"H100": (9, 0), "ampere": (8, 0), "RTX-4090": (8, 9), "sm_90": (9, 0), "sm120": (12, 0), "8.6": (8, 6)}
    assert {name: named_device(name).capability for name in names} == names
    assert named_device("sm_90a").capability == (9, 0)
    assert named_device("cpu").kind == "cpu"
    with pytest.raises(UserError, match="no GPU 'h10'; did you mean \"h100\""):
        named_device("h10")
    with pytest.raises(UserError, match="sm_90"):
        named_device("sm_9x")


def test_every_nvidia_gpu_on_file_has_a_capability() -> None:
    nvidia = [gpu for gpu in gpus.GPUS if not gpu.name.startswith("MI")]
    assert len(nvidia) > 20
    assert all(named_device(gpu.product).capability == gpu.capability for gpu in nvidia)
    assert named_device("rtx pro 6000").capability == (12, 0)


def test_the_table_in_the_docs_is_the_commands(tmp_path: Path) -> None:
    """The table in the document is the command's. Renew it: attnbench backends --matrix --into docs/backends.md"""
    copy = tmp_path / "backends.md"
    copy.write_text(DOCS.read_text())
    backends(into=copy)
    assert copy.read_text() == DOCS.read_text()


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text(f"before\n{shown.BEGIN}\nold\n{shown.END}\nafter\n")
    shown.put_into(file)
    text = file.read_text()
    assert text.startswith("before\n<!-- matrix")
    assert text.endswith("<!-- end of the matrix -->\nafter\n")
    assert "old" not in text
    file.write_text("nothing here\n")
    with pytest.raises(UserError, match="no place for the matrix"):
        shown.put_into(file)
    with pytest.raises(UserError, match="cannot read"):
        shown.put_into(tmp_path / "gone.md")
    with pytest.raises(UserError, match="--into: cannot read /dev/zero: it is no plain file"):
        shown.put_into(Path("/dev/zero"))


def test_every_mark_has_its_note_and_unverified_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "DOCUMENTED", "a100")
    known = {name: found for name, found in where_tried.trials().items() if name != "sdpa-fa3"}
    known["fa2"] = (Trial("NVIDIA H100", "flash-attn 2.8.3", ("dense", "ALiBi"), ()),)
    monkeypatch.setattr(shown, "trials", lambda: known)
    monkeypatch.setattr(where_tried, "trials", lambda: known)
    _, _, text = shown.documented().partition("### a100, sizes")
    used = {int(part.partition("<")[0]) for part in text.split("<sup>")[1:]}
    listed = [line for line in text.splitlines() if line.partition(". ")[0].isdigit()]
    assert used == {*range(1, len(listed) + 1)}
    (note,) = [line for line in listed if line.endswith(". not verified on hardware")]
    assert f"`sdpa-fa3` <sup>{note.partition('.')[0]}</sup>" in text
    assert "`eager` |" in text
    (ragged,) = [line for line in listed if line.endswith(". ragged batches not verified on a GPU")]
    assert f"`fa2` <sup>{ragged.partition('.')[0]}</sup> | yes" in text.partition("### a100, ragged")[2]
    (paged,) = [line for line in listed if line.endswith(". pages and ragged batches not verified on a GPU")]
    assert f"`fa2` <sup>{paged.partition('.')[0]}</sup> |" in text.partition("### a100, pages")[2]
    assert text.count("| `fa3` ") == 1  # it runs nothing there, and is named once
    assert text.count("| `fla` ") == text.partition("### a100, delta rules")[2].count("| `fla` ") == 1


def rendered(width: int, *names: str) -> str:
    """Return the support on an H100 in a terminal of `width`."""
    out = io.StringIO()
    terminal.render(
        Console(file=out, width=width), shown.document([support_matrix(named_device("h100"), names or None)])
    )
    return out.getvalue()


def test_formats_say_the_same() -> None:
    found = shown.document([support_matrix(named_device("h100"), ["fa2", "fa4"])])
    entries = json.loads(json_and_csv.json_text(found))
    assert list(csv.DictReader(io.StringIO(json_and_csv.csv_text(found)))) == entries
    assert len(entries) == 2 * len(FEATURES)
    assert entries[0]["capability"] == "9.0"
    assert "no fp32, only bf16 and fp16" in rendered(150, "fa2", "fa4")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_column_is_squeezed_however_narrow_the_terminal(width: int) -> None:
    """No column is squeezed: columns that do not fit follow below, and no name is cut."""
    text = rendered(width, "triton", "xformers-cutlass")
    flat = " ".join(text.split())
    assert "…" not in text
    heads = [line for line in text.splitlines() if line.startswith("backend  ")]
    (row,) = support_matrix(named_device("h100"), ["triton"]).rows
    shown_features = [(f, cell) for f, cell in zip(FEATURES, row.cells, strict=True) if row.takes(f.group)]
    assert all(any(f" {f.name}" in line for line in heads) and cell.reason in flat for f, cell in shown_features)
    assert (len(heads) > len({f.group for f, _ in shown_features})) == (width < 200)
