"""The page of a job below its answer, the list of its trials, and the comparison with another job."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

import httpx
import pytest
from wattwise import v1
from wattwise.presentation.quantities import joules
from wattwise.presentation.states import listed_state
from wattwise.rpc.calls import new_id
from wattwise_web.charts.marks import Look
from wattwise_web.sections import web_url

from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer
from tests.web.test_pages import DASH, job_page, rows_of, spec_of, text_of, values_of, words_of

POLICY = "knowledge_gradient"
COMMITS = ("5f0", "5f0", "9ab")
GLOSSARY = Path(__file__).parents[2] / "docs/glossary.md"


def pin(server: LiveServer, job_id: str, size: int | None) -> None:
    """Pins a batch size, or unpins it."""
    server.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job_id, batch_size=size))


def ban(server: LiveServer, job_id: str, size: int) -> None:
    """Bans a batch size."""
    server.admin.SetBatchSizeBanned(v1.SetBatchSizeBannedRequest(job_id=job_id, batch_size=size, banned=True))


def exclude(server: LiveServer, trial: v1.Trial) -> None:
    """Takes a trial out."""
    server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial.id, excluded=True))


def launched(server: LiveServer, trainer: Trainer, cost: float = 5.0, **labels: str) -> v1.Trial:
    """A trial that reached the target, of a launch with labels."""
    request = v1.GetNextBatchSizeRequest(job_id=trainer.job_id, launch_id=new_id(), labels=labels)
    trial = server.trainer.GetNextBatchSize(request).trial
    trainer.report(trial, cost)
    return trial


def facts_of(page: httpx.Response) -> dict[str, str]:
    """The facts of a page, by name."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.text, re.DOTALL)
    return {words_of(name): " ".join(words_of(text).split()) for name, text in found}


def numbers(page: httpx.Response) -> list[int]:
    """The trials of a list."""
    return [int(number) for number in re.findall(r'<tr id="t-(\d+)"', page.text)]


@pytest.fixture(scope="module")
def lucky(grpc_server: LiveServer) -> Trainer:
    """A job of which one trial of 8 was lucky: others of it cost five times as much."""
    trainer = Trainer(grpc_server.trainer, job_id="lucky", job_id_prefix="lucky", policy=POLICY)
    for cost in (60.0, 10.0, 50.0, 55.0, 52.0):
        pin(grpc_server, "lucky", 8)
        trainer.run(cost)
    pin(grpc_server, "lucky", None)
    return trainer


def test_the_batch_size_in_use_has_the_same_name_in_list_and_page(own_web: httpx.Client, lucky: Trainer) -> None:
    """The column and the fact are "used now", with the same batch size."""
    listed = own_web.get("/", params={"q": lucky.job_id}).text
    assert '<th scope="col" class="num">used now</th>' in listed
    (cell,) = re.findall(r'<td class="num" data-label="used now">(.*?)</td>', listed)
    assert words_of(cell) == "8 default 16"
    assert "Batch size 8 is used now" in text_of(job_page(own_web, lucky.job_id))


def test_a_job_has_the_same_state_everywhere(own_web: httpx.Client, grpc_server: LiveServer) -> None:
    """Both lists and the page of a job have one word for its state, also if it only misses its target."""
    new, missing, idle, running = (
        Trainer(grpc_server.trainer, job_id=name, job_id_prefix="state", batch_sizes=[8, 16], policy=POLICY)
        for name in ("state-new", "state-missing", "state-idle", "state-running")
    )
    for _ in range(2):
        missing.run(5.0, converges=False)
    idle.run(5.0, converges=False)
    running.next()
    states = {new.job_id: "new", missing.job_id: "failing", idle.job_id: "idle", running.job_id: "running"}
    request = v1.ListJobsRequest(job_id_prefix="state-", with_summaries=True)
    assert {row.job.spec.job_id: listed_state(row) for row in grpc_server.admin.ListJobs(request).jobs} == states
    for job_id, state in states.items():
        (cell,) = re.findall(r'<td data-label="state">(.*?)</td>', own_web.get("/", params={"q": job_id}).text)
        (badge,) = re.findall('<h1 class="id">.*?</h1>\\s*(<span class="badge.*?)\n', job_page(own_web, job_id).text)
        assert words_of(cell) == words_of(badge) == state


