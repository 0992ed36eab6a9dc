"""Fixtures: a PostgreSQL for one test, and servers on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster import Cluster
from tests.postgres import PostgresServer


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for one test, which may harm it."""
    with PostgresServer.running() as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    """Three servers on it."""
    with Cluster(tmp_path, *[postgres.create_database()] * 3) as servers:
        yield servers
