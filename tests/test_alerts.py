"""The alert rules use metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from wattwise_server.policy.savings import LEAST_RUNS

from tests.jobs import Trainer
from tests.watched import WatchedServer

ROOT = Path(__file__).parents[1]


def test_every_metric_of_the_rules_exists(watched: WatchedServer) -> None:
    """A server that has answered a call has each of the series that the alerts and the manual name."""
    watched.stop()
    watched.start("--metrics-jobs", "5", "--electricity-price", "0.3", "--currency", "EUR", "--carbon-intensity", "300")
    job = Trainer(watched.trainer, batch_sizes=[16])
    for _ in range(LEAST_RUNS):
        job.run(1.0)
    served = {s.name for family in text_string_to_metric_families(watched.scrape()) for s in family.samples}
    rules = yaml.safe_load((ROOT / "docs/alerts.yml").read_text())["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"\b(?:wattwise|process)_\w+", rule["expr"])}
    assert named
    assert named <= served
    manual = re.findall(r"`((?:wattwise|process)_\w+)", (ROOT / "docs/operations.md").read_text())
    known = {re.sub("_(total|count|sum|bucket|info)$", "", name) for name in served}
    others = {
        "wattwise_open_streams",
        "wattwise_stream_messages",
        "wattwise_owner",
    }  # streams, and a role of PostgreSQL
    assert {name for name in manual if not {name, re.sub("_total$", "", name)} & (served | known | others)} == set()


def test_every_rule_has_an_action() -> None:
    """An alert has a severity, a summary and an action."""
    for rule in yaml.safe_load((ROOT / "docs/alerts.yml").read_text())["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "action"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_rules_fire_when_they_should() -> None:
    """Prometheus's own tool accepts the rules, and the unit tests of them pass."""
    subprocess.run(["promtool", "check", "rules", "docs/alerts.yml"], check=True, cwd=ROOT, capture_output=True)
    subprocess.run(["promtool", "test", "rules", "tests/alerts_test.yml"], check=True, cwd=ROOT, capture_output=True)
