"""Converts between protos and domain values: the only file that knows both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from wattwise import v1

from wattwise_server.domain import (
    Arm,
    ComputedUsage,
    Decision,
    EndReason,
    GpuConfig,
    Job,
    JobSpec,
    ListedJob,
    Measurement,
    MonitorKinds,
    PowerSample,
    Search,
    Stage,
    Trial,
    TrialKey,
    TrialStatus,
    TrialWarning,
)
from wattwise_server.errors import (
    InvalidJobSpecError,
    InvalidRequestError,
    InvalidResultError,
    Violation,
    jobs_command,
)
from wattwise_server.policy.base import ArmBelief
from wattwise_server.policy.failures import Status, advice, state
from wattwise_server.policy.power import cost_per_step
from wattwise_server.policy.registry import POLICIES
from wattwise_server.usecases.imports import MAX_MEASUREMENTS, UNKNOWN_TIME, ImportedTrial
from wattwise_server.usecases.job_spec import JobDraft
from wattwise_server.usecases.monitors import warnings_of
from wattwise_server.usecases.power_limits import MAX_SAMPLES, KnownLimit
from wattwise_server.usecases.report import Report


def job_draft(request: v1.RegisterJobRequest) -> JobDraft:
    """The fields of the job that the client set.

    Raises:
        InvalidJobSpecError: the request contains no job.
    """
    if not request.HasField("job"):
        raise InvalidJobSpecError(Violation("job", "is not set; send the job's configuration"))
    job = request.job
    draft: dict[str, Any] = {field.name: value for field, value in job.ListFields()}
    draft["batch_sizes"] = tuple(job.batch_sizes)
    if "policy" in draft:
        known = job.policy in v1.Policy.values()
        draft["policy"] = v1.Policy.Name(job.policy).removeprefix("POLICY_") if known else str(job.policy)
    if "prior_job_ids" in draft:
        draft["prior_job_ids"] = tuple(job.prior_job_ids)
    if "gpu" in draft:
        draft["gpu"] = GpuConfig(job.gpu.max_power_watts, job.gpu.number_of_gpus, job.gpu.gpu_model)
    return draft


def trial_key(request: v1.HeartbeatRequest | v1.EndTrialRequest | v1.ReportPowerProfileRequest) -> TrialKey:
    """The trial of a trainer's request.

    Raises:
        InvalidRequestError: the request names no trial.
    """
    return _trainers_trial(request, "trial")


def shown_trial_key(request: v1.GetTrialRequest | v1.SetTrialExcludedRequest) -> TrialKey:
    """The trial of a person's call; its batch size is optional and 0 if unset.

    Raises:
        InvalidRequestError: the request names no trial.
    """
    _check_named(request, "trial")
    trial = request.trial
    return TrialKey(trial.job_id, trial.batch_size, trial.trial_number, trial.request_id)


def report(request: v1.ReportResultRequest) -> Report:
    """One epoch's measurement.

    Raises:
        InvalidResultError: the request contains no result.
        InvalidRequestError: the result names no trial.
    """
    if not request.HasField("result"):
        raise InvalidResultError(Violation("result", "is not set; send the measurements up to the end of the epoch"))
    return result(request.result)


def result(measured: v1.TrainingResult) -> Report:
    """One epoch's measurement.

    Raises:
        InvalidRequestError: the result names no trial.
    """
    key = _trainers_trial(measured, "result.trial")
    sums = (measured.time_seconds, measured.energy_joules, measured.metric)
    return Report(
        key,
        measured.current_epoch,
        *sums,
        _monitor_kinds(measured.monitor) if measured.HasField("monitor") else None,
        _computed_usage(measured.computed) if measured.HasField("computed") else None,
        measured.power_limit_watts if measured.HasField("power_limit_watts") else None,
    )


def _monitor_kinds(monitor: v1.Monitor) -> MonitorKinds:
    return MonitorKinds(tuple(dict.fromkeys(monitor.kinds)), monitor.estimated, monitor.partly)


def _computed_usage(computed: v1.ComputedUsage) -> ComputedUsage:
    return ComputedUsage(computed.time_seconds, computed.energy_joules, computed.power_limit_watts)


def imported_trial(request: v1.ImportTrialRequest) -> ImportedTrial:
    """A trial that ran without the server, with the faults of its times."""
    faults: list[Violation] = []
    # No more than it takes to refuse them: half a megabyte has room for a quarter of a million.
    sent = request.measurements[: MAX_MEASUREMENTS + 1]
    start = _time(request.start_time, "start_time", faults) if request.HasField("start_time") else None
    measured = [
        Measurement(
            each.current_epoch,
            each.time_seconds,
            each.energy_joules,
            each.metric,
            _time(each.report_time, f"measurements[{place}].report_time", faults)
            if each.HasField("report_time")
            else UNKNOWN_TIME,
            _computed_usage(each.computed) if each.HasField("computed") else None,
        )
        for place, each in enumerate(sent)
    ]
    return ImportedTrial(
        request.job_id,
        request.request_id,
        request.batch_size,
        measured,
        end_reason(request.end_reason),
        request.power_limit_watts if request.HasField("power_limit_watts") else None,
        start,
        _monitor_kinds(request.monitor) if request.HasField("monitor") else None,
        tuple(faults),
        request.validate_only,
    )


def _time(stamp: Timestamp, field: str, faults: list[Violation]) -> datetime:
    try:
        return stamp.ToDatetime(timezone.utc)
    except (ValueError, OverflowError):
        faults.append(Violation(field, f"is {stamp.seconds} s since 1970, which is no valid time; use UTC"))
        return UNKNOWN_TIME


def _monitor(known: MonitorKinds) -> v1.Monitor | None:
    return v1.Monitor(kinds=known.kinds, estimated=known.estimated, partly=known.partly) if known.kinds else None


def _trainers_trial(
    holder: v1.TrainingResult | v1.HeartbeatRequest | v1.EndTrialRequest | v1.ReportPowerProfileRequest, where: str
) -> TrialKey:
    trial = holder.trial
    size = trial.batch_size
    if not size:
        _check_named(holder, where)
        raise InvalidRequestError(Violation(f"{where}.batch_size", "is 0; use the batch size of the trial"))
    return TrialKey(trial.job_id, size, trial.trial_number, trial.request_id)


def _check_named(
    holder: v1.TrainingResult
    | v1.HeartbeatRequest
    | v1.EndTrialRequest
    | v1.ReportPowerProfileRequest
    | v1.GetTrialRequest
    | v1.SetTrialExcludedRequest,
    where: str,
) -> None:
    if not holder.HasField("trial"):
        raise InvalidRequestError(Violation(where, "is not set; use the trial id that the server returned"))


def policy(value: v1.Policy.ValueType) -> str:
    """The name of a policy.

    Raises:
        InvalidRequestError: it is unspecified or unknown.
    """
    if value == v1.POLICY_UNSPECIFIED or value not in v1.Policy.values():
        known = ", ".join(v1.Policy.keys()[1:])
        raise InvalidRequestError(Violation("policy", f"{value} is not a policy to change to; use one of {known}"))
    return v1.Policy.Name(value).removeprefix("POLICY_")


def end_reason(reason: v1.EndReason.ValueType) -> EndReason | None:
    """A trainer's reason; None if it is unspecified or unknown."""
    if reason == v1.END_REASON_UNSPECIFIED or reason not in v1.EndReason.values():
        return None
    return EndReason(v1.EndReason.Name(reason).removeprefix("END_REASON_"))


