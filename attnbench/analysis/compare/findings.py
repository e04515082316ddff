"""Run files -> a comparison: one value that holds all figures, as answer.py, tables.py and document.py show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.compare.common_cells import (
    MissingCells,
    common,
    comparable,
    missing_cells,
    why_left_out,
)
from attnbench.analysis.compare.figures import Figures, all_figures, untried
from attnbench.analysis.compare.like_kernels import shared_cells, unlike_kernels, unlike_versions
from attnbench.analysis.compare.longest_sequence import LongestSequence, longest_sequences
from attnbench.analysis.compare.machines import (
    STEPS,
    Machine,
    is_own_kernel,
    left_out,
    machines,
    parse_names,
    reference,
    setup_differs,
)
from attnbench.analysis.compare.money import Offer, Price, energy_costs, for_the_money, parse_prices, worth_below
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.core.text import some
from attnbench.results import case_names
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.claims.published import Published
    from attnbench.analysis.compare.requests import Requests
    from attnbench.analysis.compare.serving import Serving
    from attnbench.analysis.compare.workload import MeasuredWorkload, Workload


@dataclass(frozen=True)
class Comparison:
    """All figures of a comparison. Mappings are by the machine's label; ratios are to the reference, above 1 faster."""

    machines: tuple[Machine, ...]
    reference: Machine
    figures: tuple[Figures, ...]  # the main ones first
    cells: tuple[Key, ...]  # with figures in bursts, by like kernels, on all machines
    prices: Mapping[str, Price]
    energy: Mapping[str, float]  # cost of the energy of a bought device per hour; empty without an energy price
    runs: tuple[Run, ...] = field(repr=False)  # of all files, also of those left out
    left_out: Mapping[Path, str]  # files without any use for a comparison -> reason
    machines_left_out: Mapping[str, str]  # label -> why it has no case in common with the compared ones
    serving: Serving | None = None  # of a whole model, for a workload in words

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(machine.label for machine in self.machines)

    @property
    def others(self) -> tuple[Machine, ...]:
        """All machines but the reference."""
        return tuple(machine for machine in self.machines if machine is not self.reference)

    @property
    def main(self) -> Figures:
        """The main figures, which the answer and the other texts quote."""
        return self.figures[0]

    @property
    def powered(self) -> Figures:
        """The first figures without pauses, since only these have watts; the main ones if there are none."""
        return next((figures for figures in self.figures if figures.sustained), self.main)

    def beside(self, *, sustained: bool, shared: bool) -> Figures | None:
        """Return the figures with these properties; None if there are none, or they are `main`."""
        fit = (f for f in self.figures[1:] if (f.sustained, f.shared) == (sustained, shared))
        return next(fit, None)

    @property
    def own_code(self) -> frozenset[str]:
        """The names of a person's own code, which is in no ranking."""
        return self.reference.own_code

    @property
    def workload(self) -> MeasuredWorkload | None:
        return self.main.workload

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases with a figure on all machines, in bursts."""
        return tuple(common(machine.fastest for machine in self.machines))

    def of_limit(self, limit: str) -> list[Case]:
        """Return the cases that a limit bounds on the reference (metrics.limit), and that thus have one unit."""
        home = self.reference
        return [case for case in self.cases if home.limit(home.fastest[case]) == limit]

    @cached_property
    def missing(self) -> tuple[MissingCells, ...]:
        """The cells that a machine lacks and another has."""
        return tuple(missing_cells(self.machines))

    @cached_property
    def longest(self) -> tuple[LongestSequence, ...]:
        """The longest sequence of each machine in each kind of cases, by backend."""
        return tuple(longest_sequences(self.machines))

    @cached_property
    def longest_of_any(self) -> tuple[LongestSequence, ...]:
        """The longest sequence of each machine in each kind of cases, with any backend."""
        return tuple(longest_sequences(self.machines, by_backend=False))

    @cached_property
    def published(self) -> tuple[Published, ...]:
        """The published figures of GPUs that no run measured; empty unless GPUs of several models are compared."""
        if self.one_model or not all(machine.is_gpu for machine in self.machines):
            return ()
        from attnbench.analysis.claims.published import published  # here, as pydantic takes long to import

        return tuple(published(run.environment.device for run in self.runs))

    @cached_property
    def untried(self) -> tuple[Case, ...]:
        """The cases that totals of own backends leave out, as a machine did not try the fastest backend of another.

        With a workload, only its cases.
        """
        found = untried([*self.main.machines.values()])
        return tuple(case for case in found if not self.workload or case in self.workload.cases)

    def fastest_ratio(self, machine: Machine, cases: Sequence[Case]) -> Ratio:
        """Return the speed ratio of a machine to the reference over cases in bursts, each with its fastest backends."""
        return _fastest_ratio(self.reference, machine, cases)

    def sustained_ratio(self, machine: Machine, case: Case) -> Ratio | None:
        """Return the speed ratio of a machine to the reference in one case without pauses.

        Each is taken with its fastest backend without pauses. None if either was not measured so.
        """
        pair = self.reference.sustained, machine.sustained
        return _fastest_ratio(*pair, [case]) if all(case in one.fastest for one in pair) else None

    def same_ratio(self, machine: Machine, key: Key) -> Ratio | None:
        """Return the speed ratio of a machine in one cell in bursts; None unless both have it and ran like kernels."""
        return self._same_ratios.get((machine.label, key))

    @cached_property
    def _same_ratios(self) -> Mapping[tuple[str, Key], Ratio]:
        ours = self.reference
        return {
            (machine.label, key): speed_ratio(ours, equal_weights([key]), machine)
            for machine in self.machines
            for key in ours.log_rounds
            if key in machine.log_rounds and not unlike_kernels((ours, machine), key)
        }

    @cached_property
    def unlike(self) -> Mapping[Key, str]:
        """Cell -> its kernels by machine, for the cells that machines ran by unlike kernels."""
        every = dict.fromkeys(key for machine in self.machines for key in machine.log_rounds)
        return {key: kernels for key in every if (kernels := unlike_kernels(self.machines, key))}

    @cached_property
    def of_unlike_versions(self) -> tuple[Key, ...]:
        """The cells that machines of unlike models measured with unlike versions of a backend, or by unlike methods."""
        common_cells = common(machine.log_rounds for machine in self.machines)
        return () if self.one_model else tuple(key for key in common_cells if unlike_versions(self.machines, key))

    @cached_property
    def one_model(self) -> bool:
        """Whether all machines have one model and power limit, and a buyer thus has no choice."""
        return len({machine.model for machine in self.machines}) == 1

    @cached_property
    def one_setup(self) -> bool:
        """Whether the machines differ by nothing but noise and their cards."""
        first, *others = (machine.run for machine in self.machines)
        own = [key for key in self.cells if is_own_kernel(key[1])]
        changed = any(len({machine.versions.get(key) for machine in self.machines}) > 1 for key in own)
        return not changed and not any(setup_differs(first, other) for other in others)

    @cached_property
    def _versioned(self) -> Mapping[tuple[str, str], str]:
        """(backend, version on a machine) -> the backend's name with the part of the version that differs."""
        return case_names.by_version(pair for machine in self.machines for pair in machine.run.versions.items())

    @cached_property
    def of_unlike_code(self) -> tuple[str, ...]:
        """The backends with unlike versions on the machines, for example after a change to the user's own code."""
        unlike = {backend for (backend, _), name in self._versioned.items() if name != backend}
        return tuple(sorted(unlike & {backend for _, backend in self.cells}, key=case_names.backend_rank))

    def backend_name(self, backend: str, *machines: Machine) -> str:
        """Return a backend's name for a table, with its releases on `machines` if releases differ between machines."""
        names = (self._versioned.get((backend, m.run.versions.get(backend, "")), backend) for m in machines)
        releases = dict.fromkeys(filter(None, (name.removeprefix(backend)[2:-1] for name in names)))
        return f"{backend} ({' / '.join(releases)})" if releases else backend

    def offer(self, label: str) -> Offer | None:
        """Return the price and energy cost of a machine; None without a price, or if all machines are of one model."""
        price = None if self.one_model else self.prices.get(label)
        return Offer(price, self.energy.get(label, 0.0) if price.bought else 0.0) if price else None

    def bought(self, figures: Figures, label: str) -> float | None:
        """Return the work that money buys in the cases of TFLOP/s, else of GB/s, in `unit`; None without a price."""
        offer, rate = self.offer(label), figures.tflops(label) or figures.gbps(label)
        return offer.buys(rate) if offer and rate else None

    def bought_of_decode(self, figures: Figures, label: str) -> float | None:
        """Return the work in GB/s that money buys; None without a price, or if memory limits no case."""
        offer, rate = self.offer(label), figures.gbps(label)
        return offer.buys(rate) if offer and rate else None

    def unit(self, figures: Figures) -> str:
        """Return the unit of `bought`; "" without a price."""
        offer = next(filter(None, map(self.offer, self.labels)), None)
        return offer.unit("TFLOP/s" if figures.tflops(self.reference.label) else "GB/s") if offer else ""

    def for_the_money(self, figures: Figures, label: str) -> Ratio | None:
        """Return the ratio of a machine's work for its price to the reference's; None without both prices."""
        ratio, home, offer = figures.ratio_of_device(label), self.offer(self.reference.label), self.offer(label)
        return for_the_money(ratio, home, offer) if ratio and home and offer else None

    def worth_below(self, figures: Figures, label: str) -> Ratio | None:
        """Return the price of a machine's device below which it gives more for its price than the reference.

        A machine without a price gets the reference's terms (rent, purchase). None without the reference's price.
        """
        ratio, home = figures.ratio_of_device(label), self.offer(self.reference.label)
        if not ratio or not home or label == self.reference.label:
            return None
        like_home = replace(home, energy=self.energy.get(label, 0.0) if home.price.bought else 0.0)
        return worth_below(ratio, home, self.offer(label) or like_home)

    def tokens_a_second(self, figures: Figures, label: str) -> float | None:
        """Return the workload's tokens per second through a machine's attention; None without a workload.

        They count all devices of its calls together.
        """
        seconds = figures.workload.seconds_a_token(figures.machines[label]) if figures.workload else None
        return 1 / seconds if seconds else None

    def million_tokens(self, figures: Figures, label: str) -> float | None:
        """Return the cost of a million tokens on all devices; None without a workload, or without a price of time."""
        offer, machine = self.offer(label), figures.machines[label]
        seconds = figures.workload.seconds_a_token(machine, of_devices=True) if figures.workload else None
        return offer.million_tokens(seconds) if offer and seconds else None


