"""A server with jobs in the states that people see, and the page on it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.live_server import LiveServer
from tests.web.page import WebPage, populate

FACTORS = (
    "--electricity-price", "0.31", "--currency", "EUR", "--carbon-intensity", "380",
    "--factors-source", "contract of 2026",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with the jobs of `populate`."""
    with LiveServer(tmp_path_factory.mktemp("site")) as live:
        live.start(*FACTORS)
        populate(live.channel)
        yield live


@pytest.fixture(scope="module")
def page(site: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPage]:
    """The page on it."""
    with WebPage(site.address, tmp_path_factory.mktemp("page") / "web.log") as running:
        yield running


@pytest.fixture
def web(page: WebPage) -> Iterator[httpx.Client]:
    """A browser without scripts."""
    with page.client() as client:
        yield client
