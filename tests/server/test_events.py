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
    Job,
    RecordedEvent,
    Trial,
)
from wattwise_server.events import EVENTS, Event, EventOfJob, MonitorsDiffer, Tally, TrialLost, TrialRevived
from wattwise_server.observability.event_log import EventLog
from wattwise_server.observability.metrics import Metrics
from wattwise_server.observability.observers import Observers
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.base import EventList
from wattwise_server.store.open import open_store
from wattwise_server.usecases.job_spec import resolve

from tests.server.site import draft, values_of

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


OUTCOME = {
    "status",
    "end_reason",
    "end_time",
    "end_event",
    "cost",
    "cost_bound",
    "converged",
    "target_reached",
    "observation",
    "best_known",
    "heartbeat_interval",
}


def test_renewed_trial_loses_only_its_outcome() -> None:
    """A trial that goes on has a new measurement and a new lease, no outcome, and every other field as before."""
    fields = values_of(Trial)
    assert {name for name, default in Trial._field_defaults.items() if fields[name] == default} == set()
    newest, lease = fields["last"]._replace(epoch=3), NOW + timedelta(seconds=9)
    kept = {name: value for name, value in fields.items() if name not in OUTCOME}
    expected = Trial(**kept | {"last": newest, "lease_expire_time": lease})
    assert Trial(**fields).renew(newest, lease)._asdict() == expected._asdict()