def status_filter(status: v1.TrialStatus.ValueType) -> TrialStatus | None:
    """A status to filter by; None for any.

    Raises:
        InvalidRequestError: the status is unknown.
    """
    if status == v1.TRIAL_STATUS_UNSPECIFIED:
        return None
    if status not in v1.TrialStatus.values():
        known = ", ".join(v1.TrialStatus.keys()[1:])
        raise InvalidRequestError(Violation("status", f"{status} is not a status; use one of {known}"))
    return TrialStatus(v1.TrialStatus.Name(status).removeprefix("TRIAL_STATUS_"))


def fill_decision(message: v1.Decision, decision: Decision) -> None:
    """Fills a decision in place: creating one and copying it takes three times as long."""
    message.stop_train = decision.stop_train
    message.converged = decision.converged
    message.target_reached = decision.target_reached
    message.message = decision.message
    message.cost = decision.cost
    if decision.cost_bound is not None:
        message.cost_bound = decision.cost_bound
    if decision.warnings:
        message.warnings.extend(map(_warning, decision.warnings))


def _warning(known: TrialWarning) -> v1.TrialWarning:
    reason = v1.WarningReason.Value(f"WARNING_REASON_{known.reason.value}")
    return v1.TrialWarning(reason=reason, field=known.field, message=known.message, trial_number=known.trial_number)


