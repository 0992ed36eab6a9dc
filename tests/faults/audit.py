"""Compares a server's file with the ledger: nothing acknowledged is missing, nothing unrequested is stored."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from wattwise import v1
from wattwise.rules import TRAINER_END_REASONS, EndReason
from wattwise_server.domain import Job, Measurement, Trial, TrialId
from wattwise_server.rpc import answers, requests
from wattwise_server.store.open import open_store
from wattwise_server.store.rows import read_measurement, read_trial
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.report import Report
from wattwise_server.usecases.training import Training

from tests.faults.ledger import JobBook, Ledger, TrialBook

Kept = tuple[dict[int, Trial], dict[int, dict[int, Measurement]]]
"""A job's trials, and their measurements by epoch."""


def check_file(database: Path, ledger: Ledger) -> None:
    """Checks every acknowledgement, the trial numbers, and that what was not acknowledged is whole or absent."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        found = {row["job_id"]: row for row in connection.execute("SELECT * FROM jobs")}
        for job_id, book in ledger.jobs.items():
            if book.deleted:
                assert job_id not in found, f"{job_id} was deleted, but is stored"
            elif job_id in found:
                _check_job(book, found[job_id]["num_trials"], read_job(connection, job_id))
                _check_profiles(connection, book, found[job_id]["job_key"])
            else:
                assert book.delete_requested or not book.registered, f"{job_id} was registered, but is missing"
        assert set(found) <= set(ledger.jobs)


def read_job(connection: sqlite3.Connection, job_id: str) -> Kept:
    """What the file contains of a job."""
    (key,) = connection.execute("SELECT job_key FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    trials = connection.execute(
        "SELECT * FROM trials LEFT JOIN launches USING (job_key, trial_number) WHERE job_key = ? ORDER BY trial_number",
        (key,),
    )
    kept = {row["trial_number"]: read_trial(row, job_id) for row in trials}
    measured: dict[int, dict[int, Measurement]] = {number: {} for number in kept}
    for row in connection.execute("SELECT * FROM measurements WHERE job_key = ? ORDER BY epoch", (key,)):
        measured[row["trial_number"]][row["epoch"]] = read_measurement(row)
    return kept, measured


def _check_job(book: JobBook, num_trials: int, kept: Kept) -> None:
    trials, measured = kept
    assert list(trials) == list(range(1, num_trials + 1)), "trial numbers have gaps"
    by_request = {trial.launch_id: trial for trial in trials.values()}
    assert len(by_request) == len(trials), "two trials of one request"
    assert set(by_request) <= set(book.requests), "a trial that was not requested"
    for launch_id, trial_book in book.requests.items():
        if trial_book is not None:
            assert launch_id in by_request, f"trial {trial_book.trial.id} was acknowledged, but is missing"
            trial = by_request[launch_id]
            assert (trial.number, trial.batch_size) == _name(trial_book)
            _check_trial(trial_book, trial, measured[trial.number])
        elif launch_id in by_request:
            kept_epochs, sent = measured[by_request[launch_id].number], book.imports.get(launch_id, {})
            assert list(kept_epochs) == list(sent), "a part of an imported trial"


def _check_profiles(connection: sqlite3.Connection, book: JobBook, key: int) -> None:
    """The cheapest sample that was acknowledged is stored, or a cheaper one that was sent."""
    rows = connection.execute("SELECT * FROM power_limits WHERE job_key = ? AND cheapest_steps IS NOT NULL", (key,))
    kept = {row["batch_size"]: row["cheapest_energy_joules"] / row["cheapest_steps"] for row in rows}
    assert set(kept) <= set(book.profiles), "a profile that was not sent"
    for size, (sent, acknowledged) in book.profiles.items():
        assert sent <= kept.get(size, math.inf) <= acknowledged, f"a profile of batch size {size} is missing"


def _name(book: TrialBook) -> tuple[int, int]:
    return book.trial.id.trial_number, book.trial.batch_size


def _check_trial(book: TrialBook, trial: Trial, measured: Mapping[int, Measurement]) -> None:
    if book.imported:
        assert list(measured) == list(book.reports), f"a part of the imported {book.trial.id} is missing"
    for epoch, report in book.reports.items():
        if report.decision is not None and not report.decision.stop_train:
            assert epoch in measured, f"epoch {epoch} of {book.trial.id} was acknowledged, but is missing"
    for epoch, kept in measured.items():
        assert epoch in book.reports, "a measurement that was not sent"
        sent = book.reports[epoch]
        assert (kept.time_seconds, kept.energy_joules) == (sent.time, sent.energy)
        assert kept.metric == sent.metric or (math.isnan(kept.metric) and math.isnan(sent.metric))
    if book.stopped:
        assert not trial.running, f"{book.trial.id} was stopped, but is running"
    if book.ended is not None:
        shown = answers.trial(trial)
        assert (shown.status, shown.end_reason) == (book.ended.status, book.ended.end_reason)
    elif trial.end_reason in TRAINER_END_REASONS:
        assert book.ending is not None, "it was ended without an EndTrial"


def check_replay(database: Path, ledger: Ledger) -> int:
    """Replays every remaining job that is not mixed in process, in the order of its commits; compares its whole state.

    Returns:
        How many calls were played.
    """
    return asyncio.run(_replay(database, ledger))


class _Replay:
    """Use cases whose clock shows the time of the replayed call."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def clock(self) -> datetime:
        """The time of the call."""
        return self.now


