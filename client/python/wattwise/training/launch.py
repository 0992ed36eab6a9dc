"""One launch of a job: what it asks the server for, under one number, so that asking again gives the same trial."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import JobNotFoundError, ResumeError, TrialNotFoundError, WattwiseError, log
from wattwise.monitor import Monitor, gpu_config
from wattwise.rpc.backoff import seconds
from wattwise.rpc.client import Client, new_request_id
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec, check_job
from wattwise.training.resume import Progress, SavedTrial
from wattwise.training.session import Session

_ASK_SECONDS, _SEARCH_SECONDS = 60.0, 10.0


class Given(NamedTuple):
    """What a launch was given.

    Attributes:
        job: its job.
        answer: its trial, and the reason for it.
        request_id: what it asked under.
        progress: where it starts.
        decision: how the trial was decided, if it goes on from a checkpoint and that has happened meanwhile.
    """

    job: v1.Job
    answer: v1.GetNextBatchSizeResponse
    request_id: str
    progress: Progress = Progress()
    decision: v1.Decision | None = None


class Launch:
    """Calls the server for one launch.

    Args:
        server: host and port of the server.
        job: the job; without `gpu` the GPUs are read from the monitor.
        timeout: seconds for which the server is looked for; None is ten where no server can be reached, and sixty for
            one that is there but slow.
        credentials: the token and the certificates; None is what the `WATTWISE_*` variables say.

    Attributes:
        request_id: what all its calls are named in the server's log and in errors.

    Raises:
        InvalidArgumentError: if the job is no `JobSpec`, or `timeout` no number of seconds.
    """

    def __init__(self, server: str, job: JobSpec, timeout: float | None, credentials: Credentials | None) -> None:
        self.request_id = new_request_id()
        self._server = server
        # Named once, as it is numbered once.
        self._spec = check_job(job).named()
        self._is_named = job.job_id is not None
        self._timeouts = (_ASK_SECONDS, _SEARCH_SECONDS) if timeout is None else (seconds("timeout", timeout),) * 2
        self._credentials = Credentials.from_env() if credentials is None else credentials
        self._saved: SavedTrial | None = None

    def resume(self, saved: SavedTrial) -> None:
        """Makes this a launch that goes on with a trial, rather than be given one.

        Raises:
            ResumeError: if the trial is of another job.
        """
        if self._is_named and self._spec.job_id != saved.job_id:
            raise ResumeError(
                f"the checkpoint is of job {saved.job_id!r}, not of {self._spec.job_id!r}: "
                "load a checkpoint of this job, or leave load_state_dict() out"
            )
        self._spec = replace(self._spec, job_id=saved.job_id)
        self._saved, self.request_id = saved, saved.request_id

    def ask(self, monitor: Monitor) -> Given:
        """Registers the job and has its next trial dispatched, or goes on with that of a checkpoint.

        Raises:
            WattwiseError: as `BatchSizeOptimizer.get_batch_size` says.
        """
        spec = self._spec if self._spec.gpu is not None else replace(self._spec, gpu=gpu_config(monitor))
        timeout, search = self._timeouts
        with self._client(timeout, search) as client:
            given = self._new(client, spec) if self._saved is None else self._known(client, spec, self._saved)
        trial = given.answer.trial.id
        log.info("trial %d of job %r: batch size %d", trial.trial_number, trial.job_id, trial.batch_size)
        log.info("%s", given.answer.reason)
        if not self._is_named:
            log.warning(
                "this launch is a job of its own, %r, and nothing is learnt from it: give JobSpec a job_id, "
                "the same at every launch",
                trial.job_id,
            )
        return given

    def _new(self, client: Client, spec: JobSpec) -> Given:
        job = client.register_job(spec).job
        answer = client.get_next_batch_size(job.spec.job_id, request_id=self.request_id)
        return Given(job, answer, self.request_id)

    def _known(self, client: Client, spec: JobSpec, saved: SavedTrial) -> Given:
        try:
            ended = client.heartbeat(saved.trial_id).stop_train
            # Asked ahead of registering, which would make a job anew that was deleted.
            answer = client.get_next_batch_size(saved.job_id, request_id=saved.request_id, resume=True)
        except JobNotFoundError:
            raise ResumeError(
                f"job {saved.job_id!r} of the checkpoint is no longer on the server: leave load_state_dict() out to "
                "register it anew"
            ) from None
        except TrialNotFoundError:
            raise saved.gone() from None
        trial = answer.trial
        saved.check(trial)
        try:
            job = client.register_job(spec).job
        except WattwiseError:
            # One that ran all the while is another process's.
            if ended:
                with contextlib.suppress(WattwiseError):
                    client.end_trial(trial.id, v1.END_REASON_PREEMPTED)
            raise
        decided = trial.status == v1.TRIAL_STATUS_SUCCEEDED
        if not decided and trial.last_epoch != saved.progress.epoch:
            log.info("the checkpoint is of epoch %d, and training goes on from there", saved.progress.epoch)
        decision = client.heartbeat(trial.id) if decided else None
        return Given(job, answer, self.request_id, saved.progress_in(trial), decision)

    def session(self, trial: v1.TrialId, lease_seconds: float, timeout: float) -> Session:
        """A line to the server for its trial.

        Args:
            trial: the trial.
            lease_seconds: its lease; 0 never runs out.
            timeout: seconds that a report waits for its answer.
        """
        return Session(
            self._server,
            trial,
            lease_seconds=lease_seconds,
            timeout=timeout,
            credentials=self._credentials,
            request_id=self.request_id,
        )

    def power_limit(self, trial: v1.TrialId, timeout: float) -> v1.GetPowerLimitResponse:
        """What the server knows of the power limit of its trial's batch size; looks for the server only once.

        Raises:
            WattwiseError: if the server refuses, or does not answer within `timeout` seconds.
        """
        with self._client(timeout, 0.0) as client:
            return client.get_power_limit(trial)

    def report_power_profile(self, trial: v1.TrialId, samples: Iterable[v1.PowerSample], timeout: float) -> float:
        """Reports what its trial measured; returns the cheapest limit in watts. Looks for the server only once.

        Raises:
            WattwiseError: if the server refuses, or does not answer within `timeout` seconds.
        """
        with self._client(timeout, 0.0) as client:
            return client.report_power_profile(trial, samples)

    def keep_power_limit(self, watts: float) -> None:
        """Notes which power limit its trial trains at, for those who launched it; here nobody is to be told."""

    def end(self, trial: v1.TrialId, reason: v1.EndReason.ValueType, timeout: float) -> None:
        """Says within `timeout` seconds that its trial is over, from a process that has no session."""
        try:
            with self._client(timeout, None) as client:
                client.end_trial(trial, reason)
        except WattwiseError as error:
            log.warning("the server was not told from here that trial %d ended: %s", trial.trial_number, error)

    def _client(self, timeout: float, search_timeout: float | None) -> Client:
        return Client(
            self._server,
            timeout=timeout,
            search_timeout=search_timeout,
            credentials=self._credentials,
            request_id=self.request_id,
        )
