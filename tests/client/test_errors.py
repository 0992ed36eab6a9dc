"""Exceptions and where they come from."""

from __future__ import annotations

import pickle

import pytest
import wattwise
from wattwise import Client, JobNotFoundError, ServerError, TrainFailError, Violation, WattwiseError, v1
from wattwise.errors import _BY_REASON


def _all_errors() -> list[type[WattwiseError]]:
    values = [getattr(wattwise, name) for name in wattwise.__all__]
    return [value for value in values if isinstance(value, type) and issubclass(value, WattwiseError)]


def test_every_reason_has_its_exception() -> None:
    """Whatever reason the server may give, the client has an exception for it."""
    assert set(_BY_REASON) == set(v1.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}


@pytest.mark.parametrize("kind", _all_errors())
def test_errors_survive_pickling(kind: type[WattwiseError]) -> None:
    """Errors reach the other ranks of a distributed training with all that they carry."""
    error = kind("what to do")
    error.reason, error.violations, error.metadata = "SOME_REASON", (Violation("field", "fault"),), {"key": "value"}
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_failure_carries_its_decision_through_pickling() -> None:
    """The decision of a TrainFailError travels with it."""
    decision = v1.Decision(stop_train=True, message="max epochs reached", cost=12.5)
    error = TrainFailError("training is over", decision)
    assert pickle.loads(pickle.dumps(error)).decision == decision  # noqa: S301 - our own bytes


def test_refusal_carries_what_the_server_said(grpc_addr: str) -> None:
    """Reason, metadata and message are the server's."""
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError, match="test-nobody") as caught:
        client.get_job("test-nobody")
    assert caught.value.reason == "ERROR_REASON_JOB_NOT_FOUND"
    assert caught.value.metadata["job_id"] == "test-nobody"
    assert not caught.value.retryable


def test_bug_of_the_server_is_no_outage() -> None:
    """A failure of the server is not retried."""
    assert not ServerError("failed", metadata={"retryable": "false"}).retryable
