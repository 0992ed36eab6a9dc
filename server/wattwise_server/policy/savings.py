"""What a job has saved: a claim that is meant to hold, from sums that a database can aggregate.

    D     deliveries: trials that reached the target, at any cost
    S     everything spent, by failed and exploring trials too
    n     trials of the default batch size that reached the target
    x     natural logarithm of what such a trial took; x̄ is its mean over the n
    s     standard deviation of x: the largest of the default's own, that pooled over all batch sizes, and 0.22
    g     cautious cost of a delivery with the default:  exp(x̄ − s/√n)
    L     least cost of one, with 95% confidence:        exp(x̄ − s·u(n)/n)
    u(n)  one-sided boundary of a sum of n standard normal values that is crossed at *any* n with a probability of at
          most α = 5%:  √(2·(n + 1)·ln(1 + √(n + 1)/(2α)))

    saved = D·g − S        at least  D·L − S

The default is left early where its first trials were expensive and tried again where they were cheap, so that its mean
overstates what it costs: an adaptively sampled mean is biased (Nie, Tian, Taylor and Zou, "Why Adaptively Collected
Data Have Negative Bias and How to Correct for It", AISTATS 2018; of rewards, negative costs). Hence the standard error
in g. For the same reason an interval for a fixed n does not cover; u(n) holds whatever rule decides about the next
trial, and however often somebody looks: the normal mixture of Robbins ("Statistical Methods Related to the Law of the
Iterated Logarithm", Ann. Math. Stat. 41(5), 1970), one-sided and in closed form as in Howard, Ramdas, McAuliffe and
Sekhon ("Time-uniform, Nonparametric, Nonasymptotic Confidence Sequences", Ann. Stat. 49(2), 2021).

Both bound the geometric mean. The mean is at least as large, whatever the distribution, so that a few very long runs
are no danger. A few very short ones are: the floor of 0.22 is for what one or two trials cannot show.

The same is computed for cost, energy, time and money, each from its own sums. `make savings` measures how well it
holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from wattwise_server.domain import Moments
from wattwise_server.errors import jobs_command

LEAST_SPREAD = 0.22
"""Least s: the largest of all batch sizes in the traces of docs/results.md. A larger one claims less of jobs whose
default has few trials; with a smaller one claims break where the default's runs differ more than those of other batch
sizes, of which more is known."""

_MISCLAIMED = 0.05
"""Alpha: probability that `at_least` is ever wrong, if s is right."""

_FEW_RUNS = 5
"""Trials of the default below which another one is advised: with as many, L is at most 0.76 of the geometric mean, with
one at most half of it."""

_OLD = 100
"""Deliveries since the newest one of the default after which another one is advised."""

_LARGEST_LOG = 700.0
"""A float's exponential is finite up to 709."""

_NOTHING = 1e-9
"""A relative difference below this is a rounding error."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One quantity of one batch size's trials that reached the target, at any cost.

    Attributes:
        count: Number of these trials.
        mean: Mean of the quantity.
        logs: Of its natural logarithm, over the trials in which it is above 0. A deviation that rounding has made
            negative counts as 0.
    """

    count: int = 0
    mean: float = 0.0
    logs: Moments = field(default=Moments())

    @classmethod
    def of(cls, values: Iterable[float]) -> Delivered:
        """The sums of values, one for each trial."""
        sums, logs = Moments(), Moments()
        for value in values:
            sums = sums.add(value)
            logs = logs.add(math.log(value)) if value > 0 else logs
        return cls(sums.count, sums.mean, logs)


class Verdict(Enum):
    """What a claim amounts to.

    NO_DELIVERY, NO_BASELINE and NOT_MEASURED: nothing is claimed, since no trial reached the target, none of the
    default did, or some of those that did have no measurement of the quantity. SAVING: `at_least` is above 0. LOSS:
    ended trials cost more than the deliveries would have cost with the default, even if that costs a standard error
    more than it seems. UNCERTAIN: neither.
    """

    NO_DELIVERY = "NO_DELIVERY"
    NO_BASELINE = "NO_BASELINE"
    NOT_MEASURED = "NOT_MEASURED"
    SAVING = "SAVING"
    UNCERTAIN = "UNCERTAIN"
    LOSS = "LOSS"


