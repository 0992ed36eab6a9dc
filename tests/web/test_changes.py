"""What the page shows of a job whose behaviour has changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from wattwise import v1

from tests.changes import Recurring
from tests.live_server import LiveServer
from tests.web.page import WebPage
from tests.web.test_pages import job_page, spec_of, text_of


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose default policy detects changes, with prices."""
    with LiveServer(tmp_path_factory.mktemp("changes")) as live:
        live.start("--electricity-price", "360000", "--currency", "EUR")
        yield live


@pytest.fixture(scope="module")
def browser(changing: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A browser without scripts."""
    with WebPage(changing.address, tmp_path_factory.mktemp("page") / "web.log") as running, running.client() as client:
        yield client


@pytest.fixture
def changed(changing: LiveServer) -> Recurring:
    """A job whose epochs have tripled, without a run of the default since then."""
    job = Recurring(changing)
    job.train(16, 10, times=6)
    job.train(8, 5, times=30)
    job.until_detected(8, 15)
    return job


def test_a_change_is_a_warning_an_event_and_a_line(browser: httpx.Client, changed: Recurring) -> None:
    """The page of a job has them, and the line is before the first trial that counts; its badge asks for attention."""
    (change,) = changed.details.changes
    shown, page = text_of(job_page(browser, changed.job_id)), job_page(browser, changed.job_id)
    assert f"Trial {change.detected_by_trial}, epochs changed: {change.message}" in shown
    assert 'class="badge b-attention"' in page.text
    events = text_of(browser.get("/events", params={"job": changed.job_id, "kind": "EVENT_KIND_CHANGE_DETECTED"}))
    assert f"Trial {change.detected_by_trial} : {change.message}" in events
    chart = spec_of(page, "cost")
    (line,) = (each for layer in chart["layer"] for each in layer["data"].get("values", ()) if "x" in each)
    before = changed.admin.GetTrial(
        v1.GetTrialRequest(trial=v1.TrialId(job_id=changed.job_id, trial_number=change.since_trial - 1))
    ).trial
    date = 1000 * before.end_time.seconds
    assert line == {"x": change.since_trial - 0.5, "date": date, "text": change.message}
    assert f"A vertical line: {change.message}." in shown


def test_a_claim_says_from_which_trial_it_compares(browser: httpx.Client, changed: Recurring) -> None:
    """Without a claim and with one, on the page of the job and in the list; a model's price is of all trials."""
    (change,) = changed.details.changes
    since = f"since trial {change.since_trial}"
    number = changed.shown.num_trials - change.since_trial + 1
    shown = text_of(job_page(browser, changed.job_id))
    assert f"the default, 16, has not reached the target {since}." in shown
    assert "3 more runs of the default that reach the target would allow a comparison" in shown
    assert f"Since trial {change.since_trial}: " in shown
    assert f"Changed {change.message}" in shown
    changed.train(16, 30, times=6)
    changed.train(8, 15, times=60)
    shown = text_of(job_page(browser, changed.job_id))
    assert re.search(rf"Saved at least [\d.]+ EUR in {number + 66} deliveries {since}, ", shown)
    assert f"Spent {36 + number + 66} deliveries for " in shown
    assert f"Only trials from {change.since_trial} on are counted, because the job's behaviour changed there." in shown
    jobs = browser.get("/", params={"q": changed.job_id}).text
    (row,) = re.findall(f'<tr id="j-{changed.job_id}">(.*?)</tr>', jobs, re.DOTALL)
    assert f'<span class="note">{since}</span>' in row
