"""What every call passes through: errors become statuses, and a server that drains ends its streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, cast

import grpc

from wattwise_server.errors import InvalidRequestError, ServiceError, ShuttingDownError
from wattwise_server.observability.call import Call, Context, current_call
from wattwise_server.rpc.decoding import guarded, reader
from wattwise_server.rpc.drain import Drain, UntilDrained
from wattwise_server.rpc.handlers import Handler, behavior, remade
from wattwise_server.rpc.statuses import Details, details_of, details_of_bug

Wrap: TypeAlias = Callable[[Handler, str], Handler]
"""Makes another handler of a method's, given its full name."""


class Registrar:
    """What services are added to in place of the server: every method is wrapped, once.

    gRPC's own interceptors are asked again at every call, which would cost a call a tenth of its time.
    """

    def __init__(self, server: grpc.aio.Server, *wraps: Wrap) -> None:
        """The last of `wraps` is the outermost."""
        self._server = server
        self._wraps = wraps

    @property
    def server(self) -> grpc.aio.Server:
        """This, as the type that generated code asks for; of a server's methods it calls these two."""
        return cast("grpc.aio.Server", self)

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Leaves it to `add_registered_method_handlers`, which is told the same methods by name."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """Adds a service's methods, wrapped."""
        wrapped = {name: self._wrapped(handler, f"/{service}/{name}") for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, wrapped),))

    def _wrapped(self, handler: Handler, method: str) -> Handler:
        for wrap in self._wraps:
            handler = wrap(handler, method)
        return handler


class Calls:
    """Runs every call: errors become statuses, streams end when the server drains, and what runs can be awaited."""

    def __init__(self) -> None:
        self._drain = Drain()
        self._active: set[asyncio.Task[Any]] = set()

    def drain(self) -> None:
        """Ends all streams, so that their clients look for the next server, and refuses new calls."""
        self._drain.begin()

    async def finished(self) -> None:
        """Returns once no call runs any more."""
        while self._active:
            await asyncio.wait(self._active)

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Runs a method's handler; of health's and reflection's, which are not ours, it mends the reading alone."""
        if not method.startswith("/wattwise."):
            return guarded(handler, _refuse)
        serve = behavior(handler)

        async def write(request: Any, context: Context) -> None:
            await self._write_all(serve(request, context), context)

        async def converse(_: Any, context: Context) -> None:
            # Not by gRPC's iterator, which is a generator around the same and would cost every message its time.
            await serve(UntilDrained(context.read, self._drain, end=grpc.aio.EOF), context)

        if handler.request_streaming:
            return remade(handler, self._run(converse, method), reader(handler))
        return remade(handler, self._run(write if handler.response_streaming else serve, method), reader(handler))

    def _run(self, serve: Any, method: str) -> Any:
        drain, active = self._drain, self._active

        # gRPC awaits a handler only if it can see that it is a coroutine function.
        async def run(request: Any, context: Context) -> Any:
            task = asyncio.current_task()
            if task is None:
                raise RuntimeError("gRPC runs every handler in a task")
            active.add(task)
            call = Call(method, context, request)
            current_call.set(call)
            try:
                if drain.begun:
                    raise ShuttingDownError  # noqa: TRY301 - so that it becomes a status here, as all errors do
                if type(request) is InvalidRequestError:
                    raise request  # noqa: TRY301
                return await serve(request, context)
            except ServiceError as error:
                await _abort(context, details_of(error))
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 - the caller gets an incident id and the log gets all of it
                await _abort(context, details_of_bug(method, error))
            finally:
                # Only now, with the status sent: whoever awaits the last call goes on to close the sockets.
                active.discard(task)
                call.context = None

        return run

    async def _write_all(self, responses: Any, context: Context) -> None:
        async with contextlib.aclosing(responses):
            async for response in UntilDrained(responses.__anext__, self._drain):
                await context.write(response)


async def _refuse(error: ServiceError, context: Context) -> NoReturn:
    await _abort(context, details_of(error))


async def _abort(context: Context, details: Details) -> NoReturn:
    code, message, status = details
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))
