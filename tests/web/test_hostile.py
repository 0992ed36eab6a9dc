"""The page on a server whose answers are faulty."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from wattwise import v1
from wattwise.v1 import job_control_pb2, job_reader_pb2, server_info_pb2

from tests.hostile.behaviours import VALUES, fill
from tests.hostile.server import Behaviour, Call, HostileServer
from tests.live_server import LiveServer
from tests.web.page import WebPage
from tests.web.test_pages import text_of

PATHS = (
    "/", "/?state=saving", "/job?id=resnet-nightly", "/job?id=bert-weekly", "/job?id=nan-metrics",
    "/trial?job=resnet-nightly&number=3", "/running", "/events", "/about", "/job/trials.csv?id=resnet-nightly",
    "/job/trials.json?id=resnet-nightly",
)  # fmt: skip
FILES = (job_reader_pb2, job_control_pb2, server_info_pb2)
SERVICES = [service for file in FILES for service in file.DESCRIPTOR.services_by_name.values()]
METHODS = [method.name for service in SERVICES for method in service.methods]


def filling(name: str) -> Callable[[Message], None]:
    """Sets all fields of a type, except the token of the next page."""
    return lambda answer: fill(answer, lambda each: None if each.name == "next_page_token" else VALUES[name](each))


@pytest.fixture(params=["empty", *VALUES])
def faulty(request: pytest.FixtureRequest, site: LiveServer, tmp_path: Path) -> Iterator[WebPage]:
    """The page on a server that changes all answers."""
    change = (lambda answer: answer.Clear()) if request.param == "empty" else filling(request.param)
    with (
        HostileServer(Behaviour(request.param, dict.fromkeys(METHODS, change)), site.address) as server,
        WebPage(server.address, tmp_path / "web.log") as page,
    ):
        yield page


@pytest.mark.thorough
def test_answers_that_are_faulty(faulty: WebPage) -> None:
    """Each page shows faulty values or says that they cannot be shown, which is one line of the log."""
    with faulty.client() as web:
        for path in PATHS:
            answer = web.get(path)
            assert answer.status_code in (200, 404, 502), path
            if answer.status_code == 502:
                assert "answer cannot be shown" in text_of(answer)
        assert web.get("/about").status_code in (200, 502)
    assert "Traceback" not in faulty.log.read_text()


def test_watch_that_never_pauses(site: LiveServer, tmp_path: Path) -> None:
    """Changes without end reach a browser twice a second at most, and other pages are shown meanwhile."""

    async def changes(_call: Call) -> AsyncIterator[Message]:
        for number in itertools.count():
            yield v1.WatchJobsResponse(job_ids=[f"job-{number}"])
            # This server has other calls to pass on.
            await asyncio.sleep(0)

    with (
        HostileServer(Behaviour("changes", streams={"WatchJobs": changes}), site.address) as server,
        WebPage(server.address, tmp_path / "web.log") as page,
        page.client() as web,
        web.stream("GET", "/live") as live,
    ):
        times = [time.monotonic() for _ in itertools.islice(_events(live.iter_lines()), 6)]
        assert times[-1] - times[0] > 2
        assert web.get("/").status_code == 200


def _events(lines: Iterator[str]) -> Iterator[str]:
    return (line for line in lines if line == "event: change")