def job(known: Job) -> v1.Job:
    """A job."""
    search = known.search
    beliefs = POLICIES[known.spec.policy].belief(known.spec, search)
    message = _job(known, [arm.batch_size for arm in search.surviving])
    message.arms.extend(_arms(search, beliefs))
    message.power_limits.extend(_power_limits(known))
    message.batch_size_states.extend(_batch_size_states(known, beliefs))
    message.advice = advice(search, known.spec.job_id)
    return message


def listed_job(known: ListedJob) -> v1.Job:
    """A job of a list."""
    return _job(known.job, known.surviving)


def _job(known: Job, surviving: Sequence[int]) -> v1.Job:
    search = known.search
    return v1.Job(
        spec=_spec(known.spec),
        stage=v1.Stage.Value(f"STAGE_{search.stage.value}"),
        pruning_round=search.pruning_round,
        surviving_batch_sizes=surviving,
        min_cost=search.min_cost,
        min_cost_batch_size=search.min_cost_batch_size,
        create_time=_timestamp(known.create_time),
        num_trials=known.num_trials,
        monitor=_monitor(known.monitor),
        other_monitor=_monitor(known.other_monitor),
        paused=known.paused,
        pinned_batch_size=known.pinned,
        baseline_requested=known.baseline_requested,
        warnings=map(_warning, known.warnings),
        reset_after=known.reset_after,
        reset_time=_timestamp(known.reset_time),
    )


def _spec(spec: JobSpec) -> v1.JobSpec:
    values: dict[str, Any] = {field.name: getattr(spec, field.name) for field in fields(spec)}
    values["policy"] = v1.Policy.Value(f"POLICY_{spec.policy}")
    values["gpu"] = v1.GpuConfig(**asdict(spec.gpu))
    return v1.JobSpec(**values)


def _arms(search: Search, beliefs: Sequence[ArmBelief]) -> list[v1.Arm]:
    if search.stage is not Stage.MAB:
        return []
    surviving = {arm.batch_size for arm in search.surviving}
    return [
        v1.Arm(
            batch_size=belief.batch_size,
            param_mean=belief.mean,
            param_precision=belief.precision,
            reward_precision=belief.reward_precision,
            num_observations=belief.observations,
        )
        for belief in beliefs
        if belief.batch_size in surviving
    ]


def _batch_size_states(job: Job, beliefs: Sequence[ArmBelief]) -> list[v1.BatchSizeState]:
    by_size = {belief.batch_size: belief for belief in beliefs}
    return [_batch_size_state(job, arm, by_size.get(arm.batch_size)) for arm in job.search.arms]


def _pinned(job: Job, reason: str) -> str:
    return f"pinned: every launch gets it until {jobs_command('unpin', job.spec.job_id)}; {reason}"


