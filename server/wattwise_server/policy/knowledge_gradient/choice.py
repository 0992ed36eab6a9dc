"""The choice of the next trial, and the sentence that explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from wattwise.rules import ResolvedJob

from wattwise_server.cost import with_unit
from wattwise_server.domain import Search
from wattwise_server.policy.failures import failing, has_trials
from wattwise_server.policy.knowledge_gradient.belief import LEAST_TRUST, Belief
from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.evidence import KEPT
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats
from wattwise_server.policy.knowledge_gradient.state import Knowledge
from wattwise_server.policy.knowledge_gradient.values import Outlook, Values

# Gauss-Hermite nodes and weights for the surprise in ln E and the surprise in ln c, of which the second is small.
_EPOCHS_NODES, _EPOCHS_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_COST_NODES, _COST_WEIGHTS = np.polynomial.hermite_e.hermegauss(2)
_Z_EPOCHS, _Z_COST = (axis.ravel() for axis in np.meshgrid(_EPOCHS_NODES, _COST_NODES))
_Z_NODES = np.stack([_Z_EPOCHS, _Z_COST], axis=1)
_Z_WEIGHTS = np.outer(_COST_WEIGHTS, _EPOCHS_WEIGHTS).ravel() / (_EPOCHS_WEIGHTS.sum() * _COST_WEIGHTS.sum())


class Experiment(NamedTuple):
    """Trials that pay off.

    Attributes:
        place: Index of the batch size.
        trials: The number of trials.
        worth: What their results are expected to save, in joules.
    """

    place: int
    trials: int
    worth: float


_DEFAULT_FACTOR = 2.0
"""The default is not tried again after a change if it probably costs more than this multiple of the best known."""


@dataclass(frozen=True)
class Prospects:
    """The choice of one trial, where a best batch size is known, or assumed while the first trials run.

    Attributes:
        outlook: What the search leads to.
        places: The indices of the allowed batch sizes, ascending.
        running: The number of running trials, by batch size (n,).
        best: The best known batch size, an allowed one.
    """

    outlook: Outlook
    places: NDArray[np.int64]
    running: NDArray[np.int64]
    best: int

    @property
    def spec(self) -> ResolvedJob:
        """The job."""
        return self.outlook.spec

    @property
    def constants(self) -> Constants:
        """The constants."""
        return self.outlook.constants

    @property
    def knowledge(self) -> Knowledge:
        """The state of the job."""
        return self.outlook.knowledge

    @property
    def belief(self) -> Belief:
        """The belief."""
        return self.outlook.belief

    @property
    def values(self) -> Values:
        """Its values."""
        return self.outlook.values

    @cached_property
    def price(self) -> Floats:
        """The price of trying each batch size: the best known one follows if a trial delivers no model."""
        again = (1 - self.values.delivers) * self.values.model[self.best]
        return np.asarray(self.values.trial + again)

    @cached_property
    def deliveries(self) -> float:
        """The number of future deliveries that benefit from what is learned now."""
        constants, window = self.constants, self.spec.window_size
        deliveries = constants.horizon + constants.misfit_horizon * self.belief.misfit + self.knowledge.trials
        return min(deliveries, constants.windows * window) if window else deliveries

    @property
    def proposal(self) -> int:
        """The batch size to try, or the best known one if no result is worth what its trial costs."""
        return self.best if self.experiment is None else self.experiment.place

    @cached_property
    def experiment(self) -> Experiment | None:
        """The batch size whose trials pay off, if there is one.

        A trial pays off if its cost less the worth of its result is lower than that of the best known one. Of several
        such trials one can follow the other, so that their order only decides what is gained in between. Where a single
        trial cannot change the choice, because the batch size has trials already, several may (Frazier and Powell,
        "Paradoxes in Learning and the Marginal Value of Information", Decision Analysis 7(4), 2010).
        """
        again = self.places[self.knowledge.known[self.places] & (self.places != self.best)]
        of = np.concatenate([self.places, again])
        trials = np.repeat([1, self.constants.repeats], [len(self.places), len(again)])
        gains = self._gains(of, trials)
        for several in (trials == 1, trials > 1):
            if several.any() and (best := self._best_experiment(of[several], trials[several], gains[several])):
                return best
        return None

    def _best_experiment(self, of: NDArray[np.int64], trials: NDArray[np.int64], gains: Floats) -> Experiment | None:
        """Returns the experiment that pays off, the cheapest first; None if there is none."""
        prices, worth = trials * self.price[of], self.deliveries * gains
        whole = prices - trials * self.price[self.best] - worth
        stays = of == self.best
        pays = whole < (whole[stays] if stays.any() else 0.0)
        if not pays.any():
            return None
        index = int(np.argmin(np.where(pays, prices - self.constants.soon * worth, np.inf)))
        return Experiment(int(of[index]), int(trials[index]), float(worth[index]))

    def _gains(self, of: NDArray[np.int64], trials: NDArray[np.int64]) -> Floats:
        """Returns the expected fall of the least R if some trials (m,) of each batch size (m,) reach the target.

        By Gauss-Hermite quadrature. What the running trials will tell about epochs and costs, another trial does not
        need to find out. Trials that miss the target are taken to teach nothing.
        """
        belief, outlook, found, places = self.belief, self.outlook, self.values, self.places
        ending = self._ending
        grid = np.ix_(of, places)
        epochs_var = ending.epochs_cov.diagonal()[of] + belief.noise[of] / trials
        cost_var = ending.cost_cov.diagonal()[of] + belief.cost_noise
        # How far the means move with one standard deviation of surprise: [trial of, mean of].
        by_epochs = ending.epochs_cov[grid] / np.sqrt(epochs_var)[:, None]
        by_cost = ending.cost_cov[grid] / np.sqrt(cost_var)[:, None]
        left = np.maximum(belief.variance[places] - by_epochs**2 - by_cost**2, 0) + belief.noise[places]
        # [node, trial of, mean of]
        mean = belief.mean[places] + np.tensordot(_Z_NODES, np.stack([by_epochs, by_cost]), 1)
        own = np.arange(len(of)), np.searchsorted(places, of)
        always = np.where(belief.edges.reached, outlook.begun, belief.edges.always_after(of))[:, places]
        again = np.broadcast_to(outlook.again[places], always.shape).copy()
        # A batch size that has reached the target does not always miss it.
        always[own] = again[own] = 0.0

        def models(nodes: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
            at, cells = places[columns], (rows, columns)
            ok, miss = outlook.ends(at, mean[nodes, rows, columns], left[cells], always[cells], again[cells])
            return Values(ok, miss, found.crash[at], found.crash_share, found.log_limit[at]).model

        nodes, rows = np.meshgrid(np.arange(len(mean)), np.arange(len(of)), indexing="ij")
        best = np.searchsorted(places, self.best)
        of_best = models(nodes, rows, np.full_like(rows, best))
        # No model costs less than a trial that reaches the target: at most nodes, few batch sizes beat the best one.
        least = np.minimum(mean + 0.5 * left, found.log_limit[places])
        least[:, :, best] = np.inf
        rivals = np.nonzero(least < np.log(of_best)[:, :, None])
        then = np.full(mean.shape, np.inf)
        then[rivals] = models(*rivals)
        cheapest = _Z_WEIGHTS @ np.minimum(of_best, then.min(2))
        gain = np.maximum(found.model[places].min() - cheapest, 0.0)
        return np.asarray(gain * (1 - found.miss[of]))

    @cached_property
    def _ending(self) -> Belief:
        return self.belief.once_ended(self.running, self.knowledge.evidence)

    def choice(self) -> tuple[int, str]:
        """Returns the batch size of the next trial, and the reason."""
        best, knowledge = self.best, self.knowledge
        if knowledge.luck < self.constants.doubt and len(knowledge.misses) > 1:
            return self._after_misses()
        if knowledge.retry:
            return best, f"{self._alone(best)}, the least of those tried; the trial that ended last delivered no model"
        if (why := self._default_due) is not None:
            return self._default, f"{self._beside(self._default)}; {why}"
        if self.experiment is not None and self.experiment.place != best:
            return self.experiment.place, self._pays_off(self.experiment)
        if (other := self._insurance) is not None:
            return other, f"{self._beside(other)}; never tried, and affordable beside all that was spent"
        return best, f"{self._alone(best)}, the least of those tried; no other batch size is worth a trial"

    def plan(self) -> tuple[int, str]:
        """Returns the batch size of a launch while the first trial of the default runs, and the reason."""
        default = self.spec.batch_sizes[self.best]
        count = int(self.running[self.best])
        trials = f"{_counted(count, 'trial')} of batch size {default} {'is' if count == 1 else 'are'} running"
        running = f"no trial has reached the target yet, and {trials}"
        if self.proposal == self.best:
            return self.best, f"{running}; beside the running trials no other batch size is worth a trial"
        ratio = float(self.values.model[self.proposal] / self.values.model[self.best])
        size = self.spec.batch_sizes[self.proposal]
        return self.proposal, (
            f"{running}; batch size {size} is tried as well: a model is expected to cost {ratio:.2g} times as much "
            f"with {size} as with {default}, and the result may lower the cost of the next {self.deliveries:.0f} "
            "deliveries"
        )

    @property
    def _default(self) -> int:
        return self.spec.batch_sizes.index(self.spec.default_batch_size)

    @property
    def _default_due(self) -> str | None:
        """Why the default is tried although the model does not recommend it; None if it is not."""
        default = self._default
        if default not in self.places or self.knowledge.known[default] or self.running[default]:
            return None
        if self.belief.mean[default] > self.belief.mean[self.best] + math.log(_DEFAULT_FACTOR):
            return None
        if self.belief.prior_trust < LEAST_TRUST:
            return "the prior jobs were wrong, so the default is tried"
        return "the job has changed, so the default is tried again" if self.knowledge.default_due else None

    def _after_misses(self) -> tuple[int, str]:
        """Chooses after misses that are hardly bad luck: the least of them, the nearest to the default."""
        default, misses = self._default, self.knowledge.misses
        place = min(
            map(int, self.places),
            key=lambda each: (misses.count(each) + int(self.running[each]), abs(each - default), each),
        )
        which = "the default" if place == default else "the nearest to the default of those that missed it least"
        seen = _counted(len(misses), "trial") if len(misses) < KEPT else f"at least {KEPT} trials"
        return place, f"{seen} in a row missed the target, which is hardly bad luck; this is {which}"

    @property
    def _insurance(self) -> int | None:
        """A batch size without a trial, once what it costs is a small share of what the trials cost so far.

        Without it a second valley behind a hill would never be found. The worse the law fits, the sooner: only then
        there may be one.
        """
        known, reached = self.knowledge.known, self.places[self.knowledge.reached[self.places] > 0]
        new = self.places[~known[self.places] & (self.running[self.places] == 0)]
        # Those between the batch sizes that have reached the target, and the next one on either side.
        first, last = np.searchsorted(new, (reached[0], reached[-1]))
        candidates = new[max(0, first - 1) : last + 1]
        if not len(candidates):
            return None
        extra = self.price[candidates] / self.values.model[self.best] - 1
        affordable = self.constants.insurance * self.belief.misfit * self.knowledge.trials / known.sum()
        return int(candidates[extra.argmin()]) if extra.min() < affordable else None

    def _pays_off(self, experiment: Experiment) -> str:
        place, trials, worth = experiment
        size, best = (self.spec.batch_sizes[each] for each in (place, self.best))
        trying, same, results = "trying it is", "", "its result is"
        if trials > 1:
            trying, same, results = f"trying it {trials} times is", ", as often", "its results are"
        price, other = trials * float(self.price[place]), trials * float(self.price[self.best])
        beside = f"{with_unit(abs(price - other))} {'more' if price >= other else 'less'}"
        return (
            f"batch size {size} may be better: {trying} expected to cost {with_unit(price)}, {beside} than training "
            f"with {best}, the best known{same}; {results} expected to save {with_unit(worth)} over the next "
            f"{self.deliveries:.0f} deliveries"
        )

    def _alone(self, place: int) -> str:
        cost = float(self.values.model[place])
        deviation = cost * math.sqrt(math.expm1(min(float(self.belief.variance[place]), 700.0)))
        return f"expected {with_unit(cost, deviation)}"

    def _beside(self, place: int) -> str:
        best, cost = self.spec.batch_sizes[self.best], float(self.values.model[self.best])
        return f"{self._alone(place)}; batch size {best}, the best known, costs {with_unit(cost)}"


def waiting_reason(size: int, running: int, ended: int) -> str:
    """Returns the reason for another trial of the first batch size, while more of its trials run than have ended."""
    return (
        f"no trial has reached the target yet: {_counted(ended, 'trial')} did not, and {_counted(running, 'trial')} of "
        f"batch size {size} {'is' if running == 1 else 'are'} still running, so this launch has it as well"
    )


def without_success(
    spec: ResolvedJob, search: Search, knowledge: Knowledge, places: NDArray[np.int64]
) -> tuple[int, str]:
    """Chooses while nothing has reached the target: the least tried batch size, the nearest to the default.

    Those that only missed it in the prior jobs come after the others. Failures count once it has been set aside.
    """
    start = spec.default_batch_size if knowledge.first is None else knowledge.first
    center = spec.batch_sizes.index(start)
    missing = {place for place, prior in enumerate(knowledge.prior) if prior.num_missed and not prior.num_reached}

    def tries(place: int) -> float:
        arm = search.arms[place]
        return float(knowledge.missed[place]) + arm.num_failed + arm.running

    def order(place: int) -> tuple[float, bool, int, int]:
        later = place in missing and place != center
        arm = search.arms[place]
        # A single failure says little: the batch size is tried again, until it has been set aside.
        failed = arm.num_failed if failing(arm) else 0
        return knowledge.missed[place] + failed + arm.running, later, abs(place - center), place

    place = min(map(int, places), key=order)
    arm = search.arms[place]
    which = "the default" if knowledge.first is None else "the best of the prior jobs"
    if place == center and not has_trials(search):
        return place, f"{which} is tried first"
    ended = {"missed the target": knowledge.missed[place], "failed": arm.num_failed, "is running": arm.running}
    seen = [f"{_counted(int(count), 'trial')} {what}" for what, count in ended.items() if count]
    size = spec.batch_sizes[place]
    of_size = f"of {size}, {', '.join(seen)}" if seen else f"no trial of {size} so far"
    chosen = which if place == center else f"the nearest to {which}, {start}"
    skipped = missing - {center} and place not in missing
    least = min(map(tries, map(int, places)))
    why = f"of the least tried, {size} is {chosen}"
    if tries(place) != least:
        why = f"{size} is {chosen}, and is tried again after a failure"
    return place, (
        f"no available batch size has reached the target{' in the window' if spec.window_size else ' yet'}; "
        f"{why} ({of_size})"
        f"{'; those that only missed it in the prior jobs come later' if skipped else ''}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
