"""How long a trainer's reports take while people read the web page, and how soon a browser paints it.

A tab is the requests that a browser makes for it; see `later` in app.js. Browsers run on other machines, so that only
the first paint needs a real one.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import httpx
from wattwise_web.connections import max_connections
from wattwise_web.live import LARGEST_TOTAL

from benchmarks.figures import Samples
from benchmarks.filling import DEEP
from benchmarks.victim import trainer
from tests.faults.victim import Victim
from tests.web.browser import chromium

JOBS, TRIALS = 1_000, 90_000
"""Jobs of ten trials, and one of so many: 100,000 trials."""
TABS = 1, 3
ALONE, CROWD = "alone", f"{LARGEST_TOTAL} live streams"
_PAGES = 20
_SECONDS = 20.0
_PAINTED = """() => new Promise((found) => new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.name === "first-contentful-paint") found(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""
_PATHS = ("/", f"/job?id={DEEP}", "/running")


def beside(tabs: int) -> str:
    """Returns the name of the samples beside so many tabs."""
    return f"{tabs} tab{'s' if tabs > 1 else ''} of the page"


@contextlib.contextmanager
def page(server: str) -> Iterator[str]:
    """Yields the URL of `wattwise web` on a server."""
    command = [sys.executable, "-m", "wattwise_web", "--address", "127.0.0.1:0", "--server", server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or not (line := process.stdout.readline()):
            raise RuntimeError("wattwise web did not start")
        yield line.split()[-1].rstrip("/")
        process.terminate()


def neighbour(server: str, url: str, rounds: int) -> Samples:
    """Returns the 95th percentile of a report's seconds, alone and beside tabs, by the number of tabs."""
    found: Samples = {ALONE: [], **{beside(count): [] for count in TABS}}
    with trainer(server) as victim:
        for _ in range(rounds):
            found[ALONE].append(_late(victim))
            for count in TABS:
                with contextlib.ExitStack() as tabs:
                    for path in _PATHS[-count:] if count > 1 else _PATHS[1:2]:
                        tabs.enter_context(_tab(url, path))
                    found[beside(count)].append(_late(victim))
    return found


def export(server: str, url: str) -> tuple[float, float]:
    """Returns the seconds of an export of all trials of the largest job, and the 95th percentile of reports then."""
    with trainer(server) as victim, victim() as waiting:
        start = time.perf_counter()
        with httpx.stream("GET", f"{url}/job/trials.csv?id={DEEP}", timeout=60) as answer:
            for _part in answer.iter_raw():
                pass
        taken = time.perf_counter() - start
    return taken, _p95(waiting)


def _late(victim: Callable[[], Victim]) -> float:
    with victim() as waiting:
        time.sleep(_SECONDS)
    return _p95(waiting)


def _p95(waiting: Victim) -> float:
    return sorted(waiting.seconds)[int(0.95 * len(waiting.seconds))]


@contextlib.contextmanager
def _tab(url: str, path: str) -> Iterator[None]:
    over = threading.Event()
    threads = [
        threading.Thread(target=_follow, args=(url, over)),
        threading.Thread(target=_refresh, args=(url, path, over)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _follow(url: str, over: threading.Event) -> None:
    with httpx.stream("GET", f"{url}/live", timeout=60) as answer:
        for _line in answer.iter_lines():
            if over.is_set():
                return


def _refresh(url: str, path: str, over: threading.Event) -> None:
    with httpx.Client(timeout=60) as client:
        while not over.is_set():
            answer = client.get(f"{url}{path}", headers={"X-Wattwise-Fragment": "1"}).raise_for_status()
            over.wait(float(answer.headers["X-Wattwise-Pause"]))


def crowded(url: str, rounds: int) -> Samples:
    """Seconds of the list of jobs, alone and beside all live streams that there may be."""
    max_connections(1)
    found: Samples = {ALONE: _pages(url, rounds)}
    with contextlib.ExitStack() as streams:
        parts = httpx.URL(url)
        for _ in range(LARGEST_TOTAL):
            stream = streams.enter_context(socket.create_connection((parts.host, parts.port or 80)))
            stream.sendall(
                f"GET {parts.path.rstrip('/')}/live HTTP/1.1\r\nHost: {parts.netloc.decode()}\r\n\r\n".encode()
            )
            if b" 200 " not in stream.recv(100):
                raise RuntimeError("a live stream was refused")
        found[CROWD] = _pages(url, rounds)
    return found


def _pages(url: str, rounds: int) -> list[float]:
    taken = []
    with httpx.Client(timeout=60) as client:
        for _ in range(rounds * _PAGES):
            start = time.perf_counter()
            client.get(url).raise_for_status()
            taken.append(time.perf_counter() - start)
    return taken


def first_paint(url: str, rounds: int) -> Samples:
    """Seconds until a browser without a cache has painted something: the pages, and a text of two letters."""
    paths = {"two letters": "/healthz", "jobs": _PATHS[0], "job": _PATHS[1]}
    found: Samples = {name: [] for name in paths}
    with chromium() as browser:
        for _ in range(rounds):
            for name, path in paths.items():
                with contextlib.closing(browser.new_context()) as context:
                    tab = context.new_page()
                    tab.goto(f"{url}{path}", wait_until="commit")
                    found[name].append(tab.evaluate(_PAINTED) / 1e3)
    return found
