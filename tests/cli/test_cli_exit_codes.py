"""Every exit code of every command in docs/ci.md, and the last lines of the output."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tool import SMALL, Tool

from attnbench.commands.command_line import COMMANDS

AXES = ("--seqlen", "512,1k", *SMALL)
MEASURE = ("run", "--device", "fake", "-b", "fake", *AXES)
AB = ("ab", "--device", "fake", *AXES, "--a", "own.py:A")
BISECT = ("bisect", "--device", "fake", *AXES, "--cell", "*1k*", "--code")
OWN = """
import random
from attnbench.backends.fake import Fake

class A(Fake):
    noise, factor, wrong = 0.001, 1.0, ""

    def prepare(self, case, inputs):
        self.speed = self.factor * (1 + self.noise * random.uniform(-1, 1))
        self.faults = {1024: self.wrong}
        return super().prepare(case, inputs)

class Slow(A):
    factor = 0.9

class Noisy(A):
    noise = 0.2

class Wrong(A):
    wrong = "wrong"
"""

BUSY, REFUSED = "busy=0.98", "measure all the same with --allow-busy"

# (command, ATTNBENCH_FAKE, exit code, part of the last line of stdout or stderr)
CASES: Sequence[tuple[str, str, int, str]] = (
    ("gate ok.jsonl ok.jsonl", "", 0, "PASS: "),
    ("gate ok.jsonl slow.jsonl", "", 1, "FAIL: 2 results regressed"),
    ("gate ok.jsonl oom.jsonl", "", 1, "FAIL: 1 result newly-failing"),
    ("gate ok.jsonl short.jsonl", "", 1, "FAIL: 1 result missing"),
    ("gate ok.jsonl short.jsonl --missing pass", "", 0, "(not counted: 1 missing)"),
    ("gate ok.jsonl none.jsonl", "", 2, "cannot read none.jsonl"),
    ("gate ok.jsonl damaged.jsonl", "", 2, "5 lines of it cannot be read, and fake 1k d128"),
    ("gate ok.jsonl damaged-slow.jsonl", "", 1, "FAIL: 1 result missing, 1 regressed"),
    ("gate ok.jsonl damaged.jsonl --missing pass", "", 0, "(not counted: 1 missing)"),
    ("gate ok.jsonl cut.jsonl.gz", "", 2, "the gzip file is cut off, and fake "),
    ("gate ok.jsonl lost-round.jsonl", "", 2, "1 line of it cannot be read, and a wrong result may be in what is lost"),
    ("gate damaged.jsonl ok.jsonl", "", 2, "damaged.jsonl: 5 lines of it cannot be read, and the baseline lacks"),
    ("gate cut.jsonl.gz ok.jsonl", "", 2, "the gzip file is cut off, and the baseline lacks"),
    ("gate one.jsonl lost-round.jsonl ok.jsonl", "", 2, "lost-round.jsonl: 1 line of it cannot be read"),
    ("gate ok.jsonl interrupted.jsonl", "", 1, "FAIL: 1 result missing"),
    ("gate ok.jsonl cut.jsonl", "", 2, "its last line is cut off, and a wrong result may be in what is lost"),
    ("gate ok.jsonl cut.jsonl --missing pass", "", 0, "PASS"),
    ("gate ok.jsonl endless.jsonl", "", 0, "PASS"),
    ("gate ok.jsonl none-left.jsonl", "", 2, "no record of it can be read"),
    ("report none-left.jsonl", "", 2, "no record of it can be read"),
    ("claims --list --paper nsa", "", 0, ""),
    ("claims ok.jsonl", "", 1, "docs/claims.md"),
    ("claims --paper nope", "", 2, "no claims of 'nope'"),
    ("step tiny --device fake --phase prefill,train", "", 0, "docs/step.md."),
    ("step tiny --device fake", "missing", 1, "No run file was written: there was nothing to measure."),
    ("step ok.jsonl", "", 1, "No step of a model was measured: attnbench report shows"),
    ("step nothing", "", 2, "no model 'nothing'"),
    ("step tiny --device fake", "wrong@4k", 5, "Results: "),
    ("step tiny --device fake --allow-wrong", "wrong@4k", 1, "Results: "),
    ("gate oom.jsonl oom.jsonl -m joules", "", 2, "baseline 5 of 5 rounds OOM"),
    ("gate one.jsonl one.jsonl", "", 3, "INCONCLUSIVE: 2 results not judged, 4 unchanged (not counted: 2 not judged)"),
    (
        "gate one.jsonl one.jsonl --inconclusive pass",
        "",
        0,
        "lets pass): 4 results unchanged (not counted: 4 not",
    ),
    ("gate one.jsonl one.jsonl -m first_call", "", 0, "PASS: nothing was decided (not counted: 2 not judged)"),
    ("gate ok.jsonl other.jsonl", "", 4, "NOT COMPARABLE: 1 difference that --expect does not name"),
    ("gate ok.jsonl other.jsonl --expect driver", "", 0, "PASS: "),
    ("gate ok.jsonl wrong-other.jsonl", "", 4, "that --expect does not name, 1 result wrong"),
    ("gate ok.jsonl wrong.jsonl", "", 5, "FAIL: 1 result wrong"),
    ("gate oom.jsonl wrong.jsonl", "", 5, "FAIL: 1 result wrong"),
    ("gate short.jsonl wrong.jsonl", "", 5, "FAIL: 1 result wrong"),
    ("gate wrong.jsonl wrong.jsonl", "", 5, "FAIL: 1 result wrong"),
    ("gate wrong.jsonl wrong.jsonl --allow-wrong", "", 0, "(not counted: 1 wrong)"),
    ("gate ok.jsonl wrong.jsonl --allow-wrong", "", 1, "FAIL: 1 result newly-failing"),
    ("gate ok.jsonl slow-wrong.jsonl", "", 5, "FAIL: 1 result wrong, 1 regressed"),
    (" ".join((*AB, "--b own.py:A")), "", 0, "Judge again: "),
    (" ".join((*AB, "--b own.py:Slow")), "", 1, "Judge again: "),
    (" ".join((*AB, "--b nothing")), "", 2, "'nothing' is not an interpreter"),
    (" ".join((*AB, "--b own.py:Noisy --time-limit 2s")), "", 3, "Judge again: "),
    (" ".join((*AB, "--b own.py:Wrong --allow-wrong --margin 1%")), "", 1, "--margin=1% --allow-wrong"),
    (" ".join((*AB, "--b own.py:Wrong")), "", 5, "Judge again: "),
    (" ".join((*BISECT, "own.py:A", "good..slow")), "", 0, "FOUND: "),
    (" ".join((*BISECT, "own.py:A", "good..slow --margin 20%")), "", 3, "NOTHING TO FIND: "),
    (" ".join((*BISECT, "own.py:A", "good..wrong")), "", 5, "NOT COMPARED: wrong"),
    (" ".join((*BISECT, "own.py:A", "good..nothing")), "", 2, "no commit is called 'nothing'"),
    (" ".join(MEASURE), "", 0, "Results: "),
    (" ".join(MEASURE), "missing", 1, "No run file was written: there was nothing to measure."),
    (" ".join(MEASURE).replace("512,1k", "x"), "", 2, "seqlen: 'x' is not a size"),
    (" ".join(MEASURE), "wrong@1k", 5, "WRONG: 1 result, fake 1k d128 full fwd. Exit code 5; --allow-wrong gives 0."),
    (" ".join((*MEASURE, "--allow-wrong")), "wrong@1k", 0, "WRONG: 1 result, fake 1k d128 full fwd."),
    (" ".join(MEASURE), BUSY, 2, REFUSED),
    (" ".join((*MEASURE, "--allow-busy")), BUSY, 0, "Results: "),
    ("run --resume ok.jsonl --again 0", BUSY, 2, REFUSED),
    ("run --resume ok.jsonl", BUSY, 0, "Results: "),
    (" ".join((*MEASURE, "--dry-run")), BUSY, 0, "--dry-run --json"),
    (" ".join((*AB, "--b own.py:A")), BUSY, 2, REFUSED),
    ("check fake --device fake", BUSY, 2, REFUSED),
    ("check fake --device fake --allow-busy", BUSY, 0, "fake is RIGHT in 84 cases"),
    ("recommend --device fake --seqlen 1k", BUSY, 2, REFUSED),
    ("recommend --device fake --seqlen 1k --allow-busy", BUSY, 1, "docs/recommend.md."),
    ("recommend ok.jsonl --allow-busy", "", 2, "--allow-busy: for measuring"),
    ("step tiny --device fake", BUSY, 2, REFUSED),
    ("claims --device fake", BUSY, 2, REFUSED),
    ("capacity -b fake --device fake", BUSY, 2, REFUSED),
    ("check fake --device fake", "", 0, "fake is RIGHT in 84 cases"),
    ("check fake --device fake", "error@203", 1, "fake FAILS in 8 of 84 cases"),
    ("check nothing --device fake", "", 2, "nothing"),
    ("check fake --device fake", "wrong@203", 5, "fake is WRONG in 8 of 84 cases"),
    ("doctor --device fake --quick", "", 0, "fit to measure"),
    ("doctor --device fake --quick", "missing", 3, "unfit"),
    ("doctor --device nothing", "", 2, "nothing"),
    ("report ok.jsonl", "", 0, ""),
    ("report wrong.jsonl", "", 0, ""),
    ("report none.jsonl", "", 2, "cannot read none.jsonl"),
    ("tune none.jsonl", "", 2, "cannot read none.jsonl"),
    ("tune --device fake -b fake --seqlen 1k --batch 1", "", 0, "Results: "),
    ("tune --device fake -b fake --seqlen 1k --batch 1", "missing", 1, "No run file was written"),
    ("tune --device fake -b fake --seqlen 1k --batch 1", "wrong@1k", 5, "Results: "),
    ("recommend ok.jsonl", "", 0, "docs/recommend.md."),
    ("recommend wrong.jsonl", "", 0, "docs/recommend.md."),
    ("recommend wrong.jsonl --seqlen 1k", "", 1, "docs/recommend.md."),
    ("recommend none.jsonl", "", 2, "cannot read none.jsonl"),
    ("recommend --device fake --seqlen 1k", "missing", 1, "docs/recommend.md."),
    ("compare ok.jsonl slow.jsonl --name ok.jsonl=A --name slow.jsonl=B", "", 0, ""),
    ("compare ok.jsonl none.jsonl", "", 2, "cannot read none.jsonl"),
    ("site ok.jsonl slow.jsonl --out made", "", 0, "site: made/index.html ("),
    ("site ok.jsonl --out .", "", 2, "has files that attnbench site did not write"),
    ("site ok.jsonl --out ok.jsonl", "", 2, "is a file; give the name of a folder"),
    ("site ok.jsonl --out made --published nowhere", "", 2, "'nowhere' is no address"),
    ("history ok.jsonl slow.jsonl", "", 0, ""),
    ("history slow.jsonl lost-round.jsonl", "", 0, ""),
    ("history slow.jsonl lost-round.jsonl --fail-on 3%", "", 2, "1 line of it cannot be read, and a worse cell may be"),
    ("history none.jsonl", "", 2, "cannot read none.jsonl"),
    ("cluster report ok.jsonl slow.jsonl", "", 3, "NOT JUDGED: too few units"),
    ("cluster report wrong.jsonl", "", 5, "WRONG RESULTS"),
    ("cluster report none.jsonl", "", 2, "cannot read none.jsonl"),
    ("baseline save ok.jsonl", "", 0, "Commit it, then: attnbench gate baselines"),
    ("baseline save damaged.jsonl", "", 2, "5 lines of it cannot be read, and a baseline would lack what is lost"),
    ("baseline save none.jsonl", "", 2, "cannot read none.jsonl"),
    ("capacity -b fake --device fake", "", 0, "Results: "),
    ("capacity -b fake --device fake --out c.jsonl", "wrong@8k", 5, "Results: "),
    ("capacity ok.jsonl", "", 2, "is no search"),
    ("profile -b fake --device fake", "", 2, "there is nothing to profile"),
    ("profile -b nothing", "", 2, "nothing"),
    ("backends --gpu h100", "", 0, ""),
    ("backends --gpu nothing", "", 2, "nothing"),
    ("suites ci", "", 0, ""),
    ("suites nothing", "", 2, "nothing"),
    ("models llama-3.1-8b", "", 0, ""),
    ("models nothing", "", 2, "no model 'nothing'"),
    ("report ok.jsonl --model llama-3.1-8b", "", 2, "attnbench run --model llama-3.1-8b measures it"),
    ("report ok.jsonl --model nothing", "", 2, "no model 'nothing'"),
    ("env list", "", 0, ""),
    ("env remove nothing", "", 2, "nothing"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    tool = Tool(tmp_path_factory.mktemp("runs"))
    tool.write("own.py", OWN)
    for name, fake, *more in (
        ("ok", ""),
        ("one", "", "--rounds", "1"),
        ("slow", "speed=0.9"),
        ("oom", "oom@1k"),
        ("wrong", "wrong@1k"),
        ("slow-wrong", "speed=0.9 wrong@1k"),
        ("short", ""),
    ):
        rounds = () if "--rounds" in more else ("--rounds", "5")
        words = [word.replace("512,1k", "512") if name == "short" else word for word in MEASURE]
        tool(*words, *rounds, *more, "--out", f"{name}.jsonl", fake=fake, code=None)
    for name, source in (("other", "ok"), ("wrong-other", "wrong")):
        head, _, rest = (tool.folder / f"{source}.jsonl").read_text().partition("\n")
        data = json.loads(head)
        data["environment"]["driver"] = "590.10"
        tool.write(f"{name}.jsonl", f"{json.dumps(data)}\n{rest}")
    for name, source, which in (("damaged", "ok", 1024), ("damaged-slow", "slow", 1024), ("none-left", "ok", 0)):
        head, *records = (tool.folder / f"{source}.jsonl").read_text().splitlines(keepends=True)
        change = '"time":{"unit":"s","values":', '"time":{"unit":"s","runs":[[0.001,1e11]],"x":'
        odd = (record.replace(*change) for record in records)
        texts = [o if not which or f'"seqlen_q":{which}' in o else r for o, r in zip(odd, records, strict=True)]
        tool.write(f"{name}.jsonl", "".join([head, *texts]))
    whole = (tool.folder / "ok.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = gzip.compress(whole, compresslevel=0)[: len(b"".join(lines[:3]))]  # within the second record
    (tool.folder / "cut.jsonl.gz").write_bytes(cut)
    (tool.folder / "cut.jsonl").write_bytes(whole[:-40])
    (tool.folder / "endless.jsonl").write_bytes(whole[:-1])
    (tool.folder / "lost-round.jsonl").write_bytes(b"".join([*lines[:-1], lines[-1][:-40], b"\n"]))
    short = (tool.folder / "short.jsonl").read_bytes()
    (tool.folder / "interrupted.jsonl").write_bytes(short + lines[-1][:-40])
    _commit(tool)
    return tool


def _commit(tool: Tool) -> None:
    """Make a repository of the folder, with one commit for each of three tags."""
    git = ("git", "-C", str(tool.folder), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "--quiet"], check=True)
    for tag, old, new in (
        ("good", "", ""),
        ("slow", "factor, wrong = 0.001, 1.0", "factor, wrong = 0.001, 0.9"),
        ("wrong", '0.9, ""', '0.9, "wrong"'),
    ):
        tool.write("own.py", (tool.folder / "own.py").read_text().replace(old, new))
        subprocess.run([*git, "add", "own.py"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", tag], check=True)
        subprocess.run([*git, "tag", tag], check=True)
    tool.write("own.py", OWN)


@pytest.mark.parametrize(("command", "fake", "code", "said"), CASES, ids=lambda value: str(value)[:60])
def test_the_exit_code_and_the_last_line(command: str, fake: str, code: int, said: str, runs: Tool) -> None:
    done = runs(*command.split(), fake=fake, code=code, XDG_DATA_HOME=str(runs.folder / "data"))
    lasts = [text.strip().splitlines()[-1:] for text in (done.out, done.err)]
    assert any(said in line for last in lasts for line in last), (done.out, done.err)
    if code == 2:
        of_damage = "damaged line left out|lines before the cut|truncated last line"
        errors = [line for line in done.err.splitlines() if line.startswith("attnbench: ")]
        assert len([line for line in errors if not re.search(of_damage, line)]) == 1


def test_every_command_has_a_case() -> None:
    assert {command.split()[0] for command, *_ in CASES} == {*COMMANDS}


def commands_of_codes(file: str) -> dict[int, set[str]]:
    """Return exit code -> the commands in brackets in the row of the code, from a document's table."""
    texts: dict[int, str] = {}
    code = 0
    for line in (Path(__file__).parents[2] / file).read_text().splitlines():
        if row := re.match(r"\| (\d*) +\| (.*?) +\|", line):
            code = int(row[1] or code)
            texts[code] = f"{texts.get(code, '')} {row[2]}"
    inside = {code: ", ".join(re.findall(r"\((.*?)\)", text.replace("`", ""))) for code, text in texts.items()}
    return {code: {word.split()[0] for word in text.split(", ") if word} & {*COMMANDS} for code, text in inside.items()}


@pytest.mark.parametrize("file", ["attnbench/core/errors.py", "docs/ci.md"])
def test_the_documents_say_what_the_codes_mean(file: str) -> None:
    """The documents have exactly the exit codes that are tested here, each with the same commands."""
    found = commands_of_codes(file)
    assert {code for *_, code, _ in CASES} <= found.keys()
    for code in (1, 3, 4, 5):
        assert {command.split()[0] for command, _, ended, _ in CASES if ended == code} <= found[code], code
        assert found[code] == commands_of_codes("attnbench/core/errors.py")[code], code
