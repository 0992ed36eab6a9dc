"""One launch of a trainer: where its trials come from."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from wattwise import v1
from wattwise.drafts import resolved
from wattwise.errors import (
    NoBatchSizeLeftError,
    OperationOrderError,
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
from wattwise.rpc.address import server_of
from wattwise.rpc.answers import check_dispatched, heartbeat_seconds
from wattwise.rpc.backoff import check_seconds
from wattwise.rpc.calls import new_id
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.rpc.labels import launch_labels
from wattwise.spec import JobSpec, check_valid, job_message
from wattwise.training.assigned import AssignedTrial
from wattwise.training.client_file import ClientFile
from wattwise.training.delivery import LAUNCH_SECONDS, deliver_files, fallback_request, find_launch
from wattwise.training.journal import Journal, TrialRecord
from wattwise.training.resume import SavedTrial, Sums, has_ended
from wattwise.training.session import Session
from wattwise.training.spool import Spool
from wattwise.training.start import STARTS, Reply, Source, Start, StartedTrial
from wattwise.training.trial import TrialInfo, trial_name

_ASK_SECONDS, _SEARCH_SECONDS = 60.0, 10.0
_BESIDE_SECONDS = 60.0
"""How long earlier trials are delivered beside the training."""

_NO_ANSWER = (
    NoBatchSizeLeftError,
    ResourceExhaustedError,
    ServerError,
    ServerUnavailableError,
    UnsupportedCallError,
)
"""Errors that do not come from the trainer's own configuration: a launch with a fallback trains nevertheless."""