def test_the_cheapest_batch_size_has_its_expected_cost(
    own_web: httpx.Client, grpc_server: LiveServer, lucky: Trainer
) -> None:
    """The page says what a model is expected to cost, not what the luckiest trial did."""
    known = grpc_server.admin.GetJob(v1.GetJobRequest(job_id=lucky.job_id))
    (state,) = (each for each in known.details.batch_size_states if each.batch_size == 8)
    assert state.expected_cost > 2 * known.job.min_cost == 20.0
    expected = joules(state.expected_cost)
    assert facts_of(job_page(own_web, lucky.job_id))["Cheapest so far"].startswith(
        f"batch size 8: expected cost {expected} per model"
    )


def test_a_requested_launch_is_not_the_search_s(own_web: httpx.Client, grpc_server: LiveServer, lucky: Trainer) -> None:
    """A requested baseline says who chose it, before and after it; a trial that the search chose says so, too."""
    assert ">Chosen by the search: knowledge_gradient.<" in job_page(own_web, lucky.job_id).text
    grpc_server.admin.RequestBaseline(v1.RequestBaselineRequest(job_id=lucky.job_id, request_id=new_id()))
    (card,) = re.findall(r'<section class="now".*?</section>', job_page(own_web, lucky.job_id).text, re.DOTALL)
    assert ">Set by a person.<" in card
    assert "knowledge_gradient" not in card
    trial = lucky.run(60.0)
    address = {"job": lucky.job_id, "number": str(trial.id.trial_number)}
    assert facts_of(own_web.get("/trial", params=address))["Origin"] == "requested"
    chosen = {"job": lucky.job_id, "number": str(lucky.run(50.0).id.trial_number)}
    assert facts_of(own_web.get("/trial", params=chosen))["Origin"] == "search"


@pytest.fixture(scope="module")
def held(grpc_server: LiveServer) -> Trainer:
    """A job with a pin, a ban, a requested baseline and an excluded trial, of twelve trials."""
    trainer = Trainer(grpc_server.trainer, job_id="held", job_id_prefix="held", policy=POLICY)
    trials = [trainer.run(5.0 + number % 3) for number in range(12)]
    exclude(grpc_server, trials[10])
    ban(grpc_server, "held", 64)
    pin(grpc_server, "held", 32)
    grpc_server.admin.RequestBaseline(v1.RequestBaselineRequest(job_id="held", request_id=new_id()))
    grpc_server.admin.SetBaselineEvery(v1.SetBaselineEveryRequest(job_id="held", every=10))
    return trainer


def test_what_people_have_set_comes_before_the_trials(own_web: httpx.Client, held: Trainer) -> None:
    """Pins, bans and exclusions have a card with the commands that undo them; it and the events precede the trials."""
    page = job_page(own_web, held.job_id)
    places = [page.text.index(f'id="{name}-title"') for name in ("held", "events", "facts", "trials")]
    assert places == sorted(places)
    (card,) = re.findall(r'<section class="held".*?</section>', page.text, re.DOTALL)
    names = [words_of(name) for name in re.findall(r"<dt>(.*?)</dt>", card)]
    assert names == ["pinned", "baseline", "baselines", "banned", "excluded"]
    assert re.findall(r"<code>(.*?)</code>", card) == [
        "wattwise jobs unpin held",
        "wattwise jobs baseline held --every 0",
        "wattwise jobs unban held 64",
        "wattwise jobs include-trial held N",
    ]


def test_ten_trials_and_a_link_to_all(own_web: httpx.Client, held: Trainer) -> None:
    """The page of a job has the newest ten; the link leads to the list of all."""
    page = job_page(own_web, held.job_id)
    assert numbers(page) == list(range(12, 2, -1))
    (link,) = re.findall(r'<a href="([^"]*)">all 12 trials</a>', page.text)
    assert numbers(own_web.get(html.unescape(link))) == list(range(12, 0, -1))


