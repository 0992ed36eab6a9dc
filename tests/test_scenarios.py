"""The behaviour tables, replayed in process and over gRPC."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.message import Message
from google.rpc import status_pb2
from wattwise import v1
from wattwise_server.clock import steady_clock
from wattwise_server.config import Factors
from wattwise_server.errors import ServiceError
from wattwise_server.rpc.calls import StreamLimit
from wattwise_server.rpc.paging import PageTokens
from wattwise_server.rpc.service import BatchSizeOptimizerService, JobControlService, JobReaderService
from wattwise_server.rpc.statuses import status_of
from wattwise_server.store.open import open_store
from wattwise_server.store.transactions import Store
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.imports import Importer
from wattwise_server.usecases.power_limits import PowerLimitProfiler
from wattwise_server.usecases.statistics import Statistics
from wattwise_server.usecases.training import Training

from tests.conformance.refusal import Refused, refusal_of
from tests.conformance.replay import Replay
from tests.live_server import LiveServer, servers_on
from tests.postgres import PostgresServer

_ids = itertools.count()


@functools.cache
def scenarios() -> list[Any]:
    """Every scenario of every table, with its name as the test's id."""
    tables = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
    found = [scenario for table in tables for scenario in yaml.load(table.read_text(), yaml.CSafeLoader)]
    return [pytest.param(scenario, id=scenario["name"]) for scenario in found]


class InProcess:
    """Calls the service without gRPC."""

    def __init__(self, store: Store) -> None:
        streams = StreamLimit(0)
        self.training = Training(store)
        self.trainers = BatchSizeOptimizerService(self.training, Importer(store), PowerLimitProfiler(store), streams)
        administration, statistics = Administration(store), Statistics(store, Factors())
        self.reader = JobReaderService(administration, statistics, streams, PageTokens(b""))
        self.control = JobControlService(administration, Control(store))

    async def call(self, method: str, request: Message) -> Any:
        service = next(s for s in (self.trainers, self.reader, self.control) if method in type(s).__dict__)
        await self.training.expire_leases()
        try:
            return await getattr(service, method)(request, None)
        except ServiceError as error:
            raise refusal_of(status_of(error)) from error

    async def open(self) -> InProcessStream:
        return InProcessStream(self.trainers)


class InProcessStream:
    """A stream without gRPC: queues in place of its two directions."""

    def __init__(self, service: BatchSizeOptimizerService) -> None:
        self.sent: asyncio.Queue[v1.StreamResultsRequest | None] = asyncio.Queue()
        self.answers: asyncio.Queue[v1.StreamResultsResponse | Refused | None] = asyncio.Queue()
        self.serving = asyncio.create_task(self._serve(service))

    async def _serve(self, service: BatchSizeOptimizerService) -> None:
        context: Any = self
        try:
            await service.StreamResults(self._requests(), context)
            await self.answers.put(None)
        except ServiceError as error:
            await self.answers.put(refusal_of(status_of(error)))

    async def _requests(self) -> AsyncIterator[v1.StreamResultsRequest]:
        while (request := await self.sent.get()) is not None:
            yield request

    async def write(self, response: v1.StreamResultsResponse) -> None:
        """The method of gRPC's context that the service calls."""
        await self.answers.put(response)

    async def send(self, request: v1.StreamResultsRequest) -> None:
        await self.sent.put(request)

    async def receive(self) -> v1.StreamResultsResponse | None:
        answer = await self.answers.get()
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def close(self) -> None:
        await self.sent.put(None)

    async def cancel(self) -> None:
        await self.close()
        await self.serving


class OverGrpc:
    """Calls the real server through the bare stubs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.trainers = v1.BatchSizeOptimizerStub(channel)
        self.reader = v1.JobReaderStub(channel)
        self.control = v1.JobControlStub(channel)

    async def call(self, method: str, request: Message) -> Any:
        stub = next(stub for stub in (self.trainers, self.reader, self.control) if hasattr(stub, method))
        try:
            return await getattr(stub, method)(request)
        except grpc.aio.AioRpcError as error:
            raise refused(error.trailing_metadata()) from error

    async def open(self) -> OverGrpcStream:
        return OverGrpcStream(self.trainers.StreamResults())


class InTurns:
    """Calls several servers on one database in turns; so do the streams that are opened."""

    def __init__(self, channels: Iterable[grpc.aio.Channel]) -> None:
        self.turns = itertools.cycle([OverGrpc(channel) for channel in channels])

    async def call(self, method: str, request: Message) -> Any:
        return await next(self.turns).call(method, request)

    async def open(self) -> OverGrpcStream:
        return await next(self.turns).open()


class OverGrpcStream:
    """A stream over gRPC."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    async def send(self, request: v1.StreamResultsRequest) -> None:
        await self.stream.write(request)

    async def receive(self) -> v1.StreamResultsResponse | None:
        try:
            response = await self.stream.read()
        except grpc.aio.AioRpcError as error:
            raise refused(error.trailing_metadata()) from error
        return None if response is grpc.aio.EOF else response

    async def close(self) -> None:
        await self.stream.done_writing()

    async def cancel(self) -> None:
        self.stream.cancel()


def refused(trailers: Any) -> Refused:
    """The error in the trailers of a call."""
    raw = dict(trailers or ())["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    return refusal_of(status_pb2.Status.FromString(raw))


@pytest.mark.parametrize("scenario", scenarios())
async def test_in_process(scenario: dict[str, Any], tmp_path: Path) -> None:
    """The table holds for the service without gRPC."""
    async with open_store(f"sqlite:///{tmp_path / 'scenario.db'}", steady_clock()) as store:
        await Replay(scenario, InProcess(store), f"test-{next(_ids)}").run()


@pytest.mark.parametrize("scenario", scenarios())
async def test_over_grpc(scenario: dict[str, Any], grpc_server: LiveServer) -> None:
    """The table holds for the real server."""
    async with grpc.aio.insecure_channel(grpc_server.address) as channel:
        await Replay(scenario, OverGrpc(channel), f"test-{next(_ids)}").run()


@pytest.fixture(scope="module")
def addresses(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """Those of two servers on one PostgreSQL."""
    folder, url = tmp_path_factory.mktemp("servers"), postgres_server.create_database()
    with servers_on(folder, url, 2, LiveServer) as servers:
        yield [server.address for server in servers]


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", scenarios())
async def test_over_two_servers(scenario: dict[str, Any], addresses: Sequence[str]) -> None:
    """The table holds for two servers on one PostgreSQL, each of which gets every other call."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(address)) for address in addresses]
        await Replay(scenario, InTurns(channels), f"test-{next(_ids)}").run()
