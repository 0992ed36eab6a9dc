"""The one place where an error becomes a status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import string
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from wattwise_server.errors import ServiceError, ShuttingDownError, Violation

log = logging.getLogger(__name__)

DOMAIN = "wattwise.v1"

_INTERNAL = "ERROR_REASON_INTERNAL"

_CODES = {
    "ERROR_REASON_INVALID_JOB_SPEC": grpc.StatusCode.INVALID_ARGUMENT,
    "ERROR_REASON_JOB_DIFFERS": grpc.StatusCode.ALREADY_EXISTS,
    "ERROR_REASON_JOB_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ERROR_REASON_TRIAL_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ERROR_REASON_NO_BATCH_SIZE_CONVERGED": grpc.StatusCode.FAILED_PRECONDITION,
    "ERROR_REASON_INVALID_RESULT": grpc.StatusCode.INVALID_ARGUMENT,
    "ERROR_REASON_INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "ERROR_REASON_STORAGE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "ERROR_REASON_SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    _INTERNAL: grpc.StatusCode.INTERNAL,
}

MESSAGE_BYTES = 1000
METADATA_BYTES = 1500
FAULTS_BYTES = 1500
"""As encoded. Trailers above 8 KiB are refused by every client, and with them the whole answer."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Details = tuple[grpc.StatusCode, str, status_pb2.Status]


def details_of(error: ServiceError) -> Details:
    """The status of a refusal, with its reason, whether to retry, and its faults field by field."""
    metadata = {"retryable": str(error.retryable).lower(), **_that_fit(error.metadata)}
    faults = [
        error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
        for v in _violations_that_fit(error.violations)
    ]
    extra: list[Message] = [error_details_pb2.BadRequest(field_violations=faults)] if faults else []
    return _details(_CODES[error.reason], _short(error.message, MESSAGE_BYTES), error.reason, metadata, extra)


def _size(text: str) -> int:
    """Bytes of a text on the wire, where gRPC escapes whatever is not ASCII."""
    return len(quote(text, safe=string.printable))


def _short(text: str, most: int) -> str:
    if _size(text) <= most:
        return text
    text = text[:most]
    while _size(text) > most - 9:
        text = text[: int(len(text) * 0.9)]
    return f"{text}…"


def _that_fit(metadata: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    room = METADATA_BYTES
    for key, value in metadata.items():
        short = _short(value, METADATA_BYTES // 3)
        room -= _size(key) + _size(short)
        if room < 0:
            return {**kept, "more": f"{len(metadata) - len(kept)} more are not listed for want of room"}
        kept[key] = short
    return kept


def _violations_that_fit(violations: Sequence[Violation]) -> list[Violation]:
    kept: list[Violation] = []
    room = FAULTS_BYTES
    for violation in violations:
        short = Violation(violation.field, _short(violation.description, FAULTS_BYTES // 3))
        room -= _size(short.field) + _size(short.description)
        if room < 0:
            rest = len(violations) - len(kept)
            return [*kept, Violation("", f"{rest} more faults of this request are not listed for want of room")]
        kept.append(short)
    return kept


def details_of_bug(method: str, error: Exception) -> Details:
    """The status of anything else: logged whole, hidden from the caller but for an id."""
    incident = secrets.token_hex(4)
    log.error("incident %s: %s failed in a way nobody foresaw", incident, method, exc_info=error)
    message = f"the server failed; its log tells more under incident {incident}"
    metadata = {"incident_id": incident, "retryable": "false"}
    return _details(_CODES[_INTERNAL], message, _INTERNAL, metadata, [])


def _details(
    code: grpc.StatusCode, message: str, reason: str, metadata: dict[str, str], extra: list[Message]
) -> Details:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    packed = []
    for detail in (info, *extra):
        holder = any_pb2.Any()
        holder.Pack(detail)
        packed.append(holder)
    return code, message, status_pb2.Status(code=code.value[0], message=message, details=packed)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call: errors become statuses, streams end when the server drains, and what runs can be awaited."""

    def __init__(self) -> None:
        self._draining = asyncio.Event()
        self._active: set[asyncio.Task[Any]] = set()

    def drain(self) -> None:
        """Ends all streams, so that their clients look for the next server, and refuses new calls."""
        self._draining.set()

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
        # Health and reflection are not ours; an unknown method has no handler.
        if handler is None or not handler_call_details.method.startswith("/wattwise."):
            return handler
        return self._wrapped(handler, handler_call_details.method)

    def _wrapped(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> grpc.RpcMethodHandler[Any, Any]:
        unary, each, both = handler.unary_unary, handler.unary_stream, handler.stream_stream
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }

        # gRPC awaits a handler only if it can see that it is a coroutine function.
        async def answer(request: Any, context: Context) -> Any:
            return await self._run(unary(request, context), context, method)  # type: ignore[misc, arg-type]

        async def write(request: Any, context: Context) -> Any:
            work = _write_all(each(request, context), context)  # type: ignore[misc, arg-type]
            return await self._run(self._until_drained(work), context, method)

        async def converse(requests: Any, context: Context) -> Any:
            return await self._run(self._until_drained(both(requests, context)), context, method)  # type: ignore[misc, arg-type]

        if unary:
            return grpc.unary_unary_rpc_method_handler(answer, **codec)
        if each:
            return grpc.unary_stream_rpc_method_handler(write, **codec)
        return grpc.stream_stream_rpc_method_handler(converse, **codec)

    async def _run(self, call: Coroutine[Any, Any, Any], context: Context, method: str) -> Any:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("gRPC runs every handler in a task")
        self._active.add(task)
        try:
            return await self._answered(call, context, method)
        finally:
            # Only now, with the status sent: whoever awaits the last call goes on to close the sockets.
            self._active.discard(task)

    async def _answered(self, call: Coroutine[Any, Any, Any], context: Context, method: str) -> Any:
        try:
            if self._draining.is_set():
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

    async def _until_drained(self, call: Any) -> None:
        work = asyncio.ensure_future(call)
        drained = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({work, drained}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ShuttingDownError
            work.result()
        finally:
            drained.cancel()
            work.cancel()
            await asyncio.wait({work, drained})


async def _write_all(responses: Any, context: Context) -> None:
    async with contextlib.aclosing(responses):
        async for response in responses:
            await context.write(response)


async def _abort(context: Context, details: Details) -> NoReturn:
    code, message, status = details
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))