def _batch_size_state(job: Job, arm: Arm, belief: ArmBelief | None) -> v1.BatchSizeState:
    known = state(job.search, arm, job.spec.job_id)
    if arm.batch_size == job.pinned:
        known = known._replace(status=Status.PINNED, reason=_pinned(job, known.reason))
    return v1.BatchSizeState(
        batch_size=arm.batch_size,
        status=v1.BatchSizeStatus.Value(f"BATCH_SIZE_STATUS_{known.status.value}"),
        reason=known.reason,
        expected_cost=belief.expected_cost if belief else None,
        expected_cost_deviation=belief.deviation if belief else None,
        failure_rate=belief.failure_rate if belief else None,
        num_converged=arm.num_converged,
        num_missed=arm.num_succeeded - arm.num_converged,
        num_failed=arm.num_failed,
        num_running=arm.running,
    )


def trial(known: Trial) -> v1.Trial:
    """A trial."""
    last = known.last
    return v1.Trial(
        id=v1.TrialId(**known.key._asdict()),
        type=v1.TrialType.Value(f"TRIAL_TYPE_{known.type.value}"),
        status=v1.TrialStatus.Value(f"TRIAL_STATUS_{known.status.value}"),
        end_reason=v1.EndReason.Value(f"END_REASON_{known.end_reason.value}")
        if known.end_reason
        else v1.END_REASON_UNSPECIFIED,
        start_time=_timestamp(known.start_time),
        end_time=_timestamp(known.end_time),
        time_seconds=last.time_seconds if last else 0.0,
        energy_joules=last.energy_joules if last else 0.0,
        cost=known.cost,
        converged=known.converged,
        last_epoch=last.epoch if last else 0,
        last_metric=last.metric if last else None,
        lease_expire_time=_timestamp(known.lease_expire_time),
        monitor=_monitor(known.monitor),
        other_monitor=_monitor(known.other_monitor),
        excluded=known.excluded,
        computed=_computed(last),
        power_limit_watts=known.power_limit_watts,
        warnings=map(_warning, warnings_of(known)),
    )


def _computed(measured: Measurement | None) -> v1.ComputedUsage | None:
    return v1.ComputedUsage(**measured.computed._asdict()) if measured and measured.computed else None


def measurement(known: Measurement) -> v1.Measurement:
    """One epoch's measurement."""
    return v1.Measurement(
        current_epoch=known.epoch,
        time_seconds=known.time_seconds,
        energy_joules=known.energy_joules,
        metric=known.metric,
        report_time=_timestamp(known.report_time),
        computed=_computed(known),
    )


def _timestamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def power_limit_key(request: v1.GetPowerLimitRequest) -> TrialKey:
    """The trial that asks; trial number 0 if the request names none."""
    return TrialKey(request.job_id, request.batch_size, request.trial_number, request.request_id)


def power_samples(request: v1.ReportPowerProfileRequest) -> list[PowerSample]:
    """The samples of a profile, no more than it takes to refuse them."""
    sent = request.samples[: MAX_SAMPLES + 1]
    return [PowerSample(s.power_limit_watts, s.time_seconds, s.energy_joules, s.steps) for s in sent]


def power_limit(limit: KnownLimit) -> v1.GetPowerLimitResponse:
    """The cheapest known limit."""
    return v1.GetPowerLimitResponse(
        power_limit_watts=limit.cheapest.power_limit_watts if limit.cheapest else None,
        profiled_by_another=limit.profiled_by_another,
        cheapest=_power_sample(limit.cheapest),
        highest=_power_sample(limit.highest),
    )


def _power_sample(sample: PowerSample | None) -> v1.PowerSample | None:
    return v1.PowerSample(**sample._asdict()) if sample else None


def _power_limits(known: Job) -> list[v1.PowerLimit]:
    """The cheapest limit of every batch size that was profiled."""
    return [
        v1.PowerLimit(
            batch_size=state.batch_size,
            power_limit_watts=state.cheapest.power_limit_watts,
            cost_per_step=cost_per_step(known.spec, state.cheapest),
            time_seconds_per_step=state.cheapest.time_seconds / state.cheapest.steps,
            energy_joules_per_step=state.cheapest.energy_joules / state.cheapest.steps,
        )
        for state in known.power_limits
        if state.cheapest is not None
    ]
