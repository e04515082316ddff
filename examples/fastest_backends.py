"""Print the fastest backend of each case of some run files, and by how much it leads.

    python examples/fastest_backends.py results/*.jsonl

It shows both results of attnbench.load: cells for questions about cases, a DataFrame for everything else.
"""

from __future__ import annotations

import sys

import attnbench


def main(paths: list[str]) -> None:
    results = attnbench.load(paths)

    frame = results.table()
    measured = frame[frame.status == "ok"]
    print(f"{len(results.runs)} runs, {len(results.cells)} cells, {len(measured)} measured rounds")
    print(f"latency is in {frame.attrs['units']['latency']}, tflops in {frame.attrs['units']['tflops']}")

    # "case" includes all other axes, such as heads. The value of a cell is the median of its rounds.
    case = ["device", "dtype", "headdim", "causal", "direction", "seqlen_k", "case"]
    cells = measured.groupby([*case, "backend"])["tflops"].median().reset_index()
    for (*shown, _), group in cells.groupby(case):
        ranked = group.sort_values("tflops", ascending=False)
        first = ranked.iloc[0]
        lead = f", {first.tflops / ranked.iloc[1].tflops:.2f}x of {ranked.iloc[1].backend}" if len(ranked) > 1 else ""
        print(*shown, f"{first.backend} {first.tflops:.3g} TFLOP/s{lead}")


if __name__ == "__main__":
    main(sys.argv[1:])
