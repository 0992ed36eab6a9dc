"""One launch of a trainer: where its trial comes from."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from wattwise import v1
from wattwise.drafts import resolved
from wattwise.errors import (
    NoBatchSizeLeftError,
    ResourceExhaustedError,
    ResumeError,
    ServerError,
    ServerUnavailableError,
    TrialDeletedError,
    UnsupportedCallError,
    WattwiseError,
    log,
)
from wattwise.monitor import Monitor, gpu_group, monitor_kinds
from wattwise.rpc.answers import check_dispatched, heartbeat_seconds
from wattwise.rpc.backoff import check_seconds
from wattwise.rpc.calls import new_id
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.rpc.labels import launch_labels
from wattwise.spec import JobSpec, check_job, check_valid
from wattwise.training.delivery import LAUNCH_SECONDS, deliver_files, fallback_request, find_launch
from wattwise.training.journal import Journal, TrialRecord
from wattwise.training.resume import SavedTrial
from wattwise.training.session import Session
from wattwise.training.spool import Spool
from wattwise.training.trial import StartedTrial, TrialInfo

_ASK_SECONDS, _SEARCH_SECONDS = 60.0, 10.0
_BESIDE_SECONDS = 60.0
"""How long earlier trials are delivered beside the training."""

NO_TRIAL = (
    NoBatchSizeLeftError,
    ResourceExhaustedError,
    ServerError,
    ServerUnavailableError,
    UnsupportedCallError,
)
"""Errors that do not come from the trainer's own configuration: a launch with a fallback trains nevertheless."""


DRIVER_VARIABLES = ("JOB_SPEC", "LAUNCH_ID", "TRIAL_NUMBER")
"""Variables that only `wattwise run` sets, without `WATTWISE_`."""


def has_driver() -> bool:
    """Whether `wattwise run` has started this process."""
    return any(os.environ.get(f"WATTWISE_{name}") for name in DRIVER_VARIABLES)


class Launch(Protocol):
    """Starts a trial and opens the connections that it needs.

    Attributes:
        repeatable: whether this process may train another trial after the first.
        unconnected_ranks: the number of processes if each of them asks for a trial; otherwise 0.
    """

    repeatable: bool
    unconnected_ranks: int

    @property
    def job_key(self) -> tuple[str, str]:
        """The server's address and the job's id."""

    @property
    def launch_id(self) -> str:
        """The name of the launch on the server: `start` returns its trial."""

    def resume(self, state: Mapping[str, object]) -> None:
        """Makes `start` continue the trial of a checkpoint.

        Raises:
            ResumeError: if the state is invalid or this launch cannot continue its trial.
        """

    def repeat(self, before: TrialInfo) -> None:
        """Makes `start` ask for another trial of the job, if `repeatable`.

        Args:
            before: the trial before.
        """

    def start(self, monitor: Monitor, fallback: int | None = None) -> StartedTrial:
        """Returns the trial to train. Called on rank 0 only.

        Args:
            monitor: measures the trial.
            fallback: the batch size to train with if the server has none to offer; None raises its error.

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
        spool: keeps what the server does not know.
        name: the server's name in the spool, which does not change with its address.
    """

    server: str
    credentials: Credentials
    timeout: float
    search_timeout: float
    spool: Spool
    name: str

    @classmethod
    def of(cls, server: str, timeout: float | None, credentials: Credentials | None) -> Endpoint:
        """The endpoint for a user's arguments; None stands for the defaults.

        Raises:
            InvalidArgumentError: if `timeout` is not a number of seconds.
        """
        ask, search = (_ASK_SECONDS, _SEARCH_SECONDS) if timeout is None else (check_seconds("timeout", timeout),) * 2
        given = Credentials.from_env() if credentials is None else credentials
        # The server of `wattwise run` has another port each time it starts.
        of_driver = os.environ.get("WATTWISE_SERVER_NAME") if server == os.environ.get("WATTWISE_SERVER") else None
        return cls(server, given, ask, search, Spool.from_env(), of_driver or server)

    def client(self, call_id: str, timeout: float, search_timeout: float | None, *, warns: bool = True) -> Client:
        """A client for single calls."""
        return Client(
            self.server,
            timeout=timeout,
            search_timeout=search_timeout,
            credentials=self.credentials,
            call_id=call_id,
            warns=warns,
        )

    def start_client(self, call_id: str, *, warns: bool = True) -> Client:
        """A client for the calls of `Launch.start`."""
        return self.client(call_id, self.timeout, self.search_timeout, warns=warns)

    def session(
        self,
        info: TrialInfo,
        job: v1.JobSpec,
        timeout: float,
        *,
        ends_completed: bool = True,
        away: bool = False,
        resumes: bool = False,
    ) -> Session:
        """A session of the trial of the job as it was registered; see `Session` for the other arguments."""
        trial = info.snapshot
        start = trial.start_time.ToNanoseconds() / 1e9
        record = TrialRecord(self.name, job, info.id.launch_id, info.id.trial_number, info.batch_size, start)
        return Session(
            self.server,
            info.id,
            self.spool.journal(record),
            beat_seconds=heartbeat_seconds(trial),
            timeout=timeout,
            credentials=self.credentials,
            ends_completed=ends_completed,
            away=away,
            resumes=resumes,
        )


