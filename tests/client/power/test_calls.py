"""Calls about power limits that fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from wattwise import Client, v1
from wattwise.power.calls import PowerLimitCalls

TRIAL = v1.TrialId(job_id="test-1", launch_id="l", trial_number=1)


@pytest.fixture
def old_server() -> Iterator[str]:
    """The address of a gRPC server that does not know these calls."""
    pool = ThreadPoolExecutor(1)
    server = grpc.server(pool)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield address
    server.stop(None).wait()
    pool.shutdown()


def test_only_an_outage_is_claimed(old_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that rejects the call is warned of; it is not away, so that it is not said to be back later."""
    claims: list[float] = []

    def claim(begun_at: float) -> bool:
        claims.append(begun_at)
        return False

    with caplog.at_level(logging.INFO, "wattwise"):
        rejected = PowerLimitCalls(lambda: Client(old_server, timeout=5), TRIAL, claim)
        assert rejected.acquire() is None
        assert not claims
        unreachable = PowerLimitCalls(lambda: Client("127.0.0.1:1", timeout=0.2), TRIAL, claim)
        assert unreachable.acquire() is None
        assert len(claims) == 1
    ours = [record.levelno for record in caplog.records if "power limits" in record.getMessage()]
    assert ours == [logging.WARNING, logging.INFO]
