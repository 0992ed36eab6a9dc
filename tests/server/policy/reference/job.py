"""A job with some trials: what the policy is to believe, to expect and to choose."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from wattwise.rules import EndReason
from wattwise_server.domain import Measurement, Moments, Trial
from wattwise_server.policy.base import Prior, PriorMisses
from wattwise_server.policy.knowledge_gradient import Constants

from tests.server.policy.reference.belief import KEPT, LEAST_TRUST, Belief, Costs, Known, Seen
from tests.server.policy.reference.changes import Job, with_trial
from tests.server.policy.reference.gaussians import Floats, conditioned, density
from tests.server.policy.reference.unusual import Row, later, nearly_above
from tests.server.policy.simulated import NOW, SimulatedJob, spec

C = Constants()

MOST_CERTAIN = 0.9999
"""Largest probability of a miss or a crash."""

QUADRATURE = 0.05
"""Error of what a trial is worth, by the policy's quadrature of a minimum, which has kinks; relative to the largest."""

WATTS = 50.0
"""Power draw of every trial, half of the limit."""


@dataclass(frozen=True)
class Run:
    """A trial that ran to a decision, with what one of its epochs cost in joules; 0: that is not known."""

    size: int
    epochs: int
    epoch_cost: float = 100.0
    reached: bool = True


@dataclass(frozen=True)
class Crash:
    """A trial that failed, with its cost in joules."""

    size: int
    cost: float


@dataclass(frozen=True)
class Told:
    """The epochs of a prior job's trials of one batch size, those that reached the target and those that missed it."""

    size: int
    reached: Sequence[int] = ()
    missed: Sequence[int] = ()


def fewer(logs: Sequence[float], share: float) -> Sequence[float]:
    """A share of some values: as many of the same mean, with the same share of the sum of squares."""
    count, mean = round(share * len(logs)), float(np.mean(logs))
    apart = math.sqrt(share * len(logs) * float(np.var(logs)) / 2)
    return [mean + apart, mean - apart, *[mean] * (count - 2)] if count > 1 else [mean] * count


