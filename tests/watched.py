"""A server with its metrics and its JSON log."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.live_server import LiveServer


class WatchedServer(LiveServer):
    """A server with metrics and a JSON log."""

    def start(self, *arguments: str) -> str:
        """Start a process with an empty log."""
        self.log.unlink(missing_ok=True)
        return super().start("--metrics-address", "127.0.0.1:0", "--log-format", "json", *arguments)

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics."""
        (line,) = self.events("serving metrics")
        return str(line["address"])

    def scrape(self) -> str:
        """The response of the metrics endpoint."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:  # noqa: S310 - it is http
            return str(answer.read().decode())

    def figure(self, name: str, **labels: str) -> float:
        """The sum of all samples with this name and these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.scrape())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def lines(self) -> list[dict[str, Any]]:
        """The log's lines; each must be a JSON object."""
        return read_json_log(self.log)

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one event."""
        return [line for line in self.lines() if line["event"] == event]


def read_json_log(path: Path) -> list[dict[str, Any]]:
    """Read all lines of a JSON log except those that gRPC's core writes to stderr."""
    written = path.read_text().splitlines()
    return [json.loads(line) for line in written if not re.match(r"[EIW]\d{4} ", line)]
