"""Fixtures: drivers that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.driver.running import Runs
from tests.client.monitor.conftest import machine
from tests.client.power.conftest import library
from tests.live_server import LiveServer

__all__ = ["library", "machine"]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """A folder to run jobs in."""
    made = Runs(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def served(runs: Runs, server: LiveServer) -> Runs:
    """The same with a server, which spares each run a server of its own."""
    runs.environment["WATTWISE_SERVER"] = server.address
    return runs
