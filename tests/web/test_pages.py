"""What the pages show, without a browser."""

from __future__ import annotations

import asyncio
import csv
import html
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from wattwise import v1
from wattwise.presentation.trial_fields import FIELDS
from wattwise.rpc.credentials import Credentials
from wattwise_web import amounts, live, pages
from wattwise_web.charts.marks import Look
from wattwise_web.filters import RESULT_WORDS
from wattwise_web.reader import Reader, Visitor

from tests.jobs import Trainer
from tests.live_server import LiveServer, servers_on
from tests.ports import hold_port, port_of
from tests.postgres import PostgresServer
from tests.waiting import wait_until
from tests.watched import WatchedServer
from tests.web.big import BIGGEST, fill
from tests.web.page import HOSTILE, WebPage

PAGES = (
    *("/", "/job?id=resnet-nightly", "/job/trials?id=resnet-nightly", "/trial?job=resnet-nightly&number=3", "/running"),
    *(
        "/compare?a=resnet-nightly&b=bert-weekly",
        "/compare?a=resnet-nightly",
        "/events",
        "/about",
        "/glossary",
        "/login",
    ),
)
COMMANDED = {
    "job?id=stuck-on-memory": "wattwise jobs readmit stuck-on-memory 64",
    "job?id=bert-weekly": "wattwise jobs pin bert-weekly 256",
    "job?id=none-such": "wattwise jobs list",
    "trial?job=resnet-nightly&number=9999": "wattwise jobs trials resnet-nightly",
}
"""Pages with texts that name a command."""
LARGEST = 200_000
DASH = "\N{EN DASH}"
"""What stands where nothing is known."""