def test_excluded_trials_look_excluded(own_web: httpx.Client, held: Trainer) -> None:
    """In the lists, the chart and its table an excluded trial is struck through, and a word says so."""
    page = job_page(own_web, held.job_id)
    for listed in (page, own_web.get("/job/trials", params={"id": held.job_id})):
        assert re.findall(r'<tr id="t-(\d+)" class="struck">', listed.text) == ["11"]
        (row,) = re.findall(r'<tr id="t-11".*?</tr>', listed.text, re.DOTALL)
        assert "reached, excluded" in words_of(row)
    values = values_of(spec_of(page, "cost"))
    assert [value["x"] for value in values if value.get("k") == Look.EXCLUDED] == [11]
    assert [value["x"] for value in values] == list(range(1, 13))
    assert [row["trial"] for row in rows_of(page, "cost") if row["result"] == "reached, excluded"] == ["11"]
    assert (
        len(re.findall(r'<tr class="struck"><td><a href="trial\?job=held&amp;number=11">11</a></td>', page.text)) == 1
    )


@pytest.fixture(scope="module")
def labelled(grpc_server: LiveServer) -> Trainer:
    """A job whose launches have labels; the fifth trial failed, and the last one runs."""
    trainer = Trainer(grpc_server.trainer, job_id="labelled", job_id_prefix="labelled", policy=POLICY)
    for number, commit in enumerate(COMMITS, 1):
        launched(grpc_server, trainer, host="node-7", commit=commit, log_url=f"https://logs.example/{number}?a=b")
    launched(grpc_server, trainer, host="node-8", log_url="javascript:alert(1)")
    trainer.end(trainer.next(), v1.END_REASON_ERROR)
    trainer.next()
    return trainer


FILTERS: tuple[tuple[dict[str, str], list[int]], ...] = (
    ({}, [6, 5, 4, 3, 2, 1]),
    ({"label": "host=node-7"}, [3, 2, 1]),
    ({"label": " commit = 5f0 "}, [2, 1]),
    ({"label": "log_url=https://logs.example/3?a=b"}, [3]),
    ({"label": "host=node-7", "from": "2"}, [2, 1]),
    ({"result": "error"}, [5]),
    ({"result": "running"}, [6]),
    ({"from": "4"}, [4, 3, 2, 1]),
    ({"label": "host=none"}, []),
    ({"label": "=node-7"}, [6, 5, 4, 3, 2, 1]),
    ({"label": "node-7"}, [6, 5, 4, 3, 2, 1]),
)


@pytest.mark.parametrize(("wanted", "found"), FILTERS, ids=str)
def test_files_follow_the_filter(
    own_web: httpx.Client, labelled: Trainer, wanted: dict[str, str], found: list[int]
) -> None:
    """The CSV and the JSON that a list links have its trials, by number."""
    page = own_web.get("/job/trials", params={"id": labelled.job_id} | wanted)
    assert numbers(page) == found
    links = re.findall(r'<a href="([^"]*)">(CSV|JSON)</a>', page.text)
    texts = {kind: own_web.get(html.unescape(link)).text for link, kind in links}
    assert [int(row["trial"]) for row in csv.DictReader(texts["CSV"].splitlines())] == found[::-1]
    assert [each["id"]["trial_number"] for each in json.loads(texts["JSON"])] == found[::-1]


def test_files_follow_the_batch_size_and_the_pages(grpc_server: LiveServer, own_web: httpx.Client) -> None:
    """A file has the trials of all pages of its list, and no others."""
    trainer = Trainer(grpc_server.trainer, job_id="paged", job_id_prefix="paged", policy="gts")
    trials = [trainer.run(5.0 + number % 7) for number in range(60)]
    size = max(trial.batch_size for trial in trials)
    wanted = [t.id.trial_number for t in trials if t.batch_size == size and t.id.trial_number <= 55]
    shown = {"id": "paged", "batch": str(size), "from": "55"}
    assert [each["id"]["trial_number"] for each in own_web.get("/job/trials.json", params=shown).json()] == wanted


