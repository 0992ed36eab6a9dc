"""The use case of trials that ran without the server: history, training during an outage, the rest of a lost trial."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from wattwise.rules import TRAINER_END_REASONS, EndReason, ResolvedJob, identifier_fault

from wattwise_server.config import Limits
from wattwise_server.domain import (
    Job,
    Launch,
    Measurement,
    MonitorKinds,
    Trial,
    TrialOrigin,
    UnknownEndReason,
)
from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.events import TrialImported
from wattwise_server.observability.call import caller_token
from wattwise_server.policy.search import job_after
from wattwise_server.policy.stopping import Verdict, bound_of, judge, stopped_early
from wattwise_server.store.transactions import Store, Transaction
from wattwise_server.usecases.finding import batch_size_fault, check_not_deleted, find_job, job_id_faults
from wattwise_server.usecases.lifecycle import (
    Progress,
    conclude,
    fail,
    keep_monitor,
    record,
    revive,
    warn,
    with_miss_warning,
)
from wattwise_server.usecases.monitors import monitor_fault
from wattwise_server.usecases.report import Faults, number_faults, shrink_faults, warnings_of_report, with_epoch
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import known_reason, of_unknown_end

UNKNOWN_TIME = datetime.max.replace(tzinfo=timezone.utc)
"""When an epoch ended, if the client did not say."""

_END_REASONS = (*TRAINER_END_REASONS, EndReason.LOST)

_USUAL_LIMITS = Limits()


class ImportedTrial(NamedTuple):
    """A trial, or the rest of one, as a client sent it.

    Attributes:
        job_id: The job.
        launch_id: Of its launch, or made for this import.
        batch_size: Its batch size.
        measurements: By epoch; a `report_time` may be `UNKNOWN_TIME`.
        end_reason: How it ended unless its measurements decide it; None if unspecified.
        start_time: When it started; None if unknown. One from before the job's reset is excluded.
        monitor: What the energy comes from; None if unknown.
        malformed: Faults of the message itself.
        validate_only: Whether nothing is to be saved.
    """

    job_id: str
    launch_id: str
    batch_size: int
    measurements: Sequence[Measurement]
    end_reason: EndReason | UnknownEndReason | None
    start_time: datetime | None = None
    monitor: MonitorKinds | None = None
    malformed: tuple[Violation, ...] = ()
    validate_only: bool = False


class _Judged(NamedTuple):
    measurement: Measurement
    verdict: Verdict


class Importer:
    """Records trials that ran without the server. May raise `StorageUnavailableError`."""

    def __init__(self, store: Store, limits: Limits = _USUAL_LIMITS) -> None:
        self._store = store
        self._limits = limits

    @retried
    async def import_trial(self, imported: ImportedTrial) -> tuple[Trial, bool]:
        """Records a trial, or completes the one of its launch; returns it, and whether it was created.

        A new trial is judged without a cost bound, since nothing could have stopped it. A trial that the server
        dispatched is judged as if the measurements after its last one had been reported now.

        Raises:
            JobNotFoundError: there is no such job.
            TrialDeletedError: the trial was deleted with its job.
            InvalidRequestError: with one violation per fault; nothing was changed.
        """
        if faults := job_id_faults(imported.job_id):
            raise InvalidRequestError(*faults, *_request_faults(imported, None))
        async with self._store.transaction(imported.job_id) as tx:
            progress, created = await _imported(tx, imported, self._store.clock())
            if progress.events and not imported.validate_only:
                record(tx, progress)
                tx.keep_measurements(progress.trial, self._limits.max_epochs_kept)
            return progress.trial, created


async def _imported(tx: Transaction, imported: ImportedTrial, now: datetime) -> tuple[Progress, bool]:
    """Returns the trial of an import, which has events if the import changes it, and whether it is a new one."""
    if tx.job is None:
        await check_not_deleted(tx, imported.job_id, imported.launch_id, imported.start_time)
    job = find_job(tx, imported.job_id, to_register=True)
    faults = _request_faults(imported, job)
    known = await tx.trial_of_launch(imported.launch_id)
    if known is None:
        # A newer job of this id may import what it likes, but no launch of the deleted one comes back.
        await check_not_deleted(tx, imported.job_id, imported.launch_id)
    if known is not None and (fault := _size_fault(known, imported)):
        faults.append(fault)
    measured, found = _measurements(job.spec, imported, known.last if known else None)
    faults += found
    if known is not None and not faults and not _may_gain(known, imported, measured):
        return Progress(job, known), False
    progress = None if known is None else Progress(job, known)
    if progress is not None and progress.trial.resumable:
        progress = revive(progress, now)
    bound = None if progress is None or faults else bound_of(progress.job, progress.trial)
    judged, verdict = _judged(job.spec, bound, measured)
    reason = known_reason(imported.end_reason)
    if verdict is None and reason not in _END_REASONS and not (found or imported.malformed):
        faults.append(Violation("end_reason", _end_fault(reason)))
    if faults:
        raise InvalidRequestError(*faults)
    progress = _with_measurements(progress or _created(job, imported, len(judged), now), imported, judged, now)
    trial = progress.trial
    if verdict is None and reason is EndReason.STOPPED_EARLY and trial.last is not None:
        verdict = stopped_early(job.spec, bound, trial.last)
    # The rest of a trial that the server dispatched ends now.
    end_time = trial.last.report_time if trial.last and trial.origin is TrialOrigin.IMPORTED else now
    metrics = [judgement.measurement.metric for judgement in judged]
    if verdict is not None:
        return await conclude(tx, progress, verdict, end_time, new=metrics), known is None
    if reason is EndReason.COMPLETED:
        progress = await with_miss_warning(tx, progress, metrics)
    progress = warn(progress, of_unknown_end(trial, imported.end_reason))
    return fail(progress, reason or EndReason.COMPLETED, end_time), known is None


def _created(job: Job, imported: ImportedTrial, epochs: int, now: datetime) -> Progress:
    start = imported.start_time
    if max(job.create_time, job.reset_time or job.create_time) > now:
        # The system clock was ahead when the job was registered or reset: every trial would be from before.
        start = None
    start = start and min(start, now)
    trial = Trial(
        imported.job_id,
        job.num_trials + 1,
        imported.batch_size,
        TrialOrigin.IMPORTED,
        None,
        start,
        imported.launch_id,
        excluded=start is not None and job.reset_time is not None and start < job.reset_time,
        dispatch_event=job.num_search_events + 1,
        launch=Launch(token_id=caller_token()),
    )
    event = TrialImported(trial, epochs)
    return Progress(job_after(job, event), trial, (event,))


def _with_measurements(
    progress: Progress, imported: ImportedTrial, judged: Sequence[_Judged], now: datetime
) -> Progress:
    """Adds measurements to a trial."""
    if judged and imported.monitor and imported.monitor.kinds:
        progress = keep_monitor(progress, imported.monitor)
    (job, trial, _), events = progress, [*progress.events]
    for measurement, verdict in judged:
        time, before = measurement.report_time, trial.last
        if time is UNKNOWN_TIME:
            time = _after(trial.start_time, measurement.time_seconds, now) if trial.start_time else now
        trial = trial._replace(last=measurement._replace(report_time=min(time, now)))
        found = warnings_of_report(job.spec, trial, before, measurement, reached=verdict.target_reached)
        job, trial, new = warn(with_epoch(Progress(job, trial), trial, before), found)
        events += new
    return Progress(job, trial, tuple(events))


def _end_fault(reason: EndReason | None) -> str:
    known = " or ".join(f"END_REASON_{each.value}" for each in _END_REASONS)
    value = f"is END_REASON_{reason.value}" if reason else "is not set"
    return f"{value}, and the measurements show neither the target nor the last epoch; use {known}"


def _request_faults(imported: ImportedTrial, job: Job | None) -> list[Violation]:
    """Returns what is wrong with a request, its measurements aside; of a batch size only if the job is known."""
    faults: Faults = []
    if not imported.launch_id:
        faults.append(("launch_id", "is empty; use the launch_id of the launch, or a new UUID for each trial"))
    elif fault := identifier_fault(imported.launch_id):
        faults.append(("launch_id", fault))
    if job is not None and (fault := batch_size_fault(job, imported.batch_size)):
        faults.append(("batch_size", fault))
    if imported.monitor is not None and (fault := monitor_fault(imported.monitor)):
        faults.append(("monitor", fault))
    return [*imported.malformed, *(Violation(name, fault) for name, fault in faults)]


def _size_fault(known: Trial, imported: ImportedTrial) -> Violation | None:
    if known.batch_size == imported.batch_size:
        return None
    fault = f"is {imported.batch_size}, but trial {known.number} of this launch_id has {known.batch_size}; use that"
    return Violation("batch_size", fault)


def _measurements(
    spec: ResolvedJob, imported: ImportedTrial, last: Measurement | None
) -> tuple[Sequence[Measurement], list[Violation]]:
    """Returns the measurements after a trial's last one, and what is wrong with any of them."""
    measured = imported.measurements
    faults = []
    for place, measurement in enumerate(measured):
        found = number_faults(spec, measurement)
        before = measured[place - 1] if place else None
        if before is not None and measurement.epoch <= before.epoch:
            found.append(("epoch", f"{measurement.epoch} comes after {before.epoch}; epochs must ascend"))
        if before is not None:
            found += shrink_faults(before, measurement)
        if last is not None and measurement.epoch > last.epoch and (before is None or before.epoch <= last.epoch):
            found += shrink_faults(last, measurement)
        faults += [Violation(f"measurements[{place}].{name}", fault) for name, fault in dict(found).items()]
    new = measured if last is None else [each for each in measured if each.epoch > last.epoch]
    return new, faults


