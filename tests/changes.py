"""Jobs whose behaviour changes, as the default policy detects it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wattwise import v1

from tests.jobs import Trainer
from tests.live_server import LiveServer

USUAL = 20
"""Trials after which the policy knows how much those of a job differ: a change shows within a few more."""


class Recurring(Trainer):
    """A job of the default policy, each of whose trials gets the batch size that a test wants.

    No trial is stopped early, so that tests know what each one costs.
    """

    def __init__(self, server: LiveServer, **fields: Any) -> None:
        usual = {
            "policy": "knowledge_gradient",
            "max_epochs": 50,
            "batch_sizes": [8, 16, 32],
            "beta_knob": "off",
        }
        super().__init__(server.trainer, **(usual | fields))
        self.admin = server.admin

    def begin(self, batch_size: int) -> v1.Trial:
        """A running trial of this batch size."""
        self.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=self.job_id, batch_size=batch_size))
        return self.next()

    def train(self, batch_size: int, epochs: int, epoch_cost: float = 10.0, *, times: int = 1) -> v1.Trial:
        """Runs trials that reach the target after some epochs; returns the last one."""
        for _ in range(times):
            trial = self.begin(batch_size)
            self.report(trial, epochs * epoch_cost, epoch=epochs, time=epochs)
        return trial

    def miss(self, batch_size: int) -> v1.Trial:
        """Runs a trial that misses the target."""
        trial = self.begin(batch_size)
        self.report(trial, 10.0 * self.spec.max_epochs, metric=0.1, epoch=self.spec.max_epochs)
        return trial

    def exclude(self, number: int, *, excluded: bool = True) -> v1.SetTrialExcludedResponse:
        """Excludes a trial, or includes it again; returns the answer."""
        trial = v1.TrialId(job_id=self.job_id, trial_number=number)
        return self.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial, excluded=excluded))

    def until_detected(
        self, batch_size: int, epochs: int, epoch_cost: float = 10.0, *, changes: int = 1
    ) -> v1.GetJobResponse:
        """Runs trials until there are so many changes; returns the job and its details."""
        for _ in range(20):
            self.train(batch_size, epochs, epoch_cost)
            if len(self.details.changes) == changes:
                return self.known
        raise AssertionError("no change was detected")

    @property
    def known(self) -> v1.GetJobResponse:
        """The job and its details."""
        return self.admin.GetJob(v1.GetJobRequest(job_id=self.job_id))

    @property
    def shown(self) -> v1.Job:
        """The job as `GetJob` shows it."""
        return self.known.job

    @property
    def details(self) -> v1.JobDetails:
        """What the job knows about its batch sizes."""
        return self.known.details

    @property
    def listed(self) -> v1.JobListing:
        """The job as a list shows it."""
        request = v1.ListJobsRequest(job_id_prefix=self.job_id, order=v1.JOB_ORDER_ID, with_summaries=True)
        return self.admin.ListJobs(request).jobs[0]

    @property
    def figures(self) -> v1.JobStatistics:
        """The figures of the job."""
        return self.admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=self.job_id)).statistics

    @property
    def savings_points(self) -> Sequence[v1.SavingsPoint]:
        """What was saved up to each trial."""
        return self.admin.ListTrialBuckets(v1.ListTrialBucketsRequest(job_id=self.job_id)).savings_points

    def events(self, kind: v1.EventKind.ValueType = v1.EVENT_KIND_CHANGE_DETECTED) -> list[v1.Event]:
        """The events of a kind, newest first."""
        return list(self.admin.ListEvents(v1.ListEventsRequest(job_id=self.job_id, kinds=[kind])).events)
