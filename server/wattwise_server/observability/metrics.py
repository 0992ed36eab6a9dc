"""Metrics of one server for Prometheus. No label holds a string that a client chose, so that there are few series."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
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

from wattwise_server.domain import ChangedQuantity, EndReason, EnergyQuality, MonitorKinds, Trial, TrialOrigin
from wattwise_server.observability.call import Call
from wattwise_server.observability.events import (
    ChangeDetected,
    EpochReported,
    Event,
    JobDeleted,
    JobRegistered,
    Notification,
    TrialDispatched,
    TrialEnded,
    TrialImported,
    TrialRevived,
)

UNKNOWN_METHOD = "unknown"

_ORIGINS = tuple(origin.value.lower() for origin in TrialOrigin)
_GPUS = ("nvml", "nvml-polled", "amdsmi", "amdsmi-polled")
# By what they are labelled. Whatever else is measured, or estimated in part, is "other".
_MONITORS = {
    MonitorKinds(): "unknown",
    MonitorKinds(("estimate",), EnergyQuality.ESTIMATED): "estimate",
    **{MonitorKinds((kind,)): kind for kind in (*_GPUS, "rapl", "zeus", "custom")},
    **{MonitorKinds((kind, "rapl")): f"{kind}+rapl" for kind in _GPUS},
    **{MonitorKinds(("rapl", kind)): f"{kind}+rapl" for kind in _GPUS},
}
_OTHER = "other"
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
        self._of_trials()
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

    def _of_trials(self) -> None:
        self._jobs = Gauge("wattwise_jobs", "Jobs in the database.", **self._here)
        self._registered = Counter("wattwise_jobs_registered", "Jobs created.", **self._here)
        self._deleted = Counter("wattwise_jobs_deleted", "Jobs deleted.", **self._here)
        self._running = Gauge("wattwise_running_trials", "Running trials.", **self._here)
        self._dispatched = Counter(
            "wattwise_trials_dispatched", "Trials dispatched or imported, by origin.", ["origin"], **self._here
        )
        self._ended = Counter(
            "wattwise_trials_ended",
            "Trials that ended, by origin and reason; lost ones may be revived.",
            ["origin", "reason"],
            **self._here,
        )
        self._lost = Counter("wattwise_leases_lost", "Trials whose lease expired.", **self._here)
        self._revived = Counter(
            "wattwise_trials_revived", "Lost or preempted trials that were continued.", **self._here
        )
        text = "Changes of a job's behaviour that its policy detected, by quantity."
        self._changes = Counter("wattwise_changes_detected", text, ["quantity"], **self._here)
        totals = [
            ("training_seconds", "Training time reported by trials."),
            ("cost_joules", "Cost reported by trials, with the eta_knob of each job."),
        ]
        time, costs = (Counter(f"wattwise_{name}", text, ["origin"], **self._here) for name, text in totals)
        self._spent = {origin: (time.labels(origin), costs.labels(origin)) for origin in _ORIGINS}
        labels = {*_MONITORS.values(), _OTHER}
        text = "Energy reported by trials, by kind of monitor."
        energy = Counter("wattwise_energy_joules", text, ["origin", "monitor"], **self._here)
        self._energy = {(origin, label): energy.labels(origin, label) for origin in _ORIGINS for label in labels}
        for quantity in ChangedQuantity:
            self._changes.labels(quantity.value.lower())
        for origin in _ORIGINS:
            self._dispatched.labels(origin)
            for reason in EndReason:
                self._ended.labels(origin, reason.value.lower())

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
        match event:
            case EpochReported(trial):
                self._count_epoch(trial, event)
            case TrialDispatched(trial) | TrialImported(trial):
                self._dispatched.labels(_origin(trial)).inc()
                self._running.inc()
            case TrialEnded(trial):
                self._count_end(trial)
            case TrialRevived():
                self._revived.inc()
                self._running.inc()
            case ChangeDetected(change=change):
                self._changes.labels(change.quantity.value.lower()).inc()
            case JobRegistered():
                self._registered.inc()
                self._jobs.inc()
            case JobDeleted():
                self._deleted.inc()
                self._jobs.dec()

    def _count_epoch(self, trial: Trial, epoch: EpochReported) -> None:
        origin = _origin(trial)
        time, costs = self._spent[origin]
        self._energy[origin, _MONITORS.get(trial.monitor, _OTHER)].inc(epoch.energy_joules)
        time.inc(epoch.time_seconds)
        costs.inc(epoch.cost)

    def _count_end(self, trial: Trial) -> None:
        reason = trial.end_reason
        self._ended.labels(_origin(trial), reason.value.lower() if reason else "").inc()
        self._running.dec()
        if reason is EndReason.LOST:
            self._lost.inc()

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


def _origin(trial: Trial) -> str:
    return trial.origin.value.lower()


def _short(method: str) -> str:
    return method.rpartition("/")[2]