@dataclass(frozen=True)
class Reference:
    """A job with trials that ended, a prior job, and trials that are running.

    Attributes:
        trials: Those that ended, in order.
        told: What the prior job tells.
        max_epochs: The largest number of epochs.
        sizes: The batch sizes; the middle one is the default.
        window: The window.
        at_once: How many of the last trials were dispatched together, in the reverse of the order in which they ended.
        running: Batch sizes of running trials.
        best_told: The best batch size of the prior job.
    """

    trials: Sequence[Run | Crash]
    told: Sequence[Told] = ()
    max_epochs: int = 150
    sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    window: int = 0
    at_once: int = 0
    running: Sequence[int] = ()
    best_told: int | None = None

    @property
    def default(self) -> int:
        """Place of the default batch size."""
        return len(self.sizes) // 2

    # The job as the policy sees it

    def job(self) -> SimulatedJob:
        """The job after all trials."""
        job = SimulatedJob(
            spec(
                batch_sizes=self.sizes,
                default_batch_size=self.sizes[self.default],
                target_metric=0.9,
                max_epochs=self.max_epochs,
                window_size=self.window,
                policy="knowledge_gradient",
            )
        )
        if self.told:
            reached = {told.size: Moments() for told in self.told if told.reached}
            for told in self.told:
                for epochs in told.reached:
                    reached[told.size] = reached[told.size].add(math.log(epochs))
            missed = {
                told.size: PriorMisses(len(told.missed), math.log(max(told.missed)))
                for told in self.told
                if told.missed
            }
            job.search = job.policy.register(job.spec, [Prior(self.best_told, reached, missed)])
        first = len(self.trials) - self.at_once
        together = list[Trial]()
        for index, each in enumerate(self.trials):
            if index == first:
                together = [job.dispatch(other.size) for other in reversed(self.trials[first:])]
            trial = together.pop() if together else job.dispatch(each.size)
            if isinstance(each, Crash):
                job.fail(trial, EndReason.ERROR, each.cost)
                continue
            cost = each.epochs * each.epoch_cost
            last = Measurement(each.epochs, cost / WATTS, cost, 1.0 if each.reached else 0.0, NOW)
            job.decide(trial._replace(last=last, target_reached=each.reached), cost, converged=each.reached)
        for size in self.running:
            job.dispatch(size)
        return job

    # What is known and believed

    @cached_property
    def prior(self) -> Sequence[Row]:
        """The trials of the prior job, at most a few of each batch size; the longest miss stands for all."""
        rows = []
        for place, size in enumerate(self.sizes):
            told = [each for each in self.told if each.size == size]
            logs: Sequence[float] = [math.log(epochs) for each in told for epochs in each.reached]
            missed = [epochs for each in told for epochs in each.missed]
            kept = [math.log(max(missed) + 0.5)] * min(KEPT, len(missed)) if missed else []
            if logs and len(kept) < len(missed):
                logs = fewer(logs, len(kept) / len(missed))
            weight = min(1.0, C.prior_weight / max(1, len(logs) + len(kept)))
            rows.append(Row(place, (), kept, logs, weight=weight))
        return rows

    @cached_property
    def known(self) -> Known:
        """What is known, after one trial after the other."""
        known = Known([], [Costs()] * len(self.sizes))
        apart, job = len(self.trials) - self.at_once, Job(self.sizes, self.default, self.max_epochs)
        for index, run in enumerate(self.trials):
            number = index + 1
            if index <= apart:
                known = replace(known, news=())
            if index >= apart:
                number = len(self.trials) - (index - apart)
            if isinstance(run, Crash):
                continue
            place = self.sizes.index(run.size)
            log_cost = math.log(run.epoch_cost) if run.epoch_cost else None
            seen = Seen(number, place, run.epochs, log_cost, run.reached)
            belief = self.belief_of(known)
            if not run.reached and belief.reached.any():
                seen = replace(seen, chance=belief.chance(place, seen.log_epochs))
            known = with_trial(belief, seen, self.added(known, seen), job)
        return replace(known, news=()) if self.running else known

    def added(self, known: Known, seen: Seen) -> Known:
        """What is known with one more trial, of those in the window."""
        epochs, costs, window = [*known.epochs, seen], list(known.costs), [*known.window, seen][-self.window :]
        if seen.log_cost is not None:
            costs[seen.place] = costs[seen.place].add(seen.log_cost)
        if self.window:
            numbers = {each.number for each in window}
            epochs = [each for each in epochs if each.number in numbers]
            for place, old in enumerate(known.costs):
                logs = [each.log_cost for each in window if each.place == place and each.log_cost is not None]
                # A cost in doubt is that of trials before the window.
                costs[place] = old if old.doubt and not logs else Costs(logs)
        due = known.default_due and seen.place != self.default
        return replace(known, epochs=epochs, costs=costs, trials=known.trials + 1, default_due=due, window=window)

    def belief_of(self, known: Known) -> Belief:
        """The belief that follows from what is known."""
        return Belief(self.sizes, known, self.prior, C)

    @cached_property
    def planned(self) -> bool:
        """Whether no trial has ended, and one of the first batch size is running."""
        return not self.trials and self.start in self.running

    @property
    def start(self) -> int:
        """The batch size of the first trial."""
        return self.sizes[self.default] if self.best_told is None else self.best_told

    @property
    def hopeful(self) -> bool:
        """Whether none has reached the target, and more of the first batch size are running than trials ended."""
        reached = any(isinstance(each, Run) and each.reached for each in self.trials)
        return not reached and self.running.count(self.start) > len(self.trials)

    @cached_property
    def belief(self) -> Belief:
        """The belief; while the first trials run, as if those of the default had reached the target."""
        start = self.default if self.best_told is None else self.sizes.index(self.best_told)
        if not self.planned:
            return self.belief_of(self.known)
        return Belief(self.sizes, self.known, self.prior, C, start, self.max_epochs)

    # Costs

    @cached_property
    def guides(self) -> Sequence[int]:
        """The places of the batch sizes that have reached the target, or are taken to."""
        return [place for place, reached in enumerate(self.belief.edges.reached) if reached]

    @cached_property
    def limit(self) -> float:
        """The bound of all but the best batch size: twice the least of those that have reached the target."""
        return 2 * min(float(self.belief.expected[place]) for place in self.guides)

    @cached_property
    def log_limit(self) -> Floats:
        """Ln of the cost at which a trial ends: at the bound, or after the last epoch."""
        return np.minimum(math.log(self.limit), self.belief.cost.mean + math.log(self.max_epochs + 0.5))

    @cached_property
    def begun(self) -> Floats:
        """The probability that a batch size that has reached the target has begun to miss it always.

        That it begins is the rarer the more trials there were, as if it had been looked for in all of them.
        """
        lucks = [self.known.luck_of(place) for place in range(len(self.sizes))]
        begins = C.begins * C.unusual_weight / (C.unusual_weight + self.known.trials)
        return np.array([begins / (begins + (1 - begins) * luck) if luck < 1 else 0.0 for luck in lucks])

    @cached_property
    def again(self) -> Floats:
        """The probability that a batch size that has only missed misses again, if it does not always; else 0."""
        belief, misses, found = self.belief, self.belief.misses, np.zeros(len(self.sizes))
        for place in np.flatnonzero(misses.only):
            late = self.log_limit[place] - belief.cost.mean[place] - misses.epochs[place]
            variance = misses.variance[place] + belief.rates.noise[place] + belief.cost.cov[place, place]
            found[place] = later(late, variance, belief.rates, C, nearly_above)
        return found

    def always(self, edges: Floats) -> Floats:
        """The probability that a batch size always misses, from that of the edges."""
        return np.where(self.belief.edges.reached, self.begun, edges)

    def misses(self, mean: Floats, variance: Floats, always: Floats, again: Floats) -> Floats:
        """By batch size, q, with such a belief about ln C."""
        belief, found = self.belief, []
        for place in range(len(self.sizes)):
            spread = variance[place] + belief.rates.noise[place]
            chance = float(later(self.log_limit[place] - mean[place], spread, belief.rates, C))
            if self.known.count(place, reached=True):
                trials = belief.unlucky[place] + belief.reached[place]
                chance = (belief.unlucky[place] + C.model_weight * chance) / (trials + C.model_weight)
            else:
                chance = max(chance, again[place])
            found.append(min(MOST_CERTAIN, always[place] + (1 - always[place]) * chance))
        return np.array(found)

    @cached_property
    def crashes(self) -> Floats:
        """By batch size, r."""
        crashed = [each.size for each in self.trials if isinstance(each, Crash)]
        decided = [each.size for each in self.trials if isinstance(each, Run)]
        usual = len(crashed) / (len(self.trials) + C.crash_weight)
        rates = [
            (crashed.count(size) + C.crash_weight * usual)
            / (crashed.count(size) + decided.count(size) + C.crash_weight)
            for size in self.sizes
        ]
        return np.minimum(rates, MOST_CERTAIN)

    @cached_property
    def crash_share(self) -> float:
        """What a crash costs, the same share of a trial everywhere, at most all of it."""
        ok = np.minimum(self.belief.expected, np.exp(self.log_limit))
        spent = [(each.cost, ok[self.sizes.index(each.size)]) for each in self.trials if isinstance(each, Crash)]
        return min(1.0, sum(cost for cost, _ in spent) / sum(usual for _, usual in spent)) if spent else 0.0

    def trial_and_model(self, mean: Floats, variance: Floats, always: Floats, again: Floats) -> tuple[Floats, Floats]:
        """A and R with such a belief about ln C."""
        ok = np.exp(np.minimum(mean + (variance + self.belief.rates.noise) / 2, self.log_limit))
        misses = self.misses(mean, variance, always, again)
        ended = (1 - misses) * ok + misses * np.exp(self.log_limit)
        trial = (1 - self.crashes) * ended + self.crashes * self.crash_share * ok
        return trial, np.asarray(trial / (1 - self.crashes) / (1 - misses))

    @cached_property
    def values(self) -> tuple[Floats, Floats]:
        """A and R."""
        belief = self.belief
        return self.trial_and_model(belief.mean, belief.variance, self.always(belief.edges.always), self.again)

    @cached_property
    def trial(self) -> Floats:
        """A."""
        return self.values[0]

    @cached_property
    def model(self) -> Floats:
        """R."""
        return self.values[1]

    @cached_property
    def best(self) -> int:
        """The place of the best known batch size."""
        return min(self.guides, key=lambda place: float(self.model[place]))

    # The stop of a trial of the best batch size

    @cached_property
    def first_stop(self) -> int:
        """The first epoch after which such a trial may be stopped."""
        belief, best = self.belief, self.best
        return math.ceil(C.patience * float(belief.expected[best]) / math.exp(belief.cost.mean[best]))

    @cached_property
    def stops(self) -> Sequence[float]:
        """What is expected to be spent from the first stop on, for each epoch after which a trial may be stopped."""
        belief, best = self.belief, self.best
        variance = C.heavy**2 * (belief.epochs.cov[best, best] + belief.rates.noise[best])
        epoch_cost, spent, found = math.exp(belief.cost.mean[best]), 0.0, list[float]()
        for stop in range(self.first_stop, min(self.max_epochs, 50 * self.first_stop) + 1):
            alive = float(later(math.log(stop + 0.5) - belief.epochs.mean[best], variance, belief.rates, C))
            found.append(spent + alive * float(belief.expected[best]))
            spent += epoch_cost * alive
        return found

    # The choice of a trial

    @cached_property
    def deliveries(self) -> float:
        """The deliveries for which a result counts."""
        deliveries = C.horizon + C.misfit_horizon * self.belief.misfit + self.known.trials
        return min(deliveries, C.windows * self.window) if self.window else deliveries

    @cached_property
    def ending(self) -> tuple[Floats, Floats]:
        """The covariances of ln E and ln c once the running trials have ended."""
        belief = self.belief
        epochs, cost = belief.epochs.cov, belief.cost.cov
        for size in self.running:
            place = self.sizes.index(size)
            epochs = conditioned(epochs, place, float(belief.rates.noise[place]))
        for place in {self.sizes.index(size) for size in self.running}:
            if not self.known.costs[place].logs:
                cost = conditioned(cost, place, belief.cost_noise / self.running.count(self.sizes[place]))
        return epochs, cost

    def after(self, place: int, trials: int) -> float:
        """Expected least R after some more trials of a batch size that reach the target."""
        belief, (epochs, cost), again = self.belief, self.ending, self.again.copy()
        by_epochs = epochs[place] / math.sqrt(epochs[place, place] + belief.rates.noise[place] / trials)
        by_cost = cost[place] / math.sqrt(cost[place, place] + belief.cost_noise)
        left = np.maximum(0, belief.variance - by_epochs**2 - by_cost**2)
        edges = belief.edges
        always = self.always(edges.always if edges.reached[place] else edges.always_after(place))
        always[place] = again[place] = 0.0
        # The surprise in ln E on a grid, and the small one in ln c at two points.
        surprises = np.linspace(-5, 5, 81)
        weights = density(surprises, 0, 1) / density(surprises, 0, 1).sum()
        least = 0.0
        for weight, surprise in zip(weights, surprises, strict=True):
            for sign in (1, -1):
                mean = belief.mean + surprise * by_epochs + sign * by_cost
                least += weight / 2 * self.trial_and_model(mean, left, always, again)[1].min()
        return float(least)

    @cached_property
    def delivers(self) -> Floats:
        """Probability that a trial delivers a model."""
        return np.asarray(self.trial / self.model)

    @cached_property
    def price(self) -> Floats:
        """What a launch costs that tries a batch size, and repeats it with the best one if it gets no model."""
        return np.asarray(self.trial + (1 - self.delivers) * self.model[self.best])

    def gain(self, place: int, trials: int) -> float:
        """What knowing some more trials of a batch size is expected to save in a launch; none if they miss."""
        reaches = float(self.delivers[place] / (1 - self.crashes[place]))
        return reaches * max(0.0, float(self.model.min()) - self.after(place, trials))

    @cached_property
    def worth(self) -> Collection[int]:
        """The places of the trials that cost least less what their result is worth soon, of those worth their cost.

        Several, if the policy's coarser quadrature may take one for the other. If no single trial is worth its cost,
        several of a batch size that has some may be.
        """
        tried = {each.place for each in self.known.epochs}
        return (
            self.paying(range(len(self.sizes)), 1)
            or self.paying([place for place in sorted(tried) if place != self.best], C.repeats)
            or [self.best]
        )

    def paying(self, places: Sequence[int], trials: int) -> Collection[int]:
        """The places of some batch sizes of which so many trials are worth their cost, more than one of the best."""
        gain = {place: self.deliveries * self.gain(place, trials) for place in places}
        extra = {place: trials * float(self.price[place] - self.price[self.best]) for place in places}
        pays = {
            place: extra[place] - C.soon * gain[place]
            for place in places
            if extra[place] - gain[place] < -gain.get(self.best, 0.0)
        }
        close = QUADRATURE * max(gain.values(), default=0.0)
        return [place for place, least in pays.items() if least < min(pays.values()) + close]

    @cached_property
    def insured(self) -> int | None:
        """The place of a batch size that has no trial and is affordable, next to those that reached the target."""
        tried = {each.place for each in self.known.epochs} | {self.sizes.index(size) for size in self.running}
        new = [place for place in range(len(self.sizes)) if place not in tried]
        below = [place for place in new if place < self.guides[0]][-1:]
        above = [place for place in new if place > self.guides[-1]][:1]
        between = [place for place in new if self.guides[0] < place < self.guides[-1]]
        extra = {place: float(self.price[place] / self.model[self.best] - 1) for place in (*below, *between, *above)}
        known = len({each.place for each in self.known.epochs})
        affordable = C.insurance * self.belief.misfit * self.known.trials / known
        cheapest = min(extra, key=lambda place: extra[place], default=None)
        return None if cheapest is None or extra[cheapest] >= affordable else cheapest

    @cached_property
    def choices(self) -> Collection[int]:
        """The batch sizes that the next trial may have: one, but for ties."""
        return [self.sizes[place] for place in self.places]

    @cached_property
    def places(self) -> Collection[int]:  # noqa: PLR0911 - one for each rule
        """Their places."""
        default, known = self.default, self.known
        running = [self.running.count(size) for size in self.sizes]
        if known.luck < C.doubt and len(known.misses) >= 2:
            order = [
                (known.misses.count(place) + running[place], abs(place - default), place)
                for place in range(len(running))
            ]
            return [min(order)[-1]]
        if self.planned:
            return self.worth
        if self.hopeful:
            return [self.sizes.index(self.start)]
        last = self.trials[-1] if self.trials else None
        if isinstance(last, Crash) or (last is not None and not last.reached):
            return [self.best]
        untried = not running[default] and all(each.place != default for each in known.epochs)
        affordable = self.belief.mean[default] <= self.belief.mean[self.best] + math.log(2)
        if untried and affordable and (known.default_due or self.belief.prior_trust < LEAST_TRUST):
            return [default]
        if self.best in self.worth and self.insured is not None:
            return [self.insured]
        return self.worth
