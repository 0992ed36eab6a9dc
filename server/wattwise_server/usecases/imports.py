"""The use case of trials that ran without the server: history, training during an outage, the rest of a lost trial."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from wattwise_server.clock import Clock
from wattwise_server.config import Limits
from wattwise_server.domain import (
    TRAINER_END_REASONS,
    EndReason,
    Job,
    JobSpec,
    Launch,
    Measurement,
    MonitorKinds,
    Trial,
    TrialOrigin,
    UnknownEndReason,
    identifier_fault,
)
from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.observability.events import NO_OBSERVERS, Observer, TrialImported
from wattwise_server.policy.base import Dispatched
from wattwise_server.policy.stopping import Verdict, judge, stopped_early
from wattwise_server.store.base import Store, Transaction
from wattwise_server.usecases.lifecycle import Lifecycle, after
from wattwise_server.usecases.lookup import batch_size_fault, bound_of, check_not_deleted, find_job, job_id_faults
from wattwise_server.usecases.monitors import monitor_fault
from wattwise_server.usecases.publishing import Publisher, caller_token
from wattwise_server.usecases.report import Faults, epoch_reported, number_faults, shrink_faults
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import in_report, known_reason, of_power, of_unknown_end

MAX_MEASUREMENTS = 5_000
"""Few enough that other calls do not wait long."""

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


class _ValidatedError(Exception):
    """Ends the transaction of an import that is only validated, without saving it; carries the answer."""

    def __init__(self, answer: tuple[Trial, bool]) -> None:
        super().__init__()
        self.answer = answer


class Importer:
    """Records trials that ran without the server. May raise `StorageUnavailableError`."""

    def __init__(
        self, store: Store, clock: Clock, limits: Limits = _USUAL_LIMITS, observer: Observer = NO_OBSERVERS
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._publisher = Publisher(clock, observer)
        self._lifecycle = Lifecycle(clock, observer)

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
        try:
            async with self._store.transaction(imported.job_id) as tx:
                answer = await self._imported(tx, imported)
                if imported.validate_only:
                    raise _ValidatedError(answer)  # noqa: TRY301 - leaves the transaction without saving it
        except _ValidatedError as validated:
            return validated.answer
        await self._lifecycle.stop_others(self._store, imported.job_id)
        return answer

    async def _imported(self, tx: Transaction, imported: ImportedTrial) -> tuple[Trial, bool]:
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
            return known, False
        if known is not None and known.resumable:
            job, known = self._lifecycle.revive(tx, job, known)
        bound = None if known is None or faults else bound_of(job, known)
        judged, verdict = _judged(job.spec, bound, measured)
        measured = [measurement for measurement, _ in judged]
        reason = known_reason(imported.end_reason)
        if verdict is None and reason not in _END_REASONS and not (found or imported.malformed):
            faults.append(Violation("end_reason", _end_fault(reason)))
        if faults:
            raise InvalidRequestError(*faults)
        job, trial = (job, known) if known else self._create(tx, job, imported, measured)
        if measured:
            job, trial = self._add(tx, job, trial, imported, judged)
        if verdict is None and reason is EndReason.STOPPED_EARLY and trial.last is not None:
            verdict = stopped_early(job.spec, bound, trial.last)
        # The rest of a trial that the server dispatched ends now.
        end_time = trial.last.report_time if trial.last and trial.origin is TrialOrigin.IMPORTED else None
        # It ran to its end; if it reached the target, its metric has not moved away.
        if verdict or reason is EndReason.COMPLETED:
            new = (measurement.metric for measurement in measured)
            job, trial = await self._lifecycle.warn_of_miss(tx, job, trial, *new)
        if verdict is None:
            job, trial = self._lifecycle.warn(tx, job, trial, of_unknown_end(trial, imported.end_reason))
            return self._lifecycle.fail(tx, job, trial, reason or EndReason.COMPLETED, end_time)[1], known is None
        job, trial = await self._lifecycle.warn_of_cheap_delivery(tx, job, trial, verdict)
        job = self._lifecycle.decide(tx, job, trial, verdict, end_time)
        await self._lifecycle.stop_over_bound(tx, job)
        return await tx.trial(trial.number) or trial, known is None

    def _create(
        self, tx: Transaction, job: Job, imported: ImportedTrial, measured: Sequence[Measurement]
    ) -> tuple[Job, Trial]:
        now, start = self._clock(), imported.start_time
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
            dispatch_event=job.num_events + 1,
            launch=Launch(token_id=caller_token()),
        )
        job = after(job, Dispatched(trial))
        tx.save_job(job)
        # Its measurements refer to it.
        tx.save_trial(trial)
        tx.add_launch(trial)
        self._publisher.publish(tx, TrialImported(trial, len(measured)))
        return job, trial

    def _add(
        self,
        tx: Transaction,
        job: Job,
        trial: Trial,
        imported: ImportedTrial,
        judged: Sequence[tuple[Measurement, Verdict]],
    ) -> tuple[Job, Trial]:
        """Adds measurements to a trial, each with its verdict."""
        if imported.monitor and imported.monitor.kinds:
            job, trial = self._lifecycle.monitor(tx, job, trial, imported.monitor)
        before, now = trial.last, self._clock()
        previous = before
        for measurement, verdict in judged:
            time = measurement.report_time
            if time is UNKNOWN_TIME:
                time = _after(trial.start_time, measurement.time_seconds, now) if trial.start_time else now
            trial = trial._replace(last=measurement._replace(report_time=min(time, now)))
            tx.add_measurement(trial)
            job = self._lifecycle.observe_report(tx, job, trial)
            found = [*in_report(job.spec, trial, previous, measurement, reached=verdict.target_reached)]
            if (excess := of_power(job.spec, trial, previous, measurement)) is not None:
                found.append(excess)
            job, trial = self._lifecycle.warn(tx, job, trial, found)
            previous = measurement
        tx.keep_measurements(trial, self._limits.max_epochs_kept)
        if self._observer.wants_reports:
            self._publisher.publish(tx, epoch_reported(job, trial, before, judged[-1][0]))
        return job, trial


def _end_fault(reason: EndReason | None) -> str:
    known = " or ".join(f"END_REASON_{each.value}" for each in _END_REASONS)
    value = f"is END_REASON_{reason.value}" if reason else "is not set"
    return f"{value}, and the measurements show neither the target nor the last epoch; use {known}"


def _request_faults(imported: ImportedTrial, job: Job | None) -> list[Violation]:
    """What is wrong with a request, its measurements aside; of a batch size only if the job is known."""
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
    spec: JobSpec, imported: ImportedTrial, last: Measurement | None
) -> tuple[Sequence[Measurement], list[Violation]]:
    """The measurements after a trial's last one, and what is wrong with any of them."""
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
    """Whether an import changes the trial of its launch; one that was decided or that its trainer ended has ended."""
    if known.lost:
        return bool(measured) or imported.end_reason is not EndReason.LOST
    if known.resumable:
        # It went on from a checkpoint, without the server.
        return bool(measured)
    return known.running


def _judged(
    spec: JobSpec, bound: float | None, measured: Sequence[Measurement]
) -> tuple[Sequence[tuple[Measurement, Verdict]], Verdict | None]:
    """The measurements up to the one that decides the trial, with their verdicts, and the verdict about the trial.

    If none decides it, they are all measurements, and the verdict is None.

    Nobody stopped the trial at its bound, so that only its newest measurement is compared with it.
    """
    judged = []
    for measurement in measured:
        verdict = judge(spec, None, measurement)
        judged.append((measurement, verdict))
        if verdict.end_reason is not None:
            return judged, judge(spec, bound, measurement)
    last = judge(spec, bound, measured[-1]) if measured else None
    return judged, last if last and last.end_reason is not None else None


def _after(start: datetime, seconds: float, now: datetime) -> datetime:
    with suppress(OverflowError):
        return min(start + timedelta(seconds=seconds), now)
    return now
