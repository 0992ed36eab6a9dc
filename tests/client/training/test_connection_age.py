"""Connections that the server closes because of their age."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from wattwise import Client
from wattwise_server.config import Config
from wattwise_server.rpc.serving import age_options

from tests.client.training.script import begun, epochs
from tests.waiting import wait_until
from tests.watched import WatchedServer


def test_trainer_outlives_its_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stream that is cut because its connection is old is opened again: no report is lost, nothing warned of."""
    with WatchedServer(tmp_path) as server:
        server.start("--max-connection-age-seconds", "0.2", "--grace-seconds", "0.05")
        bso = begun(server.address, max_epochs=10_000)

        def cut() -> bool:
            bso.on_evaluate(0.1)
            return server.figure("wattwise_calls_total", method="StreamResults") >= 3

        wait_until(cut)
        reported = int(bso.state_dict()["epoch"])
        with Client(server.address) as client:
            assert epochs(client, bso.trial) == list(range(1, reported + 1))
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        bso.close()
    assert not warnings


def test_age_0_keeps_connections() -> None:
    """With 0 the server has no age for connections, rather than one of nothing."""
    usual = Config()
    assert age_options(0.0, usual.grace_seconds) == ()
    options = age_options(usual.max_connection_age_seconds, usual.grace_seconds)
    assert dict(options)["grpc.max_connection_age_ms"] == 1_800_000