@dataclass(frozen=True)
class Endpoint:
    """A server and how to call it.

    Attributes:
        server: host and port.
        credentials: the token and the certificates.
        timeout: seconds that the calls of `Launch.start` may take.
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
        """Returns the endpoint for a user's arguments; None stands for the defaults.

        Raises:
            InvalidArgumentError: if `timeout` is not a number of seconds.
        """
        ask, search = (_ASK_SECONDS, _SEARCH_SECONDS) if timeout is None else (check_seconds("timeout", timeout),) * 2
        given = Credentials.from_env() if credentials is None else credentials
        # The server of `wattwise run` has another port each time it starts.
        of_driver = os.environ.get("WATTWISE_SERVER_NAME") if server == os.environ.get("WATTWISE_SERVER") else None
        return cls(server, given, ask, search, Spool.from_env(), of_driver or server)

    def client(self, call_id: str, timeout: float, search_timeout: float | None, *, warns: bool = True) -> Client:
        """Returns a client for single calls."""
        return Client(
            self.server,
            timeout=timeout,
            search_timeout=search_timeout,
            credentials=self.credentials,
            call_id=call_id,
            warns=warns,
        )


class NewTrial(NamedTuple):
    """A trial that the server is to choose; the launch id makes the request repeatable."""

    launch_id: str


class _Answer(NamedTuple):
    """What the server has answered about a trial.

    Attributes:
        reply: the answer in short.
        error: why the server has not given the trial.
        trial: the trial that it has given.
        job: the job, if it is registered.
        decision: the decision of a trial that is over.
    """

    reply: Reply
    error: WattwiseError | None = None
    trial: v1.Trial | None = None
    job: v1.Job | None = None
    decision: v1.Decision | None = None

    @property
    def problem(self) -> str:
        """Why the server has not given the trial, without advice; empty if it has."""
        return "" if self.error is None else self.error.problem


class Launch:
    """Starts the trials of a process, and opens the connections that they need.

    Args:
        endpoint: the server.
        job: the job.
        assigned: the trial of the driver that has started this process; None if there is none.

    Attributes:
        assigned: as given.
        next: the trial that `start` starts; the optimizer sets it to None once this process has it, on whichever rank.
            `start` can be repeated after an error, and returns the same trial.
        announces: whether a new trial is announced: not if the driver or another process has done so.
    """

    def __init__(self, endpoint: Endpoint, job: JobSpec, assigned: AssignedTrial | None = None) -> None:
        self.assigned = assigned
        self.next: NewTrial | SavedTrial | AssignedTrial | None = assigned or NewTrial(new_id())
        self.announces = assigned is None
        self._endpoint = endpoint
        self._job = job
        # The newest trial of this process that the server has dispatched, so that it knows if the job was deleted.
        self._earlier: v1.TrialId | None = None
        self._held: Journal | None = None
        # That of the newest `start`, until its session takes it.
        self._client: Client | None = None

    @property
    def repeatable(self) -> bool:
        """Whether this process may train another trial after the first; a driver starts another process for it."""
        return self.assigned is None

    @property
    def server(self) -> str:
        """The server's address, as given."""
        return self._endpoint.server

    @property
    def job_key(self) -> tuple[str, str]:
        """The server's address, the same for all spellings of it, and the job's id."""
        # Whether the address is well-formed is checked by the first call.
        return server_of(str(self.server)), self._job.job_id

    def resume(self, saved: SavedTrial) -> None:
        """Makes `start` continue the trial of a checkpoint.

        Raises:
            ResumeError: if this launch cannot continue it.
        """
        if not self.repeatable:
            raise ResumeError(
                f"wattwise run gives every launch a new trial, but the checkpoint belongs to trial "
                f"{saved.trial_number}: start the training without the checkpoint"
            )
        if self._job.job_id != saved.job_id:
            raise ResumeError(
                f"the checkpoint belongs to job {saved.job_id!r}, not to {self._job.job_id!r}: "
                "load a checkpoint of this job, or omit load_state_dict()"
            )
        self.next = saved

    def repeat(self, before: TrialInfo) -> None:
        """Makes `start` ask for another trial of the job after the trial before."""
        if not before.trial.fallback:
            self._earlier = before.id
        self.next = NewTrial(new_id())

    def start(self, monitor: Monitor, fallback: int | None = None, unconnected_ranks: int = 0) -> StartedTrial:
        """Returns the trial to train. Called on rank 0 only.

        Args:
            monitor: measures the trial.
            fallback: the batch size to train with if the server has none to offer; None raises its error.
            unconnected_ranks: the number of processes if each of them asks for a trial; otherwise 0.

        Raises:
            OperationOrderError: if there is no trial to start.
            WattwiseError: as documented at `BatchSizeOptimizer.get_batch_size`.
        """
        self._let_go()
        saved = self.next if isinstance(self.next, SavedTrial) else None
        if saved is not None:
            # Nobody may deliver, and so end, the trial from now on.
            self._held = self._endpoint.spool.hold(self._endpoint.name, saved.job_id, saved.launch_id)
        try:
            started = self._start(monitor, fallback, unconnected_ranks)
        except BaseException:
            self._let_go()
            raise
        if started.how is Start.OVER:
            self._let_go()
        return started

    def session(self, started: StartedTrial, timeout: float) -> Session:
        """Returns the session that reports a trial; `timeout` is how long a single call may take."""
        trial = started.info.snapshot
        start = trial.start_time.ToNanoseconds() / 1e9
        record = TrialRecord(
            self._endpoint.name, started.sent, trial.id.launch_id, trial.id.trial_number, trial.batch_size, start
        )
        # That of `start` is connected. To resolve the server's name again, beside the trainer's thread, could crash the
        # process: the resolver reads the environment, which the trainer may change at that moment.
        client = self._client or self._endpoint.client(trial.id.launch_id, timeout, None)
        self._client = None
        session = Session(
            client,
            trial.id,
            self._endpoint.spool.journal(record),
            beat_seconds=heartbeat_seconds(trial),
            timeout=timeout,
            # A driver sees the exit status and ends an undecided trial.
            ends_completed=self.repeatable,
            link=started.how.link,
        )
        self._let_go()
        return session

    def client(self, info: TrialInfo, timeout: float, search_timeout: float | None = None) -> Client:
        """Returns a client for single calls on behalf of a trial."""
        return self._endpoint.client(info.id.launch_id, timeout, search_timeout)

    def record_power_limit(self, watts: float) -> None:
        """Records the power limit that the trial trains at for the history of the driver."""
        if self.assigned is not None:
            self.assigned.write(ClientFile(joined=True, limit_watts_per_gpu=watts))

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.leave()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _start(self, monitor: Monitor, fallback: int | None, unconnected_ranks: int) -> StartedTrial:
        if self.next is None:
            raise OperationOrderError("this process trains its trial already")
        target, spec, kind = self.next, with_gpu(self._job, monitor), str(monitor_kinds(monitor))
        sent = job_message(spec)
        answer = self._ask(target, spec, unconnected_ranks, warns=fallback is None and self.repeatable)
        how = STARTS[_source(target), answer.reply]
        if how is None or (how.needs_fallback and fallback is None):
            error = cast("WattwiseError", answer.error)
            if how is not None and isinstance(error, ServerUnavailableError):
                raise error.with_message(f'{error}; to train without a server, pass fallback="default"') from error
            raise error
        job, trial = answer.job or v1.Job(spec=resolved(sent)), answer.trial or v1.Trial()
        sums = target.sums if isinstance(target, SavedTrial) else Sums()
        reason = trial.reason
        if how is Start.FALLBACK:
            trial, reason = self._fallback_trial(target.launch_id, sent, job, cast("int", fallback), answer)
        elif isinstance(target, AssignedTrial):
            trial, reason = _joined(target, how, answer)
        elif how.counts_alone:
            trial, reason = self._continued(cast("SavedTrial", target), how, job, answer)
        return StartedTrial(how, TrialInfo(trial, job, reason, kind), sent, sums, answer.decision)

    def _ask(
        self, target: NewTrial | SavedTrial | AssignedTrial, spec: JobSpec, unconnected_ranks: int, *, warns: bool
    ) -> _Answer:
        """Asks the server for a trial.

        Raises:
            WattwiseError: if the server refuses the trial or its job.
        """
        if _source(target) is Source.FALLBACK_CHECKPOINT:
            return _Answer(Reply.NOT_ASKED)
        endpoint = self._endpoint
        client = endpoint.client(target.launch_id, endpoint.timeout, endpoint.search_timeout, warns=warns)
        self._client = client
        try:
            if isinstance(target, NewTrial):
                return self._ask_for_new(client, target, spec, unconnected_ranks)
            if isinstance(target, SavedTrial):
                return _ask_for_saved(client, target, spec)
            return _ask_for_assigned(client, target, spec)
        except TrialDeletedError as error:
            return _Answer(Reply.DELETED, error)
        except _NO_ANSWER as error:
            return _Answer(Reply.NO_ANSWER, error)

    def _ask_for_new(self, client: Client, target: NewTrial, spec: JobSpec, unconnected_ranks: int) -> _Answer:
        job = None
        try:
            if self._earlier is not None:
                # To register a deleted job would bring it back; one that was lost comes back.
                find_launch(client, self._earlier)
            job = client.register_job(spec).job
            self._deliver_earlier()
            trial = client.get_next_batch_size(
                spec.job_id,
                launch_id=target.launch_id,
                unconnected_ranks=unconnected_ranks,
                labels=launch_labels(),
            ).trial
        except _NO_ANSWER as error:
            return _Answer(Reply.NO_ANSWER, error, job=job)
        return _Answer(Reply.TRIAL, trial=trial, job=job)

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

    def _fallback_trial(
        self, launch_id: str, sent: v1.JobSpec, job: v1.Job, batch_size: int, answer: _Answer
    ) -> tuple[v1.Trial, str]:
        """Returns a trial on the fallback batch size, and why; the server may have registered its job.

        Raises:
            InvalidJobSpecError: if the server would refuse the job, and the trial could never be delivered.
        """
        if answer.job is None:
            check_valid(sent)
        log.warning(
            "%s. This launch trains with the fallback batch size %d; its result is delivered %s",
            *(answer.problem, batch_size, _delivered(answer.error)),
        )
        # The server may have dispatched a trial with another batch size, which the delivery ends.
        trial_id = v1.TrialId(job_id=job.spec.job_id, launch_id=fallback_request(launch_id))
        trial = v1.Trial(
            id=trial_id, batch_size=batch_size, origin=v1.TRIAL_ORIGIN_IMPORTED, status=v1.TRIAL_STATUS_RUNNING
        )
        trial.start_time.FromNanoseconds(time.time_ns())
        return trial, f"the fallback batch size: {answer.problem}"

    def _continued(self, saved: SavedTrial, how: Start, job: v1.Job, answer: _Answer) -> tuple[v1.Trial, str]:
        """Returns the trial of a checkpoint that continues without the server, and why it has its batch size.

        Raises:
            ResumeError: if the trial cannot continue.
        """
        reason = "the fallback batch size of the checkpoint"
        if how is Start.RESUMED_AWAY:
            log.warning(
                "%s. Training continues with %s of the checkpoint and its batch size %d; its result is delivered %s",
                *(answer.problem, saved.name, saved.batch_size, _delivered(answer.error)),
            )
            reason = f"the trial of the checkpoint: {answer.problem}"
        elif how is Start.LOST:
            log.warning(
                "%s. Training continues with its batch size %d; the whole trial is delivered at its end",
                *(_lost(f"{saved.name} of the checkpoint"), saved.batch_size),
            )
            reason = f"the batch size of the checkpoint: {_lost(f'{saved.name} of the checkpoint')}"
            saved = saved._replace(trial_number=0)
        if saved.batch_size not in job.spec.batch_sizes:
            raise ResumeError(
                f"the checkpoint's batch size {saved.batch_size} is not one of the job's batch_sizes: omit "
                "load_state_dict() to get a new trial"
            )
        record = self._endpoint.spool.read(self._endpoint.name, saved.job_id, saved.launch_id)
        if record is not None and record.ended_by_trainer(job.spec):
            raise saved.ended(record.end_reason)
        origin = v1.TRIAL_ORIGIN_UNSPECIFIED if saved.trial_number else v1.TRIAL_ORIGIN_IMPORTED
        trial = v1.Trial(id=saved.trial_id, batch_size=saved.batch_size, origin=origin, status=v1.TRIAL_STATUS_RUNNING)
        trial.start_time.FromNanoseconds(saved.start_time_nanoseconds)
        return trial, reason


