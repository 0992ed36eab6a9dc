"""Prometheus and Grafana: what they ask for is what a server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from wattwise import v1
from wattwise_server.policy.savings import LEAST_RUNS

from tests.deploy.files import DEPLOY, EXAMPLE, ROOT, compose, image_settings, of_kind, resources
from tests.jobs import Trainer, monitor_of, result
from tests.refusals import refused
from tests.server.usecases.test_statistics import FACTORS
from tests.watched import WatchedServer

LABELS = {"job", "instance", "le"}
"""Of Prometheus itself, or of a histogram's buckets."""


BOARDS = tuple(sorted((DEPLOY / "grafana").glob("*.json")))
OF_JOBS = "wattwise_job_"
"""How the names begin of metrics that need --metrics-jobs."""

_OF_DATABASE = r"wattwise_(?:jobs|running_trials|ended_trials|(?:job|jobs|spent|saved)_\w+)\b(?<!_total)"
"""Metrics that every server has of the whole database."""


def panels() -> list[dict[str, Any]]:
    """The panels of all dashboards that show something."""
    boards = [json.loads(path.read_text()) for path in BOARDS]
    return [panel for board in boards for panel in board["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """The queries of all dashboards."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_every_query_is_about_metrics_that_exist(watched: WatchedServer) -> None:
    """A server with traffic has each metric and label that the dashboards ask for, and the manual has them."""
    watched.stop()
    watched.start("--metrics-jobs", "5", *FACTORS)
    _make_traffic(watched)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(watched.scrape()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    manual = (ROOT / "docs/operations.md").read_text()
    for query in (query for query in queries() if "ALERTS" not in query and not query.startswith("sum(up{")):
        names = re.findall(r"\b(?:wattwise|process)_\w+", query)
        assert names, query
        for name in names:
            assert name in labels, query
            assert name.startswith("process_") or re.sub("_(count|sum|bucket)$", "", name) in manual, name
        asked = {word for group in re.findall(r"by \(([^)]*)\)", query) for word in re.split(", *", group)}
        asked |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
        assert asked <= LABELS.union(*(labels[name] for name in names)), query


def _make_traffic(watched: WatchedServer) -> None:
    job = Trainer(watched.trainer, batch_sizes=[16])
    for _ in range(LEAST_RUNS):
        job.run(1.0)
    trial = job.next()
    (decision,) = watched.trainer.StreamResults(
        iter([v1.StreamResultsRequest(result=result(trial, 1.0, monitor=monitor_of("nvml")))])
    )
    assert decision.decision.converged
    with refused():
        watched.admin.GetJob(v1.GetJobRequest(job_id="unknown"))


def test_queries_add_up_over_servers() -> None:
    """Every query is a sum over servers, or by server; of what all servers count in one database it is the largest."""
    for query in queries():
        shared = [query[: found.start()] for found in re.finditer(_OF_DATABASE, query)]
        if shared:
            assert all(re.search(r"\bmax ?(?:by \([\w, ]+\) )?\((?:delta\()?$", before) for before in shared), query
        else:
            assert re.search(r"\bsum ?(?:by|\()", query), query
        assert query.count('job="wattwise"') >= len(re.findall(r"\bwattwise_\w+", query)), query


def test_panels_say_what_they_need() -> None:
    """A panel of single jobs says that it needs --metrics-jobs, one of money that it needs a price; no other does."""
    for panel in panels():
        text, asked = panel.get("description", ""), " ".join(target["expr"] for target in panel["targets"])
        assert (OF_JOBS in asked) == ("--metrics-jobs" in text), panel["title"]
        assert ("_money" in asked) == ("--electricity-price" in text), panel["title"]
        assert ("_carbon_grams" in asked) == ("--carbon-intensity" in text), panel["title"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(path: Path) -> None:
    """Each panel has a title, a number and a place of its own."""
    board = json.loads(path.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        place = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not place & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= place
        assert panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    """Panels name the data source that is provisioned, whose address is Prometheus's; the folder has all dashboards."""
    (source,) = yaml.safe_load((DEPLOY / "grafana/datasources.yaml").read_text())["datasources"]
    services = compose()["services"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert services[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    for panel in panels():
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": source["type"], "uid": source["uid"]}
    (provider,) = yaml.safe_load((DEPLOY / "grafana/dashboards.yaml").read_text())["providers"]
    mounted = {Path(volume.split(":")[1]) for volume in services["grafana"]["volumes"]}
    folder = Path(provider["options"]["path"])
    assert {path for path in mounted if path.suffix == ".json"} == {folder / path.name for path in BOARDS}
    assert len({json.loads(path.read_text())["uid"] for path in BOARDS}) == len(BOARDS)
    assert {path.parent.name for path in mounted if path.suffix == ".yaml"} == {"datasources", "dashboards"}


def test_prometheus_asks_every_server() -> None:
    """Prometheus scrapes the port of the image at the servers' name, as the job of the alerts, which it has."""
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (scrape,) = settings["scrape_configs"]
    assert scrape["job_name"] == "wattwise"
    (found,) = scrape["dns_sd_configs"]
    services = compose()["services"]
    port = int(image_settings()["WATTWISE_METRICS_ADDRESS"].rpartition(":")[2])
    assert (found["names"], found["port"]) == (["server"], port)
    assert set(services["server"]["networks"]) & set(services["prometheus"]["networks"])
    mounted = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"])
    assert (DEPLOY / "../docs/alerts.yml").is_file()
    assert mounted["../docs/alerts.yml"] == f"/etc/prometheus/{settings['rule_files'][0]}"
    assert mounted["./prometheus.yml"] == "/etc/prometheus/prometheus.yml"
    (metrics,) = (
        each for each in of_kind(resources(EXAMPLE), "Service") if each["metadata"]["name"] == "wattwise-metrics"
    )
    assert [each["port"] for each in metrics["spec"]["ports"]] == [port]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    """Prometheus's own tool accepts the configuration beside the rules."""
    shutil.copy(DEPLOY / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "docs/alerts.yml", tmp_path)
    subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True)
