"""A job's own trials as the trace of a replay, from a driver's history or from a server.

Each trial is a recorded run of its batch size:

    it reached the target, at any cost         reached after as many epochs
    stopped at the cost bound or max_epochs    never reached: what it would have taken is unknown
    ended by its trainer, or out of memory     a trainer that fails after as many epochs
    preempted, lost, deleted, still running    no run

An epoch at a power limit takes the mean time and energy of all measured epochs of its batch size at that limit. A batch
size without any measured epoch is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from wattwise import Client, v1
from wattwise.driver.history import History, HistoryRecord
from wattwise.presentation.states import end_reason, mark_of
from wattwise.rules import EndReason
from wattwise.spec import enum_constant, max_power_watts

from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import BatchSize, Crash, PowerPoint, RecordedRun, Workload, validated

_NO_RUN = {EndReason.PREEMPTED, EndReason.LOST, EndReason.JOB_DELETED}
_CRASHES = {EndReason.ERROR, EndReason.OUT_OF_MEMORY, EndReason.COMPLETED}
_REASONS = {end_reason(v1.EndReason.Value(f"END_REASON_{reason.value}")): reason for reason in EndReason}
_BY_STATUS: dict[int, EndReason] = {
    v1.TRIAL_STATUS_DECIDED: EndReason.MAX_EPOCHS,
    v1.TRIAL_STATUS_INTERRUPTED: EndReason.LOST,
    v1.TRIAL_STATUS_FAILED: EndReason.ERROR,
}
"""What a trial counts as whose reason is newer than this program."""
_ETA_TOLERANCE = 0.01


class EndedTrial(NamedTuple):
    """A trial as it was measured.

    Attributes:
        batch_size: Its batch size.
        epochs: Epochs that it reported.
        reached: Whether it reached the target, at any cost.
        reason: Why it ended.
        limit_watts_per_gpu: The GPU's limit; None if unknown.
        seconds: Its training time; None if unknown.
        joules: The energy that it used; None if unknown.
    """

    batch_size: int
    epochs: int
    reached: bool
    reason: EndReason | None
    limit_watts_per_gpu: float | None
    seconds: float | None
    joules: float | None

    @property
    def run(self) -> RecordedRun | None:
        """The run of its batch size; None if it says nothing about it."""
        if self.reached:
            return RecordedRun(self.epochs)
        if self.reason is None or self.reason in _NO_RUN:
            return None
        return RecordedRun(None, Crash(self.epochs, self.reason) if self.reason in _CRASHES else None)


def from_history(path: Path, eta: float) -> Workload:
    """Returns a workload from the file `history.jsonl` of a run.

    The default batch size is that of the first trial, `max_epochs` the most epochs of any, and the highest power limit
    follows from the recorded costs.

    Args:
        path: The file.
        eta: The job's weight of energy against time.

    Raises:
        ReplayError: there is no such file, it has no measured trial, or the job had another eta.
        HistoryError: the file is malformed.
    """
    records = History(path).read()
    if not records and not path.exists():
        raise ReplayError(f"there is no file {path}; use the history.jsonl in the folder of a run")
    trials = [_recorded(record) for record in records]
    if not any(trial.epochs and trial.seconds for trial in trials):
        raise ReplayError(f"{path} has no measured trial; use the history.jsonl in the folder of a run")
    first = min(records, key=lambda record: record.trial)
    longest = max(trial.epochs for trial in trials)
    watts = _max_power_watts(records, eta, path)
    name = path.resolve().parent.name
    return _workload(Workload(name, "own", (), first.batch_size, 1.0, True, longest, watts), trials)


def from_server(client: Client, job_id: str) -> Workload:
    """Returns a workload from a job on a server.

    Args:
        client: A connection to the server.
        job_id: The job.

    Raises:
        ReplayError: the job has no measured trial.
        WattwiseError: there is no such job, or the server is unavailable.
    """
    known = client.get_job(job_id)
    spec = known.job.spec
    limits = {limit.batch_size: limit.power_setting.limit_watts_per_gpu for limit in known.details.power_limits}
    trials = [_listed(trial, limits.get(trial.batch_size)) for trial in client.trials(job_id)]
    if not any(trial.epochs and trial.seconds for trial in trials):
        raise ReplayError(f"job {job_id!r} has no measured trial yet; run some of its recurrences first")
    job = Workload(
        job_id,
        spec.gpus[0].gpu_model,
        (),
        spec.default_batch_size,
        spec.target.value,
        spec.target.direction != v1.DIRECTION_LOWER_IS_BETTER,
        spec.max_epochs,
        max_power_watts(spec),
        has_estimates=bool(mark_of(known.job)),
    )
    return _workload(job, trials)


def _counted(record: HistoryRecord) -> tuple[float | None, float | None]:
    """Returns the time and the energy of which a trial's cost is: in observer mode the computed ones."""
    if record.computed_time_seconds is not None:
        return record.computed_time_seconds, record.computed_energy_joules
    return record.time_seconds, record.energy_joules


