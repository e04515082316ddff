"""An experiment on a real GPU: does `gate --settle` find a known slowdown of a real backend, and in what time?

    python tests/statistics/settle_experiment.py DIR [--share 0.03]

It measures a backend as it is and then slowed by the share (planted.py: a spin after each call), gates the two runs
without and with --settle, and prints what each gate said and the minutes. Then the same for two runs that differ in
nothing. DIR keeps the run files: called again, it goes on.

To try it without a GPU: --device cpu --seqlen 256,512.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from bisect_experiment import KERNEL, attnbench, spins

PLANTED = Path(__file__).with_name("planted.py")


def make(folder: Path, planted: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "planted.py").write_text(PLANTED.read_text())
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "planted.json").write_text(json.dumps(planted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--base", default="sdpa-flash")
    parser.add_argument("--seqlen", default="1k,4k")
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--margin", default="1.5%")
    parser.add_argument("--settle", default="4m")
    asked = parser.parse_args()
    folder: Path = asked.folder.resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    words = ("--device", asked.device, "--seqlen", asked.seqlen, "--headdim", "64,128", "--causal", "--pass", "fwd,bwd")
    words = ("run", "--backend", f"./kernel.py:Planted,{asked.base}", *words, "--rounds", asked.rounds)
    cycles: dict[str, int] = {}
    print("| runs | gate | exit code | regressed | open | unchanged | improved | minutes |", flush=True)
    print("| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name, share in (("base", 0.0), ("slow", asked.share), ("same", 0.0)):
        side, log = folder / name, folder / f"{name}.log"
        make(side, {"base": asked.base, "share": share, "cycles": cycles if share else {}})
        file = folder / f"{name}.jsonl"
        if not file.exists() and attnbench(*words, "--out", str(file), folder=side, log=log):
            raise SystemExit(f"the cells could not be measured; see {log}")
        if name == "base":
            cycles = spins(file, asked.base, asked.share)
            continue
        builds = ("--a", str(folder / "base" / "kernel.py:Planted"), "--b", "kernel.py:Planted")
        for settle in ((), ("--settle", asked.settle, *builds)):
            result, began = folder / f"{name}-{'settled' if settle else 'gate'}.json", time.monotonic()
            gate = ("gate", str(folder / "base.jsonl"), str(file), "--expect", "Planted", "--margin", asked.margin)
            formats = ("-f", "table", "-f", f"json={result}")
            code = attnbench(*gate, *settle, *formats, folder=side, log=log)
            minutes = (time.monotonic() - began) / 60
            counts = json.loads(result.read_text())["counts"]
            said = " | ".join(str(counts.get(v, 0)) for v in ("regressed", "inconclusive", "unchanged", "improved"))
            what = "nothing differs" if not share else f"{100 * share:.0f} % slower"
            print(f"| {what} | {'--settle' if settle else 'as it is'} | {code} | {said} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