async def _replay(database: Path, ledger: Ledger) -> int:
    played, replay = 0, _Replay()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT job_id FROM jobs")
        job_ids = [row["job_id"] for row in rows if not ledger.jobs[row["job_id"]].mixed]
        kept = {job_id: read_job(connection, job_id) for job_id in job_ids}
    with tempfile.TemporaryDirectory() as folder:
        original = await _jobs(f"sqlite:///{_copy(database, Path(folder))}", replay, job_ids)
        async with open_store(f"sqlite:///{folder}/replay.db", replay.clock) as store:
            training, administration = Training(store), Administration(store)
            for job_id in job_ids:
                book = ledger.jobs[job_id]
                await training.register(requests.job_draft(v1.RegisterJobRequest(job=book.spec)))
                played += await _play(training, replay, book, kept[job_id])
                job = await administration.job(job_id)
                assert replace(job, create_time=replay.now) == replace(original[job_id], create_time=replay.now)
        with closing(sqlite3.connect(f"{folder}/replay.db")) as connection:
            connection.row_factory = sqlite3.Row
            for job_id in job_ids:
                trials, measured = read_job(connection, job_id)
                for trial in trials.values():
                    assert _timeless(trial) == _timeless(kept[job_id][0][trial.number])
                assert str(measured) == str(kept[job_id][1])
    return played


def _copy(database: Path, folder: Path) -> Path:
    """A copy that can be opened beside the server."""
    path = folder / "original.db"
    with (
        closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(path)) as copy,
    ):
        source.backup(copy)
    return path


async def _jobs(url: str, replay: _Replay, job_ids: list[str]) -> dict[str, Job]:
    """The jobs as a server reads them from the file."""
    async with open_store(url, replay.clock) as store:
        administration = Administration(store)
        return {job_id: await administration.job(job_id) for job_id in job_ids}


def _timeless(trial: Trial) -> str:
    """The trial without when it ended; NaN equals NaN here."""
    return str(trial._replace(end_time=None))


async def _play(training: Training, replay: _Replay, book: JobBook, kept: Kept) -> int:
    """The calls that changed the job, in the order of their commits."""
    trials, measured = kept
    shifts = _shifts(trials.values())
    lowered = {
        trial.end_event: trial.last.report_time + shifts[trial.end_event]
        for trial in trials.values()
        if trial.converged and trial.last and trial.end_event
    }
    calls: list[tuple[datetime, datetime, Any, TrialId]] = []

    for trial in trials.values():
        assert trial.start_time is not None, trial
        place = trial.start_time + shifts[trial.dispatch_event]
        calls.append((place, trial.start_time, trial, trial.key))
        reports = [*measured[trial.number].values()]
        if trial.last and reports and trial.last != reports[-1]:
            # The trainer had no response and reported it again.
            reports.append(trial.last)
        ends = shifts.get(trial.end_event or 0, timedelta())
        latest = max([place, *(report.report_time + ends for report in reports[-1:])])
        if trial.end_event and trial.end_reason is EndReason.COST_BOUND and _went_on(book, trial):
            # Another trial's report has lowered the bound since, whatever the clocks of the two servers say.
            cause = max(event for event in lowered if event < trial.end_event)
            latest = min(latest, lowered[cause] - timedelta(microseconds=1))
        for report in reports:
            place = latest if report is reports[-1] else min(max(place, report.report_time), latest)
            calls.append((place, report.report_time, report, trial.key))
        if trial.end_reason in TRAINER_END_REASONS and trial.end_time:
            calls.append((max(place, trial.end_time + ends), trial.end_time, trial.end_reason, trial.key))
    for _, replay.now, call, key in sorted(calls, key=lambda item: item[0]):
        if isinstance(call, Trial):
            replayed = await training.next_trial(call.job_id, call.launch_id)
            assert (replayed.number, replayed.batch_size) == (call.number, call.batch_size)
            assert (replayed.origin, replayed.role) == (call.origin, call.role)
        elif isinstance(call, Measurement):
            sums = (call.epoch, call.time_seconds, call.energy_joules, call.metric)
            monitor = trials[key.trial_number].monitor
            decision = answers.decision(await training.report(Report(key, *sums, monitor)))
            _check_decision(book, key, call.epoch, v1.Decision(**decision))
        else:
            await training.end_trial(key, call)
    return len(calls)


def _went_on(book: JobBook, trial: Trial) -> bool:
    """Whether the trainer was told to go on after the trial's last report."""
    reports = next(each.reports for each in book.trials if each.trial.id.trial_number == trial.number)
    decision = reports[trial.last.epoch].decision if trial.last else None
    return decision is not None and not decision.stop_train


def _shifts(trials: Iterable[Trial]) -> dict[int, timedelta]:
    """By event, what its time lacks to be in order: the clocks of two servers differ by parts of a millisecond."""
    events: dict[int, datetime] = {}
    for trial in trials:
        assert trial.start_time is not None, trial
        events[trial.dispatch_event] = trial.start_time
        if trial.end_event and trial.end_time:
            events[trial.end_event] = trial.end_time
    shifts, newest = {}, datetime.min.replace(tzinfo=timezone.utc)
    for event, time in sorted(events.items()):
        newest = max(newest + timedelta(microseconds=1), time)
        shifts[event] = newest - time
    return shifts


def _check_decision(book: JobBook, key: TrialId, epoch: int, decision: v1.Decision) -> None:
    """The trainer got the same decision, unless it asked again later, or another trial stopped it."""
    for trial in book.trials:
        if trial.trial.id.trial_number == key.trial_number:
            report = trial.reports[epoch]
            if report.decision and report.tries == 1 and not report.decision.stop_train:
                assert decision == report.decision
