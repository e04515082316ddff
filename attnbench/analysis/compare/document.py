"""A comparison as a document: the answer, the machines, the tables, and what to doubt."""

from __future__ import annotations

from attnbench.analysis.compare.answer import ONE_ROUND, answer
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.json_and_csv import cell_rows, data
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import ROUNDS, SAMPLES
from attnbench.analysis.compare.tables import tables
from attnbench.core.formats import percent, size
from attnbench.core.text import count, one_line
from attnbench.report import document as report
from attnbench.report.document import Caution, Document, Span

MORE = "What to doubt in the figures of one run: attnbench report FILE. What the figures are: docs/compare.md."
FROM_ROUNDS = Caution("Intervals are 95 %, from rounds.")  # nothing to doubt


def document(c: Comparison, every: bool = False) -> Document:
    """Return the document of a comparison. `every`: with all cases, and with each cell that all machines have."""
    found = cautions(c)
    rows = list(cell_rows(c))
    return Document(
        command="compare",
        title=f"{' and '.join(c.labels)}, compared",
        answer=tuple(answer(c)),
        machines=tuple(report.Machine(machine.label, _description(machine)) for machine in c.machines),
        blocks=tuple(tables(c, every)),
        cautions=tuple(caution for caution in found if caution != FROM_ROUNDS),
        facts=tuple(caution for caution in found if caution == FROM_ROUNDS),
        notes=((Span(MORE, "quiet"),),),
        data=data(c, [one_line(str(caution)) for caution in found], rows),
        rows=rows,
    )


def cautions(c: Comparison) -> list[Caution]:
    """Return what to doubt: the intervals first, then what the workload lacks, differences, and power."""
    lacking = [Caution(note) for note in c.workload.notes] if c.workload else []
    return [*_intervals(c), *lacking, *c.differences, *_no_power(c)]


def _intervals(c: Comparison) -> list[Caution]:
    """Return what the intervals are from, and so what they leave out."""
    ratios = (*c.overall.values(), *c.whole.fastest.values(), *c.whole.same.values())
    sources = {source for ratio in ratios if ratio for source in ratio.sources}
    single = [m for m in c.machines if any(len(rounds) == 1 for rounds in m.log_latencies.values())]
    reduced = [machine.label for machine in single if any(file.run.reduced for file in machine.files)]
    if SAMPLES in sources and reduced:
        return [
            Caution(
                f"No intervals of what a baseline with one round measured ({', '.join(reduced)}):",
                "it keeps one value a round, and so nothing of its noise.",
                "Compare the run files, or run --rounds 5.",
            )
        ]
    if SAMPLES not in sources:
        return [FROM_ROUNDS] if sources else []
    rounds = ", from rounds, and where a cell has only one" if ROUNDS in sources else ""
    return [
        Caution(
            f"Intervals are 95 %{rounds} from the samples of a single round ({', '.join(m.label for m in single)}):",
            "they know nothing of what sets one process, run or unit apart from the next. Two runs of one H200 differ "
            f"by up to {percent(ONE_ROUND)} in a cell;",
            "run --rounds 5.",
        )
    ]


def _no_power(c: Comparison) -> list[Caution]:
    """Return which GPUs have no figure of their power."""
    without = [m.label for m in c.machines if m.is_gpu and not (c.power and c.power.watts[m.label])]
    if not without:
        return []
    return [
        Caution(
            f"No TFLOP/s per watt of {', '.join(without)}:",
            "power samples of a run hold the pauses between its bursts.",
            "Measure all with run --sustained 10s.",
        )
    ]


def _description(machine: Machine) -> str:
    environment = machine.environment
    device = environment.device
    rounds = max((len(logs) for logs in machine.log_latencies.values()), default=0)
    parts = [
        device.name,
        size(device.memory),
        f"{environment.power_limit_w:g} W" if environment.power_limit_w else "",
        f"{device.threads} threads" if device.threads else "",
        f"torch {environment.torch}" if environment.torch else "",
        f"driver {environment.driver}" if environment.driver else "",
        count(len(machine.log_latencies), "cell"),
        count(rounds, "round"),
        ", ".join(file.path.name for file in machine.files),
    ]
    return ", ".join(filter(None, parts))