class Outline(HTMLParser):
    """The elements of a page, in order, with the text of each table cell."""

    void = frozenset({"meta", "link", "input", "img", "br", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.faults: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def text_of(answer: httpx.Response) -> str:
    """The words of a page, with single spaces."""
    inner = re.sub(r"<(script|style|div hidden).*?</(script|style|div)>", " ", answer.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", inner)).split())


def job_page(web: httpx.Client, job_id: str) -> httpx.Response:
    """The page of a job, which there is."""
    answer = web.get("/job", params={"id": job_id})
    assert answer.status_code == 200
    return answer


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_well_formed_and_has_its_landmarks(web: httpx.Client, path: str) -> None:
    """Elements are nested, ids are unique, there is one main, one first heading, and nothing inline."""
    answer = web.get(path)
    assert answer.status_code == 200
    outline = Outline(answer.text)
    assert (outline.faults, outline.stack) == ([], [])
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len(outline.all("main")) == len(outline.all("h1")) == 1
    assert all("src" in attributes for attributes in outline.all("script"))
    assert not outline.all("style")
    names = {name for _, attributes in outline.tags for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]


@pytest.mark.parametrize("path", [*PAGES, *(f"/{name}" for name in COMMANDED)])
def test_commands_are_code(web: httpx.Client, path: str) -> None:
    """No text of the server has backquotes or an escaped tag: what stands in backquotes is code."""
    answer = web.get(path)
    shown = text_of(answer)
    assert "`" not in shown
    assert "<code>" not in shown
    if command := COMMANDED.get(path.removeprefix("/")):
        assert f"<code>{command}</code>" in html.unescape(answer.text)


@pytest.mark.parametrize("path", ["/job?id=none-such", "/trial?job=resnet-nightly&number=9999"])
def test_the_message_of_an_error_begins_like_a_sentence(web: httpx.Client, path: str) -> None:
    """The server's texts begin with a small letter, the page's with a capital one."""
    (message,) = re.findall('<p class="long">(.*?)</p>', web.get(path).text)
    assert message[0].isupper()


@pytest.mark.parametrize("path", [*PAGES, "/none", "/static/app.js", "/job?id=none", "/job/trials.csv?id=vision-new"])
def test_every_answer_has_the_security_headers(web: httpx.Client, path: str) -> None:
    """Also errors and files forbid foreign scripts, frames, sniffing and referrers."""
    headers = web.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_jobs_come_with_totals_and_those_in_need_first(web: httpx.Client) -> None:
    """The totals count the jobs' trials; jobs in need of attention precede the others."""
    answer = web.get("/")
    shown = text_of(answer)
    assert "2 running" in shown
    assert "0.31 EUR per kWh, 380 g CO2 per kWh, PUE 1; source: contract of 2026" in shown
    kinds = re.findall(r'class="badge b-(\w+)"', answer.text)
    assert kinds.count("attention") == 7
    assert set(kinds[:7]) == {"attention"}


def test_search_state_and_order_are_in_the_url(web: httpx.Client) -> None:
    """A link shows the same rows to everybody; unknown values mean the usual ones."""

    def ids(**wanted: str) -> list[str]:
        found = re.findall(r'id="ja-([^"]*)"', web.get("/", params=wanted).text)
        return [html.unescape(each) for each in found]

    assert ids(q="NIGHTLY") == ["resnet-nightly"]
    assert ids(state="new") == ["vision-new"]
    assert ids(order="id") == sorted(ids())
    assert sorted(ids(order="nonsense", state="nonsense")) == sorted(ids())
    assert ids(q="there is none") == []


def test_a_saving_job_says_at_least_how_much(web: httpx.Client) -> None:
    """What a launch costs now, then the lower bound; estimate, spent, money first and the basis stand beside it."""
    answer = job_page(web, "resnet-nightly")
    shown = text_of(answer)
    assert 'class="saving k-saving"' in answer.text
    assert re.search(r"A model costs [\d.]+ EUR now, [\d.]+ EUR with the default, 256: \d+% less\.", shown)
    assert re.search(r"Batch size \d+ is used now, because its expected cost is the lowest", shown)
    assert re.search(
        r"Saved at least [\d.]+ EUR in \d+ deliveries, at least \d+% of what the default would have cost\.", shown
    )
    assert re.search(r"Compared with \d+ deliveries of the default batch size 256, the newest \d+ (s|min) old", shown)
    (names,) = re.findall(r'<table class="data amounts">(.*?)</table>', answer.text, re.DOTALL)
    assert re.findall(r'<th scope="row">(.*?)</th>', names)[:2] == ["money", "cost"]
    assert re.search(r"Break-even at trial \d+", shown)
    assert re.search(r"money [\d.,]+ EUR", shown)
    assert "Monitor nvml" in shown


def batch_sizes(page: httpx.Response) -> list[dict[str, str]]:
    """The rows of the table of batch sizes, by column."""
    return rows_of(page, "arms")


def rows_of(page: httpx.Response, name: str) -> list[dict[str, str]]:
    """The rows of a chart's table, by column."""
    (table,) = re.findall(rf'<details id="table-{name}".*?<table class="data">(.*?)</table>', page.text, re.DOTALL)
    columns = re.findall(r'<th scope="col">(.*?)</th>', table)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr[^>]*><td>.*?</tr>", table)]
    return [dict(zip(columns, map(words_of, row), strict=True)) for row in rows]


def words_of(cell: str) -> str:
    """The text of a cell, which may be a link."""
    return html.unescape(re.sub(r"<[^>]+>", "", cell))


def test_a_model_has_its_price(tmp_path: Path) -> None:
    """A delivery costs its energy times price and PUE, and its GPU hours; a model of the job costs what failed, too."""
    prices = ("--electricity-price", "0.36", "--pue", "1.5", "--gpu-hour-price", "1.8", "--currency", "EUR")
    with LiveServer(tmp_path) as live:
        live.start(*prices)
        trainer, fails = Trainer(live.trainer), Trainer(live.trainer)
        sizes = [trainer.run(cost).batch_size for cost in (4e6, 10e6)]
        trainer.run(6e6, converges=False)
        fails.run(6e6, converges=False)
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            shown, without = job_page(web, trainer.job_id), job_page(web, fails.job_id)
    each, hour = 1.5 * 0.36 / 3.6e6, 1.8 / 3600
    assert (each * 4e6 + hour, (each * 20e6 + 3 * hour) / 2) == pytest.approx((0.6005, 1.50075))
    assert sizes == [16, 8]
    money = {row["batch size"]: row["mean money of a delivery"] for row in batch_sizes(shown)}
    assert money == {"8": "1.50 EUR", "16": "0.601 EUR", "32": DASH, "64": DASH}
    assert "2 deliveries for 3.00 EUR, 1.50 EUR each, failed and running trials included" in text_of(shown)
    assert {row["mean money of a delivery"] for row in batch_sizes(without)} == {DASH}
    assert "EUR for no delivery, failed and running trials included" in text_of(without)


@pytest.mark.parametrize("prices", [(), ("--electricity-price", "0", "--gpu-hour-price", "0", "--currency", "EUR")])
def test_without_prices_no_model_has_one(tmp_path: Path, prices: Sequence[str]) -> None:
    """Without prices, or with prices of 0, there is neither a column of money nor a price of a model."""
    with LiveServer(tmp_path) as live:
        live.start(*prices)
        trainer = Trainer(live.trainer)
        trainer.run(4e6)
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            shown = job_page(web, trainer.job_id)
    assert [row["batch size"] for row in batch_sizes(shown)] == ["8", "16", "32", "64"]
    assert "mean money of a delivery" not in batch_sizes(shown)[0]
    assert "EUR each" not in text_of(shown)


def test_a_loss_is_shown_like_a_gain(web: httpx.Client) -> None:
    """A job that cost more than its default has the same headline, with the loss and what to do."""
    answer = job_page(web, "bert-weekly")
    assert re.search(r'class="saving k-loss".*?Lost <span class="big">[\d.]+ EUR</span>', answer.text, re.DOTALL)
    assert re.search(r"A model costs [\d.]+ EUR now, with the default, 256\.", text_of(answer))
    assert "wattwise jobs pin bert-weekly 256" in text_of(answer)


@pytest.mark.parametrize("job_id", ["resnet-nightly", "bert-weekly", "nan-metrics", *HOSTILE])
def test_every_chart_has_its_table(web: httpx.Client, job_id: str) -> None:
    """A figure with a specification has a table with a caption, and the specification is strict JSON."""
    page = job_page(web, job_id).text
    specs = re.findall(r"data-for=\"plot-(\w+)\" data-spec='([^']*)'", page)
    assert specs or job_id == "nan-metrics"
    for name, spec in specs:
        document = json.loads(html.unescape(spec), parse_constant=pytest.fail)
        assert document["layer"]
        assert f'<details id="table-{name}"' in page


def spec_of(page: httpx.Response, name: str) -> dict[str, Any]:
    """What a chart is drawn from."""
    (spec,) = re.findall(f"data-for=\"plot-{name}\" data-spec='([^']*)'", page.text)
    found: dict[str, Any] = json.loads(html.unescape(spec))
    return found


def values_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of a chart, in the order of their axis."""
    rows = [row for rows in spec["datasets"].values() for row in rows]
    return rows if isinstance(rows[0]["x"], str) else sorted(rows, key=lambda row: float(row["x"]))


def looks_of(page: httpx.Response) -> list[Look]:
    """How the chart of costs draws its trials."""
    return [Look(value.get("k", Look.FILLED)) for value in values_of(spec_of(page, "cost"))]


@pytest.mark.parametrize("policy", ["pruning_gts", "knowledge_gradient"])
def test_only_misses_are_hollow(tmp_path: Path, policy: str) -> None:
    """Under every policy a trial that tries a batch size and delivers is filled, and the caption says so."""
    with LiveServer(tmp_path) as live:
        live.start()
        trainer = Trainer(live.trainer, policy=policy)
        trainer.run(50.0)
        trainer.run(5.0, converges=False)
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            shown = job_page(web, trainer.job_id)
    assert looks_of(shown) == [Look.FILLED, Look.HOLLOW]
    assert "hollow: it missed the target." in text_of(shown)


def test_deliveries_of_the_pruning_stage_are_filled(tmp_path: Path) -> None:
    """Trials that delivered are filled in the pruning stage, too: the exploration and the trial beside it."""
    with LiveServer(tmp_path) as live:
        live.start()
        trainer = Trainer(live.trainer)
        exploring, concurrent = trainer.next(), trainer.next()
        trainer.report(exploring, 5.0)
        trainer.report(concurrent, 6.0)
        assert (
            live.admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id)).job.policy_state.pruning_gts.stage
            == v1.PRUNING_GTS_STAGE_PRUNING
        )
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            shown = job_page(web, trainer.job_id)
    assert looks_of(shown) == [Look.FILLED, Look.FILLED]
    assert [row["result"] for row in rows_of(shown, "cost")] == ["reached", "reached"]


def test_what_is_empty_is_hidden(web: httpx.Client) -> None:
    """A job without trials has no chart and no list of trials, and its sentence says what begins them."""
    page = job_page(web, "vision-new")
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page.text)
    assert [words_of(title) for title in titles] == [
        "No comparison yet",
        "Next launch",
        "Events",
        "Configuration",
        "Keys",
    ]
    assert 'class="chart' not in page.text
    assert "No launch yet: the first one begins the search." in text_of(page)


def test_a_stuck_job_says_so(web: httpx.Client) -> None:
    """A job whose batch sizes are all out of memory shows its advice and that nothing is next."""
    shown = text_of(job_page(web, "stuck-on-memory"))
    assert "stuck" in shown
    assert "No batch size is left to try." in shown


def test_metrics_that_are_no_numbers_are_shown(web: httpx.Client) -> None:
    """NaN is written where the metric stands, and the page is whole."""
    shown = text_of(job_page(web, "nan-metrics"))
    assert "metric NaN" in shown
    assert "No reported metric is a finite number." in shown


@pytest.mark.parametrize("job_id", HOSTILE)
def test_hostile_ids_are_text_and_their_links_work(web: httpx.Client, job_id: str) -> None:
    """An id is escaped wherever it stands, and the link of its row leads to its page."""
    listed = web.get("/", params={"q": job_id}).text
    assert "<script>alert" not in listed
    (target,) = (
        html.unescape(link)
        for link, shown in re.findall(r'<a href="([^"]*)" data-row id="[^"]*">(.*?)</a>', listed)
        if html.unescape(shown) == job_id
    )
    page = web.get(target)
    assert page.status_code == 200
    (heading,) = re.findall(r'<h1 class="id">(.*?)</h1>', page.text)
    assert html.unescape(heading) == job_id
    assert "<script>alert" not in page.text
    trial = web.get("/trial", params={"job": job_id, "number": "1"})
    assert trial.status_code == 200
    assert "<script>alert" not in trial.text


def test_a_trial_says_why(web: httpx.Client, site: LiveServer) -> None:
    """Its page has the reason of the choice, that of the end, its neighbours, and the command that shows the same."""
    request = v1.GetTrialRequest(trial=v1.TrialId(job_id="resnet-nightly", trial_number=3))
    trial = site.admin.GetTrial(request).trial
    answer = web.get("/trial", params={"job": "resnet-nightly", "number": "3"})
    shown = text_of(answer).lower()
    assert trial.reason.lower() in shown
    assert trial.decision_message.lower() in shown
    assert "number=2" in answer.text
    assert "number=4" in answer.text
    assert "wattwise jobs trial 'resnet-nightly' 3 --server" in html.unescape(answer.text)


def test_trials_are_paged_by_number_and_filtered(web: httpx.Client) -> None:
    """`from` begins with a trial, `result` and `batch` limit the list, and both stay in the link of the next page."""
    page = web.get("/job/trials", params={"id": "resnet-nightly", "from": "10"}).text
    assert [int(each) for each in re.findall(r'id="t-(\d+)"', page)] == list(range(10, 0, -1))
    failed = web.get("/job/trials", params={"id": "resnet-nightly", "result": "error"}).text
    assert [int(each) for each in re.findall(r'id="t-(\d+)"', failed)] == [24, 6]
    first = web.get("/job/trials", params={"id": "resnet-nightly"}).text
    (following,) = re.findall(r'<a href="([^"]*from=[^"]*)" rel="next">', first)
    second = web.get(html.unescape(following)).text
    assert int(re.findall(r'id="t-(\d+)"', second)[0]) == int(re.findall(r'id="t-(\d+)"', first)[-1]) - 1


def test_the_batch_size_is_a_control_that_links_keep(web: httpx.Client) -> None:
    """The list has a choice of batch sizes; results and pages keep it, and one that the job lacks is ignored."""
    shown = web.get("/job/trials", params={"id": "resnet-nightly", "batch": "256", "result": "target-reached"})
    assert "<option selected>256</option>" in shown.text
    assert '<input type="hidden" name="result" value="target-reached">' in shown.text
    (chips,) = re.findall(r'aria-label="Ended by">(.*?)</nav>', shown.text, re.DOTALL)
    links = [html.unescape(link) for link in re.findall(r'href="([^"]*)"', chips)]
    assert len(links) == len(RESULT_WORDS) == 12
    assert all("batch=256" in link and "id=resnet-nightly" in link for link in links)
    sizes = re.findall(r'<td class="num strong" data-label="batch size">(\d+)</td>', shown.text)
    assert sizes
    assert set(sizes) == {"256"}
    unknown = web.get("/job/trials", params={"id": "resnet-nightly", "batch": "257"})
    assert unknown.text.count('data-label="batch size"') == 50


def test_lists_say_what_they_leave_out(site: LiveServer, web: httpx.Client, tmp_path: Path) -> None:
    """A page and its file with 10 of 53 trials and 8 of more events say so; the file names commands that have all."""
    trainer = Trainer(site.trainer, job_id="truncated", job_id_prefix="truncated")
    for _ in range(53):
        trainer.run(5.0)
    for number in range(22):
        site.admin.SetJobPaused(v1.SetJobPausedRequest(job_id="truncated", paused=number % 2 == 0))
    shown = text_of(job_page(web, "truncated"))
    assert "Newest trials all 53 trials" in shown
    assert "The newest 8. all events" in shown
    file = tmp_path / "report.html"
    exporting = ("--server", site.address, "export", "--job", "truncated", str(file))
    subprocess.run([sys.executable, "-m", "wattwise_web", *exporting], check=True, timeout=60)
    written = file.read_text(encoding="utf-8")
    assert "10 of 53, the newest ones; <code>wattwise jobs export</code> has all" in written
    assert "The newest 8; <code>wattwise jobs events</code> has all." in written
    assert re.search(r"all \d+ trials", text_of(job_page(web, "nan-metrics"))) is None
    site.admin.DeleteJob(v1.DeleteJobRequest(job_id="truncated"))


def test_running_trials_are_sorted_within_a_page(tmp_path: Path) -> None:
    """With more running trials than a page has, it says that its order is that of the page alone."""
    with LiveServer(tmp_path) as server:
        server.start()
        trainer = Trainer(server.trainer)
        with WebPage(server.address, tmp_path / "web.log") as page, page.client() as web:
            for _ in range(200):
                trainer.next()
            assert "200 running trials. First come those whose last report is" in text_of(web.get("/running"))
            trainer.next()
            assert "201 running trials. First come those of this page whose" in text_of(web.get("/running"))


def test_targets_are_those_of_the_terminal(web: httpx.Client) -> None:
    """A target has no zeros behind it, and is not rounded to the digits of a metric."""
    shown = text_of(job_page(web, "resnet-nightly"))
    assert "metric at least 0.9 within 40 epochs" in shown
    assert "the dashed line is the target: at least 0.9." in shown


def test_values_of_newer_servers_have_a_name() -> None:
    """A role and an end reason that this version does not know are shown by their number."""
    assert pages.role_name(v1.ROLE_VIEWER) == "viewer"
    assert pages.role_name(99) == "role 99"
    assert not pages.role_name(v1.ROLE_ANYONE)
    newer = v1.Trial(status=v1.TRIAL_STATUS_FAILED, end_reason=v1.EndReason.ValueType(99))
    assert amounts.trial_badge(newer).word == "failed: end reason 99"


def test_events_running_and_about(web: httpx.Client) -> None:
    """Events are filtered by job and kind; running trials have their job; the server's version is on the last page."""
    failed = text_of(web.get("/events", params={"job": "resnet-nightly", "kind": "EVENT_KIND_TRIAL_FAILED"}))
    assert len(re.findall(r"Trial \d+ , batch size \d+, crashed", failed)) == 2
    assert "2 running trials" in text_of(web.get("/running"))
    assert "version 0." in text_of(web.get("/about"))


def test_trials_as_files(web: httpx.Client) -> None:
    """CSV and JSON have every trial; a cell that a spreadsheet would compute is text."""
    rows = list(csv.DictReader(web.get("/job/trials.csv", params={"id": "resnet-nightly"}).text.splitlines()))
    trials = web.get("/job/trials.json", params={"id": "resnet-nightly"}).json()
    assert [int(row["trial"]) for row in rows] == [each["id"]["trial_number"] for each in trials] == list(range(1, 62))
    assert float(rows[0]["cost_joules"]) == trials[0]["cost"]
    assert list(rows[0]) == list(FIELDS)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/job?id=none", 404), ("/job", 400), ("/job/trials.csv?id=none", 404), ("/none", 404),
        ("/trial?job=resnet-nightly&number=9999", 404), ("/trial?job=resnet-nightly&number=-1", 400),
        ("/trial?job=resnet-nightly&number=99999999999999999999", 400), ("/static/../app.py", 404),
        ("/job/trials?id=resnet-nightly&from=x&batch=9e9&result=%00&label=%00", 200), ("/job/trials?id=none", 404),
        ("/compare", 400), ("/compare?a=none", 404), ("/compare?a=resnet-nightly&b=%00", 200),
        ("/?after=nonsense", 303), ("/?q=%00", 200),
    ],
)  # fmt: skip
def test_wrong_addresses_have_an_answer(web: httpx.Client, path: str, status: int) -> None:
    """What is not there is 404, a job or trial that is not named is 400, and other invalid parameters are ignored."""
    assert web.get(path).status_code == status


def test_a_fragment_is_the_middle_of_the_page(web: httpx.Client) -> None:
    """What the script asks for has the same content and no frame."""
    answer = web.get("/", headers={"X-Wattwise-Fragment": "1"})
    assert answer.text.lstrip().startswith('<main id="main"')
    assert "resnet-nightly" in answer.text
    assert "<html" not in answer.text


async def test_an_event_names_the_jobs_that_have_changed(site: LiveServer) -> None:
    """Also if the id of a job begins with that of another."""
    trainer = Trainer(site.trainer, job_id="live-a", job_id_prefix="live")
    other = Trainer(site.trainer, job_id="live-ab", job_id_prefix="live")
    reader, streams = Reader(site.address, Credentials()), live.Streams()
    stream = streams.open(reader, Visitor(None), "")
    assert stream
    events = (event async for event in live.changes(stream, lambda: True) if event.startswith("event:"))
    assert await asyncio.wait_for(anext(events), 20) == "event: change\ndata:\n\n"
    for each in (other, trainer):
        each.next()
        assert await asyncio.wait_for(anext(events), 20) == f'event: change\ndata:["{each.job_id}"]\n\n'
    streams.end()
    assert [event async for event in events] == []
    await streams.close(stream)
    assert len(streams) == 0
    await reader.close()
    for each in (trainer, other):
        site.admin.DeleteJob(v1.DeleteJobRequest(job_id=each.job_id))


def changes_of(stream: httpx.Response) -> Iterator[str]:
    """The events of a live stream that say that something has changed."""
    return (line for line in stream.iter_lines() if line == "event: change")


def test_a_server_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    """Of two addresses the page asks the second one if nothing listens at the first, also for its live stream."""
    with hold_port() as closed, LiveServer(tmp_path) as server:
        server.start()
        trainer = Trainer(server.trainer, job_id="second", job_id_prefix="second")
        both = f"127.0.0.1:{port_of(closed)},{server.address}"
        with WebPage(both, tmp_path / "web.log") as page, page.client() as web:
            with web.stream("GET", "/live", params={"id": "second"}) as stream:
                changes = changes_of(stream)
                next(changes)
                trainer.next()
                next(changes)
            assert 'id="t-1"' in job_page(web, "second").text


def test_the_other_server_of_a_database_goes_on(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """When one of two servers is killed, its readers' pages and live streams come from the other one."""
    with servers_on(tmp_path, postgres_server.create_database(), 2, LiveServer) as (first, second):
        trainer = Trainer(second.trainer, job_id="shared", job_id_prefix="shared")
        both = f"{first.address},{second.address}"
        with WebPage(both, tmp_path / "web.log") as page, page.client() as web:
            with web.stream("GET", "/live", params={"id": "shared"}) as stream:
                changes = changes_of(stream)
                next(changes)
                first.kill()
                assert 'id="t-1"' not in job_page(web, "shared").text
                # The stream at the other server begins with a change, too.
                next(changes)
                trainer.next()
                next(changes)
            assert 'id="t-1"' in job_page(web, "shared").text


def test_a_server_that_is_away_is_said_and_comes_back(tmp_path: Path) -> None:
    """Pages answer 503 with a retry while the server is away, and work again once it is back."""
    with LiveServer(tmp_path) as live:
        live.start()
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            assert web.get("/").status_code == 200
            live.kill()
            away = web.get("/")
            assert away.status_code == 503
            assert " data-retry" in away.text
            live.start()
            wait_until(lambda: web.get("/").status_code == 200)


def test_a_first_visit_shows_how_to_begin(tmp_path: Path) -> None:
    """Without jobs the page has a trainer's lines with the server's address."""
    with LiveServer(tmp_path) as live:
        live.start()
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            assert f'BatchSizeOptimizer("{live.address}", job)' in html.unescape(web.get("/").text)


def test_a_signal_ends_it_although_streams_are_open(tmp_path: Path) -> None:
    """SIGTERM ends the live streams and the process, with status 0."""
    with LiveServer(tmp_path) as live:
        live.start()
        page = WebPage(live.address, tmp_path / "web.log")
        with page.client() as web, web.stream("GET", "/live") as stream:
            next(stream.iter_lines())
            page.process.send_signal(signal.SIGTERM)
            assert page.stop() == 0


@pytest.mark.thorough
def test_many_batch_sizes_have_few_ranges(tmp_path: Path) -> None:
    """A job of 1,280 trials with 64 batch sizes has at most 600 marks, and its page at most 200 kB."""
    sizes = range(1, 65)
    with LiveServer(tmp_path) as server:
        server.start()
        trainer = Trainer(server.trainer, batch_sizes=sizes, policy="gts")
        for number in range(1_280):
            epoch = v1.Measurement(epoch=1, time_seconds=1.0, energy_joules=100.0 + number, metric=0.95)
            request = v1.ImportTrialRequest(
                job_id=trainer.job_id, launch_id=f"r{number}", batch_size=sizes[number % 64], measurements=[epoch]
            )
            server.trainer.ImportTrial(request)
        with WebPage(server.address, tmp_path / "web.log") as page, page.client() as web:
            shown = job_page(web, trainer.job_id)
    values = values_of(spec_of(shown, "cost"))
    assert {value["s"] for value in values} == set(map(str, sizes))
    assert 500 < len(values) <= 600
    assert len(shown.content) <= LARGEST


@pytest.mark.thorough
def test_pages_stay_small_and_ask_little_with_a_thousand_jobs(tmp_path: Path) -> None:
    """With 1,000 jobs and 100,000 trials no answer exceeds 200 kB, and none takes more than 15 calls."""
    with WatchedServer(tmp_path) as live:
        live.start()
        fill(live)
        assert live.admin.GetTotals(v1.GetTotalsRequest()).totals.num_jobs == 1_000
        with WebPage(live.address, tmp_path / "web.log") as page, page.client() as web:
            of_biggest = (f"/job?id={BIGGEST}", f"/trial?job={BIGGEST}&number=40000")
            for path in ("/", "/?order=id", *of_biggest, "/job?id=big-0500", "/running", "/events"):
                before = live.figure("wattwise_rpcs_total")
                answer = web.get(path)
                assert answer.status_code == 200
                assert len(answer.content) <= LARGEST, path
                assert live.figure("wattwise_rpcs_total") - before <= 15
            assert "50,050" in text_of(web.get(f"/?q={BIGGEST}"))
            listed = web.get("/?order=id")
            (following,) = re.findall(r'<a href="([^"]*after=[^"]*)" rel="next">', listed.text)
            assert 'id="ja-big-0050"' in web.get(html.unescape(following)).text