def test_a_label_that_is_none_is_said(own_web: httpx.Client, labelled: Trainer) -> None:
    """A text without a key is ignored, stays in its field and gets a hint; the filter of others stays in the links."""
    bad = own_web.get("/job/trials", params={"id": labelled.job_id, "label": "node-7"})
    assert 'value="node-7" aria-invalid="true"' in bad.text
    assert "Write a label as key=value" in text_of(bad)
    good = own_web.get("/job/trials", params={"id": labelled.job_id, "label": "host=node-7"})
    (chips,) = re.findall(r'aria-label="Ended by">(.*?)</nav>', good.text, re.DOTALL)
    assert all("label=host%3Dnode-7" in link for link in re.findall(r'href="([^"]*)"', chips))


@pytest.mark.parametrize("unknown", [{"status": "failed"}, {"result": "lost-again"}, {"batch": "7"}, {"from": "x"}])
def test_an_unknown_filter_is_said(own_web: httpx.Client, labelled: Trainer, unknown: dict[str, str]) -> None:
    """A page says that a filter is ignored, also in an address that someone typed; a file would lack what it says."""
    ((name, value),) = unknown.items()
    page = own_web.get("/job/trials", params={"id": labelled.job_id} | unknown)
    assert f"There is no filter {name}={value}. It is ignored now." in text_of(page)
    assert own_web.get("/job/trials.csv", params={"id": labelled.job_id} | unknown).status_code == 400
    assert "There is no filter" not in text_of(own_web.get("/job/trials", params={"id": labelled.job_id}))


@pytest.mark.parametrize(
    ("path", "known", "unknown"),
    [
        ("/", {"q": "x", "state": "idle", "order": "attention", "after": ""}, {"foo": "1", "state": "x", "order": "y"}),
        ("/events", {"job": "x", "kind": "EVENT_KIND_JOB_RESET"}, {"foo": "1", "kind": "foo"}),
    ],
)
def test_an_unknown_filter_of_jobs_or_events_is_said(
    own_web: httpx.Client, labelled: Trainer, path: str, known: dict[str, str], unknown: dict[str, str]
) -> None:
    """Each unknown name and value is named, and no known one."""
    assert labelled.job_id
    assert "There is no filter" not in text_of(own_web.get(path, params=known))
    page = text_of(own_web.get(path, params=unknown))
    assert all(f"There is no filter {name}={value}." in page for name, value in unknown.items())


def test_only_web_addresses_become_links_to_logs(own_web: httpx.Client, labelled: Trainer) -> None:
    """The log of a trial is a link in lists and on its page; another text is shown as it is."""
    rel = 'rel="noopener noreferrer"'
    listed = job_page(own_web, labelled.job_id).text
    assert f'<a href="https://logs.example/3?a=b" {rel}>log<' in listed
    assert listed.count(rel) == 3
    pages = {n: own_web.get("/trial", params={"job": labelled.job_id, "number": str(n)}).text for n in (3, 4)}
    assert f'<a href="https://logs.example/3?a=b" {rel}>https://logs.example/3?a=b</a>' in pages[3]
    assert "javascript:alert(1)" in pages[4]
    assert 'href="javascript' not in pages[4]
    assert rel not in pages[4]


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("https://a.example/x?y=1#z", True), ("http://a.example", True), ("http://[::1]:8/x", True),
        ("ftp://a.example", False), ("https://", False), ("http://[", False), ("//a.example", False),
        ("javascript:alert(1)//https://a.example", False), ("https://a.example/x y", False), ("", False),
        ("JAVASCRIPT:alert(1)", False), ("data:text/html,x", False), ("/var/log/x", False),
    ],
)  # fmt: skip
def test_addresses_of_the_web(text: str, *, good: bool) -> None:
    """An address has the scheme http or https, a host and no spaces."""
    assert web_url(text) == (text if good else "")


def test_a_trial_leads_to_those_with_its_label(own_web: httpx.Client, labelled: Trainer) -> None:
    """Each label of a trial links the trials that have it, too."""
    page = own_web.get("/trial", params={"job": labelled.job_id, "number": "1"}).text
    links = [html.unescape(link) for link in re.findall(r'<a class="quiet" href="([^"]*)">', page)]
    assert [numbers(own_web.get(link)) for link in links] == [[2, 1], [3, 2, 1], [1]]