class Baseline(NamedTuple):
    """What a delivery costs with the default batch size.

    Attributes:
        runs: Trials of the default that reached the target: n.
        mean: Their mean. Tends to overstate, see the module.
        cautious: g.
        least: L.
        generous: What decides that a job has lost, and no claim: their mean, or exp(x̄ + s/√n) if that is more.
    """

    runs: int
    mean: float
    cautious: float
    least: float
    generous: float

    def times(self, factor: float) -> Baseline:
        """In another unit."""
        return Baseline(self.runs, *(factor * each for each in self[1:]))


@dataclass(frozen=True, slots=True)
class Savings:
    """What a job has saved of one quantity, in its unit: J for cost and energy, s for time, or a currency.

    Attributes:
        deliveries: D.
        spent: S.
        baseline: What a delivery costs with the default; None where there is no claim.
        running: The part of S that running trials have spent, whose deliveries may still come.
    """

    deliveries: int
    spent: float
    baseline: Baseline | None
    verdict: Verdict
    running: float = 0.0

    @property
    def saved(self) -> float | None:
        """The estimate, which does not overstate on average; negative for a loss; None where there is no claim."""
        return None if self.baseline is None else self.deliveries * self.baseline.cautious - self.spent

    @property
    def at_least(self) -> float | None:
        """The lower 95% bound; None where there is no claim."""
        return None if self.baseline is None else self.deliveries * self.baseline.least - self.spent

    @property
    def uncorrected(self) -> float | None:
        """D · mean − what ended trials spent, which overstates: of a job with the verdict LOSS, the loss to show."""
        if self.baseline is None:
            return None
        return self.deliveries * self.baseline.mean - (self.spent - self.running)

    def times(self, factor: float) -> Savings:
        """In another unit: CO2 is energy times the carbon intensity.

        Raises:
            ValueError: the factor is not a finite number from 0.
        """
        if not (math.isfinite(factor) and factor >= 0):
            raise ValueError(f"factor is {factor}; use a finite number from 0")
        baseline = None if self.baseline is None else self.baseline.times(factor)
        return Savings(self.deliveries, self.spent * factor, baseline, self.verdict, self.running * factor)


def savings(
    reached: Mapping[int, Delivered], *, default_batch_size: int, deliveries: int, spent: float, running: float = 0.0
) -> Savings:
    """What a job has saved of one quantity.

    Args:
        reached: By batch size, the trials that reached the target. Imported ones may be among them.
        default_batch_size: The default.
        deliveries: Trials that reached the target under this server: without imported ones.
        spent: What all trials under this server took, failed and running ones included.
        running: What the running ones of them took. It counts against a saving, but is no loss before they end.

    Raises:
        ValueError: a number is negative or not finite, or more logarithms than trials were counted.
    """
    _check(reached, deliveries, spent, running)
    default = reached.get(default_batch_size, Delivered())
    if not deliveries:
        verdict = Verdict.NO_DELIVERY
    elif not default.count:
        verdict = Verdict.NO_BASELINE
    elif any(each.logs.count < each.count for each in reached.values()):
        # What was not measured is missing from what was spent, too.
        verdict = Verdict.NOT_MEASURED
    else:
        known = _baseline(default, _spread(default, reached.values()))
        return Savings(deliveries, spent, known, _verdict(known, deliveries, spent, running), running)
    return Savings(deliveries, spent, None, verdict)


def _check(reached: Mapping[int, Delivered], deliveries: int, spent: float, running: float) -> None:
    if deliveries < 0:
        raise ValueError(f"deliveries is {deliveries}; use a number from 0")
    if not (math.isfinite(spent) and spent >= 0):
        raise ValueError(f"spent is {spent}; use a finite number from 0")
    if not 0 <= running <= spent:
        raise ValueError(f"running is {running}; use a number from 0 to spent, {spent}")
    for size, each in reached.items():
        if not 0 <= each.logs.count <= each.count:
            raise ValueError(f"batch size {size} has {each.logs.count} logarithms of {each.count} trials")
        if not all(map(math.isfinite, (each.mean, each.logs.mean, each.logs.deviation))) or each.mean < 0:
            raise ValueError(f"the sums of batch size {size} are negative or not finite: {each}")


def _spread(default: Delivered, reached: Iterable[Delivered]) -> float:
    """s: with few trials of the default, what other batch sizes show; with many, its own if that is larger."""
    degrees, squares = 0, 0.0
    for each in reached:
        degrees += max(0, each.count - 1)
        squares += max(0.0, each.logs.deviation)
    pooled = squares / degrees if degrees else 0.0
    own = default.logs.deviation / (default.count - 1) if default.count > 1 else 0.0
    return math.sqrt(max(LEAST_SPREAD**2, pooled, own))


