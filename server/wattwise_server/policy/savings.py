"""The savings of a job: a claim that is meant to hold, from sums that a database can aggregate.

    D     deliveries: trials that reached the target, at any cost
    S     everything spent, by failed and exploring trials too
    n     trials of the default batch size that reached the target
    x     natural logarithm of what such a trial took; x̄ is its mean over the n
    s     standard deviation of x: the largest of the default's own, that pooled over all batch sizes, and 0.22
    g     cautious cost of a delivery with the default:  exp(x̄ − s/√n)
    L     least cost of one, with 95% confidence:        exp(x̄ − s·u(n)/n)
    M     what a model takes with the default: what its trials took, missed and failed ones too, by their number n
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

The runs of the default are taken to be alike. A run that something disturbed, such as another job on the same machine,
is not: if it is the only run, it decides what a delivery is worth, and s does not show it. Hence nothing is claimed
before `LEAST_RUNS` runs, whose own deviation shows a run that differs from the others, nor if one of them took nothing.

The same is computed for cost, energy, time and money, each from its own sums. `make savings` measures how well it
holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from wattwise_server.domain import Moments, SavingsVerdict
from wattwise_server.errors import jobs_command

LEAST_SPREAD = 0.22
"""Least s: the largest of all batch sizes in the traces of docs/results.md. A larger one claims less of jobs whose
default has few trials; with a smaller one claims break where the default's runs differ more than those of other batch
sizes, of which more is known."""

_MISCLAIMED = 0.05
"""Alpha: probability that `at_least` is ever wrong, if s is right."""

CONFIDENCE = 1 - _MISCLAIMED
"""Probability that `at_least` is never wrong."""

LEAST_RUNS = 3
"""Trials of the default without which nothing is claimed: of two, nobody can tell which one is unusual."""

EXPLORING_LAUNCHES = 10
"""The number of launches in which a job usually costs more than its default would, since it tries batch sizes."""

_FURTHER_RUNS = 20
_FURTHER_LAUNCHES = 1000
"""The longest ways to a proven saving that are looked for, in runs of the default and in launches."""

_OLD = 100
"""Deliveries since the newest one of the default after which another one is advised."""

_LARGEST_LOG = 700.0
"""A float's exponential is finite up to 709."""

_NOTHING = 1e-9
"""A relative difference below this is a rounding error."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One quantity of one batch size's trials that reached the target, at any cost.

    `Arm.reached` has the costs of fewer trials: of those in the window that also stayed below their bound.

    Attributes:
        count: Number of these trials.
        mean: Mean of the quantity.
        logs: Of its natural logarithm, over the trials in which it is above 0. A deviation that rounding has made
            negative counts as 0.
        unmeasured: Number of trials in which the quantity was not measured; they count as 0 in the mean.
    """

    count: int = 0
    mean: float = 0.0
    logs: Moments = field(default=Moments())
    unmeasured: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Delivered:
        """Returns the sums of values, one for each trial; None if it was not measured."""
        sums, logs, unmeasured = Moments(), Moments(), 0
        for value in values:
            sums = sums.add(value or 0.0)
            logs = logs.add(math.log(value)) if value else logs
            unmeasured += value is None
        return cls(sums.count, sums.mean, logs, unmeasured)


class ProofState(Enum):
    """How a saving could be proven; None in its place if there is nothing to prove."""

    DEFAULT_ONLY = "DEFAULT_ONLY"
    NEEDS_BASELINES = "NEEDS_BASELINES"
    NEEDS_LAUNCHES = "NEEDS_LAUNCHES"
    DEFAULT_IN_USE = "DEFAULT_IN_USE"
    TOO_SMALL = "TOO_SMALL"
    NO_SAVING = "NO_SAVING"


class SavingsProof(NamedTuple):
    """What would prove a saving.

    Attributes:
        state: How it could be proven; None if there is nothing to prove.
        num_baselines: Launches of the default that it takes.
        num_launches: Launches of the batch size in use that it takes besides.
        price: What the launches of the default take beyond as many of the batch size in use; None if it is unknown.
    """

    state: ProofState | None = None
    num_baselines: int = 0
    num_launches: int = 0
    price: float | None = None


