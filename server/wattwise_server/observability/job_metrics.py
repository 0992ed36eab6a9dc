"""Metrics of what jobs did and saved, read from the database when Prometheus asks.

All are gauges of the whole database: excluding a trial or resetting a job lowers them. Those of single jobs have the
label `job_id`, which the operator allows; Prometheus itself uses `job` for what it scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from wattwise_server.domain import SavingsVerdict, Totals
from wattwise_server.observability.fresh import Computed

NamedTotals: TypeAlias = tuple[Totals, Mapping[str, Totals]]
"""The totals of all jobs together, and those of single jobs by id, which add up to them."""

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Label values with a number."""


class _Family(NamedTuple):
    """A metric that is exported for all jobs together and for single ones.

    Attributes:
        of_all: Its name for all jobs, behind `wattwise_`; empty: it is not exported for them.
        of_one: Its name for single ones, behind `wattwise_job_`; empty likewise.
        text: Its description.
        samples: What it is for totals.
        labels: Their labels.
    """

    of_all: str
    of_one: str
    text: str
    samples: Callable[[Totals], Samples]
    labels: Sequence[str] = ()


class JobMetrics(Collector):
    """Collects the totals.

    Args:
        currency: Of all money; empty: there are no prices.
    """

    def __init__(self, currency: str) -> None:
        self._families = (*_COUNTS, *_amounts(currency))
        self._ask: Callable[[], Computed[NamedTotals] | None] = lambda: None

    def follow(self, ask: Callable[[], Computed[NamedTotals] | None]) -> None:
        """Sets where the totals come from; called in the threads of scrapes, which may wait in it."""
        self._ask = ask

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yields the metrics without samples."""
        for family in self._families:
            if family.of_all:
                yield _gauge(f"wattwise_{family.of_all}", family, "all jobs", ())
            if family.of_one:
                yield _gauge(f"wattwise_job_{family.of_one}", family, "one job", ("job_id",))
        yield _computed()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the metrics; those that are not known have no samples."""
        found = self._ask()
        if found is None:
            return
        total, by_job = found.value
        for family in self._families:
            if family.of_all:
                yield _filled(_gauge(f"wattwise_{family.of_all}", family, "all jobs", ()), family, {"": total})
            if family.of_one and by_job:
                gauge = _gauge(f"wattwise_job_{family.of_one}", family, "one job", ("job_id",))
                yield _filled(gauge, family, by_job)
        computed = _computed()
        computed.add_metric((), time.time() - found.age)
        yield computed


def _gauge(name: str, family: _Family, whose: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, family.text.format(whose), labels=(*labels, *family.labels))


def _filled(gauge: GaugeMetricFamily, family: _Family, totals: Mapping[str, Totals]) -> GaugeMetricFamily:
    for job_id, each in totals.items():
        for labels, value in family.samples(each):
            gauge.add_metric((job_id, *labels) if job_id else labels, value)
    return gauge


def _computed() -> GaugeMetricFamily:
    text = "When the figures of jobs were computed, as seconds since the epoch of Unix."
    return GaugeMetricFamily("wattwise_figures_timestamp_seconds", text)


def _number(value: float | None, *labels: str) -> Samples:
    return () if value is None else ((labels, value),)


def _ended(totals: Totals) -> Samples:
    yield ("delivered",), totals.num_deliveries
    yield ("missed",), totals.num_missed
    yield ("failed",), totals.num_failed
    yield ("interrupted",), totals.num_interrupted


def _verdicts_of_all(totals: Totals) -> Samples:
    return [((verdict.value.lower(),), totals.verdicts.get(verdict, 0)) for verdict in SavingsVerdict]


def _verdicts_of_one(totals: Totals) -> Samples:
    return [((verdict.value.lower(),), number) for verdict, number in totals.verdicts.items()]


_COUNTS = (
    _Family("", "running_trials", "Running trials of {}.", lambda each: _number(each.num_running_trials)),
    _Family("ended_trials", "ended_trials", "Trials of {} that ended and count, by result.", _ended, ("result",)),
    _Family("jobs_by_verdict", "", "Jobs by what their data say about their savings.", _verdicts_of_all, ("verdict",)),
    _Family("", "verdict", "1 for what the data of {} say about its savings.", _verdicts_of_one, ("verdict",)),
    _Family(
        "jobs_needing_attention",
        "needs_attention",
        "Whether a job needs attention; the number of such jobs of {}.",
        lambda each: _number(each.num_jobs_needing_attention),
    ),
    _Family(
        "",
        "last_activity_timestamp_seconds",
        "When a trial of {} was last dispatched, has reported or has ended, as seconds since the epoch of Unix.",
        lambda each: _number(each.last_time.timestamp() if each.last_time else None),
    ),
)

_KINDS = (
    ("spent", "What trials of {} took: "),
    ("saved", "Estimate of what was saved by {}, negative for a loss: "),
    ("saved_at_least", "Lower 95% bound of what was saved by {}: "),
)
"""Attributes of totals, which are the beginnings of names."""
_QUANTITIES = (
    ("cost_joules", "cost", "cost."),
    ("energy_joules", "energy_joules", "energy."),
    ("training_seconds", "time_seconds", "training time."),
    ("carbon_grams", "carbon_grams", "CO2 equivalent."),
    ("money", "money", "money, by currency."),
)
"""The ends of names, with the attributes of what was spent or saved."""


def _amounts(currency: str) -> Iterator[_Family]:
    for kind, text in _KINDS:
        for quantity, attribute, what in _QUANTITIES:
            labels = {"currency": currency} if quantity == "money" else {}
            samples = partial(_amount, attrgetter(f"{kind}.{attribute}"), tuple(labels.values()))
            yield _Family(f"{kind}_{quantity}", f"{kind}_{quantity}", text + what, samples, tuple(labels))


def _amount(value_of: Callable[[Totals], float | None], labels: Sequence[str], totals: Totals) -> Samples:
    return _number(value_of(totals), *labels)
