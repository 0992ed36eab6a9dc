"""The figures of a job by batch size, and the operator's factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from wattwise import v1
from wattwise.presentation.quantities import money
from wattwise.presentation.sentences import has_prices


class Figures(NamedTuple):
    """What the server computes of a job besides its state.

    Attributes:
        lines: names with texts.
        counts: how many trials of each batch size reached the target, and how many missed it.
        money: what a delivery costs on average, by batch size; None without prices, for no such column.
    """

    lines: Sequence[tuple[str, str]] = ()
    counts: Mapping[int, tuple[int, int]] = MappingProxyType({})
    money: Mapping[int, str] | None = None


def by_batch_size(statistics: v1.JobStatistics, factors: v1.Factors) -> Figures:
    """What is known of each batch size of a job, without lines."""
    counts = {models.batch_size: (models.num_deliveries, models.num_missed) for models in models_of_job(statistics)}
    return Figures(counts=counts, money=mean_moneys(statistics, factors))


class Models(NamedTuple):
    """The trials of a batch size, of all types, and the mean of what a delivery took; None without one."""

    batch_size: int
    num_trials: int
    num_deliveries: int
    num_missed: int
    num_undecided: int
    mean: v1.Usage | None


def models_of_job(statistics: v1.JobStatistics) -> list[Models]:
    """Returns the trials of each batch size."""
    return [_models_of(list(these)) for _, these in groupby(statistics.trials, key=lambda each: each.batch_size)]


def _models_of(groups: Sequence[v1.TrialStatistics]) -> Models:
    return Models(
        groups[0].batch_size,
        sum(each.num_trials for each in groups),
        sum(each.num_deliveries for each in groups),
        sum(each.num_missed for each in groups),
        sum(each.num_undecided for each in groups),
        _mean(groups),
    )


def _mean(groups: Sequence[v1.TrialStatistics]) -> v1.Usage | None:
    """The mean of what a delivery took; None without one."""
    delivered = [each for each in groups if each.num_deliveries]
    deliveries = sum(each.num_deliveries for each in delivered)

    def mean(name: str) -> float | None:
        if not any(each.mean_delivery.HasField(cast("Any", name)) for each in delivered):
            return None
        return sum(each.num_deliveries * float(getattr(each.mean_delivery, name)) for each in delivered) / deliveries

    return v1.Usage(**{name: mean(name) for name in v1.Usage.DESCRIPTOR.fields_by_name}) if deliveries else None


def mean_moneys(statistics: v1.JobStatistics, factors: v1.Factors) -> dict[int, str] | None:
    """What a delivery costs on average in money, by batch size, over all types of trials; None without prices.

    Batch sizes are left out that have no delivery, or no measurement of what has a price.
    """
    if not has_prices(factors):
        return None
    means = {models.batch_size: models.mean for models in models_of_job(statistics)}
    return {
        size: money(mean.money, factors.currency)
        for size, mean in means.items()
        if mean is not None and _has_money(mean, factors)
    }


def _has_money(usage: v1.Usage, factors: v1.Factors) -> bool:
    """Whether the money of some training is known: whatever has a price was measured."""
    return usage.money > 0 and bool(usage.energy_joules > 0 or not factors.electricity_price_per_kwh)


def factor_parts(factors: v1.Factors) -> list[str]:
    """The operator's prices and carbon intensity; empty without any."""
    parts = []
    if factors.HasField("electricity_price_per_kwh"):
        parts.append(f"{factors.electricity_price_per_kwh:g} {factors.currency} per kWh")
    if factors.HasField("gpu_hour_price"):
        parts.append(f"{factors.gpu_hour_price:g} {factors.currency} per GPU and hour")
    if factors.HasField("carbon_intensity_grams_per_kwh"):
        parts.append(f"{factors.carbon_intensity_grams_per_kwh:g} g CO2 per kWh")
    return parts