def _baseline(default: Delivered, spread: float) -> Baseline:
    runs, middle, error = default.count, default.logs.mean, spread / math.sqrt(default.count)
    least = math.exp(middle - spread * boundary(runs) / runs)
    generous = max(default.mean, math.exp(min(middle + error, _LARGEST_LOG)))
    return Baseline(runs, default.mean, math.exp(middle - error), least, generous)


def boundary(runs: int) -> float:
    """u(n): sums of standard normal values exceed it at any n with a probability of at most 5%; see the module."""
    return math.sqrt(2 * (runs + 1) * math.log1p(math.sqrt(runs + 1) / (2 * _MISCLAIMED)))


def _verdict(known: Baseline, deliveries: int, spent: float, running: float) -> Verdict:
    if deliveries * known.least > spent:
        return Verdict.SAVING
    # The default's own deliveries would have cost what they did.
    own = min(known.runs, deliveries)
    most = own * known.mean + (deliveries - own) * known.generous
    return Verdict.LOSS if most < (spent - running) * (1 - _NOTHING) else Verdict.UNCERTAIN


class Progress(NamedTuple):
    """Sums over a job's trials up to one of them."""

    trial_number: int
    spent: float
    deliveries: int


def break_even(per_delivery: float, course: Iterable[Progress]) -> int | None:
    """The trial from which on a job has saved; None if it has not by the last one.

    Args:
        per_delivery: What a delivery costs with the default: `Baseline.least` for the same answer as `at_least`.
        course: The sums after each trial, in order.
    """
    since = None
    for trial_number, spent, deliveries in course:
        if deliveries * per_delivery <= spent:
            since = None
        elif since is None:
            since = trial_number
    return since


def advice(
    found: Savings,
    job_id: str,
    default_batch_size: int,
    *,
    best_known: int | None = None,
    deliveries_since_default: int = 0,
    compared_from: int = 0,
) -> Sequence[str]:
    """What to do about a claim, as sentences for an operator; none if nothing would change it.

    Args:
        found: The claim.
        job_id: The job.
        default_batch_size: Its default.
        best_known: The batch size with the least expected cost; None while unknown.
        deliveries_since_default: Deliveries since the newest one of the default.
        compared_from: The first trial that is compared, since which the job behaves in another way; 0 if all are.
    """
    since = f"since trial {compared_from}, when the job's behaviour changed" if compared_from else "yet"
    another = f"{jobs_command('baseline', job_id)} schedules one"
    match found.verdict:
        case Verdict.NO_DELIVERY:
            return [f"no trial has reached the target {since}, so there is nothing to compare"]
        case Verdict.NO_BASELINE:
            nothing = f"the default, {default_batch_size}, has not reached the target {since}"
            return [f"{nothing}: there is nothing to compare with; {another}"]
        case Verdict.NOT_MEASURED:
            return ["some trials have no measurement of this quantity, so nothing is claimed about it"]
    lines = []
    if found.verdict is Verdict.LOSS:
        lines.append(_keep(job_id, default_batch_size, best_known=best_known))
    runs = found.baseline.runs if found.baseline else 0
    if found.verdict is not Verdict.LOSS and runs < _FEW_RUNS:
        only = f"only {runs} run{'' if runs == 1 else 's'} of the default, {default_batch_size}, to compare with"
        lines.append(f"{only}: {another}")
    elif deliveries_since_default >= _OLD:
        lines.append(
            f"the newest run of the default, {default_batch_size}, is {deliveries_since_default} deliveries old; if "
            f"the training has changed since, it is no comparison: {another}"
        )
    return lines


_MISSES_COUNT = "missed trials of the default are part of this"


def _keep(job_id: str, default_batch_size: int, *, best_known: int | None) -> str:
    if best_known != default_batch_size:
        return f"the trials have cost more than they have saved so far; {_MISSES_COUNT}"
    stop = jobs_command("pin", job_id, default_batch_size)
    return (
        f"keep your default, {default_batch_size}: it is the best known batch size, and the trials have cost more than "
        f"they have saved; {_MISSES_COUNT}; {stop} stops trials of other batch sizes"
    )
