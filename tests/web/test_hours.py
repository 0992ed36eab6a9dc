"""The page left open in ten tabs beside a training: neither the server nor the page's process nor a tab grows."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from wattwise import v1

from tests.faults.memory import resident
from tests.faults.soak import number
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.web.browser import CHROMIUM
from tests.web.devtools import Devtools, Tab
from tests.web.page import WebPage, populate

SECONDS = number(600, short=60, long=7200)
_PAUSE = number(1, short=1, long=10)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.browser,
    pytest.mark.timeout(SECONDS + 300),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make test-browser` installs it where it may"),
]

_PATHS = ("/", "/running", "/events")
_JOB_TABS = 7
_EPOCHS = 20
_SAMPLES = 20
_NOISE, _TAB_NOISE = 2.0, 20.0
"""Megabytes that a process or a heap, and a tab, may differ by without a leak."""


class Sample(NamedTuple):
    """Megabytes of the server and of the page's process; means of the tabs' heaps and of all memory of a tab."""

    server: float
    page: float
    heap: float
    tab: float


def _reports(live: LiveServer, job_id: str) -> Iterator[None]:
    """Reports an epoch for each item; every twentieth one ends its trial."""
    spec = live.admin.GetJob(v1.GetJobRequest(job_id=job_id)).job.spec
    trainer = Trainer(live.trainer, **{field.name: value for field, value in spec.ListFields()})
    while True:
        trial = trainer.next()
        for epoch in itertools.count(1):
            metric = 0.95 if epoch == _EPOCHS else 0.3
            decision = trainer.report(trial, 900.0 * epoch, metric, epoch, 6.0 * epoch)
            yield
            if decision.stop_train:
                break


def test_ten_tabs_leave_memory_flat(tmp_path: Path) -> None:
    """In the second half of the run the server, the page's process and the mean heap of a tab grow by less than 2 MB.

    Two hours with SOAK=long, the usual ten minutes, or one.
    """
    with LiveServer(tmp_path) as live, Devtools() as browser:
        live.start()
        job_id = populate(live.channel)["saving"]
        with WebPage(live.address, tmp_path / "web.log") as page:
            tabs = [Tab(browser, page.url + path) for path in (*_PATHS, *[f"/job?id={job_id}"] * _JOB_TABS)]
            samples: list[Sample] = []
            begun = time.monotonic()
            for count, _ in enumerate(_reports(live, job_id)):
                passed = time.monotonic() - begun
                if passed >= len(samples) * SECONDS / _SAMPLES:
                    heap = statistics.mean(tab.heap() for tab in tabs)
                    of_tab = browser.memory() / len(tabs)
                    samples.append(Sample(resident(live.process.pid), resident(page.process.pid), heap, of_tab))
                    updates = sum(tab.updates() for tab in tabs)
                    text = ", ".join(f"{name} {value:.1f} MB" for name, value in samples[-1]._asdict().items())
                    sys.stdout.write(f"{passed:.0f} s, {count} reports, {updates} updates: {text}\n")
                    sys.stdout.flush()
                if passed > SECONDS:
                    break
                # A training, which reports now and then.
                time.sleep(_PAUSE)
    before, after = samples[_SAMPLES // 2], samples[-1]
    assert after.server - before.server < _NOISE
    assert after.page - before.page < _NOISE
    assert after.heap - before.heap < _NOISE
    assert after.tab - before.tab < _TAB_NOISE
