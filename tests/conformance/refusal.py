"""Compares the error of a call with a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2


class MismatchError(AssertionError):
    """An answer differs from the table; the message says how."""


@dataclass
class Refused(Exception):  # noqa: N818 - an expected answer of the server
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
    """Decodes the details of a status."""
    info, faults = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        # Unpack does nothing if the detail has another type.
        detail.Unpack(info)
        detail.Unpack(faults)
    name = next(code.name for code in grpc.StatusCode if code.value[0] == status.code)
    return Refused(info.reason, name, [fault.field for fault in faults.field_violations], dict(info.metadata))


def check_refusal(refused: Refused, step: Mapping[str, Any]) -> None:
    """Compares a refusal with a step's `error`, `status`, `fields` and `metadata`.

    Raises:
        MismatchError: they differ.
    """
    compare("error", refused.reason, step["error"])
    compare("status", refused.status, step.get("status", refused.status))
    compare("fields", sorted(refused.fields), sorted(step.get("fields", refused.fields)))
    for key, part in step.get("metadata", {}).items():
        value = refused.metadata.get(key)
        if (value is None) != (part is None) or (part is not None and part not in (value or "")):
            raise MismatchError(f"metadata {key} is {value!r}, not {part!r}")


def compare(name: str, value: object, expected: object) -> None:
    """Compares two values.

    Raises:
        MismatchError: they differ.
    """
    if value != expected:
        raise MismatchError(f"{name} is {value!r}, not {expected!r}")
