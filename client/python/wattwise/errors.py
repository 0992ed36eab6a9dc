"""Everything that this library raises, and the one table from a server's refusal to an exception."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from wattwise import v1
from wattwise.rpc.handshake import certificate_fault, hint

if TYPE_CHECKING:
    from google.rpc.error_details_pb2 import ErrorInfo

DOMAIN = "wattwise.v1"

_DETAILS_KEY = "grpc-status-details-bin"
_TOO_LARGE = "message larger than max"

log = logging.getLogger("wattwise")
"""The logger of the whole client package."""


class Violation(NamedTuple):
    """One fault of one field of a request."""

    field: str
    description: str


class WattwiseError(Exception):
    """Base of everything that this library raises.

    Can be pickled, which is how one process of a distributed training tells the others.

    Attributes:
        reason: name of the `v1.ErrorReason`, such as "ERROR_REASON_JOB_DIFFERS"; empty if no server gave one.
        violations: the faults of the request, field by field; empty if the error is about no field.
        metadata: what the server added, as `v1.ErrorReason` documents it for each reason.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})

    @property
    def request_id(self) -> str:
        """What the failed call is named in the server's log; empty if no server said it."""
        return self.metadata.get("request_id", "")

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.metadata.get("retryable") == "true"


class InvalidJobSpecError(WattwiseError):
    """The job's configuration has faults; `violations` lists all of them."""


class JobDiffersError(WattwiseError):
    """The id is taken by a job with another configuration; `metadata` has a key per field that differs."""


class JobNotFoundError(WattwiseError):
    """No job has this id."""


class TrialNotFoundError(WattwiseError):
    """The job has no such trial."""


class NoBatchSizeConvergedError(WattwiseError):
    """A whole pruning round passed and no batch size reached the target: register a job that can be reached."""


class InvalidResultError(WattwiseError):
    """A measurement contradicts itself or an earlier one; the server kept nothing of it."""


class MetricTypeError(WattwiseError, TypeError):
    """A metric is no number."""


class PowerProfileError(WattwiseError, ValueError):
    """How power limits are to be profiled makes no sense."""


class InvalidRequestError(WattwiseError):
    """A field of a request is missing or makes no sense."""


class ServerUnavailableError(WattwiseError):
    """The server cannot be reached or cannot work at the moment; the message names its address and the cause."""

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.metadata.get("retryable", "true") == "true"


class DeadlineError(ServerUnavailableError):
    """The server did not answer in time."""

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later; within its deadline it cannot."""
        return False


class UntrustedServerError(ServerUnavailableError):
    """What answers at the server's address cannot show that it is the server; the message says why, as far as known."""

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later; not before somebody has put certificates right."""
        return False


class CredentialsError(WattwiseError):
    """A token or a certificate of the client's cannot be used; the message says which and what to do."""


class InvalidAddressError(WattwiseError):
    """The address of the server is not one."""


class UnauthenticatedError(WattwiseError):
    """The server does not know who is calling."""


class PermissionDeniedError(WattwiseError):
    """The server does not let this caller do it."""


class ResourceExhaustedError(WattwiseError):
    """The call exceeds a limit of the server."""


class UnsupportedCallError(WattwiseError):
    """The server, or something on the way to it, does not know the call."""


class ServerError(WattwiseError):
    """The server failed; its log tells more."""


class InvalidArgumentError(WattwiseError, ValueError):
    """An argument makes no sense; the message says what to give."""


class ResumeError(WattwiseError):
    """The trial of a checkpoint cannot go on; the message says why and what to do instead."""


class OperationOrderError(WattwiseError):
    """A method was called too early, too late or in the wrong process; the message says what to call instead."""


class NoDriverError(WattwiseError):
    """The process has no trial to join: `wattwise run` did not start it, or its variables are wrong."""


class MonitorError(WattwiseError):
    """Energy cannot be measured here; the message says what to pass instead."""


class TrainerSetupError(InvalidArgumentError):
    """A trainer is set up in a way that does not fit its trial; the message says what to set instead."""


class TrainFailError(WattwiseError):
    """Training is over and the model did not reach its target.

    Attributes:
        decision: what ended it, with the server's message.
    """

    def __init__(self, message: str, decision: v1.Decision | None = None) -> None:
        super().__init__(message)
        self.decision = decision or v1.Decision(stop_train=True, message=message)