class Settling(NamedTuple):
    """The shortest way to a proven saving, if everything goes on as it did.

    Attributes:
        runs: Launches of the default.
        launches: Launches of the batch size in use besides.
    """

    runs: int
    launches: int


class Baseline(NamedTuple):
    """The cost of a delivery with the default batch size.

    Attributes:
        runs: Trials of the default that reached the target: n.
        mean: Their mean. Tends to overstate, see the module.
        cautious: g.
        least: L.
        generous: Decides whether a job has lost: their mean, or exp(x̄ + s/√n) if that is more.
    """

    runs: int
    mean: float
    cautious: float
    least: float
    generous: float

    def times(self, factor: float) -> Baseline:
        """Returns the same in another unit."""
        return self._replace(
            mean=factor * self.mean,
            cautious=factor * self.cautious,
            least=factor * self.least,
            generous=factor * self.generous,
        )


@dataclass(frozen=True, slots=True)
class SavingsEstimate:
    """The savings of a job in one quantity, in its unit: J for cost and energy, s for time, or a currency.

    Attributes:
        deliveries: D.
        spent: S.
        verdict: The verdict.
        baseline: What a delivery costs with the default; None where nothing is claimed.
        default_mean: The plain mean of the default's deliveries, also where nothing is claimed; None without one.
        running: The part of S that running trials have spent, whose deliveries may still come.
        in_use: What a model costs with the batch size in use, missed and failed trials included; None without one.
        with_default: The same with the default: M.
        settling: What would show a saving; None if it is shown, or if nothing that was looked at would show it.
        measured: False if the quantity is unknown, because no trial measured it; S is then 0.
        comparable: Whether the default and the batch size in use have delivered enough models to be compared.
    """

    deliveries: int
    spent: float
    verdict: SavingsVerdict
    baseline: Baseline | None = None
    default_mean: float | None = None
    running: float = 0.0
    in_use: float | None = None
    with_default: float | None = None
    settling: Settling | None = None
    measured: bool = True
    comparable: bool = False

    @property
    def saved(self) -> float | None:
        """The estimate, which does not overstate on average; negative for a loss; None where there is no claim."""
        return None if self.baseline is None else self.deliveries * self.baseline.cautious - self.spent

    @property
    def at_least(self) -> float | None:
        """The lower 95% bound; None where there is no claim."""
        return None if self.baseline is None else self.deliveries * self.baseline.least - self.spent

    @property
    def at_most(self) -> float | None:
        """What decides that a job has lost: below 0 it has. None where there is no claim."""
        if self.baseline is None:
            return None
        # The default's own deliveries would have cost what they did.
        own = min(self.baseline.runs, self.deliveries)
        worth = own * self.baseline.mean + (self.deliveries - own) * self.baseline.generous
        # It would have missed its target as often, too.
        worth += self.deliveries * (self._model - self.baseline.mean)
        return worth - (self.spent - self.running) * (1 - _NOTHING)

    @property
    def lost(self) -> float | None:
        """What ended trials spent − D · M: of a job with the verdict LOSS, the loss to show; else it understates."""
        return None if self.baseline is None else (self.spent - self.running) - self.deliveries * self._model

    @property
    def measured_spent(self) -> float | None:
        """S; None if the quantity is unknown."""
        return self.spent if self.measured else None

    @property
    def change(self) -> float | None:
        """What a model takes with the batch size in use compared with M, such as -0.4; None with few deliveries."""
        if not self.comparable or self.in_use is None or not self.with_default:
            return None
        return self.in_use / self.with_default - 1

    @property
    def at_least_share(self) -> float | None:
        """The lower bound as a share of D · L; None where there is no claim."""
        return None if self.baseline is None else _share(self.at_least, self.deliveries * self.baseline.least)

    @property
    def lost_share(self) -> float | None:
        """What was lost as a share of D · M; None where there is no claim."""
        return None if self.baseline is None else _share(self.lost, self.deliveries * self._model)

    @property
    def cautious_baseline(self) -> float | None:
        """g; None where there is no claim."""
        return None if self.baseline is None else self.baseline.cautious

    @property
    def least_baseline(self) -> float | None:
        """L; None where there is no claim."""
        return None if self.baseline is None else self.baseline.least

    @property
    def spent_by_ended_trials(self) -> float | None:
        """What ended trials spent; None where there is no claim."""
        return None if self.baseline is None else self.spent - self.running

    @property
    def confidence(self) -> float:
        """Probability that `at_least` is never wrong."""
        return CONFIDENCE

    @property
    def _model(self) -> float:
        """M."""
        if self.with_default is not None:
            return self.with_default
        return 0.0 if self.baseline is None else self.baseline.mean

    def times(self, factor: float) -> SavingsEstimate:
        """Returns the same in another unit: CO2 is energy times the carbon intensity.

        Raises:
            ValueError: the factor is not a finite number from 0.
        """
        if not (math.isfinite(factor) and factor >= 0):
            raise ValueError(f"factor is {factor}; use a finite number from 0")
        return replace(
            self,
            spent=self.spent * factor,
            baseline=None if self.baseline is None else self.baseline.times(factor),
            default_mean=None if self.default_mean is None else self.default_mean * factor,
            running=self.running * factor,
            in_use=None if self.in_use is None else self.in_use * factor,
            with_default=None if self.with_default is None else self.with_default * factor,
        )


