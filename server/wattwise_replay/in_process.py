"""The server's policies and stopping rule, without a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import count

from wattwise import JobSpec, v1
from wattwise.rules import STATUS_AFTER, TrialStatus
from wattwise.spec import job_message
from wattwise_server.cost import cost
from wattwise_server.domain import Measurement, Trial, TrialOrigin
from wattwise_server.errors import InvalidJobSpecError
from wattwise_server.events import EpochReported, SearchEvent, TrialDecided, TrialDispatched, event_of_end
from wattwise_server.policy.base import ArmBelief, Choice, Exhausted, Policy
from wattwise_server.policy.history import observe, prior_of
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import Verdict, judge
from wattwise_server.policy.thompson import generator
from wattwise_server.rpc import requests
from wattwise_server.usecases.job_spec import resolve

from wattwise_replay.engines import Dispatch, TrialEnd
from wattwise_replay.errors import ExhaustedError, ReplayError
from wattwise_replay.guarded import Guarded
from wattwise_replay.workload import Crash
from wattwise_replay.world import TrialCourse

_TIME = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""The time of every event; no decision uses it."""


class InProcess:
    """A job whose policy is called directly, as the server does.

    Args:
        job: The job.
        variant: A policy by its name, instead of the one that the job names.
        priors: The jobs of `prior_job_ids`.

    Attributes:
        spec: The resolved configuration.
        search: The state of the search.
        ended: The trials that were decided, in their order.

    Raises:
        ReplayError: the server would refuse the job; or, from every method, the policy fails.
    """

    power = "cheapest"

    def __init__(
        self,
        job: JobSpec,
        variant: tuple[str, Policy] | None = None,
        priors: Sequence[InProcess] = (),
    ) -> None:
        policies = {name: Guarded(name, policy) for name, policy in POLICIES.items()}
        try:
            self.spec = resolve(requests.job_draft(v1.RegisterJobRequest(job=job_message(job))))
        except InvalidJobSpecError as error:
            raise ReplayError(str(error)) from error
        self._policy = Guarded(*variant) if variant else policies[self.spec.policy]
        known = [prior_of(each.beliefs, each.ended) for each in priors]
        self.search = self._policy.register(self.spec, known)
        self.ended: list[Trial] = []
        self._running: dict[int, Trial] = {}
        self._number = 0
        self._observations = 0

    @property
    def beliefs(self) -> Sequence[ArmBelief]:
        """The belief of the policy, by batch size."""
        return self._policy.belief(self.spec, self.search)

    def bound(self, batch_size: int) -> float | None:
        """Returns the cost at which a trial of this batch size is stopped now."""
        return self._policy.bound(self.spec, self.search, batch_size)

    def upcoming(self) -> Choice | None:
        """Returns the choice that `dispatch` would make now; None if no batch size is left."""
        number = self._number + 1
        choice = self._policy.next(self.spec, self.search, number, generator(self.spec, number))
        return None if isinstance(choice, Exhausted) else choice

    def dispatch(self) -> Dispatch:
        """Returns the policy's choice."""
        choice = self.upcoming()
        if choice is None:
            raise ExhaustedError(no_batch_size_left(self.spec.max_epochs))
        return self._dispatched(choice)

    def dispatch_baseline(self) -> Dispatch:
        """Returns the default batch size, as for a person who requests a baseline."""
        return self._dispatched(Choice(self.spec.default_batch_size, "requested", TrialOrigin.REQUESTED))

    def _dispatched(self, choice: Choice) -> Dispatch:
        number = self._number + 1
        trial = Trial(
            self.spec.job_id, number, choice.batch_size, choice.origin, choice.policy_role, _TIME, str(number)
        )
        self._observe(TrialDispatched(trial))
        self._running[number] = trial
        self._number = number
        return Dispatch(number, choice.batch_size)

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Skips to the epoch that decides the trial, or to its crash."""
        last = self._last(trial, epochs)
        played = self._running.pop(trial.number)
        if last is not None:
            measured, verdict = last
            price, bound = verdict.cost, verdict.cost_bound
            reached = verdict.target_reached
            played = played._replace(last=measured, cost=price, cost_bound=bound, target_reached=reached)
            if verdict.end_reason is not None:
                return self._decided(played, verdict)
        return self._failed(played, epochs.crash)

    def _decided(self, trial: Trial, verdict: Verdict) -> TrialEnd:
        self._observations += 1
        done = trial._replace(
            status=TrialStatus.DECIDED,
            end_reason=verdict.end_reason,
            converged=verdict.converged,
            observation=self._observations,
        )
        self._observe(TrialDecided(done))
        self.ended.append(done)
        return TrialEnd(done.last.epoch if done.last else 0, verdict.target_reached)

    def _failed(self, trial: Trial, crash: Crash | None) -> TrialEnd:
        if crash is None:
            raise AssertionError("the last epoch ends every trial that does not crash")
        failed = trial._replace(status=STATUS_AFTER[crash.reason], end_reason=crash.reason)
        self._observe(event_of_end(failed))
        return TrialEnd(crash.epochs, target_reached=False, failure=crash.reason)

    def _last(self, trial: Dispatch, epochs: TrialCourse) -> tuple[Measurement, Verdict] | None:
        """Returns the measurement that ends the trial, or the last before its crash; None if it crashes before any.

        Costs grow by the same amount with every epoch, so epochs well below the bound are skipped.
        """
        watches = self._policy.watches_epochs
        until = math.inf if epochs.crash is None else epochs.crash.epochs
        if not until:
            return None
        for epoch in count(1 if watches else int(min(self._first_that_may_end(trial, epochs), until))):
            measured = measurement(epochs, epoch, self.spec.target_metric)
            if watches:
                self._observe(EpochReported(self._running[trial.number]._replace(last=measured), self.spec))
            verdict = judge(self.spec, self._bound_of(trial), measured)
            if verdict.end_reason is not None or epoch == until:
                return measured, verdict
        raise AssertionError("count never ends")

    def _bound_of(self, trial: Dispatch) -> float | None:
        """Returns the cost at which a running trial is stopped now; None for one that a person has requested."""
        requested = self._running[trial.number].origin is TrialOrigin.REQUESTED
        return None if requested else self.bound(trial.batch_size)

    def _observe(self, event: SearchEvent) -> None:
        self.search = observe(self._policy, self.spec, self.search, event)

    def _first_that_may_end(self, trial: Dispatch, epochs: TrialCourse) -> int:
        first = min(epochs.target_epoch or self.spec.max_epochs, self.spec.max_epochs)
        bound = self._bound_of(trial)
        if bound is None:
            return first
        affordable = int(bound / cost(self.spec, epochs.joules, epochs.seconds))
        # One less, because the division may round differently from the sums over the epochs.
        return max(1, min(first, affordable - 1))


def measurement(epochs: TrialCourse, epoch: int, target_metric: float) -> Measurement:
    """Returns a trainer's report after an epoch; the metric is NaN before the target is reached."""
    reached = epochs.target_epoch is not None and epoch >= epochs.target_epoch
    metric = target_metric if reached else float("nan")
    return Measurement(epoch, epoch * epochs.seconds, epoch * epochs.joules, metric, _TIME)


def no_batch_size_left(max_epochs: int) -> str:
    """Returns the message when a policy has no batch size left."""
    missed = f"each missed the target within {max_epochs} epochs and the cost bound, or ran out of memory"
    remedy = "raise --beta if the bound stopped them, otherwise change the target, the epochs or the batch sizes"
    return f"no batch size is left: {missed}; {remedy}"
