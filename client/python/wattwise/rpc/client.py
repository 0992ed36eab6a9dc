"""The server's calls as methods: every one with a deadline, retries and exceptions that say what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import Message

from wattwise import v1
from wattwise.errors import from_rpc_error
from wattwise.rpc.address import checked
from wattwise.rpc.backoff import pauses, retrying, seconds
from wattwise.rpc.connection import Connection, DecisionStream
from wattwise.rpc.credentials import Credentials

if TYPE_CHECKING:
    from typing_extensions import Self

    from wattwise.spec import JobSpec

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


def new_request_id() -> str:
    """128 random bits by which the server knows a call that is repeated."""
    # Not from the module uuid, which takes as long to import as a call takes.
    return os.urandom(16).hex()


class Client:
    """A connection to a Wattwise server.

    The channel opens on first use and goes on after a fork, since the child process leaves it alone. A child that calls
    the server gets a channel of its own; but gRPC does not promise to work in a forked process whose parent has used
    it, and now and then crashes there: start such processes with the "spawn" method. GRPC_ENABLE_FORK_SUPPORT is best
    left unset: 1 makes those calls safe, but every fork, thus every data-loader worker, waits for threads of an open
    stream; with 0 calls in a forked process hang.

    All methods may be called from any thread. Those that call the server raise `ServerUnavailableError` if it cannot
    be reached in time, and otherwise the `WattwiseError` that stands for its refusal.

    Args:
        address: host and port of the server, such as "localhost:50051".
        timeout: seconds that a call may take with all its retries, unless the call says otherwise.
        retry: whether calls are repeated, with growing pauses, while the server is unavailable.
        search_timeout: seconds of `timeout` for a server that cannot be reached at all, as with a wrong address; one
            warning is logged at the first attempt. None is all of them, without a warning.
        credentials: the token and the certificates; None is what the `WATTWISE_*` variables say.
        request_id: what every call of this client is named in the server's log and in errors: up to 100 printable ASCII
            characters. None names each call by itself, its retries like the first attempt.

    Raises:
        InvalidAddressError: if the address is none.
        InvalidArgumentError: if `timeout` is no number of seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 30.0,
        retry: bool = True,
        search_timeout: float | None = None,
        credentials: Credentials | None = None,
        request_id: str | None = None,
    ) -> None:
        self.address = checked(address)
        self._search_timeout = search_timeout
        self._timeout = seconds("timeout", timeout)
        self._retry = retry
        self._request_id = request_id
        self._connection = Connection(address, Credentials.from_env() if credentials is None else credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; running calls fail. Does nothing when closed already."""
        self._connection.close()

    def register_job(self, spec: JobSpec, *, timeout: float | None = None) -> v1.RegisterJobResponse:
        """Creates the job, or confirms that the one under its id has the identical configuration.

        Args:
            spec: the job. Without a `job_id` it gets a fresh one, here and not on the server, so that a retry asks
                for the same job again.
            timeout: seconds; None is the client's.

        Raises:
            InvalidJobSpecError: if the configuration has faults.
            JobDiffersError: if the id is taken by another configuration.
        """
        request = v1.RegisterJobRequest(job=spec.named().to_proto())
        spec.warn_of_doubt()
        return self._call(self._optimizer.RegisterJob, request, timeout)

    def get_next_batch_size(
        self, job_id: str, *, request_id: str | None = None, resume: bool = False, timeout: float | None = None
    ) -> v1.GetNextBatchSizeResponse:
        """Dispatches the next trial of a job.

        Args:
            job_id: the job.
            request_id: calls with the same one get the same trial. None makes one for this call and its retries.
            resume: take the trial of this request back if it was preempted or lost meanwhile.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            NoBatchSizeConvergedError: if no batch size of the job can reach its target.
        """
        request = v1.GetNextBatchSizeRequest(job_id=job_id, request_id=request_id or new_request_id(), resume=resume)
        return self._call(self._optimizer.GetNextBatchSize, request, timeout)

    def report_result(self, result: v1.TrainingResult, *, timeout: float | None = None) -> v1.Decision:
        """Reports one epoch's cumulative measurement.

        Args:
            result: the measurement.
            timeout: seconds; None is the client's.

        Raises:
            InvalidResultError: if the measurement contradicts itself or an earlier one.
            JobNotFoundError: if the job is not registered, or no more.
            TrialNotFoundError: if the job has no such trial.
        """
        request = v1.ReportResultRequest(result=result)
        return self._call(self._optimizer.ReportResult, request, timeout).decision

    def stream_results(self, requests: Iterator[v1.StreamResultsRequest]) -> DecisionStream:
        """Opens one trial's stream; there is no deadline and no retry.

        Args:
            requests: what to send, asked for by a thread of gRPC's; its end ends the trainer's side of the stream.
        """
        return DecisionStream(self._connection.link(), requests, self.address, self._name())

    def heartbeat(self, trial: v1.TrialId, *, timeout: float | None = None) -> v1.Decision:
        """Renews a trial's lease and asks whether it may go on.

        Args:
            trial: the trial.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered, or no more.
            TrialNotFoundError: if the job has no such trial.
        """
        return self._call(self._optimizer.Heartbeat, v1.HeartbeatRequest(trial=trial), timeout).decision

    def end_trial(self, trial: v1.TrialId, reason: v1.EndReason.ValueType, *, timeout: float | None = None) -> v1.Trial:
        """Says that a trial's trainer is gone. One that is decided already is left as it is.

        Args:
            trial: the trial.
            reason: `v1.END_REASON_COMPLETED`, `_ERROR`, `_OUT_OF_MEMORY` or `_PREEMPTED`.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered, or no more.
            TrialNotFoundError: if the job has no such trial.
        """
        request = v1.EndTrialRequest(trial=trial, reason=reason)
        return self._call(self._optimizer.EndTrial, request, timeout).trial

    def get_power_limit(self, trial: v1.TrialId, *, timeout: float | None = None) -> v1.GetPowerLimitResponse:
        """The cheapest power limit of a trial's batch size; if none is known and nobody profiles, the trial does now.

        Args:
            trial: the trial that asks; with a trial number of 0 the call only looks.
            timeout: seconds; None is the client's.

        Raises:
            InvalidRequestError: if the job has no such batch size.
            JobNotFoundError, TrialNotFoundError: if there is no such trial, or no more.
        """
        size, number = trial.batch_size, trial.trial_number
        request = v1.GetPowerLimitRequest(job_id=trial.job_id, batch_size=size, trial_number=number)
        return self._call(self._optimizer.GetPowerLimit, request, timeout)

    def report_power_profile(
        self, trial: v1.TrialId, samples: Iterable[v1.PowerSample], *, timeout: float | None = None
    ) -> float:
        """Reports what a trial measured at several power limits.

        Args:
            trial: the trial.
            samples: one per power limit.
            timeout: seconds; None is the client's.

        Returns:
            The cheapest power limit of one GPU that is known of the batch size now, in watts.

        Raises:
            InvalidRequestError: if the profile makes no sense.
            JobNotFoundError, TrialNotFoundError: if there is no such trial, or no more.
        """
        request = v1.ReportPowerProfileRequest(trial=trial, samples=samples)
        return self._call(self._optimizer.ReportPowerProfile, request, timeout).power_limit_watts

    def get_job(self, job_id: str, *, timeout: float | None = None) -> v1.Job:
        """One job as it stands.

        Args:
            job_id: the job.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        return self._call(self._admin.GetJob, v1.GetJobRequest(job_id=job_id), timeout).job

    def list_jobs(
        self, *, job_id_prefix: str = "", page_size: int = 0, timeout: float | None = None
    ) -> Iterator[v1.Job]:
        """Yields all jobs, oldest first, asking for page after page.

        Args:
            job_id_prefix: only jobs whose id starts with this; empty is all.
            page_size: how many jobs to ask for at a time; 0 is the server's choice.
            timeout: seconds for each page; None is the client's.
        """
        request = v1.ListJobsRequest(job_id_prefix=job_id_prefix, page_size=page_size)
        while True:
            page = self._call(self._admin.ListJobs, request, timeout)
            yield from page.jobs
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    def list_trials(
        self,
        job_id: str,
        *,
        status: v1.TrialStatus.ValueType = v1.TRIAL_STATUS_UNSPECIFIED,
        batch_size: int = 0,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> Iterator[v1.Trial]:
        """Yields a job's trials by number, asking for page after page.

        Args:
            job_id: the job.
            status: only trials of this status; unspecified is all.
            batch_size: only trials of this batch size; 0 is all.
            page_size: how many trials to ask for at a time; 0 is the server's choice.
            timeout: seconds for each page; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        request = v1.ListTrialsRequest(job_id=job_id, status=status, batch_size=batch_size, page_size=page_size)
        while True:
            page = self._call(self._admin.ListTrials, request, timeout)
            yield from page.trials
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    def get_trial(self, trial: v1.TrialId, *, timeout: float | None = None) -> v1.GetTrialResponse:
        """One trial with its measurements.

        Args:
            trial: the trial; a batch size of 0 is not checked.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
        """
        return self._call(self._admin.GetTrial, v1.GetTrialRequest(trial=trial), timeout)

    def delete_job(self, job_id: str, *, timeout: float | None = None) -> v1.DeleteJobResponse:
        """Deletes a job with its trials; those that run are told to stop.

        Args:
            job_id: the job.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered, or if a retry found it deleted by the first attempt.
        """
        return self._call(self._admin.DeleteJob, v1.DeleteJobRequest(job_id=job_id), timeout)

    def watch_job(self, job_id: str, *, timeout: float | None = None) -> Iterator[v1.Job]:
        """Yields a job's state now and its newest state after every change, for as long as it exists.

        Args:
            job_id: the job.
            timeout: seconds that the server may be away before it is given up; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered, or once it is deleted.
        """
        patience = self._timeout if timeout is None else timeout
        waits, deadline, name = pauses(0.1, 3.0), time.monotonic() + patience, self._name()
        while True:
            link = self._connection.link()
            call = self._admin.WatchJob(v1.WatchJobRequest(job_id=job_id), metadata=link.metadata(name))
            try:
                for response in call:
                    yield response.job
                    waits, deadline = pauses(0.1, 3.0), time.monotonic() + patience
            except grpc.RpcError as error:
                failure, pause = from_rpc_error(error, self.address), next(waits)
                if not (self._retry and failure.retryable) or time.monotonic() + pause > deadline:
                    raise failure from None
                time.sleep(pause)
            else:
                return
            finally:
                call.cancel()

    @property
    def _optimizer(self) -> v1.BatchSizeOptimizerStub:
        return self._connection.link().optimizer

    @property
    def _admin(self) -> v1.JobAdminStub:
        # Made anew for each call, so that a trainer, which makes none, need not load it.
        return v1.JobAdminStub(self._connection.link().channel)

    def _name(self) -> str:
        return self._request_id or new_request_id()

    def _call(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request, timeout: float | None
    ) -> Response:
        name = self._name()

        def attempt(left: float) -> Response:
            try:
                return method(request, timeout=left, metadata=self._connection.link().metadata(name))
            except grpc.RpcError as error:
                raise from_rpc_error(error, self.address) from None

        patience = self._timeout if timeout is None else timeout
        return retrying(attempt, patience, self._search_timeout) if self._retry else attempt(patience)
