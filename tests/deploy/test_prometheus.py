"""A real Prometheus scrapes a real server and runs every query of the dashboards and every alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from wattwise import v1
from wattwise_server.policy.savings import LEAST_RUNS

from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.test_monitoring import OF_JOBS, queries
from tests.jobs import Trainer, monitor_of, result
from tests.ports import hold_port, port_of
from tests.refusals import refused
from tests.server.usecases.test_statistics import FACTORS, People
from tests.waiting import wait_until
from tests.watched import WatchedServer

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus, of the package of that name"
)

HOSTILE = 'test-"quoted" \\n \u2028 }'
_NAMED = re.compile(r"\b((?:wattwise|process)_\w+)")


class Prometheus:
    """A Prometheus, by its HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; a query that is refused fails with Prometheus's explanation."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - it is http
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            with error:
                pytest.fail(f"{parameters}: {error.read().decode()}")

    def series(self, query: str) -> list[dict[str, Any]]:
        """The series that a query has now."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=query)["result"]
        return found

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10):  # noqa: S310 - it is http
                return True
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """One with the configuration and the rules of `deploy`, that scrapes one server every second."""
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (scrape,) = settings["scrape_configs"]
    del scrape["dns_sd_configs"]
    scrape["static_configs"] = [{"targets": [target]}]
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    shutil.copy(ROOT / "docs/alerts.yml", folder)
    with hold_port() as held:
        port = port_of(held)
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            wait_until(lambda: process.poll() is not None or found.is_ready(), 60)
            assert process.poll() is None, (folder / "log").read_text()
            yield found
        finally:
            process.terminate()


@pytest.fixture(params=[(), ("--metrics-jobs", "10")], ids=["sums", "jobs"])
def scraped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[WatchedServer, Prometheus, bool]]:
    """A server with something to show, a Prometheus that scrapes it, and whether it has metrics of single jobs."""
    folder = tmp_path / "server"
    folder.mkdir()
    with WatchedServer(folder) as server:
        server.start(*FACTORS, *request.param)
        _make_traffic(server)
        (target,) = re.findall("//([^/]+)/", server.metrics_url)
        with prometheus(tmp_path, target) as found:
            yield server, found, bool(request.param)


def _make_traffic(server: WatchedServer) -> None:
    """A job that loses, one that fails, a stream, and a refused call."""
    loser = People(server, job_id=HOSTILE)
    for _ in range(LEAST_RUNS):
        loser.run_with(16, 10.0)
    for _ in range(30):
        loser.run_with(64, 100.0)
    failing = Trainer(server.trainer, job_id="test-failing")
    for _ in range(3):
        failing.end(failing.next(), v1.END_REASON_ERROR)
    streaming = Trainer(server.trainer, job_id="test-streaming")
    report = result(streaming.next(), 10.0, monitor=monitor_of("nvml"))
    list(server.trainer.StreamResults(iter([v1.StreamResultsRequest(result=report)])))
    with refused():
        server.admin.GetJob(v1.GetJobRequest(job_id="unknown"))


def test_every_query_and_alert_runs(scraped: tuple[WatchedServer, Prometheus, bool]) -> None:
    """All parse and have series, those of single jobs if the server has them; jobs in trouble raise their alerts."""
    server, found, has_jobs = scraped
    for query in queries():
        asked = query.replace("$__rate_interval", "1m").replace('alertstate="firing"', 'alertstate=~"firing|pending"')
        if OF_JOBS in query and not has_jobs:
            assert found.series(asked) == []
        else:
            wait_until(lambda asked=asked: bool(found.series(asked)), 60)  # type: ignore[misc]
    rules = [rule for group in found.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    written = yaml.safe_load((ROOT / "docs/alerts.yml").read_text())["groups"][0]["rules"]
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in written]
    for rule in rules:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", "")
        for name in _NAMED.findall(rule["query"]):
            assert bool(found.series(name)) == (has_jobs or not name.startswith(OF_JOBS)), name
    raised = {rule["name"]: [alert["labels"].get("job_id") for alert in rule["alerts"]] for rule in rules}
    if has_jobs:
        request = v1.ListJobsRequest(states=[v1.JOB_STATE_ATTENTION])
        troubled = {row.job.spec.job_id for row in server.admin.ListJobs(request).jobs}
        assert set(raised["WattwiseJobNeedsAttention"]) == troubled >= {"test-failing"}
        assert raised["WattwiseJobLoses"] == [HOSTILE]
        assert raised["WattwiseJobsNeedAttention"] == []
    else:
        assert (raised["WattwiseJobNeedsAttention"], raised["WattwiseJobLoses"]) == ([], [])
        assert raised["WattwiseJobsNeedAttention"] == [None]
    assert raised["WattwiseFiguresOld"] == raised["WattwiseDown"] == []
