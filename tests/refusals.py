"""Reads the details of an error status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status


@dataclass
class Refusal:
    """A status with its details."""

    code: grpc.StatusCode | None = None
    message: str = ""
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None
    faults: dict[str, str] = field(default_factory=dict)


@contextmanager
def refused() -> Iterator[Refusal]:
    """Expect the block's call to fail; the yielded value has the status and its details afterwards."""
    refusal = Refusal()
    with pytest.raises(grpc.RpcError) as caught:
        yield refusal
    vars(refusal).update(vars(refusal_of(caught.value)))


def refusal_of(call: Any) -> Refusal:
    """The status and the details of a call that failed."""
    status = rpc_status.from_call(call)
    assert status is not None, call
    refusal = Refusal(call.code(), call.details())
    for detail in status.details:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            assert info.domain == "wattwise.v1"
            refusal.reason, refusal.metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            refusal.retry_seconds = retry.retry_delay.ToTimedelta().total_seconds()
        elif detail.Unpack(bad):
            refusal.faults = {violation.field: violation.description for violation in bad.field_violations}
    return refusal
