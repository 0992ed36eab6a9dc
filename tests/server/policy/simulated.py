"""A job without a server: the policy, its state and its trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
from wattwise_server.domain import EndReason, GpuConfig, JobSpec, Search, Trial, TrialStatus, TrialType
from wattwise_server.policy.base import Choice, Dispatched, Exhausted, Failed, Revived, Succeeded
from wattwise_server.policy.history import observe
from wattwise_server.policy.registry import POLICIES

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def spec(**fields: Any) -> JobSpec:
    """A job of the paper's policy, whose cost is its energy."""
    usual: dict[str, Any] = {
        "job_id": "simulated",
        "job_id_prefix": "simulated",
        "batch_sizes": (8, 16, 32, 64),
        "default_batch_size": 16,
        "gpu": GpuConfig(100.0, 1, "Test GPU"),
        "eta_knob": 1.0,
        "mab_seed": 1,
        "policy": "PRUNING_GTS",
    }
    return JobSpec(**(usual | fields))


@dataclass
class SimulatedJob:
    """Drives a policy as the optimizer does."""

    spec: JobSpec
    search: Search = field(init=False)
    trials: int = 0

    def __post_init__(self) -> None:
        self.policy = POLICIES[self.spec.policy]
        self.search = self.policy.register(self.spec, ())

    def choose(self) -> Choice | Exhausted:
        """What the next trial would be."""
        number = self.trials + 1
        rng = np.random.default_rng([self.spec.mab_seed or 0, number])
        return self.policy.next(self.spec, self.search, number, rng)

    def next(self) -> Trial:
        """Dispatches it."""
        choice = self.choose()
        assert isinstance(choice, Choice)
        return self.dispatch(choice.batch_size, choice.type)

    def dispatch(self, batch_size: int, kind: TrialType = TrialType.MAB) -> Trial:
        """Dispatches a trial of this batch size."""
        self.trials += 1
        trial = Trial(self.spec.job_id, self.trials, batch_size, kind, self.search.pruning_round, NOW)
        self.search = observe(self.policy, self.spec, self.search, Dispatched(trial))
        return trial

    def succeed(self, trial: Trial, cost: float, reason: EndReason | None = None, *, converged: bool = True) -> Trial:
        """Ends it with a decision."""
        ended = trial._replace(status=TrialStatus.SUCCEEDED, end_reason=reason, cost=cost, converged=converged)
        self.search = observe(self.policy, self.spec, self.search, Succeeded(ended))
        return ended

    def fail(self, trial: Trial, reason: EndReason, cost: float | None = None) -> Trial:
        """Ends it without one."""
        ended = trial._replace(status=TrialStatus.FAILED, end_reason=reason, cost=cost)
        self.search = observe(self.policy, self.spec, self.search, Failed(ended))
        return ended

    def revive(self, trial: Trial) -> bool:
        """Hears of a lost one again; says whether it has the exploration slot back."""
        self.search = observe(self.policy, self.spec, self.search, Revived(trial))
        return self.search.exploring == trial.number
