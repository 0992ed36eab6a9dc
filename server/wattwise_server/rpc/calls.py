"""The path of every call: parsing, authorization, statuses, notification of listeners, and draining."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from inspect import isasyncgenfunction
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc_status import rpc_status

from wattwise_server.errors import InvalidRequestError, ServiceError, ShuttingDownError, TooManyStreamsError, Violation
from wattwise_server.observability.call import Call, CallListener, current_call
from wattwise_server.observability.logs import REFUSED, log_event
from wattwise_server.rpc.statuses import status_of, status_of_bug
from wattwise_server.security.authorization import Authorization, Caller

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Parse: TypeAlias = "Callable[[bytes], Any] | None"

_DEADLINE_MARGIN_SECONDS = 0.2
"""A client sees its deadline pass this much earlier than the server, which learns of it from the client."""

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}

_OPEN_STREAMS = 1_000
"""Streams of the health and reflection services."""

_UNFINISHED_CALLS = 64
"""Calls whose request has not arrived. A request comes with its call, so that few are on their way at a time; those of
strangers that never come take less than 100 MB."""

_USUAL_BYTES = 16 * 1024
"""Above any request but imports and profiles. Parsed, a request may take a hundred times as much memory."""


class StreamLimit:
    """Limits how many streams are open at a time.

    Args:
        limit: The largest number; 0 means no limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Counts one stream for the length of the block.

        Raises:
            TooManyStreamsError: the limit is reached.
        """
        if self._limit and self._open >= self._limit:
            raise TooManyStreamsError(self._limit)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class Arrivals:
    """Receives the requests of calls with one request. If too many are on their way, the oldest calls are refused.

    gRPC hands a call over before its request is there. A client that never sends it, or sends all but the end of it,
    would occupy memory for ever.

    Args:
        limit: The largest number of calls without their request.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def request(self, context: Context) -> bytes | None:
        """Returns the request of a call, in its task; None if the client sends none. A refused call ends here."""
        task, tasks = _current_task(), self._tasks
        tasks[task] = None
        if len(tasks) > self._limit:
            oldest = next(iter(tasks))
            del tasks[oldest]
            oldest.cancel()
        try:
            data: Any = await context.read()
        except asyncio.CancelledError:
            # Still there: cancelled by the client or its deadline.
            if task in tasks:
                raise
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are waiting for their request")
        finally:
            tasks.pop(task, None)
        return data if isinstance(data, bytes) else None


class Drain:
    """Whether the server is shutting down, and the tasks that wait for a message of a stream."""

    def __init__(self) -> None:
        self.begun = False
        self.waiting: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """Ends every wait for a message, now and from now on, with ShuttingDownError."""
        self.begun = True
        for task in tuple(self.waiting):
            task.cancel()


