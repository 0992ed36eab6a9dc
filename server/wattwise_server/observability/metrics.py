"""Metrics of one server for Prometheus. No label holds a string that a client chose, so that there are few series."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import product
from time import perf_counter
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from wattwise_server.events import EVENTS, Event
from wattwise_server.observability.call import Call
from wattwise_server.observability.observers import Notification

UNKNOWN_METHOD = "unknown"

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """An Observer and a CallListener that counts.

    Attributes:
        registry: The metrics of this server, and of nothing else in the process.
    """

    wants_reports = True

    def __init__(self) -> None:
        # They would double the number of series for little use.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._of_calls()
        self._of_events()
        self._of_storage()
        ProcessCollector(registry=self.registry)
        build = Info("wattwise_build", "Version of the server and of what it runs on.", registry=self.registry)
        build.info({"version": version("wattwise"), "grpc": version("grpcio"), "python": platform.python_version()})

    def _of_calls(self) -> None:
        self._calls = Counter(
            "wattwise_calls", "Calls that ended, by status; a stream is one call.", ["method", "code"], **self._here
        )
        self._latency = Histogram(
            "wattwise_call_seconds",
            "Time from the arrival of a call to its response, without streams.",
            ["method"],
            buckets=_SECONDS,
            **self._here,
        )
        self._open_streams = Gauge("wattwise_open_streams", "Open streams.", ["method"], **self._here)
        self._messages = Counter(
            "wattwise_stream_messages", "Messages received and sent on streams.", ["method", "direction"], **self._here
        )
        self._children: dict[tuple[str, str], Counter] = {}
        self._latencies: dict[str, Histogram] = {}

    def _of_events(self) -> None:
        self._jobs = Gauge("wattwise_jobs", "Jobs in the database.", **self._here)
        self._running = Gauge("wattwise_running_trials", "Running trials.", **self._here)
        self._tallies: dict[tuple[str, tuple[str, ...]], Counter] = {}
        tallies = {tally.name: tally for event in EVENTS.values() for tally in event.tallies}
        for name, text, labels in tallies.values():
            counter = Counter(name, text, list(labels), **self._here)
            for values in product(*labels.values()):
                self._tallies[name, values] = counter.labels(*values) if values else counter

    def _of_storage(self) -> None:
        self._commits = Histogram(
            "wattwise_commit_seconds", "Time that one commit took.", buckets=_SECONDS, **self._here
        )
        self._rows = Histogram("wattwise_commit_rows", "Rows written by one commit.", buckets=_ROWS, **self._here)
        self._failures = Counter("wattwise_commit_failures", "Commits that failed.", **self._here)
        text = "Transactions whose job another server had changed; their calls were run again."
        self._conflicts = Counter("wattwise_conflicts", text, **self._here)

    @property
    def _here(self) -> dict[str, Any]:
        return {"registry": self.registry}

    def opened(self, jobs: int, running_trials: int) -> None:
        """Sets the gauges to what the database holds."""
        self.counted(jobs, running_trials)

    def counted(self, jobs: int, running_trials: int) -> None:
        """Corrects the gauges, which count this server's events alone."""
        self._jobs.set(jobs)
        self._running.set(running_trials)

    def prepare(self, event: Event) -> Notification:
        """Counts the event once it is durable."""
        return partial(self._count, event)

    def _count(self, event: Event) -> None:
        for tally, labels, amount in event.counts():
            self._tallies[tally.name, labels].inc(amount)
        if event.jobs:
            self._jobs.inc(event.jobs)
        if event.running_trials:
            self._running.inc(event.running_trials)

    def committed(self, rows: int, seconds: float) -> None:
        """Counts the commit."""
        self._commits.observe(seconds)
        self._rows.observe(rows)

    def commit_failed(self) -> None:
        """Counts the failure."""
        self._failures.inc()

    def conflicted(self) -> None:
        """Counts the transaction."""
        self._conflicts.inc()

    def call_started(self, call: Call) -> Callable[[], None]:
        """Counts the call when it has ended; measures its time unless it is a stream."""
        if not call.streams:
            return partial(self._answered, call, perf_counter())
        self._open_streams.labels(_short(call.method)).inc()
        return partial(self._closed, call)

    def _answered(self, call: Call, started: float) -> None:
        latency = self._latencies.get(call.method)
        if latency is None:
            latency = self._latencies[call.method] = self._latency.labels(_short(call.method))
        latency.observe(perf_counter() - started)
        self._count_call(call)

    def _closed(self, call: Call) -> None:
        self._open_streams.labels(_short(call.method)).dec()
        self._count_call(call)

    def _count_call(self, call: Call) -> None:
        # Cached: finding a child by its labels takes longer than counting.
        key = (call.method, call.code or "UNKNOWN")
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._calls.labels(_short(call.method), key[1])
        child.inc()

    def unknown_method_called(self) -> None:
        """Counts the call under one label for all names."""
        self._calls.labels(UNKNOWN_METHOD, "UNIMPLEMENTED").inc()

    def message_counter(self, method: str, direction: str) -> Callable[[], None]:
        """Counts messages of a stream; its series begins at 0, as `increase` would miss the first message otherwise."""
        increment: Callable[[], None] = self._messages.labels(_short(method), direction).inc
        return increment


def _short(method: str) -> str:
    return method.rpartition("/")[2]
