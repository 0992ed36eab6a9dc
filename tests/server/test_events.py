"""Everything about an event follows from its class, which fits the protos and the docs; renewed trials lose nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from wattwise import v1
from wattwise_server.domain import (
    EndReason,
    Job,
    Launch,
    Measurement,
    MonitorKinds,
    PowerSample,
    ProfileResult,
    PruningGtsRole,
    PruningGtsTrial,
    RecordedEvent,
    Trial,
    TrialOrigin,
    TrialStatus,
    TrialWarning,
    WarningReason,
)
from wattwise_server.events import EVENTS, Event, EventOfJob, MonitorsDiffer, Tally, TrialLost, TrialRevived
from wattwise_server.observability.event_log import EventLog
from wattwise_server.observability.metrics import Metrics
from wattwise_server.observability.observers import Observers
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.base import EventList
from wattwise_server.store.open import open_store
from wattwise_server.usecases.job_spec import resolve

from tests.server.site import draft

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_events_with_a_sentence_are_those_of_the_wire() -> None:
    """The history has the events that `EventKind` of the protos lists, under the names of their classes."""
    in_history = {kind for kind, event in EVENTS.items() if event.in_history}
    assert in_history == {name.removeprefix("EVENT_KIND_") for name in v1.EventKind.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    assert TrialRevived.kind == "TRIAL_REVIVED"


def test_variants_have_the_kind_of_their_base() -> None:
    """A lost trial was interrupted, and a differing monitor is a warning, for readers of the history."""
    assert (TrialLost.kind, TrialLost.log_name) == ("TRIAL_INTERRUPTED", "trial lost")
    assert (MonitorsDiffer.kind, MonitorsDiffer.log_name) == ("TRIAL_WARNED", "monitors differ")


@pytest.mark.parametrize("event", [*EVENTS.values(), TrialLost, MonitorsDiffer], ids=lambda event: event.__name__)
def test_docs_list_names_in_the_log_and_counters(event: type[Event]) -> None:
    """The guide for operators has a row with the name of every event in the log, and with every counter."""
    if event.log_name:
        assert f"`{event.log_name}`" in OPERATIONS
    for tally in event.tallies:
        labels = "{" + ",".join(tally.labels) + "}" if tally.labels else ""
        assert re.search(f"`{tally.name}_total{labels}`", OPERATIONS)


async def test_new_event_is_one_class(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A class that is declared nowhere else has its place in the history, in the log and in the metrics."""
    praises = Tally("wattwise_praises", "Jobs that were praised.", {})

    @dataclass(frozen=True, slots=True)
    class JobPraised(EventOfJob):
        tallies = (praises,)
        words: str

        @property
        def message(self) -> str:
            return f"praised: {self.words}"

        @property
        def details(self) -> Mapping[str, object]:
            return {"words": self.words}

    try:
        metrics = Metrics()
    finally:
        del EVENTS["JOB_PRAISED"]
    spec = resolve(draft("j"))
    job = Job(spec, POLICIES[spec.policy].register(spec, ()), NOW)
    observers = Observers([EventLog(), metrics])
    with caplog.at_level(logging.INFO):
        async with open_store(f"sqlite:///{tmp_path / 'events.db'}", lambda: NOW, observers) as store:
            async with store.transaction("j") as tx:
                tx.record(job, JobPraised(spec, "well done"))
            ((_, entry),) = await store.reads.events(EventList(job_id="j"), (), 9)
    assert entry == RecordedEvent(NOW, "JOB_PRAISED", "j", "praised: well done")
    (fields,) = (vars(line)["fields"] for line in caplog.records if line.message == "job praised")
    assert fields == {"job": "j", "words": "well done"}
    assert metrics.registry.get_sample_value("wattwise_praises_total") == 1


def test_renewed_trial_loses_only_its_outcome() -> None:
    """A trial that goes on has a new measurement and a new lease, no outcome, and every other field as before."""
    measurement = Measurement(2, 1.0, 2.0, 0.5, NOW)
    sample = PowerSample(100.0, 1.0, 2.0, 3)
    fields = {
        "job_id": "j",
        "number": 7,
        "batch_size": 8,
        "origin": TrialOrigin.REQUESTED,
        "policy_role": PruningGtsTrial(PruningGtsRole.BANDIT, 1),
        "start_time": NOW,
        "launch_id": "launch",
        "monitor": MonitorKinds(("nvml",)),
        "other_monitors": (MonitorKinds(("rapl",)),),
        "excluded": True,
        "dispatch_event": 3,
        "warnings": (TrialWarning(WarningReason.NO_ENERGY, "field", "message", 7),),
        "profile": ProfileResult(sample, sample),
        "launch": Launch("reason", (("key", "value"),), "token"),
    }
    outcome = {
        "status": TrialStatus.INTERRUPTED,
        "end_reason": EndReason.LOST,
        "end_time": NOW,
        "end_event": 4,
        "cost": 1.0,
        "cost_bound": 2.0,
        "converged": True,
        "target_reached": True,
        "observation": 5,
        "best_known": True,
        "heartbeat_interval": timedelta(seconds=1),
    }
    trial = Trial(**fields, **outcome, last=measurement, lease_expire_time=NOW)  # type: ignore[arg-type]
    assert {*fields, *outcome, "last", "lease_expire_time"} == {*Trial._fields}
    assert not any(trial._asdict()[name] == default for name, default in Trial._field_defaults.items())
    newest, lease = measurement._replace(epoch=3), NOW + timedelta(seconds=9)
    assert trial.renew(newest, lease) == Trial(**fields, last=newest, lease_expire_time=lease)  # type: ignore[arg-type]