class Messages:
    """The messages of a stream in one direction, until it ends or the server drains.

    Draining cancels a task only while it waits here for the next message. Cancelling a write would leave gRPC with half
    an operation, and no status could be sent after it. An async generator would cost more per message.

    Args:
        read: Waits for the next message.
        drain: Ends the stream, with ShuttingDownError.
        convert: Applied to every message; may refuse it.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], drain: Drain, convert: Callable[[Any], Any]) -> None:
        self._read = read
        self._drain = drain
        self._convert = convert
        self._task = _current_task()

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Any:
        drain, task = self._drain, self._task
        if drain.begun:
            raise ShuttingDownError
        drain.waiting.add(task)
        try:
            message = await self._read()
        except asyncio.CancelledError:
            if drain.begun:
                raise ShuttingDownError from None
            raise
        finally:
            drain.waiting.discard(task)
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._convert(message)


class Shared(NamedTuple):
    """What all methods of a server share.

    Attributes:
        listeners: Notified of every call to Wattwise's own services.
        authorization: Checks tokens; None answers every caller.
        streams: Limits the streams of the health and reflection services, and is limited by them.
        open_streams: Limits these streams alone.
        arrivals: Receives requests.
        large: Held while a request above the usual size is parsed and answered.
        drain: Whether the server is shutting down.
        active: The tasks of the calls to Wattwise's own services.
    """

    listeners: Sequence[CallListener]
    authorization: Authorization | None
    streams: StreamLimit
    open_streams: StreamLimit
    arrivals: Arrivals
    large: asyncio.Lock
    drain: Drain
    active: set[asyncio.Task[Any]]


class Method:
    """One method of the server, which runs a call from its first byte to its status.

    One class does all of it, for the four kinds of methods and for the health and reflection services too. gRPC's
    interceptors would run again for every call, which costs a call about a tenth.

    Args:
        name: Its full name.
        handler: What generated code calls.
        shared: What all methods share.
    """

    def __init__(self, name: str, handler: Handler, shared: Shared) -> None:
        typed: Any = handler  # the stubs know the synchronous kinds of handlers only
        self._name = name
        self._shared = shared
        self._ours = name.startswith("/wattwise.")
        self._reads_stream, self._writes_stream = handler.request_streaming, handler.response_streaming
        self._streams = self._reads_stream or self._writes_stream
        self._listeners = shared.listeners if self._ours else ()
        self._received = self._counters("received")
        self._parse: Parse = handler.request_deserializer
        self._serialize = _counted(handler.response_serializer, self._counters("sent"))
        self._serve = typed.unary_unary or typed.unary_stream or typed.stream_unary or typed.stream_stream
        self._generates = isasyncgenfunction(self._serve)
        self._usual = _USUAL_BYTES if self._ours else None
        if self._streams:
            self._answer = self._answered if self._ours else self._answered_within_limits
        else:
            self._answer = self._answered_in_turn if self._ours else self._answered

    def _counters(self, direction: str) -> Sequence[Callable[[], None]]:
        """Returns the counters of a stream's messages."""
        if not self._streams:
            return ()
        counters = (each.message_counter(self._name, direction) for each in self._listeners)
        return [counter for counter in counters if counter is not None]

    def handler(self) -> Handler:
        """Returns this method as gRPC calls it."""
        # As if every client sent a stream: gRPC would receive a single request without a limit of calls.
        make = grpc.stream_stream_rpc_method_handler if self._writes_stream else grpc.stream_unary_rpc_method_handler
        # gRPC passes the bytes on: an exception of its own deserializer could not be turned into a status.
        return make(self._run, None, self._serialize)

    async def _run(self, data: Any, context: Context) -> Any:
        shared, ours = self._shared, self._ours
        if not self._reads_stream:
            data = await shared.arrivals.request(context)
        call = Call(self._name, context, streams=self._streams)
        current_call.set(call)
        ended = [listener.call_started(call) for listener in self._listeners]
        task = _current_task()
        if ours:
            shared.active.add(task)
        try:
            if ours and shared.drain.begun:
                raise ShuttingDownError  # noqa: TRY301 - becomes a status below, like every error
            call.response = await self._answer(call, context, data)
        except grpc.aio.AbortError:
            call.code = _code_name(context.code())
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each becomes a status
            await self._fail(call, context, error)
        else:
            call.code = "OK"
            return call.response
        finally:
            # Not before the status of an error is sent: after the last active call the sockets are closed.
            shared.active.discard(task)
            for end in ended:
                end()
            call.context = None

    async def _fail(self, call: Call, context: Context, error: BaseException) -> NoReturn:
        """Ends a call with the status of an error."""
        match error:
            case ServiceError():
                await _abort(call, context, status_of(error))
            case asyncio.CancelledError() | grpc.aio.InternalError():
                # An InternalError is a message that could not be sent, because the call had ended just before.
                left = context.time_remaining()
                call.code = "CANCELLED" if left is None or left > _DEADLINE_MARGIN_SECONDS else "DEADLINE_EXCEEDED"
                raise asyncio.CancelledError from error
            case NotImplementedError() if not self._ours:
                # The health service of some versions lacks List.
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server does not have this method")
        # The caller gets an incident id, the log the traceback.
        await _abort(call, context, status_of_bug(self._name, error))

    async def _answered_within_limits(self, call: Call, context: Context, data: Any) -> Any:
        with self._shared.streams.opened(), self._shared.open_streams.opened():
            return await self._answered(call, context, data)

    async def _answered_in_turn(self, call: Call, context: Context, data: Any) -> Any:
        """Parses and answers only one request above the usual size at a time."""
        if data is None or len(data) <= _USUAL_BYTES:
            return await self._answered(call, context, data)
        async with self._shared.large:
            try:
                return await self._answered(call, context, data)
            except ServiceError as error:
                # The frames that it came through hold the request, and the status is not sent yet.
                raise error.with_traceback(None) from None
            finally:
                call.request = None

    async def _answered(self, call: Call, context: Context, data: Any) -> Any:
        """Parses the request, checks the caller and calls the handler."""
        authorization, drain = self._shared.authorization, self._shared.drain
        if self._reads_stream:
            caller = authorization.admit(call) if authorization is not None else None
            request: Any = Messages(context.read, drain, partial(self._next_request, caller))
        else:
            for count in self._received:
                count()
            most = self._usual if self._streams else None
            # The log of a refusal names the job, unless the request is large: it may expand to tens of megabytes.
            if self._usual is None or data is None or len(data) <= self._usual:
                call.request = self._parsed(data, most)
            caller = authorization.admit(call) if authorization is not None else None
            if call.request is None:
                call.request = self._parsed(data, most)
            request = call.request
            if caller is not None:
                caller.check(request)
        if not self._generates:
            return await self._serve(request, context)
        async with aclosing(self._serve(request, context)) as responses:
            async for message in Messages(responses.__anext__, drain, partial(_with_token_checked, caller)):
                await context.write(message)
        return None

    def _next_request(self, caller: Caller | None, data: bytes) -> Any:
        """Returns the next request of a stream."""
        for count in self._received:
            count()
        message = self._parsed(data, self._usual)
        if caller is not None:
            caller.check_token()
            caller.check(message)
        return message

    def _parsed(self, data: Any, most: int | None) -> Any:
        if data is None:
            raise InvalidRequestError(Violation("request", "is missing; send one message"))
        if most is not None and len(data) > most:
            raise InvalidRequestError(Violation("request", f"has {len(data)} bytes; use at most {most} in a stream"))
        try:
            return self._parse(data) if self._parse is not None else data
        except DecodeError as error:
            fault = f"cannot be parsed ({error}); send a message of this server's protos"
            raise InvalidRequestError(Violation("request", fault)) from error


