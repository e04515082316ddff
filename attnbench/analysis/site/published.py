"""Published figures of GPUs without a run file, on the overview page, separate from all measured figures."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.claims.published import published, summary
from attnbench.analysis.site.findings import Findings
from attnbench.render.document import Table


def published_table(site: Findings) -> Sequence[Table]:
    """Return a table with a row for each GPU, with hatched bars and sources; empty without any measured GPU."""
    if not any(machine.is_gpu for machine in site.machines):
        return ()
    found = published(file.run.environment.device for file in site.files)
    return (summary(found, "Hatched: not measured. attnbench claims --list has each figure with its source."),)