def figures(own_web: httpx.Client, one: str, other: str) -> dict[str, list[str]]:
    """The key figures of two jobs."""
    page = own_web.get("/compare", params={"a": one, "b": other})
    (table,) = re.findall(r'<table class="rows pair">(.*?)</table>', page.text, re.DOTALL)
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table)
    return {name: [words_of(cell) for cell in re.findall(r"<td>(.*?)</td>", cells)] for name, cells in rows}


def test_two_jobs_are_compared(own_web: httpx.Client, grpc_server: LiveServer, lucky: Trainer) -> None:
    """Their key figures stand side by side, and what a delivery has cost each of them is in one chart."""
    other = Trainer(grpc_server.trainer, job_id="lucky-too", job_id_prefix="lucky", policy=POLICY, eta_knob=0.5)
    for converges in (True, False, True):
        other.run(30.0, converges=converges)
    assert f'<a href="/compare?a={lucky.job_id}">Compare with another job</a>' in job_page(own_web, lucky.job_id).text
    found = {job_id: grpc_server.admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=job_id)).statistics
             for job_id in (lucky.job_id, "lucky-too")}  # fmt: skip
    shown = figures(own_web, lucky.job_id, "lucky-too")
    each = [joules(of.spent.cost / of.num_deliveries) for of in found.values()]
    assert shown["cost spent per delivery"] == each
    assert shown["deliveries"] == [str(of.num_deliveries) for of in found.values()]
    costs = [of.savings.cost for of in found.values()]
    now = [joules(cost.in_use) if cost.HasField("in_use") else DASH for cost in costs]
    default = [joules(cost.with_default) if cost.HasField("with_default") else DASH for cost in costs]
    assert (shown["cost of a model now"], shown["cost of a model with the default"]) == (now, default)
    assert "saved at least, or lost" in shown
    page = own_web.get("/compare", params={"a": lucky.job_id, "b": "lucky-too"})
    assert "η is 1 and 0.5" in text_of(page)
    points = values_of(spec_of(page, "per-delivery"))
    last = [[value for value in points if value["s"] == job_id][-1] for job_id in (lucky.job_id, "lucky-too")]
    assert [joules(value["y"]) for value in last] == each
    tops = [spec_of(page, f"cost-{place}")["layer"][-1]["encoding"]["y"]["scale"]["domain"] for place in (1, 2)]
    assert tops[0] == tops[1]


def test_a_trial_without_a_report_has_none(own_web: httpx.Client, grpc_server: LiveServer) -> None:
    """A running trial that has not reported has no time of a last report, on the page of its job and in the list."""
    trainer = Trainer(grpc_server.trainer, job_id="silent", job_id_prefix="silent", policy=POLICY)
    trial = trainer.next()
    assert re.search(r"no report yet, started \d+ s ago", text_of(job_page(own_web, trainer.job_id)))

    def listed() -> str:
        (row,) = re.findall(f'<tr id="t-1-{trainer.job_id}".*?</tr>', own_web.get("/running").text, re.DOTALL)
        (cell,) = re.findall('<td data-label="last report">(.*?)</td>', row)
        return words_of(cell)

    assert listed() == "none yet"
    trainer.report(trial, 1.0, metric=0.1)
    assert re.search(r"last report \d+ s ago", text_of(job_page(own_web, trainer.job_id)))
    assert listed().endswith(" ago")


def test_a_log_without_a_host_stands_alone(own_web: httpx.Client, grpc_server: LiveServer) -> None:
    """Where a trial ran is its host and its log, one of them, or a dash."""
    trainer = Trainer(grpc_server.trainer, job_id="logged", job_id_prefix="logged", policy=POLICY)
    launched(grpc_server, trainer, log_url="https://logs.example/1", host="a")
    launched(grpc_server, trainer, log_url="https://logs.example/2")
    launched(grpc_server, trainer)
    cells = re.findall('<td data-label="where" class="where">(.*?)</td>', job_page(own_web, trainer.job_id).text)
    assert [" ".join(words_of(cell).split()) for cell in cells] == [DASH, "log of trial 2", "a · log of trial 1"]


