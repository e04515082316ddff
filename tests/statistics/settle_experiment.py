"""Test on a GPU whether `gate --settle` finds a known slowdown of a real backend, and measure the time.

    python tests/statistics/settle_experiment.py DIR [--share 0.03]

It measures a backend without a change and slowed by the share (planted.py: a spin after each call), gates the two runs
without and with --settle, and prints the verdicts and the minutes. It does the same for two runs without a difference.
DIR keeps the run files, and another call continues.

To try it without a GPU: --device fake --base fake.
"""

from __future__ import annotations

import json
import time

from bisect_experiment import attnbench, options, plant, spins

VERDICTS = ("regressed", "inconclusive", "unchanged", "improved")


def main() -> None:
    asked = options(__doc__)
    folder = asked.folder
    words = ("run", "--backend", f"./kernel.py:Planted,{asked.base}", "--device", asked.device, "--seqlen", "1k,4k")
    words = (*words, "--headdim", "64,128", "--causal", "--pass", "fwd,bwd", "--rounds", "3")
    cycles: dict[str, int] = {}
    print("| runs | gate | exit code | regressed | open | unchanged | improved | minutes |", flush=True)
    print("| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name, share in (("base", 0.0), ("slow", asked.share), ("same", 0.0)):
        side, log, file = folder / name, folder / f"{name}.log", folder / f"{name}.jsonl"
        plant(side, asked.base, share, cycles)
        if not file.exists() and attnbench(*words, "--out", str(file), folder=side, log=log):
            raise SystemExit(f"the cells could not be measured; see {log}")
        if name == "base":
            cycles = spins(file, asked.base, asked.share)
            continue
        builds = ("--a", str(folder / "base" / "kernel.py:Planted"), "--b", "kernel.py:Planted")
        for settle in ((), ("--settle", "4m", *builds)):
            result, began = folder / f"{name}-{'settled' if settle else 'gate'}.json", time.monotonic()
            gate = ("gate", str(folder / "base.jsonl"), str(file), "--expect", "Planted", "--margin", "1.5%")
            code = attnbench(*gate, *settle, "-f", "table", "-f", f"json={result}", folder=side, log=log)
            minutes = (time.monotonic() - began) / 60
            counts = json.loads(result.read_text())["counts"]
            said = " | ".join(str(counts.get(verdict, 0)) for verdict in VERDICTS)
            what = f"{100 * share:.0f} % slower" if share else "nothing differs"
            print(f"| {what} | {'--settle' if settle else 'as it is'} | {code} | {said} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
