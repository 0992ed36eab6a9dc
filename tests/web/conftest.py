"""A server with jobs in the states that people see, and the page on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.live_server import LiveServer
from tests.web.browser import Opener, chromium, note
from tests.web.page import WebPage, populate

FACTORS = (
    "--electricity-price", "0.31", "--currency", "EUR", "--carbon-intensity", "380",
    "--factors-source", "contract of 2026",
)  # fmt: skip


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. A loaded machine's pages are slow, and tabs then ask less often."""
    expect.set_options(timeout=30_000)
    with chromium() as running:
        yield running


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """What the browser complains of; nothing at the end of the test."""
    found: list[str] = []
    yield found
    assert found == []


@pytest.fixture
def show(browser: Browser, faults: list[str]) -> Iterator[Opener]:
    """Opens a URL in a tab whose complaints are collected."""
    contexts: list[BrowserContext] = []

    def open_tab(url: str, *, width: int = 1280, height: int = 860, dark: bool = False, **options: Any) -> Page:
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        contexts.append(context)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', "
            "(event) => console.error('policy: ' + event.violatedDirective))"
        )
        tab = context.new_page()
        tab.on("console", lambda message: note(faults, message.type, message.text))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        tab.goto(url)
        return tab

    yield open_tab
    for context in contexts:
        for tab in context.pages:
            # A request that is answered just now would fail the next test.
            tab.unroute_all(behavior="ignoreErrors")
        context.close()


@pytest.fixture(scope="module")
def own_web(grpc_server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A browser without scripts, on the page of a server that only the tests of a module use."""
    with WebPage(grpc_server.address, tmp_path_factory.mktemp("page") / "web.log") as page, page.client() as client:
        yield client
