"""What every call passes through: errors become statuses, and a server that drains ends its streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

import grpc

from wattwise_server.call import Call, Context, current_call
from wattwise_server.decoding import guarded, reader, refused
from wattwise_server.drain import Drain, UntilDrained
from wattwise_server.errors import InvalidRequestError, ServiceError, ShuttingDownError
from wattwise_server.statuses import Details, details_of, details_of_bug


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call: errors become statuses, streams end when the server drains, and what runs can be awaited."""

    def __init__(self) -> None:
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._drain = Drain()
        self._active: set[asyncio.Task[Any]] = set()

    def drain(self) -> None:
        """Ends all streams, so that their clients look for the next server, and refuses new calls."""
        self._drain.begin()

    async def finished(self) -> None:
        """Returns once no call runs any more."""
        while self._active:
            await asyncio.wait(self._active)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the method's handler."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        # An unknown method has no handler.
        if handler is None:
            return None
        if method not in self._wrapped:
            # Health and reflection are not ours.
            ours = method.startswith("/wattwise.")
            self._wrapped[method] = self._wrap(handler, method) if ours else guarded(handler, _refuse)
        return self._wrapped[method]

    def _wrap(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> grpc.RpcMethodHandler[Any, Any]:
        unary, each, both = handler.unary_unary, handler.unary_stream, handler.stream_stream
        codec = {
            "request_deserializer": reader(handler),
            "response_serializer": handler.response_serializer,
        }

        # gRPC awaits a handler only if it can see that it is a coroutine function.
        async def answer(request: Any, context: Context) -> Any:
            work = refused(request) if type(request) is InvalidRequestError else unary(request, context)  # type: ignore[misc, arg-type]
            return await self._run(work, context, method, request)

        async def write(request: Any, context: Context) -> Any:
            states = each(request, context)  # type: ignore[misc, arg-type]
            work = refused(request) if type(request) is InvalidRequestError else self._write_all(states, context)
            return await self._run(work, context, method, request)

        async def converse(requests: Any, context: Context) -> Any:
            work = both(UntilDrained(requests, self._drain), context)  # type: ignore[misc, arg-type]
            return await self._run(work, context, method)  # type: ignore[arg-type]

        if unary:
            return grpc.unary_unary_rpc_method_handler(answer, **codec)
        if each:
            return grpc.unary_stream_rpc_method_handler(write, **codec)
        return grpc.stream_stream_rpc_method_handler(converse, **codec)

    async def _run(self, call: Coroutine[Any, Any, Any], context: Context, method: str, request: Any = None) -> Any:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("gRPC runs every handler in a task")
        self._active.add(task)
        known = Call(method, context, request)
        current_call.set(known)
        try:
            return await self._answered(call, context, method)
        finally:
            # Only now, with the status sent: whoever awaits the last call goes on to close the sockets.
            self._active.discard(task)
            known.context = None

    async def _answered(self, call: Coroutine[Any, Any, Any], context: Context, method: str) -> Any:
        try:
            if self._drain.begun:
                call.close()
                raise ShuttingDownError  # noqa: TRY301 - so that it becomes a status here, as all errors do
            return await call
        except ServiceError as error:
            details = details_of(error)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets an incident id and the log gets all of it
            details = details_of_bug(method, error)
        return await _abort(context, details)

    async def _write_all(self, responses: Any, context: Context) -> None:
        async with contextlib.aclosing(responses):
            async for response in UntilDrained(responses, self._drain):
                await context.write(response)


async def _refuse(error: ServiceError, context: Context) -> NoReturn:
    await _abort(context, details_of(error))


async def _abort(context: Context, details: Details) -> NoReturn:
    code, message, status = details
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))