def _share(part: float | None, whole: float) -> float:
    return (part or 0.0) / whole if whole > 0 else 0.0


def estimate(
    reached: Mapping[int, Delivered],
    *,
    default_batch_size: int,
    deliveries: int,
    spent: float,
    launches: int,
    running: float = 0.0,
    in_use: float | None = None,
    with_default: float | None = None,
    held: bool = False,
) -> SavingsEstimate:
    """Returns the savings of a job in one quantity.

    Args:
        reached: By batch size, the trials that reached the target. Imported ones may be among them.
        default_batch_size: The default.
        deliveries: Trials that reached the target under this server: without imported ones.
        spent: What all trials under this server took, failed and running ones included.
        launches: The ended ones among them.
        running: What the running ones of them took. It counts against a saving, but is no loss before they end.
        in_use: What a model takes with the batch size in use.
        with_default: What a model takes with the default: M. Without it, the mean of the default's deliveries counts.
        held: Whether a person has paused the search or pinned a batch size, so that the job does not explore.

    Raises:
        ValueError: a number is negative or not finite, or more logarithms than trials were counted.
    """
    _check(reached, deliveries, spent, running)
    default = reached.get(default_batch_size, Delivered())
    if any(each.unmeasured for each in reached.values()):
        # What was not measured is missing from what was spent, too.
        return SavingsEstimate(
            deliveries, spent, SavingsVerdict.NOT_MEASURED if deliveries else SavingsVerdict.NO_DELIVERY
        )
    if not deliveries:
        return SavingsEstimate(
            0, spent, SavingsVerdict.NO_DELIVERY, running=running, in_use=in_use, with_default=with_default
        )
    spread = _spread(default, reached.values())
    # A run of the default that took nothing has no logarithm: what its runs usually take is unknown.
    known = _baseline(default, spread) if default.logs.count == default.count >= LEAST_RUNS else None
    mean = default.mean if default.count else None
    found = SavingsEstimate(deliveries, spent, SavingsVerdict.NO_BASELINE, known, mean, running, in_use, with_default)
    verdict = _verdict(found, launches, held=held)
    way = None if verdict is SavingsVerdict.SAVING else settling(default, spread, found)
    return replace(found, verdict=verdict, settling=way)


