"""Replays one scenario of a behaviour table, in process or over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.conformance.fields import check
from tests.conformance.refusal import MismatchError, Refused, check_refusal, compare
from tests.jobs import job_spec

TIMEOUT = 10.0
"""Seconds that a step may wait."""

_SCENARIO_KEYS = {"name", "job", "walk", "steps", "job_then"}
_EXPECTATIONS = {"then", "error", "status", "fields", "metadata"}
_RESULT = {"trial", "epoch", "cost", "metric", "time", "monitor", "computed", "power_setting"}
_ARGUMENTS = {
    "next": {"trial", "launch_id", "job_id", "resume"},
    "report": _RESULT,
    "send": _RESULT,
    "end": {"trial", "reason"},
    "until": {"trial", "heartbeat"},
    "job": {"job_id"},
    "details": {"job_id"},
    "delete": set[str](),
    "import": {
        "trial",
        "launch_id",
        "batch_size",
        "measurements",
        "end_reason",
        "power_setting",
        "monitor",
        "job_id",
    },
    "exclude": {"trial", "excluded"},
    "ban": {"batch_size", "banned", "job_id"},
    "pin": {"batch_size", "job_id"},
    "readmit": {"batch_size", "job_id"},
    "pause": {"paused", "job_id"},
    "baseline_every": {"every", "job_id"},
    "set_policy": {"policy", "job_id"},
    **{step: {"job_id"} for step in ("reset", "baseline")},
    **{step: {"trial"} for step in ("heartbeat", "get", "open", "expect", "close")},
}
"""The arguments of the steps that do not pass them all to a message."""


class Stream(Protocol):
    """An open StreamResults."""

    async def send(self, request: v1.StreamResultsRequest) -> None:
        """Sends a message."""

    async def receive(self) -> v1.StreamResultsResponse | None:
        """Waits for the next message; None once the stream has ended with OK. Raises `Refused` if an error ended it."""

    async def close(self) -> None:
        """Closes the sending side."""

    async def cancel(self) -> None:
        """Cancels the stream."""


class Server(Protocol):
    """A way of calling the server."""

    async def call(self, method: str, request: Message) -> Any:
        """Calls a method of either service; raises `Refused`."""

    async def open(self) -> Stream:
        """Opens a stream."""


class Replay:
    """One scenario and one way of calling the server.

    Args:
        scenario: the entry of the table.
        server: the way of calling.
        suffix: makes the job's id unique.
    """

    def __init__(self, scenario: Mapping[str, Any], server: Server, suffix: str) -> None:
        self._scenario = scenario
        self._server = server
        self._job = {"job_id_prefix": "scenario", **scenario.get("job", {})}
        self._job["job_id"] = f"{self._job['job_id_prefix']}-{suffix}"
        self._spec = job_spec(**self._job)
        self._trials: dict[str, v1.TrialId] = {}
        self._streams: dict[str, Stream] = {}

    async def run(self) -> None:
        """Replays all steps.

        Raises:
            MismatchError: at the first difference.
        """
        check_keys(self._scenario, _SCENARIO_KEYS)
        try:
            await self._server.call("RegisterJob", v1.RegisterJobRequest(job=self._spec))
            for number, line in enumerate(self._scenario.get("walk", ()), start=1):
                await self._replay_line(number, *line)
            for number, step in enumerate(self._scenario.get("steps", ()), start=1):
                await self._replay_step(number, step)
            if then := self._scenario.get("job_then"):
                check(await self._do_job({}), then)
        finally:
            for stream in self._streams.values():
                await stream.cancel()

    async def _replay_line(self, number: int, size: int, cost: float, converged: bool) -> None:
        trial = await self._do_next({"trial": "walk"})
        check(trial, {"trial_number": number, "batch_size": size})
        epoch, metric = (1, 0.95) if converged else (self._spec.max_epochs, 0.1)
        decision = await self._do_report({"trial": "walk", "epoch": epoch, "cost": cost, "metric": metric})
        check(decision, {"stop_train": True, "converged": converged})

    async def _replay_step(self, number: int, step: Mapping[str, Any]) -> None:
        (name,) = step.keys() - _EXPECTATIONS
        check_keys(step[name], _ARGUMENTS.get(name, step[name].keys()))
        step_method = getattr(self, f"_do_{name}", self._do_unknown)
        try:
            await self._call_and_compare(step_method(self._arguments(name, step)), step)
        except MismatchError as mismatch:
            raise MismatchError(f"step {number}, {name}: {mismatch}") from None
        except Refused as refused:
            raise MismatchError(f"step {number}, {name}: refused, {refused}") from None

    @staticmethod
    def _arguments(name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        # It polls until the answer is as `then` says.
        return {**step[name], "then": step["then"]} if name == "until" else step[name]

    @staticmethod
    async def _call_and_compare(call: Any, step: Mapping[str, Any]) -> None:
        if "error" not in step:
            message = await call
            if "then" in step:
                check(message, step["then"])
            return
        try:
            await call
        except Refused as refused:
            check_refusal(refused, step)
        else:
            raise MismatchError(f"did not fail with {step['error']}")

    async def _do_unknown(self, _args: Mapping[str, Any]) -> None:
        raise MismatchError("unknown to this runner")

    async def _do_next(self, args: Mapping[str, Any]) -> v1.Trial:
        job_id = args.get("job_id", self._spec.job_id)
        request = v1.GetNextBatchSizeRequest(
            job_id=job_id, launch_id=args.get("launch_id", new_id()), resume=args.get("resume", False)
        )
        answer = await self._server.call("GetNextBatchSize", request)
        if not answer.trial.reason and answer.trial.origin != v1.TRIAL_ORIGIN_IMPORTED:
            raise MismatchError("has no reason")
        trial: v1.Trial = answer.trial
        self._trials[args["trial"]] = trial.id
        return trial

    def _result(self, args: Mapping[str, Any]) -> v1.TrainingResult:
        measurement = v1.Measurement(
            epoch=args["epoch"],
            time_seconds=args.get("time", 1.0),
            energy_joules=args.get("cost"),
            metric=args.get("metric"),
            **{name: args[name] for name in ("computed", "power_setting") if name in args},
        )
        return v1.TrainingResult(
            trial=self._trials[args["trial"]], measurement=measurement, monitor=args.get("monitor")
        )

    async def _do_report(self, args: Mapping[str, Any]) -> Message:
        return await self._decision("ReportResult", v1.ReportResultRequest(result=self._result(args)))

    async def _do_heartbeat(self, args: Mapping[str, Any]) -> Message:
        return await self._decision("Heartbeat", v1.HeartbeatRequest(trial=self._trials[args["trial"]]))

    async def _decision(self, method: str, request: Message) -> Message:
        decision: v1.Decision = (await self._server.call(method, request)).decision
        return decision

    async def _do_end(self, args: Mapping[str, Any]) -> Message:
        request = v1.EndTrialRequest(trial=self._trials[args["trial"]], end_reason=args["reason"])
        trial: v1.Trial = (await self._server.call("EndTrial", request)).trial
        return trial

    async def _do_register(self, args: Mapping[str, Any]) -> Message:
        request = v1.RegisterJobRequest(job=job_spec(**{**self._job, **args}))
        answer: v1.RegisterJobResponse = await self._server.call("RegisterJob", request)
        return answer

    async def _do_get(self, args: Mapping[str, Any]) -> Message:
        request = v1.GetTrialRequest(trial=self._trials[args["trial"]])
        trial: v1.Trial = (await self._server.call("GetTrial", request)).trial
        return trial

    async def _do_lookup(self, args: Mapping[str, Any]) -> Message:
        named = {name: args[name] for name in args if name != "trial"}
        answer: v1.LookupTrialResponse = await self._server.call(
            "LookupTrial", v1.LookupTrialRequest(**self._on_job(named))
        )
        self._trials[args["trial"]] = answer.trial.id
        return answer.trial

    async def _do_job(self, args: Mapping[str, Any]) -> Message:
        request = v1.GetJobRequest(job_id=args.get("job_id", self._spec.job_id))
        job: v1.Job = (await self._server.call("GetJob", request)).job
        return job

    async def _do_details(self, args: Mapping[str, Any]) -> Message:
        request = v1.GetJobRequest(job_id=args.get("job_id", self._spec.job_id))
        details: v1.JobDetails = (await self._server.call("GetJob", request)).details
        return details

    async def _do_delete(self, _args: Mapping[str, Any]) -> Message:
        known: v1.GetJobResponse = await self._server.call("GetJob", v1.GetJobRequest(job_id=self._spec.job_id))
        request = v1.DeleteJobRequest(job_id=self._spec.job_id, create_time=known.job.create_time)
        job: v1.Job = (await self._server.call("DeleteJob", request)).job
        return job

    async def _do_import(self, args: Mapping[str, Any]) -> Message:
        fields = {name: args[name] for name in args if name not in ("trial", "measurements")}
        request = v1.ImportTrialRequest(**self._on_job(fields))
        for epoch, cost, metric in args["measurements"]:
            request.measurements.add(epoch=epoch, time_seconds=1.0, energy_joules=cost, metric=metric)
        answer: v1.ImportTrialResponse = await self._server.call("ImportTrial", request)
        self._trials[args.get("trial", "")] = answer.trial.id
        return answer

    async def _do_reset(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after("ResetJob", v1.ResetJobRequest(**self._on_job(args), request_id=new_id()))

    async def _do_exclude(self, args: Mapping[str, Any]) -> Message:
        request = v1.SetTrialExcludedRequest(trial=self._trials[args["trial"]], excluded=args["excluded"])
        answer: v1.SetTrialExcludedResponse = await self._server.call("SetTrialExcluded", request)
        return answer

    async def _do_ban(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after("SetBatchSizeBanned", v1.SetBatchSizeBannedRequest(**self._on_job(args)))

    async def _do_pin(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after("SetPinnedBatchSize", v1.SetPinnedBatchSizeRequest(**self._on_job(args)))

    async def _do_readmit(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after(
            "ReadmitBatchSize", v1.ReadmitBatchSizeRequest(**self._on_job(args), request_id=new_id())
        )

    async def _do_pause(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after("SetJobPaused", v1.SetJobPausedRequest(**self._on_job(args)))

    async def _do_baseline(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after(
            "RequestBaseline", v1.RequestBaselineRequest(**self._on_job(args), request_id=new_id())
        )

    async def _do_baseline_every(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after("SetBaselineEvery", v1.SetBaselineEveryRequest(**self._on_job(args)))

    async def _do_set_policy(self, args: Mapping[str, Any]) -> Message:
        return await self._job_after("SetJobPolicy", v1.SetJobPolicyRequest(**self._on_job(args)))

    def _on_job(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return {"job_id": self._spec.job_id, **args}

    async def _job_after(self, method: str, request: Message) -> Message:
        job: v1.Job = (await self._server.call(method, request)).job
        return job

    async def _do_invent(self, args: Mapping[str, Any]) -> None:
        trial = v1.TrialId()
        trial.CopyFrom(self._trials[args["like"]])
        for name in args.keys() - {"trial", "like"}:
            setattr(trial, name, args[name])
        self._trials[args["trial"]] = trial

    async def _do_until(self, args: Mapping[str, Any]) -> Message:
        deadline = time.monotonic() + TIMEOUT
        while True:
            if "heartbeat" in args:
                await self._do_heartbeat({"trial": args["heartbeat"]})
            trial = await self._do_get(args)
            try:
                check(trial, args["then"])
            except MismatchError:
                if time.monotonic() > deadline:
                    raise
            else:
                return trial
            await asyncio.sleep(0.05)

    async def _do_open(self, args: Mapping[str, Any]) -> None:
        self._streams[args["trial"]] = await self._server.open()
        await self._do_send(args)

    async def _do_send(self, args: Mapping[str, Any]) -> None:
        heartbeat = v1.HeartbeatRequest(trial=self._trials[args["trial"]])
        event = {"result": self._result(args)} if "epoch" in args else {"heartbeat": heartbeat}
        await self._streams[args["trial"]].send(v1.StreamResultsRequest(**event))

    async def _do_expect(self, args: Mapping[str, Any]) -> Message:
        response = await self._next_on(args)
        if response is None:
            raise MismatchError("the stream ended")
        return response.decision

    async def _do_close(self, args: Mapping[str, Any]) -> None:
        await self._streams[args["trial"]].close()
        compare("message after close", await self._next_on(args), None)

    async def _next_on(self, args: Mapping[str, Any]) -> v1.StreamResultsResponse | None:
        try:
            return await asyncio.wait_for(self._streams[args["trial"]].receive(), TIMEOUT)
        except asyncio.TimeoutError:
            raise MismatchError(f"no message within {TIMEOUT:g} s") from None


def check_keys(node: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuses unknown keys, which must not be ignored."""
    if unknown := node.keys() - known:
        raise MismatchError(f"unknown to this runner: {', '.join(sorted(unknown))}")
