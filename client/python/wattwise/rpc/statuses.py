"""gRPC statuses as exceptions: by the server's reason, by the status of an unknown reason, or without a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import grpc
from google.protobuf.message import DecodeError

from wattwise.errors import (
    DeadlineError,
    InvalidJobSpecError,
    InvalidRequestError,
    InvalidResultError,
    JobDiffersError,
    JobNotFoundError,
    NoBatchSizeLeftError,
    NotPossibleNowError,
    PermissionDeniedError,
    ResourceExhaustedError,
    ServerError,
    ServerUnavailableError,
    TrialDeletedError,
    TrialNotFoundError,
    UnauthenticatedError,
    UnsupportedCallError,
    UntrustedServerError,
    Violation,
    WattwiseError,
    log,
)
from wattwise.rpc.answers import shown
from wattwise.streams import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.rpc.error_details_pb2 import ErrorInfo

DOMAIN = "wattwise.v1"

BY_REASON: dict[str, type[WattwiseError]] = {
    "ERROR_REASON_INVALID_JOB_SPEC": InvalidJobSpecError,
    "ERROR_REASON_JOB_DIFFERS": JobDiffersError,
    "ERROR_REASON_JOB_NOT_FOUND": JobNotFoundError,
    "ERROR_REASON_TRIAL_NOT_FOUND": TrialNotFoundError,
    "ERROR_REASON_TRIAL_DELETED": TrialDeletedError,
    "ERROR_REASON_NO_BATCH_SIZE_LEFT": NoBatchSizeLeftError,
    "ERROR_REASON_NOT_POSSIBLE_NOW": NotPossibleNowError,
    "ERROR_REASON_INVALID_RESULT": InvalidResultError,
    "ERROR_REASON_INVALID_REQUEST": InvalidRequestError,
    "ERROR_REASON_TOO_MANY_JOBS": ResourceExhaustedError,
    "ERROR_REASON_TOO_MANY_TRIALS": ResourceExhaustedError,
    "ERROR_REASON_TOO_MANY_STREAMS": ResourceExhaustedError,
    "ERROR_REASON_STORAGE_UNAVAILABLE": ServerUnavailableError,
    "ERROR_REASON_SHUTTING_DOWN": ServerUnavailableError,
    "ERROR_REASON_INTERNAL": ServerError,
    "ERROR_REASON_UNAUTHENTICATED": UnauthenticatedError,
    "ERROR_REASON_PERMISSION_DENIED": PermissionDeniedError,
}

# The errors whose reason is newer than this client. Their own metadata says whether a retry helps.
_OF_LATER_REASONS: dict[grpc.StatusCode, type[WattwiseError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotPossibleNowError,
    grpc.StatusCode.ALREADY_EXISTS: NotPossibleNowError,
    grpc.StatusCode.FAILED_PRECONDITION: NotPossibleNowError,
    grpc.StatusCode.UNAVAILABLE: ServerUnavailableError,
    grpc.StatusCode.CANCELLED: ServerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ServerUnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedCallError,
}

# Statuses without a Wattwise reason, from gRPC itself, a proxy or another server. The text precedes the address.
_BY_STATUS: dict[grpc.StatusCode, tuple[type[WattwiseError], str]] = {
    grpc.StatusCode.UNAVAILABLE: (ServerUnavailableError, "cannot reach a Wattwise server at"),
    grpc.StatusCode.CANCELLED: (ServerUnavailableError, "the call was cancelled by"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (DeadlineError, "deadline exceeded while waiting for"),
    grpc.StatusCode.UNAUTHENTICATED: (UnauthenticatedError, "the call is not authenticated at"),
    grpc.StatusCode.PERMISSION_DENIED: (PermissionDeniedError, "permission denied by"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (ResourceExhaustedError, "the call exceeds a limit of"),
    grpc.StatusCode.INVALID_ARGUMENT: (ServerError, "the request is invalid according to"),
    grpc.StatusCode.UNIMPLEMENTED: (UnsupportedCallError, "not a Wattwise server, or an older version:"),
}

_UNKNOWN_AUTHORITY = (
    "its certificate is signed by an unknown authority: pass the authority's file as WATTWISE_TLS_CA or "
    "Credentials(tls_ca=...)"
)
_OTHER_NAME = "its certificate is for another host name: use a name in the certificate, or reissue it for this name"

# Keyed by gRPC's texts, which vary slightly between versions.
_CERTIFICATE_FAULTS = {
    "unable to get local issuer certificate": _UNKNOWN_AUTHORITY,
    "self signed certificate": _UNKNOWN_AUTHORITY,
    "self-signed certificate": _UNKNOWN_AUTHORITY,
    "Hostname Verification Check failed": _OTHER_NAME,
    "is not in peer certificate": _OTHER_NAME,
    "certificate has expired": "its certificate, or its authority's, has expired: the operator must renew it",
    "certificate is not yet valid": "its certificate is not valid yet: check the clock of this machine",
    "CERTIFICATE_VERIFY_FAILED": "its certificate cannot be verified",
    "WRONG_VERSION_NUMBER": "it does not use TLS: enable TLS on the server, or disable it in the client",
}

_OTHER_ADDRESS = "correct the address (--server of commands, or the variable WATTWISE_SERVER)"
_NO_SERVER = f"start a server with `wattwise serve`, or {_OTHER_ADDRESS}"
_OTHER_SERVER = (
    "this is the port of a web page, such as that of `wattwise web`, or of another program: use the address that "
    "`wattwise serve` prints, whose port is 50051 by default"
)

# Keyed by parts of gRPC's texts; the first that fits is added to them.
_ADVICE = {
    ("message larger than max",): "send a smaller message",
    ("failed to connect", "Socket closed"): (
        "the server closed the connection at once: it may require TLS (WATTWISE_TLS_CA, or WATTWISE_TLS=1) or a client "
        "certificate, or have as many connections as it takes (--max-connections; its log says so)"
    ),
    ("failed to connect", "HTTP/2"): _OTHER_SERVER,
    ("failed to connect", "ALPN"): _OTHER_SERVER,
    ("failed to connect",): _NO_SERVER,
    ("resolv",): _OTHER_ADDRESS,
}


def from_rpc_error(error: grpc.RpcError, address: str) -> WattwiseError:
    """Returns the exception for a failed call. Raise it `from None`: the message includes gRPC's.

    The full gRPC error is logged at level DEBUG. The address is part of the message if the server gave no reason.
    """
    log.debug("a call to %s failed: %s", address, printable(str(error)))
    info, violations = _details(error)
    message = shown(error.details() or error.code().name)
    if info.domain != DOMAIN or not info.reason:
        return _without_reason(error.code(), message, address)
    kind = BY_REASON.get(info.reason) or _OF_LATER_REASONS.get(error.code(), ServerError)
    if issubclass(kind, ServerUnavailableError):
        message = f"the server at {address} is temporarily unavailable: {message}"
    if kind is UnauthenticatedError:
        message = f"rejected by the server at {address}: {message}"
    metadata = {shown(key): shown(value) for key, value in info.metadata.items()}
    if call_id := metadata.get("call_id"):
        message = f"{message} (call {call_id})"
    return kind(message, reason=shown(info.reason), violations=violations, metadata=metadata)


def _without_reason(code: grpc.StatusCode, message: str, address: str) -> WattwiseError:
    if code is grpc.StatusCode.UNAVAILABLE:
        for sign, fault in _CERTIFICATE_FAULTS.items():
            if sign in message:
                return UntrustedServerError(f"the server at {address} is not trusted: {fault} ({message})")
    kind, text = _BY_STATUS.get(code, (ServerError, "the call failed at"))
    advice = next((advice for signs, advice in _ADVICE.items() if all(sign in message for sign in signs)), "")
    return kind(f"{text} {address}: {message.rstrip('.') if advice else message}", advice=advice)


def _details(call: grpc.RpcError) -> tuple[ErrorInfo, list[Violation]]:
    # Imported here because most processes never see an error.
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415

    info, faults = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    try:
        # grpc has pairs with names, grpc.aio plain ones, and the types know the former alone.
        pairs = cast("Iterable[tuple[str, str | bytes]]", call.trailing_metadata() or ())
        for key, value in pairs:
            if key == "grpc-status-details-bin" and isinstance(value, bytes):
                for detail in status_pb2.Status.FromString(value).details:
                    # Unpack fills only a message of the detail's own type.
                    detail.Unpack(info)
                    detail.Unpack(faults)
    except DecodeError:
        # Not written by a Wattwise server: only the status is usable.
        return error_details_pb2.ErrorInfo(), []
    return info, [Violation(shown(fault.field), shown(fault.description)) for fault in faults.field_violations]
