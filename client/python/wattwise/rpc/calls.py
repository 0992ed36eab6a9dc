"""The server's calls as methods of both clients, with deadlines, retries and exceptions."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from wattwise import v1
from wattwise.errors import (
    InvalidArgumentError,
    InvalidJobSpecError,
    InvalidRequestError,
    InvalidResultError,
    JobDiffersError,
    JobNotFoundError,
    Violation,
    WattwiseError,
    log,
)
from wattwise.rpc import answers
from wattwise.rpc.address import check_address
from wattwise.rpc.backoff import Retries, check_seconds, pauses
from wattwise.rpc.connection import CALL_ID, Connection, ServerLink, is_old
from wattwise.rpc.credentials import BearerToken, Credentials, Metadata
from wattwise.rpc.modes import Mode, call, listing, stream
from wattwise.rpc.rows import AsyncRows, Row, frame_of
from wattwise.rules import TRAINER_END_REASONS, EndReason
from wattwise.spec import enum_value, enum_values, job_message, with_flat_names

if TYPE_CHECKING:
    from typing_extensions import Self

    from wattwise.spec import JobSpec

Response = TypeVar("Response", bound=Message)


def new_id() -> str:
    """Returns 128 random bits that identify a call and its repetitions to the server."""
    # Not from `uuid`, which takes as long to import as a call takes.
    return os.urandom(16).hex()


class NumberedTrial(Protocol):
    """A trial as trainers read it, such as `BatchSizeOptimizer.trial`."""

    @property
    def job_id(self) -> str:
        """Its job."""

    @property
    def launch_id(self) -> str:
        """Its launch."""

    @property
    def number(self) -> int:
        """Its number in the job."""


TrialOrId: TypeAlias = "v1.TrialId | v1.Trial | NumberedTrial"
"""What names a trial in a call: its id, one that a list of the client yields, or one that a trainer reads."""

AnyEndReason: TypeAlias = "EndReason | str | v1.EndReason.ValueType"
"""A reason as `EndReason` has it, or as messages do."""


def trial_id(trial: TrialOrId) -> v1.TrialId:
    """Returns the message that names a trial.

    Raises:
        InvalidArgumentError: if it is no trial.
    """
    if isinstance(trial, v1.TrialId):
        return trial
    if isinstance(trial, v1.Trial):
        return trial.id
    try:
        return v1.TrialId(job_id=trial.job_id, launch_id=trial.launch_id, trial_number=trial.number)
    except (AttributeError, TypeError):
        use = "a trial such as BatchSizeOptimizer.trial, the id of one, or v1.TrialId(job_id=..., trial_number=...)"
        raise InvalidArgumentError(f"{trial!r:.100} does not name a trial: pass {use}") from None


def trainer_end_reason(reason: EndReason | str) -> v1.EndReason.ValueType:
    """Returns the value that stands in messages for a reason for which a trainer may end its trial.

    Raises:
        InvalidArgumentError: if it is another one; names the reasons that are allowed.
    """
    if reason not in TRAINER_END_REASONS:
        names = " or ".join(TRAINER_END_REASONS)
        raise InvalidArgumentError(f"a trainer cannot end its trial for {reason!r}: use {names}")
    value: v1.EndReason.ValueType = enum_value(v1.EndReason, reason)
    return value


def _name_of(request: Message) -> str:
    """Returns the name of the call that a request belongs to."""
    return type(request).__name__.removesuffix("Request")


def _metric_faults(measured: v1.Measurement, where: str) -> Sequence[Violation]:
    """Returns the fault of a measurement without a metric: sent as 0, it may have reached a target."""
    if measured.HasField("metric"):
        return []
    return [Violation(f"{where}.metric", "is not set; set the validation metric after the epoch, or NaN")]


def _listed(faults: Sequence[Violation]) -> str:
    return "; ".join(f"{fault.field} {fault.description}" for fault in faults)


class Calls:
    """The calls of both clients, each of which is written once, as a coroutine. `Client` documents the arguments.

    Attributes:
        address: as given.
        mode: whether the calls block or are awaited.
    """

    mode: ClassVar[Mode]

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 30.0,
        retry: bool = True,
        search_timeout: float | None = None,
        credentials: Credentials | None = None,
        call_id: str | None = None,
        warns: bool = True,
    ) -> None:
        self.address = check_address(address)
        self._search_timeout = search_timeout
        self._timeout = check_seconds("timeout", timeout)
        self._retry = retry
        self._warns = warns
        self._call_id = call_id
        self._credentials = Credentials.from_env() if credentials is None else credentials
        self._connection = Connection(address, self._credentials, self.mode)
        # The jobs that were registered here: a trial must have one of the batch sizes.
        self._specs: dict[str, v1.JobSpec] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def without_retries(self, timeout: float, call_id: str) -> Self:
        """Returns a client with other settings on the same connection; closing either of them closes it."""
        other = copy(self)
        vars(other).update(_timeout=timeout, _retry=False, _call_id=call_id)
        return other

    if not TYPE_CHECKING:
        # Hidden from type checkers, which would accept every misspelt name.

        def __getattr__(self, name: str) -> object:
            new = name.removeprefix("list_")
            hint = f": use {new}()" if new != name and hasattr(type(self), new) else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    @call
    async def register_job(self, spec: JobSpec | v1.JobSpec, *, timeout: float | None = None) -> v1.RegisterJobResponse:
        """Creates the job, or confirms that the job with this id has the identical configuration.

        Args:
            spec: the job.
            timeout: seconds; None is the client's.

        Raises:
            InvalidJobSpecError: if the configuration is invalid.
            JobDiffersError: if the job with this id has another configuration.
        """
        if isinstance(spec, v1.JobSpec):
            return await self._register(spec, timeout)
        spec.warn_if_doubtful()
        sent = job_message(spec)
        if spec.has_prices:
            log.info("job %r: %s", spec.job_id, spec.eta_source())
        try:
            return await self._register(sent, timeout)
        except InvalidJobSpecError as error:
            raise with_flat_names(error) from None
        except JobDiffersError as error:
            raise spec.explained(with_flat_names(error)) from None

    async def _register(self, job: v1.JobSpec, timeout: float | None) -> v1.RegisterJobResponse:
        request = v1.RegisterJobRequest(job=job)
        answer: v1.RegisterJobResponse = await self._call(
            request, timeout, lambda answer: answers.check_registered(answer.job, job)
        )
        self._specs[answer.job.spec.job_id] = answer.job.spec
        return answer

    @call
    async def get_next_batch_size(
        self,
        job_id: str,
        *,
        launch_id: str | None = None,
        resume: bool = False,
        unconnected_ranks: int = 0,
        labels: Mapping[str, str] | None = None,
        spec: v1.JobSpec | None = None,
        timeout: float | None = None,
    ) -> v1.GetNextBatchSizeResponse:
        """Dispatches the next trial of a job.

        Args:
            job_id: the job.
            launch_id: calls with the same id get the same trial. None generates one for this call and its retries.
            resume: whether to resume the trial of this launch if it was preempted or lost.
            unconnected_ranks: the number of processes of the launch if they are not connected to each other; the trial
                then has a warning.
            labels: what the launch says about itself, for people who look at the trial.
            spec: the job as it was registered, of which the trial must be; None is what this client has registered, if
                it did.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if `resume` is set and the server has no trial of this launch.
            TrialDeletedError: if the trial of the launch was deleted with its job.
            NoBatchSizeLeftError: if no batch size is left to try.
        """
        request = v1.GetNextBatchSizeRequest(
            job_id=job_id,
            launch_id=new_id() if launch_id is None else launch_id,
            resume=resume,
            unconnected_ranks=unconnected_ranks,
            labels=labels,
        )
        known = self._specs.get(job_id) if spec is None else spec

        def check(answer: v1.GetNextBatchSizeResponse) -> None:
            answers.check_trial(answer.trial, v1.TrialId(job_id=job_id, launch_id=request.launch_id))
            if known is not None:
                answers.check_dispatched(answer.trial, known)

        return await self._call(request, timeout, check)

    @call
    async def report_result(self, result: v1.TrainingResult, *, timeout: float | None = None) -> v1.Decision:
        """Reports one epoch's cumulative measurement.

        Args:
            result: the measurement.
            timeout: seconds; None is the client's.

        Raises:
            InvalidResultError: if the measurement has no metric, or is inconsistent, in itself or with an earlier one.
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
        """
        if faults := _metric_faults(result.measurement, "result.measurement"):
            raise InvalidResultError(_listed(faults), reason="ERROR_REASON_INVALID_RESULT", violations=faults)
        request = v1.ReportResultRequest(result=result)
        return (await self._call(request, timeout, answers.checked_decision)).decision

    @call
    async def heartbeat(self, trial: TrialOrId, *, timeout: float | None = None) -> v1.Decision:
        """Renews a trial's lease and returns whether it may continue.

        Args:
            trial: its id, or a trial such as `BatchSizeOptimizer.trial`.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
        """
        request = v1.HeartbeatRequest(trial=trial_id(trial))
        return (await self._call(request, timeout, answers.checked_decision)).decision

    @call
    async def end_trial(self, trial: TrialOrId, reason: AnyEndReason, *, timeout: float | None = None) -> v1.Trial:
        """Ends a trial because its trainer is done. A trial that is decided already does not change.

        Args:
            trial: its id, or a trial such as `BatchSizeOptimizer.trial`.
            reason: `EndReason.COMPLETED`, `STOPPED_EARLY`, `ERROR`, `OUT_OF_MEMORY` or `PREEMPTED`.
            timeout: seconds; None is the client's.

        Raises:
            InvalidArgumentError: if a trainer may not give this reason.
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
            TrialDeletedError: if the trial was deleted with its job.
        """
        value = reason if isinstance(reason, int) else trainer_end_reason(reason)
        request = v1.EndTrialRequest(trial=trial_id(trial), end_reason=value)
        answer: v1.EndTrialResponse = await self._call(request, timeout, answers.about_trial(request.trial))
        return answer.trial

    @call
    async def import_trial(
        self, request: v1.ImportTrialRequest, *, timeout: float | None = None
    ) -> v1.ImportTrialResponse:
        """Records a trial, or the end of one, that could not be reported while it ran.

        Args:
            request: the trial; its `launch_id` makes the call safe to retry.
            timeout: seconds; None is the client's.

        Raises:
            InvalidRequestError: if a field or a measurement is invalid; nothing is recorded.
            JobNotFoundError: if the job is not registered.
            TrialDeletedError: if the trial was deleted with its job.
        """
        measurements = enumerate(request.measurements)
        faults = [fault for place, each in measurements for fault in _metric_faults(each, f"measurements[{place}]")]
        if faults:
            raise InvalidRequestError(_listed(faults), reason="ERROR_REASON_INVALID_REQUEST", violations=faults)
        imported = v1.TrialId(job_id=request.job_id, launch_id=request.launch_id)
        return await self._call(request, timeout, answers.about_trial(imported))

    @call
    async def lookup_trial(self, job_id: str, launch_id: str, *, timeout: float | None = None) -> v1.Trial:
        """Returns the trial that the server has of a launch. This changes nothing on the server.

        Args:
            job_id: the job.
            launch_id: the id of the launch.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError, TrialNotFoundError: if the server never had the trial, or has lost it with its database.
            TrialDeletedError: if the trial was deleted with its job.
        """
        request = v1.LookupTrialRequest(job_id=job_id, launch_id=launch_id)
        wanted = v1.TrialId(job_id=job_id, launch_id=launch_id)
        answer: v1.LookupTrialResponse = await self._call(request, timeout, answers.about_trial(wanted))
        return answer.trial

    @call
    async def acquire_power_limit(
        self, trial: TrialOrId, *, timeout: float | None = None
    ) -> v1.AcquirePowerLimitResponse:
        """Returns what a trial does about the power limit of its batch size: use the known one, profile, or wait.

        Args:
            trial: its id, or a trial such as `BatchSizeOptimizer.trial`.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError, TrialNotFoundError: if there is no such trial.
            TrialDeletedError: if it was deleted with its job.
        """
        request = v1.AcquirePowerLimitRequest(trial=trial_id(trial))
        return await self._call(request, timeout, answers.check_acquired_limit)

    @call
    async def report_power_profile(
        self, trial: TrialOrId, samples: Iterable[v1.PowerSample], *, timeout: float | None = None
    ) -> float:
        """Reports the measurements of a trial at several power limits.

        Args:
            trial: its id, or a trial such as `BatchSizeOptimizer.trial`.
            samples: one for each power limit.
            timeout: seconds; None is the client's.

        Returns:
            The cheapest known power limit of one GPU for the batch size, in watts.

        Raises:
            InvalidRequestError: if the profile is invalid.
            JobNotFoundError, TrialNotFoundError: if there is no such trial.
            TrialDeletedError: if it was deleted with its job.
        """
        request = v1.ReportPowerProfileRequest(trial=trial_id(trial), samples=samples)
        answer: v1.ReportPowerProfileResponse = await self._call(
            request, timeout, lambda answer: answers.check_setting(answer.power_setting)
        )
        return answer.power_setting.limit_watts_per_gpu

    @call
    async def get_job(self, job_id: str, *, timeout: float | None = None) -> v1.GetJobResponse:
        """Returns the current state of a job, and what it knows about its batch sizes.

        Args:
            job_id: the job.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        return await self._call(v1.GetJobRequest(job_id=job_id), timeout, answers.about_job(job_id))

    @listing
    def jobs(
        self,
        job_id_prefix: str = "",
        *,
        contains: str = "",
        states: Iterable[v1.JobState.ValueType | str] = (),
        order: v1.JobOrder.ValueType | str = v1.JOB_ORDER_UNSPECIFIED,
        with_summaries: bool = False,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncRows[v1.JobListing]:
        """Yields jobs, page by page; `.to_frame()` returns them as a table.

        Args:
            job_id_prefix: only jobs whose id starts with this; empty for all.
            contains: only jobs whose id contains this; empty for all.
            states: only jobs in one of these states, such as "RUNNING"; empty for all.
            order: the order, such as "NEWEST"; unspecified is the server's default, today oldest first.
            with_summaries: whether each job has its summary: what its trials are doing, took and saved.
            page_size: number of jobs per page; 0 is the server's default.
            timeout: seconds for each page; None is the client's.

        Raises:
            InvalidArgumentError: if there is no such state or order.
        """
        request = v1.ListJobsRequest(
            job_id_prefix=job_id_prefix,
            contains=contains,
            states=enum_values(v1.JobState, states, "states"),
            order=enum_value(v1.JobOrder, order),
            with_summaries=with_summaries,
            page_size=page_size,
        )
        return self._rows(v1.JobListing, request, timeout, without="" if with_summaries else "summary")

    @listing
    def trials(
        self,
        job_id: str = "",
        *,
        job_id_prefix: str = "",
        statuses: Iterable[v1.TrialStatus.ValueType | str] = (),
        end_reasons: Iterable[AnyEndReason] = (),
        batch_size: int = 0,
        labels: Mapping[str, str] | None = None,
        newest_first: bool = False,
        from_trial_number: int = 0,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncRows[v1.Trial]:
        """Yields a job's trials by number, or those of several jobs by the time of their start, page by page.

        `.to_frame()` returns them as a table.

        Args:
            job_id: the job; empty for several jobs.
            job_id_prefix: only trials of jobs whose id starts with this; empty for all.
            statuses: only trials with one of these statuses, such as "DECIDED"; empty for all.
            end_reasons: only trials that ended for one of these reasons, such as `EndReason.ERROR`; empty for all.
            batch_size: only trials with this batch size; 0 for all.
            labels: only trials whose launch has said all of this about itself; None for all.
            newest_first: whether the newest one comes first.
            from_trial_number: begins with the trial of this number; 0 for the first in the order.
            page_size: number of trials per page; 0 is the server's default.
            timeout: seconds for each page; None is the client's.

        Raises:
            InvalidArgumentError: if there is no such status or end reason.
            JobNotFoundError: if the job is not registered.
        """
        request = v1.ListTrialsRequest(
            job_id=job_id,
            job_id_prefix=None if job_id and not job_id_prefix else job_id_prefix,
            statuses=enum_values(v1.TrialStatus, statuses, "statuses"),
            end_reasons=enum_values(v1.EndReason, end_reasons, "end_reasons"),
            batch_size=batch_size,
            labels=labels,
            newest_first=newest_first,
            from_trial_number=from_trial_number,
            page_size=page_size,
        )
        return self._rows(v1.Trial, request, timeout)

    @call
    async def get_trial(self, trial: TrialOrId, *, timeout: float | None = None) -> v1.GetTrialResponse:
        """Returns a trial with its power profile.

        Args:
            trial: a trial such as `BatchSizeOptimizer.trial`, or an id with its launch, its number or both.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
        """
        request = v1.GetTrialRequest(trial=trial_id(trial))
        return await self._call(request, timeout, answers.about_trial(request.trial))

    @listing
    def measurements(
        self, trial: TrialOrId, *, newest_first: bool = False, page_size: int = 0, timeout: float | None = None
    ) -> AsyncRows[v1.Measurement]:
        """Yields a trial's measurements by epoch, page by page; `.to_frame()` returns them as a table.

        Args:
            trial: a trial such as `BatchSizeOptimizer.trial`, or an id with its launch, its number or both.
            newest_first: whether the newest epoch comes first.
            page_size: number of measurements per page; 0 is the server's default.
            timeout: seconds for each page; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
        """
        request = v1.ListMeasurementsRequest(trial=trial_id(trial), newest_first=newest_first, page_size=page_size)
        return self._rows(v1.Measurement, request, timeout)

    @call
    async def delete_job(
        self,
        job_id: str,
        *,
        create_time: Timestamp | None = None,
        allow_missing: bool = False,
        timeout: float | None = None,
    ) -> v1.DeleteJobResponse:
        """Deletes a job and its trials; running trials are stopped. A retry never deletes a job registered since.

        Args:
            job_id: the job.
            create_time: when the job was registered, see `Job.create_time`: another one counts as not registered. None
                reads it first.
            allow_missing: whether a job that is not registered is no error.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: unless `allow_missing`, if the job is not registered, or if the first attempt deleted it
                and a retry followed.
        """
        if create_time is None:
            # A list has also jobs whose search the server cannot read.
            request = v1.ListJobsRequest(job_id_prefix=job_id, order=v1.JOB_ORDER_ID, page_size=1)
            listed: v1.ListJobsResponse = await self._call(request, timeout)
            if not listed.jobs or listed.jobs[0].job.spec.job_id != job_id:
                # A call without a time would delete a job that is registered from now on.
                if allow_missing:
                    return v1.DeleteJobResponse()
                raise JobNotFoundError(
                    f"no job has the id {job_id!r}; `wattwise jobs list` lists the ids of all jobs",
                    reason="ERROR_REASON_JOB_NOT_FOUND",
                    metadata={"job_id": job_id},
                )
            create_time = listed.jobs[0].job.create_time
        deletion = v1.DeleteJobRequest(job_id=job_id, allow_missing=allow_missing, create_time=create_time)
        return await self._call(deletion, timeout)

    @call
    async def reset_job(
        self, job_id: str, *, request_id: str | None = None, timeout: float | None = None
    ) -> v1.ResetJobResponse:
        """Begins the job's search again; its trials stay in the history but no longer count.

        Args:
            job_id: the job.
            request_id: the id of the reset: the same id again changes nothing; None generates one for this call.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        request = v1.ResetJobRequest(job_id=job_id, request_id=request_id or new_id())
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def set_trial_excluded(
        self, trial: TrialOrId, *, excluded: bool, timeout: float | None = None
    ) -> v1.SetTrialExcludedResponse:
        """Excludes a trial from the job's search, or includes it again; returns the trial and the job.

        Args:
            trial: a trial such as `BatchSizeOptimizer.trial`, or an id with its launch, its number or both.
            excluded: whether the search ignores the trial.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            TrialNotFoundError: if the job has no such trial.
        """
        request = v1.SetTrialExcludedRequest(trial=trial_id(trial), excluded=excluded)
        return await self._call(request, timeout, answers.about_trial(request.trial))

    @call
    async def set_batch_size_banned(
        self, job_id: str, batch_size: int, *, banned: bool, timeout: float | None = None
    ) -> v1.SetBatchSizeBannedResponse:
        """Bans a batch size, so that the search does not choose it, or lifts its ban.

        Args:
            job_id: the job.
            batch_size: one of its batch sizes.
            banned: whether it is banned.
            timeout: seconds; None is the client's.

        Raises:
            InvalidRequestError: if the job has no such batch size.
            JobNotFoundError: if the job is not registered.
            NotPossibleNowError: if no batch size would be left.
        """
        request = v1.SetBatchSizeBannedRequest(job_id=job_id, batch_size=batch_size, banned=banned)
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def set_pinned_batch_size(
        self, job_id: str, batch_size: int | None, *, timeout: float | None = None
    ) -> v1.SetPinnedBatchSizeResponse:
        """Pins a batch size, so that every launch gets it, or unpins it.

        Args:
            job_id: the job.
            batch_size: one of its batch sizes; None: none is pinned.
            timeout: seconds; None is the client's.

        Raises:
            InvalidRequestError: if the job has no such batch size.
            JobNotFoundError: if the job is not registered.
        """
        request = v1.SetPinnedBatchSizeRequest(job_id=job_id, batch_size=batch_size)
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def readmit_batch_size(
        self, job_id: str, batch_size: int, *, request_id: str | None = None, timeout: float | None = None
    ) -> v1.ReadmitBatchSizeResponse:
        """Readmits a batch size to the search: its failures, its memory and its pruning no longer count.

        Args:
            job_id: the job.
            batch_size: one of its batch sizes.
            request_id: the id of the request: the same id again changes nothing; None generates one for this call.
            timeout: seconds; None is the client's.

        Raises:
            InvalidRequestError: if the job has no such batch size.
            JobNotFoundError: if the job is not registered.
        """
        request = v1.ReadmitBatchSizeRequest(job_id=job_id, batch_size=batch_size, request_id=request_id or new_id())
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def set_job_paused(
        self, job_id: str, *, paused: bool, timeout: float | None = None
    ) -> v1.SetJobPausedResponse:
        """Pauses the job's search, so that launches get the best known batch size, or resumes it.

        Args:
            job_id: the job.
            paused: whether the search pauses.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        request = v1.SetJobPausedRequest(job_id=job_id, paused=paused)
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def request_baseline(
        self,
        job_id: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> v1.RequestBaselineResponse:
        """Requests that the job's next launch gets the default batch size, to compare with.

        Args:
            job_id: the job.
            request_id: the id of the request: the same id again changes nothing; None generates one for this call.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
            NotPossibleNowError: if the default batch size may not be chosen.
        """
        request = v1.RequestBaselineRequest(job_id=job_id, request_id=request_id or new_id())
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def set_baseline_every(
        self, job_id: str, every: int, *, timeout: float | None = None
    ) -> v1.SetBaselineEveryResponse:
        """Gives one launch in so many the default batch size from now on, to compare with, or ends that.

        Args:
            job_id: the job.
            every: 2 or more; 0 ends it.
            timeout: seconds; None is the client's.

        Raises:
            InvalidRequestError: if `every` is 1 or negative.
            JobNotFoundError: if the job is not registered.
        """
        request = v1.SetBaselineEveryRequest(job_id=job_id, every=every)
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def set_job_policy(
        self, job_id: str, policy: v1.PolicySpec, *, timeout: float | None = None
    ) -> v1.SetJobPolicyResponse:
        """Changes the job's policy; the search is rebuilt from the job's trials.

        Args:
            job_id: the job.
            policy: the policy and its parameters, such as `policy_spec("gts", seed=1)` of `wattwise.spec`.
            timeout: seconds; None is the client's.

        Raises:
            InvalidJobSpecError: if the policy is unset, or has a fault.
            JobNotFoundError: if the job is not registered.
        """
        request = v1.SetJobPolicyRequest(job_id=job_id, policy=policy)
        return await self._call(request, timeout, answers.about_job(job_id))

    @call
    async def get_job_statistics(self, job_id: str, *, timeout: float | None = None) -> v1.JobStatistics:
        """Returns what a job's trials took, by batch size, and what they saved.

        Args:
            job_id: the job.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        request = v1.GetJobStatisticsRequest(job_id=job_id)
        answer: v1.GetJobStatisticsResponse = await self._call(request, timeout)
        return answer.statistics

    @call
    async def list_trial_buckets(
        self, job_id: str, *, max_ranges: int = 0, with_excluded: bool = False, timeout: float | None = None
    ) -> v1.ListTrialBucketsResponse:
        """Returns what a job's ended trials cost and saved, by ranges of their numbers, for charts; all pages in one.

        Args:
            job_id: the job.
            max_ranges: into how many ranges the trials are divided at most; 0 is the most, 1000.
            with_excluded: whether excluded trials are among them, in buckets of their own.
            timeout: seconds for each page; None is the client's.

        Raises:
            InvalidRequestError: if `max_ranges` is negative or above 1000.
            JobNotFoundError: if the job is not registered.
        """
        request = v1.ListTrialBucketsRequest(job_id=job_id, max_ranges=max_ranges, with_excluded=with_excluded)
        found = v1.ListTrialBucketsResponse()
        async for page in self._pages(request, timeout):
            found.MergeFrom(page)
        found.ClearField("next_page_token")
        return found

    @listing
    def power_profiles(self, job_id: str, *, timeout: float | None = None) -> AsyncRows[v1.PowerProfile]:
        """Yields the newest power profile of each batch size of a job; `.to_frame()` returns them as a table.

        Args:
            job_id: the job.
            timeout: seconds for each page; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        request = v1.ListPowerProfilesRequest(job_id=job_id)
        return self._rows(v1.PowerProfile, request, timeout)

    @call
    async def get_totals(self, *, job_id_prefix: str = "", timeout: float | None = None) -> v1.Totals:
        """Returns what the trials of several jobs took and saved together.

        Args:
            job_id_prefix: only jobs whose id starts with this; empty for all.
            timeout: seconds; None is the client's.
        """
        request = v1.GetTotalsRequest(job_id_prefix=job_id_prefix)
        answer: v1.GetTotalsResponse = await self._call(request, timeout)
        return answer.totals

    @call
    async def preview_next(self, job_id: str, *, timeout: float | None = None) -> v1.PreviewNextResponse:
        """Returns what the next launch of a job would get; nothing is dispatched.

        Args:
            job_id: the job.
            timeout: seconds; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered.
        """
        return await self._call(v1.PreviewNextRequest(job_id=job_id), timeout)

    @listing
    def events(
        self,
        *,
        job_id: str = "",
        job_id_prefix: str = "",
        kinds: Iterable[v1.EventKind.ValueType | str] = (),
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncRows[v1.Event]:
        """Yields what happened to jobs, newest first, page by page; `.to_frame()` returns them as a table.

        Args:
            job_id: only events of this job, which may be deleted, so that a job that never was has none; empty for all.
            job_id_prefix: only events of jobs whose id starts with this; empty for all.
            kinds: only events of these kinds, such as "TRIAL_FAILED"; empty for all.
            page_size: number of events per page; 0 is the server's default.
            timeout: seconds for each page; None is the client's.

        Raises:
            InvalidArgumentError: if there is no such kind.
        """
        request = v1.ListEventsRequest(
            job_id=job_id,
            job_id_prefix=job_id_prefix,
            kinds=enum_values(v1.EventKind, kinds, "kinds"),
            page_size=page_size,
        )
        return self._rows(v1.Event, request, timeout)

    @call
    async def get_server_info(self, *, timeout: float | None = None) -> v1.GetServerInfoResponse:
        """Returns the server's version, its prices and carbon intensity, and the role of this client's token.

        Args:
            timeout: seconds; None is the client's.
        """
        return await self._call(v1.GetServerInfoRequest(), timeout)

    @stream
    def watch_trials(self, job_id: str, *, timeout: float | None = None) -> AsyncIterator[v1.WatchTrialsResponse]:
        """Yields a job's running trials, then those that are new or have changed, until the job is deleted.

        After a lost connection all running trials come again. The server sends at most ten answers a second.

        Args:
            job_id: the job.
            timeout: seconds for which the server may be unavailable; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered, or once it is deleted.
        """
        return self._watch(v1.WatchTrialsRequest(job_id=job_id), timeout)

    @stream
    def watch_jobs(
        self, *, job_id_prefix: str = "", timeout: float | None = None
    ) -> AsyncIterator[v1.WatchJobsResponse]:
        """Yields the ids of jobs that change, with any change of their trials and epochs, at most once a second.

        The first answer, and the first after a lost connection, says that all jobs may have changed.

        Args:
            job_id_prefix: only jobs whose id starts with this; empty for all.
            timeout: seconds for which the server may be unavailable; None is the client's.
        """
        return self._watch(v1.WatchJobsRequest(job_id_prefix=job_id_prefix), timeout)

    @stream
    def watch_job(self, job_id: str, *, timeout: float | None = None) -> AsyncIterator[v1.WatchJobResponse]:
        """Yields a job's current state, then its newest state after it has changed, until the job is deleted.

        The server sends at most ten states a second, and fifty to all watches of one caller together.

        Args:
            job_id: the job.
            timeout: seconds for which the server may be unavailable; None is the client's.

        Raises:
            JobNotFoundError: if the job is not registered, or once it is deleted.
        """
        return self._watch(v1.WatchJobRequest(job_id=job_id), timeout, answers.about_job(job_id))

    @call
    async def send(self, request: Message, *, timeout: float | None = None) -> Any:
        """Sends the request of any call with one answer, such as that of a single page, and returns the answer.

        Args:
            request: the request, such as a `v1.ListJobsRequest`.
            timeout: seconds; None is the client's.
        """
        return await self._call(request, timeout)

    async def _watch(
        self, request: Message, timeout: float | None, check: Callable[[Response], object] = lambda _: None
    ) -> AsyncIterator[Response]:
        """Yields the answers of a stream, which is opened again after a lost connection."""
        name = _name_of(request)
        patience = self._timeout if timeout is None else timeout
        waits, deadline, metadata = pauses(0.1, 3.0), time.monotonic() + patience, self._metadata()
        while True:
            link = self._connection.link()
            with link.for_watch() as used:
                call = used.calls[name](request, metadata=metadata)
                has_moved = partial(self._connection.has_moved, link)
                try:
                    while (response := await self.mode.receive(call, has_moved)) is not None:
                        self._connection.answered(link)
                        with answers.naming(link.server, name):
                            answers.check_times(response)
                            check(response)
                        yield response
                        waits, deadline = pauses(0.1, 3.0), time.monotonic() + patience
                except grpc.RpcError as error:
                    failure = self._connection.broken(link, error)
                    if not is_old(error):
                        self._connection.leave(link, failure)
                        pause = next(waits)
                        if not (self._retry and failure.retryable) or time.monotonic() + pause > deadline:
                            raise failure from None
                        await self.mode.sleep(pause)
                else:
                    return
                finally:
                    call.cancel()

    def _metadata(self) -> Metadata:
        """Returns the metadata of a call and its retries.

        Raises:
            CredentialsError: if the token cannot be used.
        """
        bearer = () if self._token is None else self._token.metadata()
        return (*bearer, (CALL_ID, self._call_id or new_id()))

    @cached_property
    def _token(self) -> BearerToken | None:
        return self._credentials.bearer_token(self.address)

    def _rows(self, kind: type[Row], request: Message, timeout: float | None, *, without: str = "") -> AsyncRows[Row]:
        """Returns the rows of all pages of a list.

        Args:
            kind: the type of a row.
            request: the request of the first page.
            timeout: seconds for each page; None is the client's.
            without: the field that no row has, because the request does not ask for it.
        """

        async def rows() -> AsyncGenerator[Row, None]:
            async for page in self._pages(request, timeout):
                for field, values in page.ListFields():
                    if field.message_type is kind.DESCRIPTOR:
                        for row in values:
                            yield row

        return AsyncRows(rows(), partial(frame_of, kind, without=without))

    async def _pages(self, request: Any, timeout: float | None) -> AsyncIterator[Any]:
        """Yields the pages of a list."""
        pages = answers.Pages(request.page_token)
        while True:
            page: Any = await self._call(request, timeout, pages.check)
            yield page
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def _call(
        self, request: Message, timeout: float | None, check: Callable[[Response], object] = lambda _: None
    ) -> Response:
        """Returns the answer to a request, whose type names the call."""
        name, metadata = _name_of(request), self._metadata()

        async def send(link: ServerLink, seconds: float) -> Response:
            call = link.calls[name](request, timeout=seconds, metadata=metadata)
            answer: Response = await self.mode.answer(call, partial(self._connection.has_moved, link))
            with answers.naming(link.server, name):
                # None if the call succeeded without one.
                answers.require(isinstance(answer, Message), "it is empty")
                answers.check_times(answer)
                check(answer)
            return answer

        patience = self._timeout if timeout is None else timeout
        if not self._retry:
            return await self._connection.ask(send, patience)
        retries = Retries(patience, self._search_timeout, warns=self._warns)
        while True:
            try:
                return await self._connection.ask(send, retries.left)
            except WattwiseError as error:
                pause = retries.pause_after(error)
            await self.mode.sleep(pause)