def _fastest_ratio(reference: Machine, machine: Machine, cases: Sequence[Case]) -> Ratio:
    ours, theirs = (equal_weights([m.fastest[case] for case in cases]) for m in (reference, machine))
    return speed_ratio(reference, ours, machine, theirs)


def compare(
    paths: Sequence[Path],
    runs: Sequence[Run],
    to: str | None = None,
    names: Sequence[str] | Mapping[Path, str] = (),
    prices: Sequence[str] = (),
    workload: str | None = None,
    energy_price: float | None = None,
    pue: float | None = None,
) -> Comparison:
    """Return the comparison of run files; the other arguments are the options of the command, as the user gave them.

    `names` may map paths to labels, instead of the values of --name. Raises UserError if there is nothing to compare.
    """
    if len(paths) < 2:
        raise UserError("give at least two run files to compare; attnbench report shows a single one")
    given = Counter(path.resolve() for path in paths)
    if twice := [path for path in paths if given[path.resolve()] > 1]:
        raise UserError(f"{twice[0]} is given twice")
    found = machines(paths, runs, names if isinstance(names, Mapping) else parse_names(names, paths))
    unused = left_out(paths, runs, bool(names))
    if len(found) < 2:
        if unused:
            files = some(f"{path} ({why})" for path, why in unused.items())
            raise UserError(f"one machine is left, without {files}; give a file of attnbench run of another machine")
        raise UserError("--name makes one machine of all files: nothing to compare")
    home = reference(found, to)
    costs = parse_prices(prices, found)
    every, found = found, comparable(found, home if to is not None else None)
    without = {machine.label: why_left_out(machine, found) for machine in every if machine not in found}
    home = home if home in found else found[0]
    costs = {label: price for label, price in costs.items() if label not in without}
    asked = _workload(workload) if workload is not None else None
    figures = all_figures(found, home, asked)
    served = _serving(asked, sorted(found, key=lambda machine: machine is not home), runs)
    compared = Comparison(
        machines=tuple(found),
        reference=home,
        figures=figures,
        cells=tuple(shared_cells(found)),
        prices=costs,
        energy={},
        runs=tuple(runs),
        left_out={path: why for path, why in unused.items() if not served or why != STEPS},
        machines_left_out=without,
        serving=served,
    )
    limits = {of.label: of.environment.power_limit_w if compared.serving else None for of in found}
    watts = {label: compared.powered.watts(label) or limits[label] for label in compared.labels}
    return replace(compared, energy=energy_costs(costs, watts, energy_price, pue))


def _serving(asked: Workload | Requests | None, machines: Sequence[Machine], runs: Sequence[Run]) -> Serving | None:
    """Return the serving figures of the machines for requests in words; None for any other workload."""
    if asked is None:
        return None
    from attnbench.analysis.compare import requests, serving  # here, as pydantic takes long to import

    return serving.serving(asked, machines, runs) if isinstance(asked, requests.Requests) else None


def _workload(text: str) -> Workload | Requests:
    """Return the workload from the path of a file, or from requests in words."""
    from attnbench.analysis.compare import requests, workload  # pydantic: longer to import than to compare

    return requests.parse(text) if requests.is_in_words(text) else workload.load(Path(text))
