"""Maps errors to gRPC statuses: the only place where that is done."""

from __future__ import annotations

import logging
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from wattwise.rules import MAX_ID_LENGTH

from wattwise_server.errors import ServiceError, ShuttingDownError, Violation
from wattwise_server.observability.call import current_call
from wattwise_server.observability.logs import REFUSED, log_event, log_exception, logged_reason

log = logging.getLogger(__name__)

DOMAIN = "wattwise.v1"

_INTERNAL = "ERROR_REASON_INTERNAL"

_CODES = {
    "ERROR_REASON_INVALID_JOB_SPEC": grpc.StatusCode.INVALID_ARGUMENT,
    "ERROR_REASON_JOB_DIFFERS": grpc.StatusCode.ALREADY_EXISTS,
    "ERROR_REASON_JOB_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ERROR_REASON_TRIAL_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ERROR_REASON_TRIAL_DELETED": grpc.StatusCode.NOT_FOUND,
    "ERROR_REASON_NO_BATCH_SIZE_LEFT": grpc.StatusCode.FAILED_PRECONDITION,
    "ERROR_REASON_NOT_POSSIBLE_NOW": grpc.StatusCode.FAILED_PRECONDITION,
    "ERROR_REASON_INVALID_RESULT": grpc.StatusCode.INVALID_ARGUMENT,
    "ERROR_REASON_INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "ERROR_REASON_TOO_MANY_JOBS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ERROR_REASON_TOO_MANY_TRIALS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ERROR_REASON_TOO_MANY_STREAMS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ERROR_REASON_STORAGE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "ERROR_REASON_SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    "ERROR_REASON_UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "ERROR_REASON_PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    _INTERNAL: grpc.StatusCode.INTERNAL,
}

_LOGGED_AS_WARNINGS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

MESSAGE_BYTES = 1000
METADATA_BYTES = 1500
FAULTS_BYTES = 1500
"""Encoded sizes, ids aside. Clients reject trailers above 8 KiB, and with them the whole response."""

_IDS = ("job_id", "launch_id", "trial_number", "job_id_prefix", "token_id")


def status_of(error: ServiceError) -> status_pb2.Status:
    """Logs an error and returns its status, with its reason, its violations, and whether and when to retry."""
    _log_refusal(error)
    metadata = {"retryable": str(error.retryable).lower(), **_fitting(error.metadata)}
    faults = [
        error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
        for v in _fitting_violations(error.violations)
    ]
    extra: list[Message] = [error_details_pb2.BadRequest(field_violations=faults)] if faults else []
    if error.retryable:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_seconds * 1000))
        extra.append(retry)
    return _status(
        _CODES[error.reason], _short(error.message, MESSAGE_BYTES, _quoted_size), error.reason, metadata, extra
    )


def _log_refusal(error: ServiceError) -> None:
    code = _CODES[error.reason]
    if isinstance(error, ShuttingDownError):
        # One per open stream, and expected.
        level = logging.DEBUG
    else:
        level = logging.WARNING if code in _LOGGED_AS_WARNINGS else logging.INFO
    log_event(log, level, REFUSED, code=code.name, reason=logged_reason(error.reason), message=error.message)


def _quoted_size(text: str) -> int:
    """Bytes of a message on the wire, where gRPC percent-encodes everything that is not ASCII."""
    return len(quote(text, safe=string.printable))


def _size(text: str) -> int:
    """Bytes of a text in the details of a status."""
    return len(text.encode())


def _short(text: str, most: int, size: Callable[[str], int] = _size) -> str:
    if size(text) <= most:
        return text
    text = text[:most]
    while size(text) > most - 9:
        text = text[: int(len(text) * 0.9)]
    return f"{text}…"


def _fitting(metadata: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    room, omitted = METADATA_BYTES, 0
    for key, value in metadata.items():
        if key in _IDS and len(value) <= MAX_ID_LENGTH:
            # A program looks it up. There are at most two in an error, of 800 bytes each.
            kept[key] = value
            continue
        short = _short(value, METADATA_BYTES // 3)
        room -= _size(key) + _size(short)
        if room < 0:
            omitted += 1
        else:
            kept[key] = short
    return {**kept, "more": f"{omitted} more omitted"} if omitted else kept


def _fitting_violations(violations: Sequence[Violation]) -> list[Violation]:
    kept: list[Violation] = []
    room = FAULTS_BYTES
    for violation in violations:
        short = Violation(violation.field, _short(violation.description, FAULTS_BYTES // 3))
        room -= _size(short.field) + _size(short.description)
        if room < 0:
            rest = len(violations) - len(kept)
            return [*kept, Violation("", f"{rest} more violations omitted")]
        kept.append(short)
    return kept


def status_of_bug(method: str, error: BaseException) -> status_pb2.Status:
    """Returns the status of any other exception: the log gets the traceback, the caller only an incident id."""
    incident = secrets.token_hex(4)
    named = {"incident": incident, "method": method.rpartition("/")[2]}
    log_exception(log, "unhandled exception", error, **named)
    message = f"internal error; the server's log has the details under incident {incident}"
    metadata = {"incident_id": incident, "retryable": "false"}
    return _status(_CODES[_INTERNAL], message, _INTERNAL, metadata, [])


def _status(
    code: grpc.StatusCode, message: str, reason: str, metadata: dict[str, str], extra: list[Message]
) -> status_pb2.Status:
    call = current_call.get()
    if call is not None:
        metadata["call_id"] = call.call_id
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    packed = []
    for detail in (info, *extra):
        holder = any_pb2.Any()
        holder.Pack(detail)
        packed.append(holder)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)
