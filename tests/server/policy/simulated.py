"""A job without a server: the policy, its state and its trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count
from typing import Any

import numpy as np
from wattwise.rules import STATUS_AFTER, EndReason, GpuGroup, ResolvedJob, TrialStatus
from wattwise_server.domain import Measurement, PruningGtsRole, PruningGtsTrial, Search, Trial, TrialOrigin
from wattwise_server.events import TrialDecided, TrialDispatched, TrialRevived, event_of_end
from wattwise_server.policy.base import Choice, Exhausted
from wattwise_server.policy.history import observe
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import judge

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def spec(**fields: Any) -> ResolvedJob:
    """A job of the paper's policy, whose cost is its energy."""
    usual: dict[str, Any] = {
        "job_id": "simulated",
        "job_id_prefix": "simulated",
        "batch_sizes": (8, 16, 32, 64),
        "default_batch_size": 16,
        "gpu": GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100.0),
        "target_metric": 0.5,
        "higher_is_better": True,
        "eta_knob": 1.0,
        "seed": 1,
        "policy": "pruning_gts",
    }
    return ResolvedJob(**(usual | fields))


@dataclass
class SimulatedJob:
    """Drives a policy as the server does."""

    spec: ResolvedJob
    search: Search = field(init=False)
    trials: int = 0

    def __post_init__(self) -> None:
        self.policy = POLICIES[self.spec.policy]
        self.search = self.policy.register(self.spec, ())

    def choose(self) -> Choice | Exhausted:
        """What the next trial would be."""
        number = self.trials + 1
        rng = np.random.default_rng([self.spec.seed or 0, number])
        return self.policy.next(self.spec, self.search, number, rng)

    def next(self) -> Trial:
        """Dispatches it."""
        choice = self.choose()
        assert isinstance(choice, Choice)
        return self._dispatched(choice.batch_size, choice.origin, choice.policy_role)

    def dispatch(self, batch_size: int, kind: TrialOrigin | PruningGtsRole = TrialOrigin.SEARCH) -> Trial:
        """Dispatches a trial of this batch size, of an origin or with a role that the search chose."""
        if isinstance(kind, TrialOrigin):
            return self._dispatched(batch_size, kind, None)
        return self._dispatched(batch_size, TrialOrigin.SEARCH, PruningGtsTrial(kind, self.search.pruning_round))

    def _dispatched(self, batch_size: int, origin: TrialOrigin, role: PruningGtsTrial | None) -> Trial:
        self.trials += 1
        trial = Trial(self.spec.job_id, self.trials, batch_size, origin, role, NOW, str(self.trials))
        self.search = observe(self.policy, self.spec, self.search, TrialDispatched(trial))
        return trial

    def decide(self, trial: Trial, cost: float, reason: EndReason | None = None, *, converged: bool = True) -> Trial:
        """Ends it with a decision."""
        decided = trial._replace(status=TrialStatus.DECIDED, end_reason=reason, cost=cost, converged=converged)
        self.search = observe(self.policy, self.spec, self.search, TrialDecided(decided))
        return decided

    def run(
        self, trial: Trial, epochs: int | None, epoch_cost: float = 10.0, steps: Iterable[int] | None = None
    ) -> Trial:
        """Trains it at 50 W until the target, its bound or its last epoch ends it.

        Args:
            trial: The trial.
            epochs: Epochs to the target; None: it is never reached.
            epoch_cost: Cost of an epoch, in joules.
            steps: The epochs that are reported; None: all.
        """
        for epoch in steps or count(1):
            spent = epoch * epoch_cost
            metric = 1.0 if epochs is not None and epoch >= epochs else 0.0
            last = Measurement(epoch, spent / 50.0 or 1e-3, spent, metric, NOW)
            verdict = judge(self.spec, self.policy.bound(self.spec, self.search, trial.batch_size), last)
            if verdict.end_reason is not None:
                trial = trial._replace(last=last, target_reached=verdict.target_reached)
                return self.decide(trial, verdict.cost, verdict.end_reason, converged=verdict.converged)
        raise AssertionError("none of the steps ends the trial")

    def fail(self, trial: Trial, reason: EndReason, cost: float | None = None) -> Trial:
        """Ends it without one."""
        failed = trial._replace(status=STATUS_AFTER[reason], end_reason=reason, cost=cost)
        self.search = observe(self.policy, self.spec, self.search, event_of_end(failed))
        return failed

    def revive(self, trial: Trial) -> bool:
        """Hears of a lost one again; says whether it has the exploration slot back."""
        self.search = observe(self.policy, self.spec, self.search, TrialRevived(trial, trial))
        return self.search.exploring == trial.number
