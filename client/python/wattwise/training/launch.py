"""One launch of a trainer: where its trial comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from wattwise import v1
from wattwise.errors import JobNotFoundError, ResumeError, TrialNotFoundError, WattwiseError, log
from wattwise.monitor import Monitor, gpu_config, monitor_kinds
from wattwise.rpc.backoff import check_seconds
from wattwise.rpc.client import Client, new_request_id
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec, check_job
from wattwise.training.resume import SavedTrial
from wattwise.training.session import Session
from wattwise.training.trial import StartedTrial, TrialInfo

_ASK_SECONDS, _SEARCH_SECONDS = 60.0, 10.0


class Launch(Protocol):
    """Starts a trial and opens the connections that it needs."""

    def resume(self, state: Mapping[str, object]) -> None:
        """Makes `start` continue the trial of a checkpoint.

        Raises:
            ResumeError: if the state is invalid or this launch cannot continue its trial.
        """

    def start(self, monitor: Monitor) -> StartedTrial:
        """Returns the trial to train. Called on rank 0 only.

        Raises:
            WattwiseError: as documented at `BatchSizeOptimizer.get_batch_size`.
        """

    def session(self, info: TrialInfo, timeout: float) -> Session:
        """The session that reports the trial; `timeout` is how long a report waits for its answer."""

    def client(self, info: TrialInfo, timeout: float, search_timeout: float | None = None) -> Client:
        """A client for single calls on behalf of the trial."""

    def record_power_limit(self, watts: float) -> None:
        """Records the power limit that the trial trains at where the launcher of this process looks for it."""


@dataclass(frozen=True)
class Endpoint:
    """A server and how to call it.

    Attributes:
        server: host and port.
        credentials: the token and the certificates.
        timeout: seconds that the calls of `start` may take.
        search_timeout: seconds of them for a server that cannot be reached at all.
    """

    server: str
    credentials: Credentials
    timeout: float
    search_timeout: float

    @classmethod
    def of(cls, server: str, timeout: float | None, credentials: Credentials | None) -> Endpoint:
        """The endpoint for a user's arguments; None stands for the defaults.

        Raises:
            InvalidArgumentError: if `timeout` is not a number of seconds.
        """
        ask, search = (_ASK_SECONDS, _SEARCH_SECONDS) if timeout is None else (check_seconds("timeout", timeout),) * 2
        return cls(server, Credentials.from_env() if credentials is None else credentials, ask, search)

    def client(self, request_id: str, timeout: float, search_timeout: float | None) -> Client:
        """A client for single calls."""
        return Client(
            self.server,
            timeout=timeout,
            search_timeout=search_timeout,
            credentials=self.credentials,
            request_id=request_id,
        )

    def start_client(self, request_id: str) -> Client:
        """A client for the calls of `Launch.start`."""
        return self.client(request_id, self.timeout, self.search_timeout)

    def session(self, info: TrialInfo, timeout: float, *, ends_completed: bool = True) -> Session:
        """A session of the trial; see `Session` for `ends_completed`."""
        return Session(
            self.server,
            info.id,
            lease_seconds=info.job.spec.trial_lease_seconds,
            timeout=timeout,
            credentials=self.credentials,
            request_id=info.request_id,
            ends_completed=ends_completed,
        )


class ServerLaunch:
    """Asks the server for a new trial, or resumes the trial of a checkpoint.

    The request id makes `start` idempotent: repeated after an error, it returns the same trial.

    The arguments are those of `BatchSizeOptimizer`.

    Raises:
        InvalidArgumentError: if `job` is not a JobSpec, or `timeout` is not a number of seconds.
    """

    def __init__(
        self, server: str, job: JobSpec, timeout: float | None = None, credentials: Credentials | None = None
    ) -> None:
        # The job id is generated here, not in `start`, so that a repeated `start` registers the same job.
        self._spec = check_job(job).named()
        self._has_job_id = job.job_id is not None
        self._endpoint = Endpoint.of(server, timeout, credentials)
        self._request_id = new_request_id()
        self._saved: SavedTrial | None = None

    def resume(self, state: Mapping[str, object]) -> None:
        """Makes `start` continue the trial of a checkpoint of the same job."""
        saved = SavedTrial.from_state(state)
        if self._has_job_id and self._spec.job_id != saved.job_id:
            raise ResumeError(
                f"the checkpoint belongs to job {saved.job_id!r}, not to {self._spec.job_id!r}: "
                "load a checkpoint of this job, or omit load_state_dict()"
            )
        self._spec = replace(self._spec, job_id=saved.job_id)
        self._saved, self._request_id = saved, saved.request_id

    def start(self, monitor: Monitor) -> StartedTrial:
        """Registers the job and asks for its next trial, or resumes the trial of the checkpoint."""
        kind, spec = str(monitor_kinds(monitor)), with_gpu(self._spec, monitor)
        with self._endpoint.start_client(self._request_id) as client:
            if self._saved is None:
                job = client.register_job(spec).job
                answer = client.get_next_batch_size(job.spec.job_id, request_id=self._request_id)
                started = StartedTrial(TrialInfo(answer.trial, job, answer.reason, self._request_id, kind))
            else:
                started = self._resume(client, spec, kind, self._saved)
        if not self._has_job_id:
            log.warning(
                "this launch registered a new job, %r, so nothing is learned across launches: pass job_id to JobSpec, "
                "the same at every launch",
                spec.job_id,
            )
        return started

    def session(self, info: TrialInfo, timeout: float) -> Session:
        """The session that reports the trial."""
        return self._endpoint.session(info, timeout)

    def client(self, info: TrialInfo, timeout: float, search_timeout: float | None = None) -> Client:
        """A client for single calls on behalf of the trial."""
        return self._endpoint.client(info.request_id, timeout, search_timeout)

    def record_power_limit(self, watts: float) -> None:
        """Does nothing: no launcher waits for it."""

    def _resume(self, client: Client, spec: JobSpec, kind: str, saved: SavedTrial) -> StartedTrial:
        try:
            ended = client.heartbeat(saved.trial_id).stop_train
            # Before register_job, which would create a deleted job again.
            answer = client.get_next_batch_size(saved.job_id, request_id=saved.request_id, resume=True)
        except JobNotFoundError:
            raise ResumeError(
                f"job {saved.job_id!r} of the checkpoint is no longer on the server: omit load_state_dict() to "
                "register it again"
            ) from None
        except TrialNotFoundError:
            raise saved.gone() from None
        trial = answer.trial
        saved.check(trial)
        try:
            job = client.register_job(spec).job
        except WattwiseError:
            # A trial that was still running belongs to another process.
            if ended:
                with contextlib.suppress(WattwiseError):
                    client.end_trial(trial.id, v1.END_REASON_PREEMPTED)
            raise
        decided = trial.status == v1.TRIAL_STATUS_SUCCEEDED
        if not decided and trial.last_epoch != saved.progress.epoch:
            log.info("training continues from epoch %d of the checkpoint", saved.progress.epoch)
        decision = client.heartbeat(trial.id) if decided else None
        info = TrialInfo(trial, job, answer.reason, saved.request_id, kind)
        return StartedTrial(info, saved.progress_in(trial), decision)


def with_gpu(spec: JobSpec, monitor: Monitor) -> JobSpec:
    """The job with the monitor's GPUs, unless it names its own.

    Raises:
        MonitorError: if the GPUs cannot be read.
    """
    return spec if spec.gpu is not None else replace(spec, gpu=gpu_config(monitor))