def test_the_other_job_is_found_by_a_part_of_its_id(own_web: httpx.Client, lucky: Trainer, held: Trainer) -> None:
    """Without another job, or with a part of an id, the page lists jobs to compare with: those of the prefix first."""

    def found(b: str) -> list[str]:
        page = own_web.get("/compare", params={"a": lucky.job_id, "b": b}).text
        return [html.unescape(text) for text in re.findall(r'<a class="id" data-row href="[^"]*">(.*?)</a>', page)]

    assert found("")[0] != lucky.job_id
    assert lucky.job_id not in found("")
    assert found("eld") == [held.job_id]
    assert found("none at all") == []
    assert lucky.job_id not in found(lucky.job_id)


def test_estimates_are_marked_on_every_page(own_web: httpx.Client, grpc_server: LiveServer) -> None:
    """A cost whose energy is an estimate has a mark in the list, on its own pages and in a comparison."""
    guessed, measured = (
        Trainer(grpc_server.trainer, job_id=f"energy-{kind}", job_id_prefix="energy") for kind in ("estimate", "nvml")
    )
    for trainer, kind in ((guessed, "estimate"), (measured, "nvml")):
        trainer.run(700.0, monitor=monitor_of(kind))
    mark = '<abbr title="estimates, wholly or in part">~</abbr>'
    for job_id, sign in ((guessed.job_id, mark), (measured.job_id, "")):
        listed = own_web.get("/", params={"q": job_id}).text
        assert f'data-label="a model now">{sign}700 J' in listed
        page = job_page(own_web, job_id)
        trial = own_web.get("/trial", params={"job": job_id, "number": "1"})
        for text in (listed, page.text, trial.text):
            assert f"{sign}700 J" in text
            assert (mark in text) == bool(sign)
        shown = text_of(page)
        assert f"A model costs {sign}700 J now" in page.text
        assert ("The energies and costs of energy-estimate are estimates" in shown) == bool(sign)
        assert ("The energies and costs of trial 1 are estimates" in text_of(trial)) == bool(sign)
    both = own_web.get("/compare", params={"a": guessed.job_id, "b": measured.job_id})
    assert f"<td>{mark}700 J</td><td>700 J</td>" in both.text
    assert "The energies and costs of energy-estimate are estimates, wholly or in part." in text_of(both)


def test_a_comparison_has_the_side_of_each_target(own_web: httpx.Client, grpc_server: LiveServer) -> None:
    """A target says on which side of it the metric must be, and the mean of epochs has no zeros behind it."""
    lower, higher = (
        Trainer(grpc_server.trainer, job_id=f"side-{number}", job_id_prefix="side", higher_is_better=better)
        for number, better in enumerate((False, True))
    )
    lower.report(lower.next(), 5.0, metric=0.1, epoch=6)
    page = own_web.get("/compare", params={"a": lower.job_id, "b": higher.job_id})
    shown = text_of(page)
    assert "target metric at most 0.9 within 10 epochs metric at least 0.9 within 10 epochs" in shown
    assert f"mean epochs of a delivery 6 {DASH}" in shown
    trial = text_of(own_web.get("/trial", params={"job": lower.job_id, "number": "1"}))
    assert "The dashed line is the target: at most 0.9." in trial


def test_the_glossary_is_that_of_the_docs(own_web: httpx.Client) -> None:
    """The page has each term of docs/glossary.md, in its order, and every page links it."""
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    page = own_web.get("/glossary")
    assert re.findall(r'<dt id="[^"]*">(.*?)</dt>', page.text) == terms
    assert {"launch", "trial", "delivery"} <= set(terms)
    assert "A trial that reached its target" in text_of(page)
    assert "Each time is an attempt and has a trial" in text_of(page)
    assert not set("*`[]") & set(text_of(page))
    assert '<a href="/glossary">Glossary</a>' in own_web.get("/").text


def test_a_trial_says_which_need_it_served(own_web: httpx.Client, labelled: Trainer) -> None:
    """The page says how many deliveries there were before it."""
    shown = facts_of(own_web.get("/trial", params={"job": labelled.job_id, "number": "3"}))
    assert shown["Recurrence"] == "3: the job had 2 deliveries when it started"