class ServerLaunch:
    """Asks the server for a new trial, or resumes the trial of a checkpoint.

    The launch id makes `start` idempotent: repeated after an error, it returns the same trial.

    The arguments are those of `BatchSizeOptimizer`.

    Raises:
        InvalidArgumentError: if `job` is not a JobSpec, or `timeout` is not a number of seconds.
    """

    repeatable = True

    def __init__(
        self, server: str, job: JobSpec, timeout: float | None = None, credentials: Credentials | None = None
    ) -> None:
        self._spec = check_job(job)
        self.unconnected_ranks = 0
        self._endpoint = Endpoint.of(server, timeout, credentials)
        self._launch_id = new_id()
        self._saved: SavedTrial | None = None
        # The newest trial of this process that the server has dispatched, so that it knows if the job was deleted.
        self._earlier: TrialInfo | None = None
        # As the server was sent it.
        self._job = v1.JobSpec()
        self._away = self._unasked = False
        self._held: Journal | None = None

    @property
    def job_key(self) -> tuple[str, str]:
        """The server's address and the job's id."""
        return self._endpoint.server, self._spec.job_id

    @property
    def launch_id(self) -> str:
        """The name of the launch on the server."""
        return self._launch_id

    def resume(self, state: Mapping[str, object]) -> None:
        """Makes `start` continue the trial of a checkpoint of the same job."""
        saved = SavedTrial.from_state(state)
        if self._spec.job_id != saved.job_id:
            raise ResumeError(
                f"the checkpoint belongs to job {saved.job_id!r}, not to {self._spec.job_id!r}: "
                "load a checkpoint of this job, or omit load_state_dict()"
            )
        self._saved, self._launch_id = saved, saved.launch_id

    def repeat(self, before: TrialInfo) -> None:
        """Makes `start` ask for another trial of the job."""
        if not before.fallback:
            self._earlier = before
        self._saved, self._launch_id = None, new_id()
        self._away = self._unasked = False

    def start(self, monitor: Monitor, fallback: int | None = None) -> StartedTrial:
        """Registers the job and asks for its next trial, or resumes the trial of the checkpoint."""
        if self._saved is not None:
            # Nobody may deliver, and so end, the trial from now on.
            name, saved = self._endpoint.name, self._saved
            self._held = self._endpoint.spool.hold(name, saved.job_id, saved.launch_id)
        try:
            started = self._start(monitor, fallback)
        except BaseException:
            self._let_go()
            raise
        if started.decision is not None:
            self._let_go()
        return started

    def _start(self, monitor: Monitor, fallback: int | None) -> StartedTrial:
        kind, spec = str(monitor_kinds(monitor)), with_gpu(self._spec, monitor)
        self._job = spec.to_proto()
        if self._saved is not None and not self._saved.trial_number:
            # The server has not dispatched it, so there is nothing to ask for.
            return self._resume_locally(kind, self._saved, "the fallback batch size of the checkpoint")
        with self._endpoint.start_client(self._launch_id, warns=fallback is None) as client:
            if self._saved is None:
                started = self._ask(client, spec, kind, fallback)
            else:
                try:
                    resumed = self._resume(client, spec, kind, self._saved)
                except NO_TRIAL as error:
                    if fallback is None:
                        raise
                    return self._resume_away(kind, self._saved, error)
                if resumed is None:
                    return self._resume_lost(kind, self._saved, fallback)
                started = resumed
        return started

    def session(self, info: TrialInfo, timeout: float) -> Session:
        """The session that reports the trial."""
        session = self._endpoint.session(info, self._job, timeout, away=self._away, resumes=self._unasked)
        self._let_go()
        return session

    def client(self, info: TrialInfo, timeout: float, search_timeout: float | None = None) -> Client:
        """A client for single calls on behalf of the trial."""
        return self._endpoint.client(info.id.launch_id, timeout, search_timeout)

    def record_power_limit(self, watts: float) -> None:
        """Does nothing: no launcher waits for it."""

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.leave()

    def _ask(self, client: Client, spec: JobSpec, kind: str, fallback: int | None) -> StartedTrial:
        job_id, job = str(spec.job_id), None
        try:
            if self._earlier is not None:
                # To register a deleted job would bring it back; one that was lost comes back.
                find_launch(client, self._earlier.id)
            job = client.register_job(spec).job
            self._deliver_earlier()
            answer = self._next(client, job_id)
        except NO_TRIAL as error:
            if fallback is None:
                raise
            return self._fall_back(job, kind, fallback, error)
        return StartedTrial(TrialInfo(answer.trial, job, answer.trial.reason, kind))

    def _deliver_earlier(self) -> None:
        """Delivers what earlier launches of the job could not; what takes too long goes on beside the training."""
        endpoint, job_id = self._endpoint, self._job.job_id
        paths = endpoint.spool.paths(endpoint.name, job_id)

        def deliver() -> None:
            with endpoint.client(new_id(), LAUNCH_SECONDS, 0.0, warns=False) as client:
                failure = deliver_files(client, paths, _BESIDE_SECONDS, server=endpoint.name).failure
            if failure is not None:
                log.info("spooled trials of job %r are not delivered yet: %s", job_id, failure)

        if paths:
            thread = threading.Thread(target=deliver, name="wattwise-delivery", daemon=True)
            thread.start()
            thread.join(LAUNCH_SECONDS)

    def _fall_back(self, job: v1.Job | None, kind: str, batch_size: int, cause: WattwiseError) -> StartedTrial:
        """Trains without the server, which may have registered the job."""
        if job is None:
            # Otherwise a job that the server refuses would be trained, and never delivered.
            check_valid(self._job)
            job = v1.Job(spec=resolved(self._job))
        log.warning(
            "%s. This launch trains with the fallback batch size %d; its result is delivered %s",
            *(cause, batch_size, _delivered(cause)),
        )
        # The server may have dispatched a trial with another batch size, which the delivery ends.
        self._launch_id = fallback_request(self._launch_id)
        trial_id = v1.TrialId(job_id=job.spec.job_id, launch_id=self._launch_id)
        trial = v1.Trial(
            id=trial_id, batch_size=batch_size, origin=v1.TRIAL_ORIGIN_IMPORTED, status=v1.TRIAL_STATUS_RUNNING
        )
        trial.start_time.FromNanoseconds(time.time_ns())
        return StartedTrial(TrialInfo(trial, job, f"the fallback batch size: {cause}", kind))

    def _resume_away(self, kind: str, saved: SavedTrial, cause: WattwiseError) -> StartedTrial:
        """Continues a trial of a server that is away; the server is asked to resume it when it is back."""
        log.warning(
            "%s. Training continues with trial %d of the checkpoint and its batch size %d; its result is delivered %s",
            *(cause, saved.trial_number, saved.batch_size, _delivered(cause)),
        )
        self._away = True
        return self._resume_locally(kind, saved, f"the trial of the checkpoint: {cause}")

    def _resume_lost(self, kind: str, saved: SavedTrial, fallback: int | None) -> StartedTrial:
        """Continues a trial that the server does not know: to the server it is like one on a fallback batch size.

        Raises:
            ResumeError: if there is no fallback.
        """
        cause = f"{saved.name} of the checkpoint is not on the server, whose database was lost or restored"
        if fallback is None:
            raise ResumeError(
                f"{cause}: omit load_state_dict() to get a new trial, or pass a fallback to continue this one, which "
                "is then delivered at its end"
            )
        log.warning(
            "%s. Training continues with its batch size %d; the whole trial is delivered at its end",
            *(cause, saved.batch_size),
        )
        return self._resume_locally(kind, saved._replace(trial_number=0), f"the batch size of the checkpoint: {cause}")

    def _resume_locally(self, kind: str, saved: SavedTrial, reason: str) -> StartedTrial:
        """Continues a trial without asking the server."""
        job = v1.Job(spec=resolved(self._job))
        if saved.batch_size not in job.spec.batch_sizes:
            raise ResumeError(
                f"the checkpoint's batch size {saved.batch_size} is not one of the job's batch_sizes: omit "
                "load_state_dict() to get a new trial"
            )
        record = self._endpoint.spool.read(self._endpoint.name, saved.job_id, saved.launch_id)
        if record is not None and record.ended_by_trainer(job.spec):
            raise saved.ended(record.end_reason)
        self._unasked = True
        origin = v1.TRIAL_ORIGIN_UNSPECIFIED if saved.trial_number else v1.TRIAL_ORIGIN_IMPORTED
        trial = v1.Trial(id=saved.trial_id, batch_size=saved.batch_size, origin=origin, status=v1.TRIAL_STATUS_RUNNING)
        trial.start_time.FromNanoseconds(saved.start_time_nanoseconds)
        return StartedTrial(TrialInfo(trial, job, reason, kind), saved.progress)

    def _next(self, client: Client, job_id: str) -> v1.GetNextBatchSizeResponse:
        ranks = self.unconnected_ranks
        return client.get_next_batch_size(
            job_id, launch_id=self._launch_id, unconnected_ranks=ranks, labels=launch_labels()
        )

    def _resume(self, client: Client, spec: JobSpec, kind: str, saved: SavedTrial) -> StartedTrial | None:
        """Continues the trial of a checkpoint; None if the server does not know it.

        Raises:
            ResumeError: if it was deleted, or cannot continue.
        """
        try:
            known = find_launch(client, saved.trial_id)
            if known is None or known.id.trial_number != saved.trial_number:
                # In a database that was restored, the launch may have another trial.
                return None
            # Before register_job, which would create a deleted job again.
            answer = client.get_next_batch_size(saved.job_id, launch_id=saved.launch_id, resume=True)
        except TrialDeletedError:
            raise saved.gone() from None
        trial = answer.trial
        saved.check(trial)
        try:
            job = client.register_job(spec).job
            check_dispatched(trial, job.spec)
        except WattwiseError:
            # A trial that was still running belongs to another process.
            if known.status != v1.TRIAL_STATUS_RUNNING:
                with contextlib.suppress(WattwiseError):
                    client.end_trial(trial.id, v1.END_REASON_PREEMPTED)
            raise
        # Of a status that is newer than this client, the decision says whether to go on.
        decision = None if trial.status == v1.TRIAL_STATUS_RUNNING else client.heartbeat(trial.id)
        decided = decision is not None and decision.stop_train
        if not decided and trial.newest.epoch != saved.progress.epoch:
            log.info("training continues from epoch %d of the checkpoint", saved.progress.epoch)
        info = TrialInfo(trial, job, answer.trial.reason, kind)
        return StartedTrial(info, saved.progress_in(trial), decision if decided else None)


def _delivered(cause: WattwiseError) -> str:
    """When a trial is delivered that the server could not start."""
    if isinstance(cause, NoBatchSizeLeftError):
        return "at its end"
    if isinstance(cause, ServerUnavailableError):
        return "when the server is back: check that it runs, and its address"
    return "when the server takes it, at the earliest at its end: check the server, and its address"


def with_gpu(spec: JobSpec, monitor: Monitor) -> JobSpec:
    """The job with the monitor's GPUs, unless it names its own.

    Raises:
        MonitorError: if the GPUs cannot be read.
    """
    return spec if spec.gpu is not None else replace(spec, gpu=gpu_group(monitor))
