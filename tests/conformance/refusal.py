"""What a refused call says, as the tables compare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2


class MismatchError(AssertionError):
    """Something was other than the table says; the message says what."""


@dataclass
class Refused(Exception):  # noqa: N818 - what happened, not an error of ours
    """A call was refused.

    Attributes:
        reason: name of the `ErrorReason`; empty if there was none.
        status: name of the gRPC status.
        fields: the field of every violation.
        metadata: of the `ErrorInfo`.
    """

    reason: str
    status: str
    fields: Sequence[str]
    metadata: Mapping[str, str]


def refusal_of(status: status_pb2.Status) -> Refused:
    """What the details of a status say."""
    info, faults = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        # Each unpacks into the message of its own type and leaves the other alone.
        detail.Unpack(info)
        detail.Unpack(faults)
    name = next(code.name for code in grpc.StatusCode if code.value[0] == status.code)
    return Refused(info.reason, name, [fault.field for fault in faults.field_violations], dict(info.metadata))


def check_refusal(refused: Refused, step: Mapping[str, Any]) -> None:
    """Compares a refusal with a step's `error` and what stands beside it.

    Raises:
        MismatchError: if it is another one.
    """
    compare("error", refused.reason, step["error"])
    compare("status", refused.status, step.get("status", refused.status))
    compare("fields", sorted(refused.fields), sorted(step.get("fields", refused.fields)))
    for key, part in step.get("metadata", {}).items():
        value = refused.metadata.get(key)
        if (value is None) != (part is None) or (part is not None and part not in (value or "")):
            raise MismatchError(f"metadata {key} is {value!r}, not {part!r}")


def compare(name: str, value: object, expected: object) -> None:
    """Compares what must be equal.

    Raises:
        MismatchError: if it is not.
    """
    if value != expected:
        raise MismatchError(f"{name} is {value!r}, not {expected!r}")