_BY_REASON: dict[str, type[WattwiseError]] = {
    "ERROR_REASON_INVALID_JOB_SPEC": InvalidJobSpecError,
    "ERROR_REASON_JOB_DIFFERS": JobDiffersError,
    "ERROR_REASON_JOB_NOT_FOUND": JobNotFoundError,
    "ERROR_REASON_TRIAL_NOT_FOUND": TrialNotFoundError,
    "ERROR_REASON_NO_BATCH_SIZE_CONVERGED": NoBatchSizeConvergedError,
    "ERROR_REASON_INVALID_RESULT": InvalidResultError,
    "ERROR_REASON_INVALID_REQUEST": InvalidRequestError,
    "ERROR_REASON_TOO_MANY_JOBS": ResourceExhaustedError,
    "ERROR_REASON_TOO_MANY_STREAMS": ResourceExhaustedError,
    "ERROR_REASON_STORAGE_UNAVAILABLE": ServerUnavailableError,
    "ERROR_REASON_SHUTTING_DOWN": ServerUnavailableError,
    "ERROR_REASON_INTERNAL": ServerError,
    "ERROR_REASON_UNAUTHENTICATED": UnauthenticatedError,
    "ERROR_REASON_PERMISSION_DENIED": PermissionDeniedError,
}

# What gRPC, a proxy or another server says without one of our reasons, and how a user would put it.
_BY_STATUS: dict[grpc.StatusCode, tuple[type[WattwiseError], str]] = {
    grpc.StatusCode.UNAVAILABLE: (ServerUnavailableError, "no Wattwise server can be reached at"),
    grpc.StatusCode.CANCELLED: (ServerUnavailableError, "the call was dropped by"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (DeadlineError, "no answer came in time from"),
    grpc.StatusCode.UNAUTHENTICATED: (UnauthenticatedError, "not known who is calling"),
    grpc.StatusCode.PERMISSION_DENIED: (PermissionDeniedError, "the call is not allowed by"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (ResourceExhaustedError, "the call exceeds a limit of"),
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidRequestError, "the call makes no sense to"),
    grpc.StatusCode.UNIMPLEMENTED: (UnsupportedCallError, "this is no Wattwise server, or an older one:"),
}


def from_rpc_error(error: grpc.RpcError, address: str) -> WattwiseError:
    """The exception that stands for a failed call; raise it `from None`, for its message says what gRPC's does.

    What gRPC has to say beyond that is logged at the level DEBUG.

    Args:
        error: what gRPC raised.
        address: where the server was looked for; it is named if the server itself gave no reason.
    """
    log.debug("a call to %s failed: %s", address, error)
    info, violations = _details(error)
    message = error.details() or error.code().name
    known = _BY_REASON.get(info.reason) if info.domain == DOMAIN else None
    if known is None and error.code() is grpc.StatusCode.UNAVAILABLE and (fault := certificate_fault(message)):
        return UntrustedServerError(f"the server at {address} cannot be trusted: {fault} ({message})")
    if known is None:
        kind, words = _BY_STATUS.get(error.code(), (ServerError, "the call failed at"))
        advice = "; send a smaller message" if _TOO_LARGE in message else hint(message)
        return kind(f"{words} {address}: {message}{advice}")
    if issubclass(known, ServerUnavailableError):
        message = f"the server at {address} cannot answer now: {message}"
    if known is UnauthenticatedError:
        message = f"refused by the server at {address}: {message}"
    if request_id := info.metadata.get("request_id"):
        message = f"{message} (request {request_id})"
    return known(message, reason=info.reason, violations=violations, metadata=info.metadata)


def _details(call: grpc.RpcError) -> tuple[ErrorInfo, list[Violation]]:
    # Loaded once something was refused.
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415

    info, faults = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    try:
        for entry in call.trailing_metadata() or ():
            if entry.key == _DETAILS_KEY and isinstance(entry.value, bytes):
                for detail in status_pb2.Status.FromString(entry.value).details:
                    # Each unpacks into the message of its own type and leaves the other alone.
                    detail.Unpack(info)
                    detail.Unpack(faults)
    except DecodeError:
        # Not written by a Wattwise server; the status alone has to do.
        return error_details_pb2.ErrorInfo(), []
    return info, [Violation(fault.field, fault.description) for fault in faults.field_violations]
