"""One scenario of a behaviour table, taken step by step, whatever way the server is called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message
from wattwise import v1

from tests.conformance.fields import check
from tests.conformance.refusal import MismatchError, Refused, check_refusal, compare
from tests.jobs import job_spec

PATIENCE = 10.0
"""Seconds that a step which waits may take."""

_PARTS = {"name", "job", "walk", "steps", "job_then"}
_BESIDE = {"then", "error", "status", "fields", "metadata"}
_RESULT = {"trial", "epoch", "cost", "metric", "time", "monitor"}
_ARGUMENTS = {
    "next": {"trial", "request_id", "job_id", "resume"},
    "report": _RESULT,
    "send": _RESULT,
    "end": {"trial", "reason"},
    "until": {"trial", "heartbeat"},
    "job": {"job_id"},
    "delete": set[str](),
    **{step: {"trial"} for step in ("heartbeat", "get", "open", "expect", "close")},
}
"""Of the steps that do not pass all that they are given on into a message."""


class Stream(Protocol):
    """An open StreamResults."""

    async def send(self, request: v1.StreamResultsRequest) -> None:
        """Sends a message."""

    async def receive(self) -> v1.StreamResultsResponse | None:
        """Waits for the next message; None if the stream ended well; raises `Refused` if it did not."""

    async def close(self) -> None:
        """Ends this side."""

    async def cancel(self) -> None:
        """Ends both sides, if they have not ended."""


class Server(Protocol):
    """A way of calling the server."""

    async def call(self, method: str, request: Message) -> Any:
        """Calls a method of either service; raises `Refused`."""

    async def open(self) -> Stream:
        """Opens a stream."""


class Replay:
    """One scenario against one way of calling.

    Args:
        scenario: as the table has it.
        server: the way of calling.
        own: what makes the job's id this replay's own.
    """

    def __init__(self, scenario: Mapping[str, Any], server: Server, own: str) -> None:
        self._scenario = scenario
        self._server = server
        self._job = {"job_id_prefix": "scenario", **scenario.get("job", {})}
        self._job["job_id"] = f"{self._job['job_id_prefix']}-{own}"
        self._spec = job_spec(**self._job)
        self._trials: dict[str, v1.TrialId] = {}
        self._streams: dict[str, Stream] = {}

    async def run(self) -> None:
        """Takes every step.

        Raises:
            MismatchError: at the first that is not as the table says.
        """
        _only(self._scenario, _PARTS)
        try:
            await self._server.call("RegisterJob", v1.RegisterJobRequest(job=self._spec))
            for number, line in enumerate(self._scenario.get("walk", ()), start=1):
                await self._follow(number, *line)
            for number, step in enumerate(self._scenario.get("steps", ()), start=1):
                await self._take(number, step)
            if then := self._scenario.get("job_then"):
                check(await self._do_job({}), then)
        finally:
            for stream in self._streams.values():
                await stream.cancel()

    async def _follow(self, number: int, size: int, cost: float, converged: bool) -> None:
        """One line of a walk."""
        trial = await self._do_next({"trial": "walk"})
        check(trial, {"trial_number": number, "batch_size": size})
        epoch, metric = (1, 0.95) if converged else (self._spec.max_epochs, 0.1)
        decision = await self._do_report({"trial": "walk", "epoch": epoch, "cost": cost, "metric": metric})
        check(decision, {"stop_train": True, "converged": converged})

    async def _take(self, number: int, step: Mapping[str, Any]) -> None:
        """One step: the call, then what it must have answered."""
        (name,) = step.keys() - _BESIDE
        _only(step[name], _ARGUMENTS.get(name, step[name].keys()))
        act = getattr(self, f"_do_{name}", self._do_not_know)
        try:
            await self._compared(act(self._given(name, step)), step)
        except MismatchError as mismatch:
            raise MismatchError(f"step {number}, {name}: {mismatch}") from None
        except Refused as refused:
            raise MismatchError(f"step {number}, {name}: refused, {refused}") from None

    @staticmethod
    def _given(name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        # Alone among the steps it must know what it waits for.
        return {**step[name], "then": step["then"]} if name == "until" else step[name]

    @staticmethod
    async def _compared(act: Any, step: Mapping[str, Any]) -> None:
        if "error" not in step:
            message = await act
            if "then" in step:
                check(message, step["then"])
            return
        try:
            await act
        except Refused as refused:
            check_refusal(refused, step)
        else:
            raise MismatchError(f"was not refused with {step['error']}")

    async def _do_not_know(self, _given: Mapping[str, Any]) -> None:
        raise MismatchError("is not a step that this runner knows")

    async def _do_next(self, given: Mapping[str, Any]) -> v1.Trial:
        job_id = given.get("job_id", self._spec.job_id)
        request = v1.GetNextBatchSizeRequest(
            job_id=job_id, request_id=given.get("request_id", ""), resume=given.get("resume", False)
        )
        answer = await self._server.call("GetNextBatchSize", request)
        if not answer.reason:
            raise MismatchError("says no reason")
        trial: v1.Trial = answer.trial
        self._trials[given["trial"]] = trial.id
        return trial

    def _result(self, given: Mapping[str, Any]) -> v1.TrainingResult:
        return v1.TrainingResult(
            trial=self._trials[given["trial"]],
            time_seconds=given.get("time", 1.0),
            energy_joules=given["cost"],
            metric=given["metric"],
            current_epoch=given["epoch"],
            **{name: given[name] for name in ("monitor",) if name in given},
        )

    async def _do_report(self, given: Mapping[str, Any]) -> Message:
        return await self._decision("ReportResult", v1.ReportResultRequest(result=self._result(given)))

    async def _do_heartbeat(self, given: Mapping[str, Any]) -> Message:
        return await self._decision("Heartbeat", v1.HeartbeatRequest(trial=self._trials[given["trial"]]))

    async def _decision(self, method: str, request: Message) -> Message:
        decision: v1.Decision = (await self._server.call(method, request)).decision
        return decision

    async def _do_end(self, given: Mapping[str, Any]) -> Message:
        request = v1.EndTrialRequest(trial=self._trials[given["trial"]], reason=given["reason"])
        trial: v1.Trial = (await self._server.call("EndTrial", request)).trial
        return trial

    async def _do_register(self, given: Mapping[str, Any]) -> Message:
        request = v1.RegisterJobRequest(job=job_spec(**{**self._job, **given}))
        answer: v1.RegisterJobResponse = await self._server.call("RegisterJob", request)
        return answer

    async def _do_get(self, given: Mapping[str, Any]) -> Message:
        request = v1.GetTrialRequest(trial=self._trials[given["trial"]])
        trial: v1.Trial = (await self._server.call("GetTrial", request)).trial
        return trial

    async def _do_job(self, given: Mapping[str, Any]) -> Message:
        request = v1.GetJobRequest(job_id=given.get("job_id", self._spec.job_id))
        job: v1.Job = (await self._server.call("GetJob", request)).job
        return job

    async def _do_delete(self, _given: Mapping[str, Any]) -> Message:
        request = v1.DeleteJobRequest(job_id=self._spec.job_id)
        job: v1.Job = (await self._server.call("DeleteJob", request)).job
        return job

    async def _do_invent(self, given: Mapping[str, Any]) -> None:
        trial = v1.TrialId()
        trial.CopyFrom(self._trials[given["like"]])
        trial.MergeFrom(v1.TrialId(**{name: given[name] for name in given if name not in ("trial", "like")}))
        self._trials[given["trial"]] = trial

    async def _do_until(self, given: Mapping[str, Any]) -> Message:
        deadline = time.monotonic() + PATIENCE
        while True:
            if "heartbeat" in given:
                await self._do_heartbeat({"trial": given["heartbeat"]})
            trial = await self._do_get(given)
            try:
                check(trial, given["then"])
            except MismatchError:
                if time.monotonic() > deadline:
                    raise
            else:
                return trial
            await asyncio.sleep(0.05)

    async def _do_open(self, given: Mapping[str, Any]) -> None:
        self._streams[given["trial"]] = await self._server.open()
        await self._do_send(given)

    async def _do_send(self, given: Mapping[str, Any]) -> None:
        beat = v1.HeartbeatRequest(trial=self._trials[given["trial"]])
        one = {"result": self._result(given)} if "epoch" in given else {"heartbeat": beat}
        await self._streams[given["trial"]].send(v1.StreamResultsRequest(**one))

    async def _do_expect(self, given: Mapping[str, Any]) -> Message:
        response = await self._next_on(given)
        if response is None:
            raise MismatchError("the stream ended")
        return response.decision

    async def _do_close(self, given: Mapping[str, Any]) -> None:
        await self._streams[given["trial"]].close()
        compare("what follows on the stream", await self._next_on(given), None)

    async def _next_on(self, given: Mapping[str, Any]) -> v1.StreamResultsResponse | None:
        try:
            return await asyncio.wait_for(self._streams[given["trial"]].receive(), PATIENCE)
        except asyncio.TimeoutError:
            raise MismatchError(f"nothing came within {PATIENCE:g} s") from None


def _only(given: Mapping[str, Any], known: Collection[str]) -> None:
    """What is not known must not be passed over in silence."""
    if unknown := given.keys() - known:
        raise MismatchError(f"{', '.join(sorted(unknown))}: unknown to this runner")
