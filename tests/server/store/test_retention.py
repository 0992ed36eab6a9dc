"""What `--keep-measurements-days` deletes, and what it keeps."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason
from wattwise_server.domain import TrialId
from wattwise_server.errors import ServiceError
from wattwise_server.usecases.report import Report

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.server.site import Site, draft, report, writing_connection
from tests.waiting import wait_until

DAY = timedelta(days=1)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("next")),
        st.tuples(
            st.just("report"), st.integers(0, 3), st.integers(1, 60), st.sampled_from([0.1, 0.95]), st.integers(1, 3)
        ),
        st.tuples(st.just("end"), st.integers(0, 3), st.sampled_from([EndReason.ERROR, EndReason.PREEMPTED])),
        st.tuples(st.just("beat"), st.integers(0, 3)),
        st.tuples(st.just("again"), st.integers(0, 3)),
        st.tuples(st.just("lapse")),
        st.tuples(st.just("reopen")),
    ),
    min_size=10,
    max_size=40,
)


LOST_AND_BACK = [("next",), ("report", 0, 10, 0.1, 1), ("lapse",), ("next",), ("beat", 1), ("reopen",), ("beat", 1)]
PREEMPTED_AND_BACK = [
    ("next",),
    ("report", 0, 10, 0.1, 1),
    ("end", 0, EndReason.PREEMPTED),
    ("reopen",),
    ("again", 0),
    ("reopen",),
    ("again", 0),
]


async def play(site: Site, events: list[Any], *, prune: bool, **fields: Any) -> list[object]:
    """The answers to a job's trainers over a series of events, with or without pruning after each."""
    await site.open()
    await site.training.register(draft(**fields))
    answers: list[object] = []
    running: list[TrialId] = []
    epochs: dict[int, int] = {}
    for event in events:
        site.now += timedelta(seconds=1)
        try:
            answers.append(await act(site, event, running, epochs))
        except ServiceError as error:
            answers.append(error.message)
        if prune:
            await site.store.prune(site.now)
    await site.open()
    answers += [
        await site.administration.job("j"),
        *[(await site.administration.trial(key)).trial.trial for key in running],
    ]
    await site.close()
    return answers


async def act(site: Site, event: Any, running: list[TrialId], epochs: dict[int, int]) -> object:
    """Executes one event; returns the response to the trainer."""
    match event:
        case ("next",):
            trial = await site.training.next_trial("j", f"launch {len(running)}")
            running.append(trial.key)
            return trial
        case ("again", back) if len(running) > back:
            return await site.training.next_trial("j", f"launch {len(running) - 1 - back}", resume=True)
        case ("report", back, cost, metric, further) if len(running) > back:
            key = running[-1 - back]
            epoch = epochs[key.trial_number] = epochs.get(key.trial_number, 0) + further
            return await site.training.report(Report(key, epoch, float(epoch), float(cost * epoch), metric))
        case ("end", back, reason) if len(running) > back:
            return await site.training.end_trial(running[-1 - back], reason)
        case ("beat", back) if len(running) > back:
            return await site.training.heartbeat(running[-1 - back])
        case ("lapse",):
            site.now += timedelta(hours=2)
            await site.training.expire_leases()
        case ("reopen",):
            await site.open()
    return None