def _may_gain(known: Trial, imported: ImportedTrial, measured: Sequence[Measurement]) -> bool:
    """Returns whether an import changes the trial of its launch; a decided or trainer-ended trial counts as ended."""
    if known.lost:
        return bool(measured) or imported.end_reason is not EndReason.LOST
    if known.resumable:
        # It went on from a checkpoint, without the server.
        return bool(measured)
    return known.running


def _judged(
    spec: ResolvedJob, bound: float | None, measured: Sequence[Measurement]
) -> tuple[Sequence[_Judged], Verdict | None]:
    """Returns the measurements up to the one that decides the trial, with their verdicts, and the trial's verdict.

    If none decides it, they are all measurements, and the verdict is None.

    Nobody stopped the trial at its bound, so that only its newest measurement is compared with it.
    """
    judged = []
    for measurement in measured:
        verdict = judge(spec, None, measurement)
        judged.append(_Judged(measurement, verdict))
        if verdict.end_reason is not None:
            return judged, judge(spec, bound, measurement)
    last = judge(spec, bound, measured[-1]) if measured else None
    return judged, last if last and last.end_reason is not None else None


def _after(start: datetime, seconds: float, now: datetime) -> datetime:
    with suppress(OverflowError):
        return min(start + timedelta(seconds=seconds), now)
    return now
