"""What jobs have saved: the claims of `policy.savings` about the sums of their trials, in all quantities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from wattwise_server.config import Factors
from wattwise_server.domain import (
    Moments,
    Quantities,
    SavingsQuantity,
    SavingsVerdict,
    Totals,
    Usage,
    batch_size_in_use,
)
from wattwise_server.policy.savings import (
    CONFIDENCE,
    EXPLORING_LAUNCHES,
    LEAST_RUNS,
    Delivered,
    SavingsEstimate,
    estimate,
    total_verdict,
)
from wattwise_server.store.base import JobVersion, Prices, TrialGroup


class _Quantity(NamedTuple):
    """What is known of one quantity of a group of trials.

    Attributes:
        spent: What the trials took together.
        logs: The moments of its logarithm.
        num_without: The trials of which it was not measured.
    """

    spent: Callable[[TrialGroup], float]
    logs: Callable[[TrialGroup], Moments]
    num_without: Callable[[TrialGroup], int]


_COST = _Quantity(attrgetter("usage.cost"), attrgetter("logs.cost"), attrgetter("num_without_cost"))
_ENERGY = _Quantity(
    lambda group: group.usage.energy_joules or 0.0, attrgetter("logs.energy"), attrgetter("num_without_energy")
)
_TIME = _Quantity(attrgetter("usage.time_seconds"), attrgetter("logs.time"), lambda _group: 0)
_MONEY = _Quantity(attrgetter("money"), attrgetter("logs.money"), lambda _group: 0)
"""See `_measured_money` for trials without measured energy."""


class TotalEstimate(NamedTuple):
    """What several jobs have saved of one quantity together: the attributes of a SavingsEstimate that have a sum."""

    verdict: SavingsVerdict
    measured_spent: float | None
    saved: float | None = None
    at_least: float | None = None
    lost: float | None = None
    confidence: float = CONFIDENCE
    in_use: None = None
    with_default: None = None
    default_mean: None = None
    change: None = None
    at_least_share: None = None
    lost_share: None = None
    cautious_baseline: None = None
    least_baseline: None = None
    spent_by_ended_trials: None = None


Estimate = TypeVar("Estimate", SavingsEstimate, TotalEstimate)


@dataclass(frozen=True)
class Savings(Generic[Estimate]):
    """What a job, or several together, have saved. The carbon is in grams.

    Without measured energy there is no carbon, and no money if energy has a price.
    """

    cost: Estimate
    energy: Estimate
    time: Estimate
    money: Estimate | None
    carbon: Estimate | None
    num_deliveries: int
    num_baseline_trials: int = 0
    newest_baseline_time: datetime | None = None
    compared_from_trial: int | None = None
    batch_size_in_use: int | None = None
    num_in_use_trials: int = 0
    num_launches: int = 0
    min_baseline_trials: int = LEAST_RUNS
    num_exploring_launches: int = EXPLORING_LAUNCHES

    @property
    def main_quantity(self) -> SavingsQuantity:
        """Money if it is known, else the cost."""
        known = self.money is not None and self.money.verdict is not SavingsVerdict.NOT_MEASURED
        return SavingsQuantity.MONEY if known else SavingsQuantity.COST

    @property
    def main_estimate(self) -> Estimate:
        """The estimate of the main quantity."""
        return self.money if self.money is not None and self.main_quantity is SavingsQuantity.MONEY else self.cost

    def quantities(self, figure: Callable[[Estimate], float | None]) -> Quantities:
        """Returns a figure of each quantity."""
        return Quantities(
            time_seconds=figure(self.time),
            energy_joules=figure(self.energy),
            cost=figure(self.cost),
            money=None if self.money is None else figure(self.money),
            carbon_grams=None if self.carbon is None else figure(self.carbon),
        )


class Pricing:
    """What energy and hours cost.

    Attributes:
        factors: The operator's prices and carbon intensity.
        prices: The prices that follow from the factors.
    """

    def __init__(self, factors: Factors) -> None:
        self.factors = factors
        self.prices = Prices(joule=factors.price_per_joule, gpu_second=factors.price_per_gpu_second)

    def is_known(self, usage: Usage) -> bool:
        """Returns whether the money of usage is known: it has measured energy if energy has a price."""
        return not (self.prices.joule and usage.energy_joules is None and usage.time_seconds)

    def spent(self, groups: Iterable[TrialGroup], num_gpus: int) -> Usage:
        """Returns what the own trials among groups took."""
        return self.priced(usage_of(group for group in groups if group.own), num_gpus)

    def priced(self, usage: Usage, num_gpus: int) -> Usage:
        """Returns usage of trials on so many GPUs, with its money and its carbon."""
        joules, per_joule = usage.energy_joules, self.factors.grams_per_joule
        money = None
        if self.prices.joule or self.prices.gpu_second:
            money = self.prices.joule * (joules or 0.0) + self.prices.gpu_second * num_gpus * usage.time_seconds
        carbon = None if per_joule is None or joules is None else per_joule * joules
        return usage._replace(money=money, carbon_grams=carbon)


def num_deliveries_of(groups: Iterable[TrialGroup]) -> int:
    """Returns the number of deliveries of own trials."""
    return sum(group.num_trials for group in groups if group.delivered and group.own)


def usage_of(groups: Iterable[TrialGroup]) -> Usage:
    """Returns what the trials of groups took, without its money."""
    total = Usage()
    for group in groups:
        total = total.plus(group.usage)
    return total


def job_savings(
    pricing: Pricing, version: JobVersion, every: Sequence[TrialGroup], compared_from: int
) -> Savings[SavingsEstimate]:
    """Returns what a job has saved.

    Args:
        pricing: The operator's prices and carbon intensity.
        version: The job.
        every: All its trials that count.
        compared_from: The first trial that is compared; 0 if all are.
    """
    default, in_use = version.default_batch_size, _batch_size_in_use(version)
    groups = [group for group in every if group.first_trial >= compared_from]
    delivered = [group for group in groups if group.delivered]
    spent = pricing.spent(groups, version.num_gpus)
    running = pricing.spent((group for group in groups if group.running), version.num_gpus)
    num_deliveries = num_deliveries_of(delivered)
    of_default = [group for group in delivered if group.batch_size == default]
    launches = sum(group.num_trials for group in every if group.own and not group.running)
    num_baseline = sum(group.num_trials for group in of_default)
    num_in_use = sum(group.num_trials for group in delivered if group.batch_size == in_use)

    def saved(quantity: _Quantity, value: float, unfinished: float) -> SavingsEstimate:
        found = estimate(
            _delivered(delivered, quantity),
            default_batch_size=default,
            deliveries=num_deliveries,
            spent=value,
            launches=launches,
            in_use=_model(groups, in_use, quantity),
            with_default=_model(groups, default, quantity),
            # Sums of floats: the part may exceed the whole by a rounding.
            running=min(unfinished, value),
            held=version.is_held,
        )
        return replace(found, comparable=min(num_baseline, num_in_use) >= LEAST_RUNS)

    joules = spent.energy_joules
    energy = replace(saved(_ENERGY, joules or 0.0, running.energy_joules or 0.0), measured=joules is not None)
    known = spent.money is not None and pricing.is_known(spent)
    money = saved(_MONEY, spent.money or 0.0, running.money or 0.0) if known else None
    if money is not None and pricing.prices.joule:
        money = _measured_money(money, energy)
    grams = pricing.factors.grams_per_joule
    return Savings(
        cost=saved(_COST, spent.cost, running.cost),
        energy=energy,
        time=saved(_TIME, spent.time_seconds, running.time_seconds),
        money=money,
        carbon=energy.times(grams) if grams is not None and energy.measured else None,
        num_deliveries=num_deliveries,
        num_baseline_trials=num_baseline,
        newest_baseline_time=max((group.newest_end for group in of_default if group.newest_end), default=None),
        compared_from_trial=compared_from or None,
        batch_size_in_use=in_use,
        num_in_use_trials=num_in_use,
        num_launches=launches,
    )


def _model(groups: Iterable[TrialGroup], batch_size: int | None, quantity: _Quantity) -> float | None:
    """Returns what a model takes: what all ended trials of a batch size took, by its deliveries."""
    ended = [group for group in groups if group.batch_size == batch_size and not group.running]
    number = sum(group.num_trials for group in ended if group.delivered)
    return sum(map(quantity.spent, ended)) / number if number else None


def _batch_size_in_use(version: JobVersion) -> int | None:
    return batch_size_in_use(
        pinned=version.pinned,
        best_known=version.best_known,
        default=version.default_batch_size,
        available=version.available,
        failing=version.failing,
    )


def _delivered(delivered: Sequence[TrialGroup], quantity: _Quantity) -> Mapping[int, Delivered]:
    """Returns the deliveries of each batch size, in one quantity."""
    found: dict[int, Delivered] = {}
    for group in delivered:
        known = found.get(group.batch_size, Delivered())
        count = known.count + group.num_trials
        found[group.batch_size] = Delivered(
            count,
            known.mean + (quantity.spent(group) - known.mean * group.num_trials) / count,
            known.logs.merge(quantity.logs(group)),
            known.unmeasured + quantity.num_without(group),
        )
    return found


def _measured_money(money: SavingsEstimate, energy: SavingsEstimate) -> SavingsEstimate:
    """Returns the claim about money where energy has a price: without its energy, a trial seems cheaper than it was."""
    if energy.verdict is SavingsVerdict.NOT_MEASURED:
        return SavingsEstimate(money.deliveries, money.spent, SavingsVerdict.NOT_MEASURED)
    if energy.in_use is None:
        return replace(money, in_use=None, with_default=energy.with_default and money.with_default)
    return money


def total_savings(pricing: Pricing, totals: Totals) -> Savings[TotalEstimate]:
    """Returns what several jobs have saved together."""

    def total(quantity: str) -> TotalEstimate:
        value = attrgetter(quantity)
        at_least = value(totals.saved_at_least)
        return TotalEstimate(
            verdict=total_verdict(totals.verdicts, at_least, value(totals.at_most)),
            measured_spent=value(totals.spent),
            saved=value(totals.saved),
            at_least=at_least,
            lost=value(totals.lost),
        )

    spent, energy = totals.spent, total("energy_joules")
    money = total("money") if spent.money is not None and pricing.is_known(spent) else None
    if money is not None and pricing.prices.joule and energy.verdict is SavingsVerdict.NOT_MEASURED:
        money = TotalEstimate(SavingsVerdict.NOT_MEASURED, spent.money)
    return Savings(
        cost=total("cost"),
        energy=energy,
        time=total("time_seconds"),
        money=money,
        carbon=None if spent.carbon_grams is None else total("carbon_grams"),
        num_deliveries=totals.num_deliveries,
    )