def _check(reached: Mapping[int, Delivered], deliveries: int, spent: float, running: float) -> None:
    if deliveries < 0:
        raise ValueError(f"deliveries is {deliveries}; use a number from 0")
    if not (math.isfinite(spent) and spent >= 0):
        raise ValueError(f"spent is {spent}; use a finite number from 0")
    if not 0 <= running <= spent:
        raise ValueError(f"running is {running}; use a number from 0 to spent, {spent}")
    for size, each in reached.items():
        if not 0 <= each.logs.count <= each.count - each.unmeasured:
            what = f"{each.logs.count} logarithms of {each.count} trials, {each.unmeasured} unmeasured"
            raise ValueError(f"batch size {size} has {what}")
        if not all(map(math.isfinite, (each.mean, each.logs.mean, each.logs.deviation))) or each.mean < 0:
            raise ValueError(f"the sums of batch size {size} are negative or not finite: {each}")


def _spread(default: Delivered, reached: Iterable[Delivered]) -> float:
    """Returns s: with few trials of the default, what other batch sizes show; with many, its own if that is larger."""
    degrees, squares = 0, 0.0
    for each in reached:
        degrees += max(0, each.logs.count - 1)
        squares += max(0.0, each.logs.deviation)
    pooled = squares / degrees if degrees else 0.0
    own = default.logs.deviation / (default.count - 1) if default.count > 1 else 0.0
    return math.sqrt(max(LEAST_SPREAD**2, pooled, own))


def _baseline(default: Delivered, spread: float) -> Baseline:
    runs, middle, error = default.count, default.logs.mean, spread / math.sqrt(default.count)
    generous = max(default.mean, math.exp(min(middle + error, _LARGEST_LOG)))
    return Baseline(runs, default.mean, math.exp(middle - error), _least(middle, spread, runs), generous)


def _least(middle: float, spread: float, runs: int) -> float:
    """Returns L."""
    return math.exp(middle - spread * boundary(runs) / runs)


def boundary(runs: int) -> float:
    """Returns u(n): sums of standard normal values exceed it at any n with a probability of at most 5%; see above."""
    return math.sqrt(2 * (runs + 1) * math.log1p(math.sqrt(runs + 1) / (2 * _MISCLAIMED)))


def _verdict(found: SavingsEstimate, launches: int, *, held: bool) -> SavingsVerdict:
    if found.at_least is not None and found.at_least > 0:
        return SavingsVerdict.SAVING
    explores = launches <= EXPLORING_LAUNCHES
    if explores and not held:
        return SavingsVerdict.EXPLORING
    if found.at_most is None:
        return SavingsVerdict.NO_BASELINE
    # The first launches are no loss, those of a held job neither.
    return SavingsVerdict.LOSS if found.at_most < 0 and not explores else SavingsVerdict.UNCERTAIN


def settling(default: Delivered, spread: float, found: SavingsEstimate) -> Settling | None:
    """Returns the shortest way to a proven saving, if the default and the batch size in use go on to cost their means.

    With k more runs of the default and m more launches of the batch size in use, the bound is
    (D + k + m)·L(n + k) − (S + k·x̄ + m·c), where c is what a model takes with the batch size in use.
    """
    if found.baseline is None or found.in_use is None:
        return None
    ways = []
    for runs in range(_FURTHER_RUNS + 1):
        least = _least(default.logs.mean, spread, default.count + runs)
        missing = found.spent + runs * default.mean - (found.deliveries + runs) * least
        gain = least - found.in_use
        if missing < 0:
            launches = 0
        elif gain <= 0 or missing / gain >= _FURTHER_LAUNCHES:
            continue
        else:
            launches = math.floor(missing / gain) + 1
        ways.append(Settling(runs, launches))
    return min(ways, key=sum, default=None)