def _source(target: NewTrial | SavedTrial | AssignedTrial) -> Source:
    if isinstance(target, NewTrial):
        return Source.SERVER
    if isinstance(target, SavedTrial):
        return Source.CHECKPOINT if target.trial_number else Source.FALLBACK_CHECKPOINT
    return Source.DRIVER


def _ask_for_saved(client: Client, saved: SavedTrial, spec: JobSpec) -> _Answer:
    """Asks for the trial of a checkpoint.

    Raises:
        ResumeError: if the trial cannot continue.
    """
    try:
        known = find_launch(client, saved.trial_id)
        # In a database that was restored, the launch may have another trial.
        if known is None or known.id.trial_number != saved.trial_number:
            remedy = (
                "omit load_state_dict() to get a new trial, or pass a fallback to continue this one, which is then "
                "delivered at its end"
            )
            return _Answer(Reply.NOT_FOUND, ResumeError(f"{_lost(f'{saved.name} of the checkpoint')}: {remedy}"))
        # Before register_job, which would create a deleted job again.
        trial = client.get_next_batch_size(saved.job_id, launch_id=saved.launch_id, resume=True).trial
    except TrialDeletedError:
        return _Answer(Reply.DELETED, saved.gone())
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
    if decision is not None and decision.stop_train:
        return _Answer(Reply.OVER, trial=trial, job=job, decision=decision)
    if trial.newest.epoch != saved.sums.epoch:
        log.info("training continues from epoch %d of the checkpoint", saved.sums.epoch)
    return _Answer(Reply.TRIAL, trial=trial, job=job)


