"""A site of a few run files: figures recomputed from raw lines, links, and the output folder."""

from __future__ import annotations

import gzip
import re
from html import unescape
from pathlib import Path

import pytest

from by_hand import audit, over_time, recompute, site, site_subjects

NAMES = (  # two machines, one with two cards; then runs without times of calls
    "20261123-141253-default-nvidia-h200",
    "20261123-140542-default-nvidia-h100",
    "20261125-223921-paged-decode-nvidia-h100",
    "20261125-112017-capacity-nvidia-h100",
    "20261124-030229-step-nvidia-h100",
    "20261126-135647-several-gpus-nvidia-h200",
    "20261125-230607-several-gpus-nvidia-h100",
    "20261124-020208-claims-nvidia-h100",
    "20261126-060213-step-nvidia-h200",
    "20261126-091040-models-nvidia-h200",
    "20261126-091952-models-nvidia-h100",
)
OF_VERSIONS = (  # of two GPUs, with up to three versions of a backend
    "20261125-200042-training-packed-nvidia-h100",
    "20261125-223822-training-packed-nvidia-h100",
    "20261125-230311-training-packed-nvidia-h100",
    "20261123-182017-libraries-nvidia-h200",
    "20261125-194926-libraries-nvidia-h200",
)
PAGES = {"H200": "gpu-h200.html", "H100 80GB HBM3": "gpu-h100-80gb-hbm3.html"}
ADDRESS = re.compile(r'(?:href|src)="([^"]*)"')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site."""
    folder = tmp_path_factory.mktemp("made") / "site"
    audit.run("site", *map(recompute.path_of, NAMES), "--out", folder)
    return folder


def test_figures_by_hand(made: Path) -> None:
    found = audit.Audit()
    paths = [path for path in map(recompute.path_of, NAMES) if "-step-" not in path.name]
    site.check(found, made, paths, PAGES)
    site_subjects.check(found, made, [*map(recompute.path_of, NAMES)])
    for name in NAMES[:3]:
        site.check_run(found, made, recompute.path_of(name), f"run-{name}.html")
    assert not found.differing
    kinds = ("fastest, rate and interval", "rate beside the fastest", "ratio", "latency", "tflops", "gbps")
    subjects = ("attention of a model", "step of a model", "what fits", "claim in bursts", "sequence on several GPUs")
    assert all(found.compared[kind] for kind in (*kinds, *subjects, "fastest", "cell of both"))


def test_figures_over_time_by_hand(tmp_path: Path) -> None:
    paths = [*map(recompute.path_of, OF_VERSIONS)]
    audit.run("site", *paths, "--out", tmp_path / "site")
    found = audit.Audit()
    over_time.check(found, (tmp_path / "site" / "history.html").read_text(), paths)
    assert not found.differing
    assert found.compared["version before"] >= 4
    assert found.compared["cards"]


@pytest.mark.parametrize("table", ["speed-h100-80gb-hbm3-against-h200", "machines"])
def test_totals_of_a_pair_link_to_their_run_files(made: Path, table: str) -> None:
    text = (made / "pair-h100-80gb-hbm3-against-h200.html").read_text()
    found = re.search(rf'<section id="table-{table}".*?</section>', text, re.DOTALL)
    assert found
    assert {f"run-{name}.html" for name in NAMES[:2]} <= {*ADDRESS.findall(found[0])}
    assert '<details class="more">' in found[0]


def test_every_link_leads_to_a_page_of_the_site(made: Path) -> None:
    pages = {path.name: path.read_text() for path in made.glob("*.html")}
    assert {"index.html", "runs.html", "backends.html", "steps.html", "capacity.html", "claims.html"} <= pages.keys()
    assert sum(name.startswith("run-") for name in pages) == len(NAMES)
    linked = set()
    for name, text in pages.items():
        for address in map(unescape, ADDRESS.findall(text)):
            to, _, part = address.partition("#")
            if address == "data:,":  # an empty icon
                continue
            assert not to or (made / to).is_file(), f"{name}: {address}"
            assert not part or f'id="{part}"' in pages[to or name], f"{name}: {address}"
            linked.add(to)
        assert not re.search(r'(?:href|src|action)="(?:\w+:)?//', text), name
    assert pages.keys() <= linked, "each page is linked from another"


def test_links_to_published_run_files_and_unlike_names(tmp_path: Path) -> None:
    names = ("a.jsonl", "A!.jsonl")  # equal as parts of an address
    lines = gzip.decompress(recompute.path_of(NAMES[2]).read_bytes())
    for name in names:
        (tmp_path / name).write_bytes(lines.replace(b"2026-11-25", b"2026-11-26") if "!" in name else lines)
    audit.run("site", tmp_path, "--out", tmp_path / "site", "--published", "https://example.org/results/")
    pages = [(tmp_path / "site" / name).read_text() for name in ("run-a.html", "run-a-1.html")]
    assert all("https://example.org/results/" in text for text in pages)
    assert {"https://example.org/results/a.jsonl", "https://example.org/results/A%21.jsonl"} == {
        address for text in pages for address in ADDRESS.findall(text) if address.startswith("https:")
    }


def test_only_a_folder_of_its_own_is_written(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(AssertionError, match="did not write"):
        audit.run("site", recompute.path_of(NAMES[3]), "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    again = tmp_path / "again"
    audit.run("site", *map(recompute.path_of, NAMES[3:5]), "--out", again)
    (again / "mine.txt").write_text("kept")
    audit.run("site", recompute.path_of(NAMES[4]), "--out", again)
    left = {path.name for path in again.iterdir()}
    assert f"run-{NAMES[3]}.html" not in left
    assert {"mine.txt", "index.html", f"run-{NAMES[4]}.html"} <= left


def test_the_page_of_a_backend_says_how_to_profile_it(made: Path) -> None:
    page = (made / "backend-fa3.html").read_text()
    assert re.search(r"attnbench profile -b fa3 --dtype \w+ --seqlen \w+ --batch \d+ --nheads \d+ --headdim \d+", page)