def _recorded(record: HistoryRecord) -> EndedTrial:
    return EndedTrial(
        record.batch_size,
        record.epochs,
        record.reached,
        _REASONS.get(record.end_reason),
        record.computed_limit_watts_per_gpu or record.limit_watts_per_gpu,
        *_counted(record),
    )


def _listed(trial: v1.Trial, limit_watts_per_gpu: float | None) -> EndedTrial:
    name = enum_constant(v1.EndReason, trial.end_reason).removeprefix("END_REASON_")
    reason = EndReason(name) if name in EndReason.__members__ else _BY_STATUS.get(trial.status)
    used: v1.Measurement | v1.ComputedUsage = trial.newest
    if trial.newest.HasField("computed"):
        used, limit_watts_per_gpu = trial.newest.computed, trial.newest.computed.power_setting.limit_watts_per_gpu
    elif trial.newest.power_setting.HasField("limit_watts_per_gpu"):
        limit_watts_per_gpu = trial.newest.power_setting.limit_watts_per_gpu
    return EndedTrial(
        trial.batch_size,
        trial.newest.epoch,
        trial.target_reached,
        reason,
        limit_watts_per_gpu,
        used.time_seconds,
        used.energy_joules if used.HasField("energy_joules") else None,
    )


def _max_power_watts(records: Sequence[HistoryRecord], eta: float, path: Path) -> float:
    """P of `η·E + (1−η)·P·T`, from the costs of all trials."""
    used = ((record.cost, *_counted(record)) for record in records)
    known = [
        (cost, joules, seconds) for cost, seconds, joules in used if cost is not None and joules is not None and seconds
    ]
    if eta == 1 or not known:
        return max(
            (record.limit_watts_per_gpu for record in records if record.limit_watts_per_gpu is not None),
            default=max((joules / seconds for _, joules, seconds in known), default=1.0),
        )
    watts = [(cost - eta * joules) / ((1 - eta) * seconds) for cost, joules, seconds in known]
    middle = float(np.median(watts))
    if not middle > 0 or max(abs(each - middle) for each in watts) > _ETA_TOLERANCE * middle:
        raise ReplayError(f"the costs in {path} do not fit --eta {eta:g}; use the eta_knob of its job")
    return middle


def _workload(job: Workload, trials: Sequence[EndedTrial]) -> Workload:
    """Returns the job's workload with what its trials say about each batch size."""
    by_size: dict[int, list[EndedTrial]] = defaultdict(list)
    for trial in trials:
        by_size[trial.batch_size].append(trial)
    sizes = []
    for size, each in sorted(by_size.items()):
        runs = tuple(run for trial in each if (run := trial.run) is not None)
        points = _points(each, job.max_power_watts)
        if runs and points:
            sizes.append(BatchSize(size, runs, points))
    return validated(replace(job, batch_sizes=tuple(sizes)))


def _points(trials: Sequence[EndedTrial], max_power_watts: float) -> tuple[PowerPoint, ...]:
    """Returns an epoch at each power limit, by ascending limit; trials without a known limit ran at the highest."""
    by_limit: dict[float, list[tuple[int, float, float]]] = defaultdict(list)
    for trial in trials:
        if trial.epochs and trial.seconds:
            limit = trial.limit_watts_per_gpu or max_power_watts
            by_limit[limit].append((trial.epochs, trial.seconds, trial.joules or 0.0))
    points = []
    for limit, measured in sorted(by_limit.items()):
        epochs, seconds, joules = (sum(column) for column in zip(*measured, strict=True))
        points.append(PowerPoint(limit, seconds / epochs, joules / seconds))
    return tuple(points)
