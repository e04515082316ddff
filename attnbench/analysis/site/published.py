"""What others published of GPUs that no run file of the site measured, on the overview, apart from all figures."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.claims.published import published, summary
from attnbench.analysis.site.findings import Findings
from attnbench.render.document import Table


def published_table(site: Findings) -> Sequence[Table]:
    """Return a row for each GPU, with hatched bars and the sources; nothing without a measured GPU beside them."""
    if not any(machine.is_gpu for machine in site.machines):
        return ()
    found = published(file.run.environment.device for file in site.files)
    return (summary(found, "Hatched: not measured. attnbench claims --list has each figure with its source."),)