@pytest.mark.thorough
@settings(max_examples=30)
@given(events=EVENTS, window=st.sampled_from([0, 2]), rounds=st.sampled_from([0, 2]))
@example(events=LOST_AND_BACK, window=0, rounds=2)
@example(events=PREEMPTED_AND_BACK, window=0, rounds=2)
def test_pruning_changes_no_choice(events: list[Any], window: int, rounds: int) -> None:
    """Pruning after every event changes no response to a job's trainers."""
    fields: dict[str, Any] = {"window_size": window, "num_pruning_rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        kept = asyncio.run(play(Site(Path(folder) / "kept.db"), events, prune=False, **fields))
        pruned = asyncio.run(play(Site(Path(folder) / "pruned.db"), events, prune=True, **fields))
    assert pruned == kept


async def test_only_measurements_of_trials_that_ended_long_ago_are_deleted(tmp_path: Path) -> None:
    """Days after its end a lost or preempted trial has its newest epoch, another trial none; a running one has all."""
    site = Site(tmp_path / "store.db", keep_measurements_days=2)
    await site.open()
    await site.training.register(draft(num_pruning_rounds=0))
    keys = [(await site.training.next_trial("j", new_id())).key for _ in range(6)]
    decided, ended, preempted, lost, running, recent = keys
    for key in keys:
        await report(site, key, 1)
        await report(site, key, 2)
    assert (await report(site, decided, 3, metric=0.95)).converged
    await site.training.end_trial(ended, EndReason.ERROR)
    await site.training.end_trial(preempted, EndReason.PREEMPTED)
    site.now += timedelta(minutes=59)
    await site.training.heartbeat(running)
    await site.training.heartbeat(recent)
    site.now += timedelta(minutes=2)
    await site.training.expire_leases()
    for _ in range(72):
        site.now += timedelta(minutes=59)
        await site.training.heartbeat(running)
        await site.training.heartbeat(recent)
    await site.training.end_trial(recent, EndReason.ERROR)
    everything = site.rows()
    assert sum(map(len, everything.values())) == 13
    await site.training.prune()
    left = {number: epochs for (_, number), epochs in site.rows().items()}
    assert left == {
        preempted.trial_number: [2],
        lost.trial_number: [2],
        running.trial_number: [1, 2],
        recent.trial_number: [1, 2],
    }
    shown = (await site.administration.trial(decided)).trial
    measured = await site.administration.measurements(decided, 0, 10, newest_first=False)
    last = shown.trial.last
    assert (shown.trial.cost, last and last.epoch, measured) == (30.0, 3, [])
    await site.open()
    assert (await report(site, lost, 3)).cost == 30.0
    await site.close()


async def test_nothing_is_deleted_by_default(tmp_path: Path) -> None:
    """Measurements are kept without limit by default."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(draft())
    trial = await site.training.next_trial("j", new_id())
    await report(site, trial.key, 1, metric=0.95)
    site.now += 10_000 * DAY
    await site.training.prune()
    assert site.rows() == {(1, 1): [1]}
    await site.close()


async def test_measurements_are_deleted_in_small_commits(tmp_path: Path) -> None:
    """A long trial among many short ones is deleted without leftovers, in as few commits of 500 rows as it takes."""
    site = Site(tmp_path / "store.db", keep_measurements_days=1)
    await site.open()
    await site.training.register(draft())
    await site.training.next_trial("j", new_id())
    await site.close()
    lengths = dict.fromkeys(range(1, 1201), 3) | {700: 1700}
    with closing(sqlite3.connect(site.file, isolation_level=None)) as connection:
        columns = ", ".join(row[1] for row in connection.execute("PRAGMA table_info(trials)"))
        chosen = columns.replace("trial_number", "?1").replace("launch_id", "launch_id || ?1")
        connection.execute("BEGIN")
        for number, length in lengths.items():
            if number > 1:
                connection.execute(f"INSERT INTO trials SELECT {chosen} FROM trials WHERE trial_number = 1", (number,))  # noqa: S608
            epochs = [(number, epoch) for epoch in range(1, length + 1)]
            connection.executemany(
                "INSERT INTO measurements VALUES (1, ?, ?, 1, 1, 1, 1, NULL, NULL, NULL, NULL)", epochs
            )
        connection.execute("UPDATE trials SET status = 'DECIDED', end_time = start_time, end_reason = 'MAX_EPOCHS'")
        connection.execute("COMMIT")
    await site.open()
    dropped: list[int] = []
    await writing_connection(site.store).set_trace_callback(
        lambda text: dropped.append(int(text.rsplit("LIMIT ", 1)[1].strip(") \n"))) if "DELETE" in text else None
    )
    site.now += 2 * DAY
    await site.training.prune()
    assert site.rows() == {}
    assert max(dropped) <= 500
    assert dropped.count(500) == -(-sum(lengths.values()) // 500), "each commit begins with room for 500"
    await site.close()


def test_server_prunes_by_itself(server: LiveServer) -> None:
    """A server with a very short retention deletes a decided trial's epochs, and still shows the trial."""
    job = Trainer(server.trainer)
    trial = job.run(10.0)
    server.stop()
    server.start("--keep-measurements-days", "0.00000001")
    wait_until(lambda: not server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements)
    shown = server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial
    assert (shown.status, shown.cost, shown.newest.epoch) == (v1.TRIAL_STATUS_DECIDED, 10.0, 1)