def proof(found: SavingsEstimate, *, num_baselines: int, default_only: bool, default_in_use: bool) -> SavingsProof:
    """Returns what would prove a saving.

    Args:
        found: The claim about a job that has a batch size left.
        num_baselines: Deliveries of the default.
        default_only: Whether every launch gets the default.
        default_in_use: Whether the default is the batch size in use.
    """
    if found.verdict not in (SavingsVerdict.UNCERTAIN, SavingsVerdict.NO_BASELINE, SavingsVerdict.EXPLORING):
        return SavingsProof()
    if default_only:
        return SavingsProof(ProofState.DEFAULT_ONLY)

    def price(runs: int) -> float | None:
        if not runs or found.in_use is None or found.with_default is None:
            return None
        return runs * (found.with_default - found.in_use)

    if (missing := LEAST_RUNS - num_baselines) > 0:
        return SavingsProof(ProofState.NEEDS_BASELINES, missing, 0, price(missing))
    if found.settling is not None:
        runs, launches = found.settling
        return SavingsProof(ProofState.NEEDS_LAUNCHES, runs, launches, price(runs))
    state = None
    if default_in_use:
        state = ProofState.DEFAULT_IN_USE
    elif found.in_use is not None and found.with_default is not None:
        state = ProofState.TOO_SMALL if found.in_use < found.with_default else ProofState.NO_SAVING
    return SavingsProof(state)


def total_verdict(
    verdicts: Collection[SavingsVerdict], at_least: float | None, at_most: float | None
) -> SavingsVerdict:
    """Returns the verdict about several jobs together, by the rule of a single job.

    Args:
        verdicts: Those of the jobs about their cost.
        at_least: The sum of the lower bounds; None without a claim.
        at_most: The sum of what decides about a loss, where the loss of a job in its first launches is 0.
    """
    if at_least is not None and at_least > 0:
        return SavingsVerdict.SAVING
    delivered = set(verdicts) - {SavingsVerdict.NO_DELIVERY}
    if len(delivered) <= 1 and delivered <= {SavingsVerdict.EXPLORING}:
        return SavingsVerdict.EXPLORING if delivered else SavingsVerdict.NO_DELIVERY
    if at_most is None:
        unclaimed = delivered <= {SavingsVerdict.NO_BASELINE, SavingsVerdict.EXPLORING, SavingsVerdict.NOT_MEASURED}
        few = unclaimed and delivered & {SavingsVerdict.NO_BASELINE, SavingsVerdict.EXPLORING}
        return SavingsVerdict.NO_BASELINE if few else SavingsVerdict.NOT_MEASURED
    return SavingsVerdict.LOSS if at_most < 0 else SavingsVerdict.UNCERTAIN


def advice(
    found: SavingsEstimate,
    job_id: str,
    default_batch_size: int,
    *,
    in_use: int | None = None,
    deliveries_since_default: int = 0,
) -> Sequence[str]:
    """Returns what an operator should do about a claim, as sentences; none if nothing would change it.

    What would show a saving is in `SavingsEstimate.settling`.

    Args:
        found: The claim.
        job_id: The job.
        default_batch_size: Its default.
        in_use: The batch size in use.
        deliveries_since_default: Deliveries since the newest one of the default.
    """
    if found.verdict is SavingsVerdict.LOSS:
        return [_keep(found, job_id, default_batch_size, in_use=in_use)]
    if found.baseline is not None and deliveries_since_default >= _OLD:
        old = (
            f"the newest run of the default, {default_batch_size}, is {deliveries_since_default} deliveries old; if "
            f"the training has changed since, it is no comparison: {jobs_command('baseline', job_id)} requests one"
        )
        return [old]
    return []


def _keep(found: SavingsEstimate, job_id: str, default_batch_size: int, *, in_use: int | None) -> str:
    stop = jobs_command("pin", job_id, default_batch_size)
    if in_use != default_batch_size:
        pause = f"{jobs_command('pause', job_id)} stops trials of other batch sizes than {in_use}, and "
        return (
            "the trials have cost more than they have saved so far: "
            f"{'' if found.change is None or found.change >= 0 else pause}{stop} goes back to the default"
        )
    return (
        f"keep your default, {default_batch_size}: it is the best known batch size, and the trials have cost more than "
        f"they have saved; {stop} stops trials of other batch sizes"
    )
