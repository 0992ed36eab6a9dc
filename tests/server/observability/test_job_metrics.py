"""The metrics of savings and of single jobs."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from wattwise import v1
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.observability.fresh import fresh

from tests.jobs import Trainer
from tests.server.usecases.test_statistics import FACTORS, People
from tests.waiting import wait_until
from tests.watched import WatchedServer

HOSTILE = (
    'test-"quoted" \\n \\ }{,=',
    "test-\u2028line\u2029",
    "test-" + "ü" * 195,
    '# HELP wattwise_jobs "',
    "other",
)


@pytest.fixture
def named(tmp_path: Path) -> Iterator[WatchedServer]:
    """A server with metrics of three jobs, and prices."""
    with WatchedServer(tmp_path) as server:
        server.start("--metrics-jobs", "3", *FACTORS)
        yield server


def job_ids(server: WatchedServer) -> set[str]:
    """The ids that the metrics name."""
    families = text_string_to_metric_families(server.scrape())
    return {sample.labels["job_id"] for family in families for sample in family.samples if "job_id" in sample.labels}


def test_figures_are_those_of_the_statistics(named: WatchedServer) -> None:
    """Each figure of a job is what GetJobStatistics and ListJobs say, with money and carbon."""
    job = People(named)
    for _ in range(6):
        job.run_with(16, 100.0)
    for _ in range(40):
        job.run_with(8, 10.0)
    for reason in (v1.END_REASON_ERROR, v1.END_REASON_PREEMPTED, v1.END_REASON_PREEMPTED):
        job.end(job.next(), reason)
    job.run(5.0, converges=False)
    job.next()
    told = named.admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=job.job_id)).statistics
    (listed,) = named.admin.ListJobs(v1.ListJobsRequest(with_summaries=True)).jobs
    wait_until(lambda: named.figure("wattwise_job_running_trials", job_id=job.job_id) == 1)

    def of_job(name: str, **labels: str) -> float:
        return named.figure(f"wattwise_job_{name}", job_id=job.job_id, **labels)

    results = {
        result: of_job("ended_trials", result=result) for result in ("delivered", "missed", "failed", "interrupted")
    }
    assert results == {"delivered": 46, "missed": 1, "failed": 1, "interrupted": 2}
    savings = told.savings
    expected = {
        "cost_joules": savings.cost,
        "energy_joules": savings.energy,
        "training_seconds": savings.time,
        "carbon_grams": savings.carbon,
        "money": savings.money,
    }
    for name, quantity in expected.items():
        assert of_job(f"spent_{name}") == pytest.approx(quantity.spent)
        assert of_job(f"saved_{name}") == pytest.approx(quantity.saved)
        assert of_job(f"saved_at_least_{name}") == pytest.approx(quantity.at_least)
        assert named.figure(f"wattwise_saved_{name}") == pytest.approx(quantity.saved)
        assert named.figure(f"wattwise_spent_{name}") == pytest.approx(quantity.spent)
    assert of_job("spent_money", currency="EUR") == of_job("spent_money") > 0
    assert of_job("saved_cost_joules") > 0
    assert of_job("verdict", verdict="saving") == of_job("verdict") == 1
    assert named.figure("wattwise_jobs_by_verdict", verdict="saving") == named.figure("wattwise_jobs_by_verdict") == 1
    last = listed.summary.last_activity_time
    assert of_job("last_activity_timestamp_seconds") == pytest.approx(last.seconds + last.nanos / 1e9)
    assert named.figure("wattwise_figures_timestamp_seconds") >= of_job("last_activity_timestamp_seconds") - 60


def test_only_the_most_recently_active_jobs_are_named(named: WatchedServer) -> None:
    """Three of five jobs have series of their own; what falls out is in "other", and the sums stay those of all."""
    jobs = [Trainer(named.trainer) for _ in range(5)]
    for cost, job in enumerate(jobs, 1):
        job.run(float(cost))
    newest = {job.job_id for job in jobs[2:]}
    wait_until(lambda: job_ids(named) == newest | {"other"})
    wait_until(lambda: named.figure("wattwise_job_spent_cost_joules") == 15.0)
    assert named.figure("wattwise_job_spent_cost_joules", job_id="other") == 3.0
    jobs[0].next()
    wait_until(lambda: job_ids(named) == {job.job_id for job in (jobs[0], *jobs[3:])} | {"other"})
    assert named.figure("wattwise_job_spent_cost_joules", job_id="other") == 5.0
    for name in ("spent_energy_joules", "spent_training_seconds", "saved_cost_joules", "saved_at_least_money"):
        assert named.figure(f"wattwise_job_{name}") == pytest.approx(named.figure(f"wattwise_{name}"))
    assert named.figure("wattwise_job_verdict", job_id="other") == 2
    assert named.figure("wattwise_job_verdict") == named.figure("wattwise_jobs_by_verdict") == 5
    last = "wattwise_job_last_activity_timestamp_seconds"
    assert 0 < named.figure(last, job_id="other") < named.figure(last, job_id=jobs[3].job_id)
    named.admin.DeleteJob(v1.DeleteJobRequest(job_id=jobs[0].job_id))
    wait_until(lambda: job_ids(named) == newest | {"other"})


def test_job_called_other_is_one_of_the_others(named: WatchedServer) -> None:
    """A job whose id is "other" takes no place and hides no other job: it is added to the rest."""
    ids = ["other-1", "other-2", "other-3", "other-4", "other"]
    for cost, job_id in enumerate(ids, 1):
        Trainer(named.trainer, job_id=job_id, job_id_prefix="other").run(float(cost))
    wait_until(lambda: job_ids(named) == {"other-2", "other-3", "other-4", "other"})
    wait_until(lambda: named.figure("wattwise_job_spent_cost_joules") == 15.0)
    assert named.figure("wattwise_job_spent_cost_joules", job_id="other") == 1.0 + 5.0


def test_hostile_ids_are_escaped(tmp_path: Path) -> None:
    """Ids with quotes, backslashes, line separators and 200 characters come back as they are; "other" is no id."""
    with WatchedServer(tmp_path) as server:
        server.start("--metrics-jobs", "10")
        for job_id in HOSTILE:
            Trainer(server.trainer, job_id=job_id, job_id_prefix=job_id[:1]).run(1.0)
        wait_until(lambda: job_ids(server) == set(HOSTILE))
        for job_id in HOSTILE:
            assert server.figure("wattwise_job_spent_cost_joules", job_id=job_id) == 1.0
        assert server.figure("wattwise_jobs") == len(HOSTILE)


def test_jobs_in_trouble_are_counted(named: WatchedServer) -> None:
    """Three failures in a row need attention, in the series of the job and in the sum; there is no claim yet."""
    bad, good = Trainer(named.trainer), Trainer(named.trainer)
    trial = good.next()
    good.report(trial, 10.0, metric=0.5)
    good.report(trial, 20.0, epoch=2, time=2.0)
    for _ in range(3):
        bad.end(bad.next(), v1.END_REASON_ERROR)
    wait_until(lambda: named.figure("wattwise_job_needs_attention", job_id=bad.job_id) == 1)
    assert named.figure("wattwise_job_needs_attention", job_id=good.job_id) == 0
    assert named.figure("wattwise_jobs_needing_attention") == 1
    assert named.figure("wattwise_job_ended_trials", job_id=bad.job_id, result="failed") == 3
    assert named.figure("wattwise_job_verdict", job_id=bad.job_id, verdict="no_delivery") == 1
    assert f'wattwise_job_saved_cost_joules{{job_id="{bad.job_id}"}}' not in named.scrape()


def test_no_ids_and_no_prices_unless_they_are_set(watched: WatchedServer) -> None:
    """Without --metrics-jobs and factors there are the sums in joules and seconds, and no job, money or carbon."""
    job = Trainer(watched.trainer, batch_sizes=[16])
    for _ in range(3):
        job.run(2.0)
    wait_until(lambda: watched.figure("wattwise_spent_cost_joules") == 6.0)
    text = watched.scrape()
    assert job.job_id not in text
    samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {"wattwise_saved_cost_joules", "wattwise_saved_at_least_energy_joules"} <= samples
    assert not [name for name in samples if "_job_" in name or "money" in name or "carbon" in name]


def test_single_metric_can_be_asked_for(named: WatchedServer) -> None:
    """A scrape of one name gets that metric alone, as of any other metric of a client library."""
    Trainer(named.trainer).run(2.0)
    wait_until(lambda: named.figure("wattwise_spent_cost_joules") == 2.0)
    with urllib.request.urlopen(f"{named.metrics_url}?name[]=wattwise_spent_cost_joules", timeout=10) as answer:  # noqa: S310 - it is http
        lines = answer.read().decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["wattwise_spent_cost_joules 2.0"]


async def test_values_are_computed_when_asked_for() -> None:
    """Who asks waits for a new value; a burst of questions computes it once, and a failing storage keeps the last."""
    computed: list[int] = []
    broken = False

    async def compute() -> int:
        if broken:
            raise StorageUnavailableError("away")
        computed.append(1)
        return len(computed)

    loop = asyncio.get_running_loop()
    async with fresh(compute, "a number") as value:
        found = await asyncio.gather(*(loop.run_in_executor(None, value.ask) for _ in range(5)))
        assert {each.value for each in found if each} == {1}
        value.due = 0.0
        second = await loop.run_in_executor(None, value.ask)
        assert second is not None
        assert second.value == 2
        broken, value.due = True, 0.0
        kept = await loop.run_in_executor(None, value.ask)
        assert kept is not None
        assert (kept.value, len(computed)) == (2, 2)
        assert kept.age >= second.age
    closed = await loop.run_in_executor(None, value.ask)
    assert closed is not None
    assert closed.value == 2


async def test_slow_value_is_not_computed_all_the_time() -> None:
    """A computation is followed by a pause of many times its length, so that it takes a small share of the time."""
    loop = asyncio.get_running_loop()
    began = asyncio.Event()

    async def compute() -> str:
        began.set()
        await asyncio.sleep(0.1)
        return "done"

    async with fresh(compute, "a text") as value:
        await loop.run_in_executor(None, value.ask)
        assert began.is_set()
        assert value.due - loop.time() > 1.0
        began.clear()
        again = await loop.run_in_executor(None, value.ask)
        assert again is not None
        assert not began.is_set()


def test_outage_is_logged_once_and_keeps_the_figures(named: WatchedServer) -> None:
    """Figures of a database that is away stay, with their time; the log says so once."""
    Trainer(named.trainer).run(2.0)
    wait_until(lambda: named.figure("wattwise_spent_cost_joules") == 2.0)
    known = named.figure("wattwise_figures_timestamp_seconds")
    away = named.database.with_suffix(".away")
    named.database.rename(away)
    wait_until(lambda: bool(named.scrape()) and bool(named.events("figures not read")))
    assert named.figure("wattwise_spent_cost_joules") == 2.0
    away.rename(named.database)
    wait_until(lambda: named.figure("wattwise_figures_timestamp_seconds") > known + 0.5)
    assert len(named.events("figures not read")) == 1, json.dumps(named.lines())