def _ask_for_assigned(client: Client, assigned: AssignedTrial, spec: JobSpec) -> _Answer:
    """Asks for the trial of the driver, which goes on if it was lost.

    Raises:
        NoDriverError: if the server returns another trial than the variables name.
    """
    trial = find_launch(client, assigned.id)
    if trial is None:
        return _Answer(Reply.NOT_FOUND)
    assigned.check(trial)
    if not has_ended(trial):
        # To resume never dispatches another trial. Before register_job, which would create a deleted job again.
        trial = client.get_next_batch_size(assigned.id.job_id, launch_id=assigned.launch_id, resume=True).trial
    job = client.register_job(spec).job
    check_dispatched(trial, job.spec)
    return _Answer(Reply.TRIAL, trial=trial, job=job)


def _joined(assigned: AssignedTrial, how: Start, answer: _Answer) -> tuple[v1.Trial, str]:
    """Returns the trial of the driver, and why it has its batch size."""
    if how is Start.JOINED_AWAY:
        log.warning("%s. Training starts nevertheless, and is reported when the server is back", answer.problem)
    elif how is Start.JOINED_LOST:
        log.warning(
            "%s. Training starts nevertheless; the whole trial is delivered at its end",
            _lost(trial_name(assigned.id.job_id, assigned.id.trial_number)),
        )
    assigned.write(ClientFile(joined=True))
    trial = answer.trial if how is Start.JOINED else None
    return trial or assigned.trial(), assigned.reason


def _lost(name: str) -> str:
    return f"{name} is not on the server, whose database was lost or restored"


def _delivered(cause: WattwiseError | None) -> str:
    """Returns when a trial is delivered that the server could not start."""
    if isinstance(cause, NoBatchSizeLeftError):
        return "at its end"
    if isinstance(cause, ServerUnavailableError):
        return "when the server is back: check that it runs, and its address"
    return "when the server takes it, at the earliest at its end: check the server, and its address"


def with_gpu(spec: JobSpec, monitor: Monitor) -> JobSpec:
    """Returns the job with the monitor's GPUs, unless it names its own.

    Raises:
        MonitorError: if the GPUs cannot be read.
    """
    return spec if spec.gpu is not None else replace(spec, gpu=gpu_group(monitor))
