"""Jobs whose behaviour changes, and a policy that detects it by a simple rule, in place of the default one.

Where behaviour changes by a factor of two or more, the default policy finds a change, too. Tests take the numbers of
trials from the answers, so that they need not know the rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from wattwise import v1
from wattwise_server.domain import Change, JobSpec, Quantity, Search
from wattwise_server.policy.base import Event, Succeeded
from wattwise_server.policy.gts import Gts

from tests.jobs import Trainer
from tests.live_server import LiveServer

_ROOT = Path(__file__).parents[1]
_PATCH = """
from tests.changes import Noticing
from wattwise_server.policy.registry import POLICIES

POLICIES["KNOWLEDGE_GRADIENT"] = Noticing()
"""

_IN_A_ROW = 2
_FACTOR = 1.5


class _Seen(NamedTuple):
    """A decided trial; `epochs` is None if it missed the target."""

    number: int
    batch_size: int
    epochs: int | None
    epoch_cost: float


class Noticing(Gts):
    """`POLICY_GTS`, which notices when two trials of a batch size in a row differ from those before by half.

    It is used as the default policy.
    """

    def faults(self, _spec: JobSpec) -> Iterator[tuple[str, str]]:
        """None."""
        return iter(())

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Notes every decided trial."""
        search = super().observe(spec, search, event)
        if not isinstance(event, Succeeded) or event.trial.last is None:
            return search
        trial, epochs = event.trial, event.trial.last.epoch
        reached = epochs if trial.target_reached else None
        seen = _Seen(trial.number, trial.batch_size, reached, (trial.cost or 0.0) / epochs)
        return replace(search, notes=json.dumps([*json.loads(search.notes or "[]"), seen]))

    def changes(self, search: Search) -> Sequence[Change]:
        """The newest change of each quantity."""
        seen = [_Seen(*row) for row in json.loads(search.notes or "[]")]
        found = [*_changes(seen, Quantity.EPOCHS), *_changes(seen, Quantity.EPOCH_COST)]
        newest = {change.quantity: change for change in found}
        return sorted(newest.values(), key=lambda change: change.detected_by)


def _changes(seen: Sequence[_Seen], quantity: Quantity) -> Iterator[Change]:
    """All changes of a quantity; after each one only the trials since then count."""
    since = 0
    for place in range(len(seen)):
        for change in _of_newest([each for each in seen[: place + 1] if each.number >= since], quantity):
            since = change.since_trial
            yield change


def _of_newest(seen: Sequence[_Seen], quantity: Quantity) -> Iterator[Change]:
    """The change that the newest trial shows together with the one before of its batch size."""
    newest = seen[-1]
    of_size = [each for each in seen if each.batch_size == newest.batch_size]
    if quantity is Quantity.EPOCHS:
        values = [math.inf if each.epochs is None else float(each.epochs) for each in of_size]
    else:
        values = [each.epoch_cost for each in of_size]
    before, after = values[:-_IN_A_ROW], values[-_IN_A_ROW:]
    if before and math.isfinite(usual := median(before)) and usual > 0:
        factors = [value / usual for value in after]
        if all(factor >= _FACTOR for factor in factors) or all(factor <= 1 / _FACTOR for factor in factors):
            factor = median(after) / usual
            yield Change(quantity, of_size[-_IN_A_ROW].number, newest.batch_size, factor, newest.number)


def detect_changes(server: LiveServer, folder: Path) -> None:
    """Lets a server that is not yet started use the policy as its default one.

    Args:
        server: The server.
        folder: An empty folder, for what its process imports first.
    """
    (folder / "sitecustomize.py").write_text(_PATCH)
    server.environment["PYTHONPATH"] = f"{folder}:{_ROOT}"


class Recurring(Trainer):
    """A job of the default policy, each of whose trials gets the batch size that a test wants."""

    def __init__(self, server: LiveServer, **fields: Any) -> None:
        usual = {"policy": v1.POLICY_KNOWLEDGE_GRADIENT, "max_epochs": 50, "batch_sizes": [8, 16, 32]}
        super().__init__(server.trainer, **(usual | fields))
        self.admin = server.admin

    def begin(self, batch_size: int) -> v1.Trial:
        """A running trial of this batch size."""
        status = v1.BATCH_SIZE_STATUS_PINNED
        self.admin.SetBatchSizeState(
            v1.SetBatchSizeStateRequest(job_id=self.job_id, batch_size=batch_size, status=status)
        )
        return self.next()

    def train(self, batch_size: int, epochs: int, epoch_cost: float = 10.0, *, times: int = 1) -> v1.Trial:
        """Runs trials that reach the target after some epochs; returns the last one."""
        for _ in range(times):
            trial = self.begin(batch_size)
            self.report(trial, epochs * epoch_cost, epoch=epochs)
        return trial

    def miss(self, batch_size: int) -> v1.Trial:
        """Runs a trial that misses the target."""
        trial = self.begin(batch_size)
        self.report(trial, 10.0 * self.spec.max_epochs, metric=0.1, epoch=self.spec.max_epochs)
        return trial

    def exclude(self, number: int, *, excluded: bool = True) -> v1.Job:
        """Excludes a trial, or includes it again; returns the job."""
        trial = v1.TrialId(job_id=self.job_id, trial_number=number)
        return self.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial, excluded=excluded)).job

    def until_detected(self, batch_size: int, epochs: int, epoch_cost: float = 10.0, *, changes: int = 1) -> v1.Job:
        """Runs trials until there are so many changes; returns the job."""
        for _ in range(20):
            self.train(batch_size, epochs, epoch_cost)
            if len(self.shown.changes) == changes:
                return self.shown
        raise AssertionError("no change was detected")

    @property
    def shown(self) -> v1.Job:
        """The job as `GetJob` shows it."""
        return self.admin.GetJob(v1.GetJobRequest(job_id=self.job_id)).job

    @property
    def listed(self) -> v1.Job:
        """The job as a list shows it."""
        request = v1.ListJobsRequest(job_id_prefix=self.job_id, order=v1.JOB_ORDER_ID, with_summaries=True)
        return self.admin.ListJobs(request).jobs[0]

    @property
    def figures(self) -> v1.JobStatistics:
        """The figures of the job, with a range for each trial."""
        request = v1.GetJobStatisticsRequest(job_id=self.job_id, num_buckets=1000)
        return self.admin.GetJobStatistics(request).statistics

    def events(self, kind: v1.EventKind.ValueType = v1.EVENT_KIND_CHANGE_DETECTED) -> list[v1.Event]:
        """The events of a kind, newest first."""
        return list(self.admin.ListEvents(v1.ListEventsRequest(job_id=self.job_id, kind=kind)).events)
