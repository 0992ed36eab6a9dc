"""The calls of both services, and the comparison of their answers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.live_server import CHANNEL_OPTIONS
from tests.people import PeopleStub


class MismatchError(AssertionError):
    """The server's answer is not the model's."""


class RefusedError(Exception):
    """A call that the server refused."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.code = str(error.code().name)
        super().__init__(f"{self.code}: {error.details()}")


def same(got: object, want: object, what: str, rel: float = 1e-12) -> None:
    """Compares a value of the server with the model's; floats by relative error."""
    if isinstance(want, float) and isinstance(got, int | float):
        both_nan = math.isnan(got) and math.isnan(want)
        equal = got == want or both_nan or math.isclose(got, want, rel_tol=rel, abs_tol=1e-300)
    else:
        equal = got == want
    if not equal:
        raise MismatchError(f"{what}: server {got!r}, model {want!r}")


class Calls:
    """One method per call, to any of the servers; waits for one that is being restarted, and for their database."""

    def __init__(self, *addresses: str) -> None:
        options = (*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", 50), ("grpc.use_local_subchannel_pool", 1))
        self.channels = [grpc.insecure_channel(address, options) for address in addresses]

    @property
    def trainer(self) -> v1.BatchSizeOptimizerStub:
        return v1.BatchSizeOptimizerStub(random.choice(self.channels))

    @property
    def admin(self) -> PeopleStub:
        return PeopleStub(random.choice(self.channels))

    def _call(self, method: Callable[..., Any], request: Message, *, wait: bool = True, timeout: float = 20.0) -> Any:
        return self._answer(lambda: method(request, timeout=timeout, wait_for_ready=wait), wait, timeout)

    def _answer(self, attempt: Callable[[], Any], wait: bool, timeout: float) -> Any:
        until = time.monotonic() + timeout
        while True:
            try:
                return attempt()
            except grpc.RpcError as error:
                away = error.code() is grpc.StatusCode.UNAVAILABLE and len(self.channels) > 1
                if not (away and wait) or time.monotonic() > until:
                    raise RefusedError(error) from None
            time.sleep(0.02)

    def register(self, spec: v1.JobSpec) -> v1.RegisterJobResponse:
        response: v1.RegisterJobResponse = self._call(self.trainer.RegisterJob, v1.RegisterJobRequest(job=spec))
        return response

    def next(
        self, job: str, request: str | None = None, resume: bool = False, **how: Any
    ) -> v1.GetNextBatchSizeResponse:
        asked = v1.GetNextBatchSizeRequest(
            job_id=job, launch_id=new_id() if request is None else request, resume=resume
        )
        response: v1.GetNextBatchSizeResponse = self._call(self.trainer.GetNextBatchSize, asked, **how)
        return response

    def report(self, result: v1.TrainingResult, **how: Any) -> v1.Decision:
        decision: v1.Decision = self._call(
            self.trainer.ReportResult, v1.ReportResultRequest(result=result), **how
        ).decision
        return decision

    def stream(self, result: v1.TrainingResult, *, beat: bool = False) -> v1.Decision:
        """Reports on a stream of its own; returns the last answer."""

        def messages() -> Iterator[v1.StreamResultsRequest]:
            if beat:
                yield v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=result.trial))
            yield v1.StreamResultsRequest(result=result)

        def attempt() -> list[v1.StreamResultsResponse]:
            return list(self.trainer.StreamResults(messages(), timeout=20, wait_for_ready=True))

        decision: v1.Decision = self._answer(attempt, wait=True, timeout=20)[-1].decision
        return decision

    def beat(self, trial: v1.TrialId, **how: Any) -> v1.Decision:
        decision: v1.Decision = self._call(self.trainer.Heartbeat, v1.HeartbeatRequest(trial=trial), **how).decision
        return decision

    def end(self, trial: v1.TrialId, reason: v1.EndReason.ValueType, **how: Any) -> v1.Trial:
        ended: v1.Trial = self._call(
            self.trainer.EndTrial, v1.EndTrialRequest(trial=trial, end_reason=reason), **how
        ).trial
        return ended

    def job(self, job: str, **how: Any) -> v1.GetJobResponse:
        known: v1.GetJobResponse = self._call(self.admin.GetJob, v1.GetJobRequest(job_id=job), **how)
        return known

    def trial(self, trial: v1.TrialId, **how: Any) -> v1.GetTrialResponse:
        response: v1.GetTrialResponse = self._call(self.admin.GetTrial, v1.GetTrialRequest(trial=trial), **how)
        return response

    def measurements(self, trial: v1.TrialId, page: int = 10_000) -> list[v1.Measurement]:
        """All measurements of a trial, page by page."""
        found: list[v1.Measurement] = []
        request = v1.ListMeasurementsRequest(trial=trial, page_size=page)
        while True:
            answer: v1.ListMeasurementsResponse = self._call(self.admin.ListMeasurements, request)
            found += answer.measurements
            request = v1.ListMeasurementsRequest(trial=trial, page_size=page, page_token=answer.next_page_token)
            if not answer.next_page_token:
                return found

    def delete(self, job: str, **how: Any) -> v1.DeleteJobResponse:
        response: v1.DeleteJobResponse = self._call(self.admin.DeleteJob, v1.DeleteJobRequest(job_id=job), **how)
        return response

    def trials(self, job: str, page: int = 0) -> list[v1.Trial]:
        """All trials of a job, page by page."""
        found: list[v1.Trial] = []
        token = ""
        while True:
            request = v1.ListTrialsRequest(job_id=job, page_size=page, page_token=token)
            answer = self._call(self.admin.ListTrials, request)
            found += answer.trials
            token = answer.next_page_token
            if not token:
                return found


def stripped(message: Any) -> Any:
    """A message without its times, and without the id of its launch, which the server may have drawn."""
    copy = type(message)()
    copy.CopyFrom(message)
    holder: Any = copy
    if isinstance(copy, v1.GetNextBatchSizeResponse):
        holder = copy.trial
    elif isinstance(copy, v1.GetJobResponse):
        holder = copy.job
    for name in ("start_time", "end_time", "lease_expire_time", "create_time"):
        if name in holder.DESCRIPTOR.fields_by_name:
            holder.ClearField(name)
    if isinstance(holder, v1.Trial):
        holder.id.ClearField("launch_id")
        if holder.HasField("newest"):
            holder.newest.ClearField("report_time")
    return copy
