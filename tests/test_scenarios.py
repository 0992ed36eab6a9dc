"""The behaviour tables, replayed in process and over gRPC."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from wattwise import v1
from wattwise_server.administration import Administration
from wattwise_server.clock import steady_clock
from wattwise_server.errors import ServiceError
from wattwise_server.open_streams import OpenStreams
from wattwise_server.optimizer import Optimizer
from wattwise_server.power_limits import PowerLimits
from wattwise_server.service import BatchSizeOptimizerService, JobAdminService
from wattwise_server.store.open import open_store

from tests.jobs import job_spec
from tests.live_server import LiveServer

Call = Callable[[str, Message], Awaitable[Any]]
_ids = itertools.count()


def scenarios() -> list[Any]:
    """Every scenario of every table, with its name as the test's id."""
    tables = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
    found = [scenario for table in tables for scenario in yaml.safe_load(table.read_text())]
    return [pytest.param(scenario, id=scenario["name"]) for scenario in found]


class Refused(Exception):  # noqa: N818 - what happened, not an error of ours
    """A call was refused for a reason."""


@pytest.fixture
async def in_process(tmp_path: Path) -> AsyncIterator[Call]:
    """Calls the service without gRPC, on a database of its own."""
    clock = steady_clock()
    async with open_store(f"sqlite:///{tmp_path / 'scenario.db'}", clock) as store:
        streams = OpenStreams(0)
        services = (
            BatchSizeOptimizerService(Optimizer(store, clock), PowerLimits(store, clock), streams),
            JobAdminService(Administration(store, clock), streams),
        )

        async def call(method: str, request: Message) -> Any:
            service = next(service for service in services if method in type(service).__dict__)
            try:
                return await getattr(service, method)(request, None)
            except ServiceError as error:
                raise Refused(error.reason) from error

        yield call


@pytest.fixture
async def over_grpc(grpc_server: LiveServer) -> AsyncIterator[Call]:
    """Calls the real server."""
    async with grpc.aio.insecure_channel(grpc_server.address) as channel:
        stubs = (v1.BatchSizeOptimizerStub(channel), v1.JobAdminStub(channel))

        async def call(method: str, request: Message) -> Any:
            stub = next(stub for stub in stubs if hasattr(stub, method))
            try:
                return await getattr(stub, method)(request)
            except grpc.aio.AioRpcError as error:
                raise Refused(reason_of(error)) from error

        yield call


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason in an error's details."""
    raw = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(raw).details[0].Unpack(info)
    return str(info.reason)


@pytest.mark.parametrize("scenario", scenarios())
async def test_in_process(scenario: dict[str, Any], in_process: Call) -> None:
    """The table holds for the service without gRPC."""
    await Replay(scenario, in_process).run()


@pytest.mark.parametrize("scenario", scenarios())
async def test_over_grpc(scenario: dict[str, Any], over_grpc: Call) -> None:
    """The table holds for the real server."""
    await Replay(scenario, over_grpc).run()


class Replay:
    """One scenario against one way of calling."""

    def __init__(self, scenario: dict[str, Any], call: Call) -> None:
        self.scenario = scenario
        self.call = call
        self.spec = job_spec(job_id=f"test-scenario-{next(_ids)}", **scenario.get("job", {}))
        self.trials: dict[str, v1.Trial] = {}

    async def run(self) -> None:
        """Fails at the first step that is not as the table says."""
        await self.call("RegisterJob", v1.RegisterJobRequest(job=self.spec))
        for number, (size, cost, converged) in enumerate(self.scenario.get("walk", ()), start=1):
            await self.follow(number, size, cost, converged=converged)
        for step in self.scenario.get("steps", ()):
            await self.take(step)
        job = (await self.call("GetJob", v1.GetJobRequest(job_id=self.spec.job_id))).job
        check(job, self.scenario.get("job_then", {}))

    async def follow(self, number: int, size: int, cost: float, *, converged: bool) -> None:
        """One line of a walk."""
        request = v1.GetNextBatchSizeRequest(job_id=self.spec.job_id)
        trial = self.trials["walk"] = (await self.call("GetNextBatchSize", request)).trial
        assert (trial.id.trial_number, trial.id.batch_size) == (number, size)
        epoch, metric = (1, 0.95) if converged else (self.spec.max_epochs, 0.1)
        decision = await self.report({"trial": "walk", "epoch": epoch, "cost": cost, "metric": metric})
        assert (decision.stop_train, decision.converged) == (True, converged)

    async def take(self, step: dict[str, Any]) -> None:
        """One step: the call, then what it must have answered."""
        (name,) = step.keys() - {"then", "error"}
        act = getattr(self, f"{name}_" if name == "next" else name)
        if "error" in step:
            with pytest.raises(Refused) as refused:
                await act(step[name])
            assert str(refused.value) == step["error"], step
        else:
            check(await act(step[name]), step.get("then", {}))

    async def next_(self, given: dict[str, Any]) -> Message:
        request = v1.GetNextBatchSizeRequest(job_id=self.spec.job_id, request_id=given.get("request_id", ""))
        answer = await self.call("GetNextBatchSize", request)
        assert answer.reason
        self.trials[given["trial"]] = answer.trial
        return answer.trial  # type: ignore[no-any-return]

    async def report(self, given: dict[str, Any]) -> v1.Decision:
        result = v1.TrainingResult(
            trial=self.trials[given["trial"]].id,
            time_seconds=given.get("time", 1.0),
            energy_joules=given["cost"],
            metric=given["metric"],
            current_epoch=given["epoch"],
            meter=given.get("meter", ""),
        )
        return (await self.call("ReportResult", v1.ReportResultRequest(result=result))).decision  # type: ignore[no-any-return]

    async def heartbeat(self, given: dict[str, Any]) -> Message:
        request = v1.HeartbeatRequest(trial=self.trials[given["trial"]].id)
        return (await self.call("Heartbeat", request)).decision  # type: ignore[no-any-return]

    async def end(self, given: dict[str, Any]) -> Message:
        request = v1.EndTrialRequest(trial=self.trials[given["trial"]].id, reason=given["reason"])
        return (await self.call("EndTrial", request)).trial  # type: ignore[no-any-return]

    async def register(self, given: dict[str, Any]) -> Message:
        changed = job_spec(job_id=self.spec.job_id, **(self.scenario.get("job", {}) | given))
        return await self.call("RegisterJob", v1.RegisterJobRequest(job=changed))  # type: ignore[no-any-return]


def check(message: Message, then: dict[str, Any]) -> None:
    """Compares the fields that a table names."""
    for name, expected in then.items():
        holder = message.id if isinstance(message, v1.Trial) and name in ("batch_size", "trial_number") else message
        field = holder.DESCRIPTOR.fields_by_name[name]
        value = getattr(holder, name)
        if name == "arms":
            assert len(value) == len(expected)
            for arm, fields in zip(value, expected, strict=True):
                check(arm, fields)
        elif expected is None:
            assert not holder.HasField(name), f"{name} is {value}"
        elif field.enum_type is not None:
            assert field.enum_type.values_by_number[value].name == expected, name
        elif name in ("message", "warning") and expected:
            assert expected in value
        elif isinstance(expected, list):
            assert list(value) == expected, name
        elif isinstance(expected, str):
            assert value == expected, name
        else:
            assert math.isclose(value, expected, rel_tol=1e-12), f"{name} is {value}, not {expected}"
