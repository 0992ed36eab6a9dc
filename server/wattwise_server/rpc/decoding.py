"""Bytes that are no message: refused like any other bad input, where gRPC by itself would answer UNKNOWN.

gRPC calls a deserializer outside of the handler, so that nothing in the handler could turn its exception into a status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isasyncgenfunction
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from wattwise_server.errors import InvalidRequestError, ServiceError, Violation
from wattwise_server.observability.call import Context
from wattwise_server.rpc.handlers import Handler, behavior, remade

Read: TypeAlias = Callable[[bytes], Any]
Refuse: TypeAlias = Callable[[ServiceError, Context], Awaitable[NoReturn]]


def reader(handler: Handler) -> Read | None:
    """The deserializer of a method, mended.

    Returns:
        Where a stream asks for each message, one that raises InvalidRequestError within the handler. Where there is one
        message, one that returns the InvalidRequestError in its place; the handler's wrapper then raises it.
    """
    parse = handler.request_deserializer
    if parse is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            refusal = InvalidRequestError(
                Violation("request", f"cannot be read ({error}); send a message that is made from this server's protos")
            )
            if handler.request_streaming:
                raise refusal from error
            return refusal

    return read


def guarded(handler: Handler, refuse: Refuse) -> Handler:
    """A method of another's service (health, reflection) that refuses what cannot be read; otherwise as it was.

    Args:
        handler: the method.
        refuse: aborts a call.
    """
    serve, read = behavior(handler), reader(handler)

    async def answer(request: Any, context: Context) -> Any:
        try:
            return await (refuse(request, context) if _unreadable(request) else serve(request, context))
        except NotImplementedError:
            # Of the health service not everything is there, which is no news for the log.
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server does not have this method")

    async def write(request: Any, context: Context) -> None:
        await (refuse(request, context) if _unreadable(request) else serve(request, context))

    async def converse(requests: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for response in serve(requests, context):
                yield response
        except ServiceError as error:
            await refuse(error, context)

    if handler.request_streaming:
        return remade(handler, converse, read) if isasyncgenfunction(serve) else handler
    if handler.response_streaming:
        return handler if isasyncgenfunction(serve) else remade(handler, write, read)
    return remade(handler, answer, read)


def _unreadable(request: object) -> bool:
    return type(request) is InvalidRequestError