class Methods(grpc.GenericRpcHandler):
    """The server's methods.

    Args:
        listeners: Notified of every call to Wattwise's own services.
        authorization: Checks tokens; None answers every caller.
        streams: Limits the streams of the health and reflection services, and is limited by them.
    """

    def __init__(
        self,
        listeners: Sequence[CallListener] = (),
        authorization: Authorization | None = None,
        streams: StreamLimit | None = None,
    ) -> None:
        self._shared = Shared(
            listeners=tuple(listeners),
            authorization=authorization,
            streams=streams or StreamLimit(0),
            open_streams=StreamLimit(_OPEN_STREAMS),
            arrivals=Arrivals(_UNFINISHED_CALLS),
            large=asyncio.Lock(),
            drain=Drain(),
            active=set(),
        )
        self._handlers: dict[str, Handler] = {}

    @property
    def registry(self) -> grpc.aio.Server:
        """This object, as the type that generated code adds services to; it calls the next two methods only."""
        return cast("grpc.aio.Server", self)

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: generated code adds the same methods by name too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Adds a service's methods."""
        for name, handler in handlers.items():
            method = f"/{service}/{name}"
            self._handlers[method] = Method(method, handler, self._shared).handler()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Returns the handler of a method; for an unknown one, a handler that refuses the call."""
        method = handler_call_details.method
        return self._handlers.get(method) or self._refusing_unknown(method)

    def drain(self) -> None:
        """Ends all streams, so that their clients connect to the next server, and refuses new calls."""
        self._shared.drain.begin()

    async def finished(self) -> None:
        """Returns when no call is active."""
        while self._shared.active:
            await asyncio.wait(self._shared.active)

    def _refusing_unknown(self, method: str) -> Handler:
        async def refuse(_requests: Any, context: Context) -> None:
            current_call.set(Call(method, context))
            for listener in self._shared.listeners:
                listener.unknown_method_called()
            message = "unknown method; the server may be older than its client"
            log_event(log, logging.INFO, REFUSED, code="UNIMPLEMENTED", message=message, method=method)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, message)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("gRPC runs every handler in a task")
    return task


def _with_token_checked(caller: Caller | None, message: Any) -> Any:
    """Returns a message of a response stream, after checking the caller's token again."""
    if caller is not None:
        caller.check_token()
    return message


def _counted(serialize: Callable[[Any], bytes] | None, counters: Sequence[Callable[[], None]]) -> Any:
    if serialize is None or not counters:
        return serialize

    def counting(message: Any) -> bytes:
        for count in counters:
            count()
        return serialize(message)

    return counting


async def _abort(call: Call, context: Context, status: status_pb2.Status) -> NoReturn:
    sent = rpc_status.to_status(status)
    call.code = sent.code.name
    try:
        await context.abort(sent.code, sent.details, sent.trailing_metadata)
    except grpc.aio.InternalError as error:
        # The call has ended meanwhile, for example because its request is too large after decompression.
        raise asyncio.CancelledError from error


def _code_name(code: Any) -> str:
    return code.name if isinstance(code, grpc.StatusCode) else _CODE_NAMES.get(code, "UNKNOWN")
