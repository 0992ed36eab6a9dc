"""Fixtures: a server that shows itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watched import WatchedServer


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedServer]:
    """A running server with metrics and a JSON log, for one test alone."""
    folder = tmp_path / "watched"
    folder.mkdir()
    live = WatchedServer(folder)
    try:
        live.start()
        yield live
    finally:
        live.close()
