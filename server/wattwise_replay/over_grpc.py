"""The policies of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattwise import Client, JobSpec, v1
from wattwise.errors import NoBatchSizeLeftError

from wattwise_replay.engines import Dispatch, TrialEnd
from wattwise_replay.errors import ExhaustedError, ReplayError
from wattwise_replay.in_process import measurement, no_batch_size_left
from wattwise_replay.world import TrialCourse


class OverGrpc:
    """A job on a server, to which every epoch is reported.

    Args:
        client: A connection to the server.
        job: The job, with an id that is new to the server.
        priors: The jobs of `prior_job_ids`, on the same server.

    Raises:
        WattwiseError: the server refuses the job or is unavailable.
    """

    power = "cheapest"

    def __init__(self, client: Client, job: JobSpec, priors: Sequence[OverGrpc] = ()) -> None:
        self._client = client
        self._trials: dict[int, v1.TrialId] = {}
        if priors:
            job = replace(job, prior_job_ids=[prior.job_id for prior in priors])
        registered = client.register_job(job)
        self._job = registered.job.spec
        if not registered.created:
            raise ReplayError(
                f"job {self._job.job_id!r} already exists on the server; delete it, or use another server"
            )

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._job.job_id

    def dispatch(self) -> Dispatch:
        """Returns the server's choice."""
        try:
            trial = self._client.get_next_batch_size(self._job.job_id).trial
        except NoBatchSizeLeftError:
            raise ExhaustedError(no_batch_size_left(self._job.max_epochs)) from None
        self._trials[trial.id.trial_number] = trial.id
        return Dispatch(trial.id.trial_number, trial.batch_size)

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Reports epoch by epoch until the server stops the trial."""
        key = self._trials[trial.number]
        last = self._job.max_epochs if epochs.crash is None else min(epochs.crash.epochs, self._job.max_epochs)
        for epoch in range(1, last + 1):
            measured = measurement(epochs, epoch, self._job.target.value)
            decision = self._client.report_result(
                v1.TrainingResult(
                    trial=key,
                    measurement=v1.Measurement(
                        time_seconds=measured.time_seconds,
                        energy_joules=measured.energy_joules,
                        metric=measured.metric,
                        epoch=epoch,
                    ),
                )
            )
            if decision.stop_train:
                return TrialEnd(epoch, decision.target_reached)
        if epochs.crash is not None:
            self._client.end_trial(key, v1.EndReason.Value(f"END_REASON_{epochs.crash.reason.value}"))
            return TrialEnd(last, target_reached=False, failure=epochs.crash.reason)
        raise ReplayError(f"the server did not stop trial {trial.number} after its last epoch")
