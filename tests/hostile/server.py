"""The hostile server: a port in front of a real server that does what a behaviour says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from tests.hostile.frames import Serve

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class Call:
    """A call that a behaviour answers.

    Attributes:
        method: Its name, such as "ReportResult".
        request: Its request; of a stream, the first one.
        sent: Its request as bytes.
        context: That of gRPC.
    """

    def __init__(self, path: str, request: bytes, context: Any, behind: grpc.aio.Channel) -> None:
        service, self.method = path[1:].split("/")
        types = descriptor_pool.Default().FindServiceByName(service).methods_by_name[self.method]
        self._answer = message_factory.GetMessageClass(types.output_type)
        self._request = message_factory.GetMessageClass(types.input_type)
        self.request: Any = self._request.FromString(request)
        self.context = context
        self.sent, self._path, self._behind = request, path, behind

    def empty(self) -> Any:
        """An answer with nothing in it."""
        return self._answer()

    async def real(self) -> Any:
        """The real server's answer; its refusal becomes that of this server."""
        forwarded: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._behind.unary_unary(self._path)
        try:
            return self.parsed(await forwarded(self.sent, timeout=20))
        except grpc.aio.AioRpcError as error:
            await self.pass_on(error)

    def parsed_request(self, request: bytes) -> Any:
        """A request as a message."""
        return self._request.FromString(request)

    def parsed(self, answer: bytes) -> Any:
        """An answer as a message."""
        return self._answer.FromString(answer)

    async def pass_on(self, error: grpc.aio.AioRpcError) -> None:
        """Ends the call as the real server has ended it."""
        await self.context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))


Answer = Callable[[Call], Awaitable[Message | bytes]]
Change = Callable[[Any], object]
Stream = Callable[[Call], AsyncIterator[Message | bytes]]


@dataclass(frozen=True)
class Behaviour:
    """What the server does instead of passing calls on.

    Attributes:
        does: What it does, in a few words.
        changes: What it changes in the real server's answers, by method.
        requests: What it changes in requests before it passes them on.
        answers: How it answers calls itself, by method.
        streams: How it answers streams itself, by method.
        serve: Serves a connection in place of gRPC.
        ends: The exit statuses that a trainer may have.
        waits: Whether trainers wait for their deadlines.
    """

    does: str
    changes: Mapping[str, Change] = field(default_factory=dict)
    requests: Change | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)
    serve: Serve | None = None
    ends: tuple[int, ...] = (0,)
    waits: bool = False

    def __str__(self) -> str:
        return self.does


class HostileServer(grpc.GenericRpcHandler):
    """Listens on a port of its own; what its behaviour says nothing about is passed on to the real server.

    Args:
        behaviour: What it does.
        behind: The address of the real server.

    Attributes:
        requests: The requests of calls that it got, with their methods, in order.
        faults: Errors of its own, of which a test must know.
    """

    def __init__(self, behaviour: Behaviour, behind: str) -> None:
        self._behaviour = behaviour
        self._address = behind
        self.requests: list[tuple[str, Any]] = []
        self.faults: list[Exception] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile server")
        self._front: grpc.aio.Server | asyncio.Server
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_error: object) -> None:
        assert not self.faults, self.faults
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _start(self) -> None:
        self._behind = grpc.aio.insecure_channel(self._address)
        if self._behaviour.serve is not None:
            self._front = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = self._front.sockets[0].getsockname()[1]
        else:
            options = (("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0))
            self._front = grpc.aio.server(handlers=[self], options=options)
            port = self._front.add_insecure_port("127.0.0.1:0")
            await self._front.start()
        self.address = f"127.0.0.1:{port}"

    async def _stop(self) -> None:
        if isinstance(self._front, asyncio.Server):
            self._front.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
        else:
            await self._front.stop(grace=None)
        await self._behind.close()
        # Calls that are collected later would write a traceback into the output of another test.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert self._behaviour.serve is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._behaviour.serve(reader, writer)
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of a call."""
        path, method = details.method, details.method.rpartition("/")[2]
        if method == "StreamResults":
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, path))
        if method.startswith("Watch"):
            return grpc.unary_stream_rpc_method_handler(partial(self._watch, path))
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, path))

    async def _answer(self, path: str, request: bytes, context: Any) -> bytes:
        call = self._noted(path, request, context)
        answer = self._behaviour.answers.get(call.method)
        answered = await (call.real() if answer is None else answer(call))
        with self._noting():
            return self._changed(call, answered)

    async def _stream(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        call = self._noted(path, await anext(aiter(requests)), context)

        async def noted() -> AsyncIterator[bytes]:
            yield call.sent
            async for request in requests:
                yield self._noted(path, request, context).sent

        forwarded: Any = self._behind.stream_stream(path)
        async for answer in self._answers(call, lambda: forwarded(noted())):
            yield answer

    async def _watch(self, path: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
        forwarded: Any = self._behind.unary_stream(path)
        call = self._noted(path, request, context)
        async for answer in self._answers(call, lambda: forwarded(call.sent)):
            yield answer

    async def _answers(self, call: Call, real: Callable[[], AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
        stream = self._behaviour.streams.get(call.method)
        try:
            async for answer in self._parsed(call, real()) if stream is None else stream(call):
                with self._noting():
                    changed = self._changed(call, answer)
                yield changed
        except grpc.aio.AioRpcError as error:
            await call.pass_on(error)

    async def _parsed(self, call: Call, answers: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        async for answer in answers:
            yield call.parsed(answer)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.faults.append(error)
            raise

    def _noted(self, path: str, request: bytes, context: Any) -> Call:
        call = Call(path, request, context, self._behind)
        self.requests.append((call.method, call.request))
        if self._behaviour.requests is not None:
            with self._noting():
                changed = call.parsed_request(request)
                self._behaviour.requests(changed)
                call.sent = changed.SerializeToString()
        return call

    def _changed(self, call: Call, answer: Message | bytes) -> bytes:
        if isinstance(answer, bytes):
            return answer
        if change := self._behaviour.changes.get(call.method):
            change(answer)
        return answer.SerializeToString()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)
