"""Converts between protos and domain values: the only file that knows both."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet
from wattwise import v1

from wattwise_server.config import Factors
from wattwise_server.domain import (
    MAX_ID_LENGTH,
    Amount,
    Arm,
    ComputedUsage,
    Decision,
    DetectedChange,
    EndReason,
    EnergyQuality,
    GpuGroup,
    HistoryEntry,
    HistoryKind,
    Job,
    JobSpec,
    ListedJob,
    Measurement,
    MonitorKinds,
    PowerSample,
    PruningGtsTrial,
    SavingsVerdict,
    Search,
    Stage,
    Totals,
    Trial,
    TrialId,
    TrialStatus,
    TrialWarning,
    UnknownEndReason,
    batch_size_in_use,
    identifier_fault,
)
from wattwise_server.errors import (
    InvalidJobSpecError,
    InvalidRequestError,
    InvalidResultError,
    Violation,
    jobs_command,
)
from wattwise_server.policy.base import ArmBelief
from wattwise_server.policy.explorer import next_exploration
from wattwise_server.policy.failures import advice, failing, state
from wattwise_server.policy.power import cost_per_step
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.savings import CONFIDENCE, EXPLORING_LAUNCHES, LEAST_RUNS, SavingsEstimate, total_verdict
from wattwise_server.store.base import HistoryList, JobList, JobOrder, JobState, Place, TrialList
from wattwise_server.usecases.administration import Preview, ShownTrial
from wattwise_server.usecases.changes import changes
from wattwise_server.usecases.imports import MAX_MEASUREMENTS, UNKNOWN_TIME, ImportedTrial
from wattwise_server.usecases.job_spec import JobDraft
from wattwise_server.usecases.labels import label_faults
from wattwise_server.usecases.lookup import job_id_faults
from wattwise_server.usecases.monitors import warnings_of
from wattwise_server.usecases.power_limits import MAX_SAMPLES, AcquiredLimit
from wattwise_server.usecases.report import NO_METRIC, Report
from wattwise_server.usecases.statistics import (
    MAX_RANGES,
    JobStatistics,
    JobSummary,
    Range,
    Savings,
    TrialStatistics,
)

TrainersRequest: TypeAlias = (
    v1.HeartbeatRequest | v1.EndTrialRequest | v1.AcquirePowerLimitRequest | v1.ReportPowerProfileRequest
)
"""A call of a trainer about its trial, results aside."""
PersonsRequest: TypeAlias = v1.GetTrialRequest | v1.ListMeasurementsRequest | v1.SetTrialExcludedRequest
"""A call of a person about a trial."""


def job_draft(request: v1.RegisterJobRequest) -> JobDraft:
    """The fields of the job that the client set.

    Raises:
        InvalidJobSpecError: the request contains no job, or fields that are unknown.
    """
    if not request.HasField("job"):
        raise InvalidJobSpecError(Violation("job", "is not set; send the job's configuration"))
    job, target = request.job, request.job.target
    _check_known(job, "job")
    draft: dict[str, Any] = {
        name: getattr(job, name)
        for name in ("job_id_prefix", "eta_knob", "max_epochs", "trial_lease_seconds")
        if job.HasField(name)
    }
    if target.HasField("value"):
        draft["target_metric"] = target.value
    if target.direction in (v1.DIRECTION_HIGHER_IS_BETTER, v1.DIRECTION_LOWER_IS_BETTER):
        draft["higher_is_better"] = target.direction == v1.DIRECTION_HIGHER_IS_BETTER
    rule, bound = job.early_stopping.WhichOneof("rule"), job.early_stopping.cost_bound
    if rule == "off" or bound.HasField("beta_knob"):
        draft["beta_knob"] = None if rule == "off" else bound.beta_knob
    groups = [GpuGroup(each.gpu_model, each.count, each.max_power_watts_per_gpu) for each in job.gpus]
    return {
        **draft,
        **_policy_draft(job.policy),
        "job_id": job.job_id,
        "batch_sizes": tuple(job.batch_sizes),
        "default_batch_size": job.default_batch_size,
        "gpu": groups[0] if len(groups) == 1 else len(groups),
    }


def policy_draft(request: v1.SetJobPolicyRequest) -> JobDraft:
    """The policy and those of its parameters that the client set.

    Raises:
        InvalidJobSpecError: the request contains no policy, or fields that are unknown.
    """
    _check_known(request.policy, "policy")
    if not request.policy.WhichOneof("policy"):
        known = ", ".join(field.name for field in v1.PolicySpec.DESCRIPTOR.fields)
        raise InvalidJobSpecError(
            *job_id_faults(request.job_id), Violation("policy", f"is not set; use one of {known}")
        )
    return _policy_draft(request.policy)


def _policy_draft(policy: v1.PolicySpec) -> JobDraft:
    name = policy.WhichOneof("policy")
    if name is None:
        return {}
    parameters = getattr(policy, name)
    values = {field.name: value for field, value in parameters.ListFields()}
    return {"policy": name, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else tuple(value)


def _check_known(message: Message, path: str) -> None:
    """Refuses fields that this server does not know: to ignore one would train another job than the client asked for.

    Raises:
        InvalidJobSpecError: with one violation per field, all at once.
    """
    faults = [
        Violation(where, f"has field {number}, which this server does not know; update the server, or unset the field")
        for where, number in _unknown_fields(message, path)
    ]
    if faults:
        raise InvalidJobSpecError(*faults)


def _unknown_fields(message: Message, path: str) -> Iterator[tuple[str, int]]:
    """The numbers of the unknown fields in a message and in those inside, with the paths of their messages."""
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # its stub lacks __iter__
        yield path, unknown.field_number
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _unknown_fields(value, f"{path}.{field.name}")
        elif field.message_type is not None:
            for place, each in enumerate(value):
                yield from _unknown_fields(each, f"{path}.{field.name}[{place}]")


def trial_key(request: TrainersRequest) -> TrialId:
    """The trial of a trainer's request.

    Raises:
        InvalidRequestError: the request names no trial.
    """
    return _trainers_trial(request, "trial")


def shown_trial_key(request: PersonsRequest) -> TrialId:
    """The trial of a person's call, named by its launch or its number or both.

    Raises:
        InvalidRequestError: the request names no trial.
    """
    trial = request.trial
    key = TrialId(trial.job_id, trial.launch_id, trial.trial_number)
    if not (key.job_id and (key.launch_id or key.trial_number)) or key.trial_number < 0:
        _check_named(request, "trial")
        faults = [] if key.job_id else [Violation("trial.job_id", "is empty; use the id of a job")]
        if key.trial_number < 0:
            faults.append(Violation("trial.trial_number", f"is {key.trial_number}; trials are numbered from 1"))
        if not (key.launch_id or key.trial_number):
            faults.append(Violation("trial.trial_number", "is 0 and launch_id is empty; set one of them or both"))
        raise InvalidRequestError(*faults)
    return key


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
    if not measured.HasField("measurement"):
        fault = "is not set; send what was measured up to the end of the epoch"
        raise InvalidResultError(Violation("result.measurement", fault))
    epoch, seconds, joules, metric, computed, limit = _measured(measured.measurement)
    monitor = _monitor_kinds(measured.monitor) if measured.HasField("monitor") else None
    return Report(key, epoch, seconds, joules, metric, monitor, computed, limit)


def _measured(
    sent: v1.Measurement,
) -> tuple[int, float, float | None, float | None, ComputedUsage | None, float | None]:
    """Epoch, seconds, joules, metric, computed usage and power limit; None where they are not set."""
    return (
        sent.epoch,
        sent.time_seconds,
        sent.energy_joules if sent.HasField("energy_joules") else None,
        sent.metric if sent.HasField("metric") else None,
        _computed_usage(sent.computed) if sent.HasField("computed") else None,
        _limit(sent.power_setting),
    )


_QUALITIES: Mapping[int, EnergyQuality] = {
    v1.EnergyQuality.Value(f"ENERGY_QUALITY_{quality.value}"): quality for quality in EnergyQuality
}
"""Any other value counts as ESTIMATED: an unset one, and one of a newer contract; without kinds it is ignored."""


def _monitor_kinds(monitor: v1.Monitor) -> MonitorKinds:
    kinds = tuple(dict.fromkeys(monitor.kinds))
    if not kinds and monitor.quality not in _QUALITIES:
        return MonitorKinds()
    return MonitorKinds(kinds, _QUALITIES.get(monitor.quality, EnergyQuality.ESTIMATED))


def _limit(setting: v1.PowerSetting) -> float | None:
    return setting.limit_watts_per_gpu if setting.HasField("limit_watts_per_gpu") else None


def power_setting(limit_watts_per_gpu: float | None) -> v1.PowerSetting | None:
    """A power limit as a message; None if it is unknown."""
    return None if limit_watts_per_gpu is None else v1.PowerSetting(limit_watts_per_gpu=limit_watts_per_gpu)


def _computed_usage(computed: v1.ComputedUsage) -> ComputedUsage:
    energy = computed.energy_joules if computed.HasField("energy_joules") else None
    return ComputedUsage(computed.time_seconds, energy, computed.power_setting.limit_watts_per_gpu)


def imported_trial(request: v1.ImportTrialRequest) -> ImportedTrial:
    """A trial that ran without the server, with the faults of its times, and of metrics that are not set."""
    faults: list[Violation] = []
    sent: Sequence[v1.Measurement] = request.measurements
    if len(sent) > MAX_MEASUREMENTS:
        # Half a megabyte has room for a quarter of a million: none of them is converted.
        fault = f"has {len(sent)} measurements; send at most {MAX_MEASUREMENTS}, the last one among them"
        faults.append(Violation("measurements", fault))
        sent = ()
    start = _time(request.start_time, "start_time", faults) if request.HasField("start_time") else None
    measured = []
    for place, each in enumerate(sent):
        epoch, seconds, joules, metric, computed, limit = _measured(each)
        if metric is None:
            faults.append(Violation(f"measurements[{place}].metric", NO_METRIC))
            metric = math.nan
        time = UNKNOWN_TIME
        if each.HasField("report_time"):
            time = _time(each.report_time, f"measurements[{place}].report_time", faults)
        measured.append(Measurement(epoch, seconds, joules, metric, time, computed, limit))
    return ImportedTrial(
        request.job_id,
        request.launch_id,
        request.batch_size,
        measured,
        end_reason(request.end_reason),
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
    if not known.kinds:
        return None
    return v1.Monitor(kinds=known.kinds, quality=v1.EnergyQuality.Value(f"ENERGY_QUALITY_{known.quality.value}"))


def _trainers_trial(holder: v1.TrainingResult | TrainersRequest, where: str) -> TrialId:
    trial = holder.trial
    key = TrialId(trial.job_id, trial.launch_id, trial.trial_number)
    if not (key.job_id and key.launch_id):
        _check_named(holder, where)
        ids = {"job_id": key.job_id, "launch_id": key.launch_id}
        fault = "is empty; use the trial id that the server returned"
        raise InvalidRequestError(*(Violation(f"{where}.{name}", fault) for name, value in ids.items() if not value))
    return key


def _check_named(holder: v1.TrainingResult | TrainersRequest | PersonsRequest, where: str) -> None:
    if not holder.HasField("trial"):
        raise InvalidRequestError(Violation(where, "is not set; use the trial id that the server returned"))


def end_reason(reason: v1.EndReason.ValueType) -> EndReason | UnknownEndReason | None:
    """A trainer's reason; None if it is unspecified."""
    if reason == v1.END_REASON_UNSPECIFIED:
        return None
    if reason not in v1.EndReason.values():
        return UnknownEndReason(reason)
    return EndReason(v1.EndReason.Name(reason).removeprefix("END_REASON_"))


def _end_reason(known: EndReason | None) -> v1.EndReason.ValueType:
    return v1.EndReason.Value(f"END_REASON_{known.value}") if known else v1.END_REASON_UNSPECIFIED


def _choice(value: int, wire: Any, prefix: str, field: str, faults: list[Violation]) -> str:
    """The name of an enum's value without its prefix; empty if it is unspecified or, which is a fault, unknown."""
    if not value:
        return ""
    if value not in wire.values():
        faults.append(Violation(field, f"{value} is unknown; use one of {', '.join(wire.keys()[1:])}"))
        return ""
    return str(wire.Name(value)).removeprefix(prefix)


def _choices(values: Sequence[int], wire: Any, prefix: str, field: str, faults: list[Violation]) -> list[str]:
    """The names of an enum's values without their prefix, each once; adds the faults of all other values."""
    names: dict[str, None] = {}
    for place, value in enumerate(values):
        if not value:
            fault = f"is not set; use one of {', '.join(wire.keys()[1:])}"
            faults.append(Violation(f"{field}[{place}]", fault))
        elif name := _choice(value, wire, prefix, f"{field}[{place}]", faults):
            names[name] = None
    return list(names)


def job_list(request: v1.ListJobsRequest) -> JobList:
    """Which jobs a list has.

    Raises:
        InvalidRequestError: a value is unknown or too long.
    """
    faults: list[Violation] = []
    order = _choice(request.order, v1.JobOrder, "JOB_ORDER_", "order", faults)
    states = _choices(request.states, v1.JobState, "JOB_STATE_", "states", faults)
    if len(request.contains) > MAX_ID_LENGTH:
        faults.append(Violation("contains", f"has more than {MAX_ID_LENGTH} characters; use at most so many"))
    if faults:
        raise InvalidRequestError(*faults)
    return JobList(
        request.job_id_prefix,
        request.contains,
        tuple(map(JobState, states)),
        JobOrder(order) if order else JobOrder.OLDEST,
        request.with_summaries,
    )


def trial_list(request: v1.ListTrialsRequest) -> TrialList:
    """Which trials a list has.

    Raises:
        InvalidRequestError: a value is unknown, or fields contradict each other.
    """
    of_several = request.HasField("job_id_prefix")
    faults = [] if of_several else job_id_faults(request.job_id)
    statuses = _choices(request.statuses, v1.TrialStatus, "TRIAL_STATUS_", "statuses", faults)
    reasons = _choices(request.end_reasons, v1.EndReason, "END_REASON_", "end_reasons", faults)
    if request.batch_size < 0:
        faults.append(Violation("batch_size", f"is {request.batch_size}; use 0 for all batch sizes"))
    if request.from_trial_number < 0:
        faults.append(Violation("from_trial_number", f"is {request.from_trial_number}; use 1 or more, or 0 for all"))
    if of_several and request.job_id:
        faults.append(Violation("job_id", "is set together with job_id_prefix; set one of them"))
    if of_several and request.from_trial_number:
        faults.append(Violation("from_trial_number", "needs a job_id; trials of several jobs have no common numbers"))
    faults += label_faults(request.labels)
    if faults:
        raise InvalidRequestError(*faults)
    return TrialList(
        None if of_several else request.job_id,
        request.job_id_prefix,
        tuple(map(TrialStatus, statuses)),
        tuple(map(EndReason, reasons)),
        request.batch_size or None,
        request.newest_first,
        tuple(sorted(request.labels.items())),
    )


def first_place(request: v1.ListTrialsRequest) -> Place:
    """The place behind which the first page of trials begins."""
    number = request.from_trial_number
    if not number:
        return ()
    return (number + 1,) if request.newest_first else (number - 1,)


def history_list(request: v1.ListEventsRequest) -> HistoryList:
    """Which entries of the history a list has.

    Raises:
        InvalidRequestError: the kind is unknown.
    """
    faults: list[Violation] = []
    kinds = _choices(request.kinds, v1.EventKind, "EVENT_KIND_", "kinds", faults)
    if faults:
        raise InvalidRequestError(*faults)
    return HistoryList(request.job_id or None, request.job_id_prefix, tuple(map(HistoryKind, kinds)))


def batch_size(
    request: v1.SetBatchSizeBannedRequest | v1.SetPinnedBatchSizeRequest | v1.ReadmitBatchSizeRequest,
) -> int:
    """The batch size of a request.

    Raises:
        InvalidRequestError: it is not set.
    """
    if not request.batch_size:
        raise InvalidRequestError(Violation("batch_size", "is not set, or 0; use a batch size of the job"))
    return request.batch_size


def required(
    request: v1.SetTrialExcludedRequest | v1.SetBatchSizeBannedRequest | v1.SetJobPausedRequest, field: str
) -> bool:
    """The value of a field that must be set.

    Raises:
        InvalidRequestError: it is unset.
    """
    if not request.HasField(field):  # type: ignore[arg-type]
        raise InvalidRequestError(Violation(field, "is not set; use true or false"))
    return bool(getattr(request, field))


def every(request: v1.SetBaselineEveryRequest) -> int:
    """How many launches one baseline comes in.

    Raises:
        InvalidRequestError: it is not set.
    """
    if not request.HasField("every"):
        raise InvalidRequestError(Violation("every", "is not set; use 2 or more, or 0 for no more baselines"))
    return request.every


def request_id(request: v1.ResetJobRequest | v1.RequestBaselineRequest | v1.ReadmitBatchSizeRequest) -> str:
    """The id by which a retry is recognized.

    Raises:
        InvalidRequestError: it is empty or invalid.
    """
    if not request.request_id:
        fault = "is empty; generate an id once per request and send it with each retry"
        raise InvalidRequestError(Violation("request_id", fault))
    if fault_of_id := identifier_fault(request.request_id):
        raise InvalidRequestError(Violation("request_id", fault_of_id))
    return request.request_id


def create_time(request: v1.DeleteJobRequest) -> datetime | None:
    """When the job to delete was registered; None if that does not matter.

    Raises:
        InvalidRequestError: it is no time.
    """
    if not request.HasField("create_time"):
        return None
    faults: list[Violation] = []
    time = _time(request.create_time, "create_time", faults)
    if faults:
        raise InvalidRequestError(*faults)
    return time


def max_ranges(request: v1.ListTrialBucketsRequest) -> int:
    """Into how many ranges the trials are divided at most.

    Raises:
        InvalidRequestError: it is negative or too large.
    """
    if not 0 <= request.max_ranges <= MAX_RANGES:
        fault = f"is {request.max_ranges}; use 1 to {MAX_RANGES}, or 0 for {MAX_RANGES}"
        raise InvalidRequestError(Violation("max_ranges", fault))
    return request.max_ranges or MAX_RANGES


def fill_decision(message: v1.Decision, decision: Decision) -> None:
    """Fills a decision in place: creating one and copying it takes three times as long."""
    message.stop_train = decision.stop_train
    message.converged = decision.converged
    message.target_reached = decision.target_reached
    message.message = decision.message
    message.last_epoch = decision.last_epoch
    if decision.end_reason is not None:
        message.end_reason = _end_reason(decision.end_reason)
    if decision.cost is not None:
        message.cost = decision.cost
    if decision.cost_bound is not None:
        message.cost_bound = decision.cost_bound
    if decision.heartbeat_interval is not None:
        message.heartbeat_interval.CopyFrom(_duration(decision.heartbeat_interval))
    if decision.warnings:
        message.warnings.extend(map(_warning, decision.warnings))


def _warning(known: TrialWarning) -> v1.TrialWarning:
    reason = v1.WarningReason.Value(f"WARNING_REASON_{known.reason.value}")
    return v1.TrialWarning(reason=reason, field=known.field, message=known.message, trial_number=known.trial_number)


def job(known: Job) -> v1.Job:
    """A job."""
    available = known.search.available
    return _job(known, [arm.batch_size for arm in available], [arm.batch_size for arm in available if failing(arm)])


def job_details(known: Job) -> v1.JobDetails:
    """What a job knows about its batch sizes."""
    search = known.search
    beliefs = POLICIES[known.spec.policy].belief(known.spec, search)
    return v1.JobDetails(
        policy_details=_policy_details(known, beliefs),
        batch_size_states=_batch_size_states(known, beliefs),
        power_limits=_power_limits(known),
        changes=map(_change, changes(known)),
        advice=advice(search, known.spec.job_id),
    )


def _change(known: DetectedChange) -> v1.DetectedChange:
    return v1.DetectedChange(
        quantity=v1.ChangedQuantity.Value(f"CHANGED_QUANTITY_{known.quantity.value}"),
        since_trial=known.since_trial,
        batch_size=known.batch_size,
        factor=known.factor if math.isfinite(known.factor) else None,
        detected_by_trial=known.detected_by_trial,
        message=known.message,
        factor_is_lower_limit=known.factor_is_lower_limit,
    )


def listed_job(known: ListedJob, summary: JobSummary | None) -> v1.JobListing:
    """A job of a list."""
    shown = _job(known.job, known.available, known.failing)
    return v1.JobListing(job=shown, summary=None if summary is None else _summary(summary))


def _summary(known: JobSummary) -> v1.JobSummary:
    return v1.JobSummary(
        num_running_trials=known.activity.num_running,
        last_activity_time=timestamp(known.activity.last_time),
        num_deliveries=known.num_deliveries,
        spent=_amount(known.spent),
        savings=_savings(known.savings),
        needs_attention=known.activity.needs_attention,
    )


def _amount(known: Amount) -> v1.Usage:
    return v1.Usage(**known.quantities()._asdict())


def _estimate(known: SavingsEstimate | None) -> v1.SavingsEstimate | None:
    if known is None:
        return None
    way = known.settling
    return v1.SavingsEstimate(
        verdict=_verdict(known.verdict),
        spent=known.spent if known.measured else None,
        saved=known.saved,
        at_least=known.at_least,
        confidence=CONFIDENCE,
        lost=known.lost,
        in_use=known.in_use,
        with_default=known.with_default,
        default_mean=known.default_mean,
        baselines_to_settle=None if way is None else way.runs,
        launches_to_settle=None if way is None else way.launches,
    )


def _verdict(known: SavingsVerdict) -> v1.SavingsVerdict.ValueType:
    return v1.SavingsVerdict.Value(f"SAVINGS_VERDICT_{known.value}")


def _savings(known: Savings) -> v1.Savings:
    return v1.Savings(
        cost=_estimate(known.cost),
        energy=_estimate(known.energy),
        time=_estimate(known.time),
        money=_estimate(known.money),
        carbon=_estimate(known.carbon),
        num_deliveries=known.num_deliveries,
        num_baseline_trials=known.num_baseline_trials,
        newest_baseline_time=timestamp(known.newest_baseline_time),
        compared_from_trial=known.compared_from or None,
        batch_size_in_use=known.in_use,
        num_in_use_trials=known.num_in_use,
        min_baseline_trials=LEAST_RUNS,
        num_exploring_launches=EXPLORING_LAUNCHES,
    )


def job_statistics(known: JobStatistics) -> v1.JobStatistics:
    """The figures of a job."""
    return v1.JobStatistics(
        trials=map(_trial_statistics, known.trials),
        num_deliveries=known.num_deliveries,
        spent=_amount(known.spent),
        savings=_savings(known.savings),
        num_excluded=known.num_excluded,
        months=[
            v1.MonthStatistics(
                start_time=timestamp(month.start),
                num_trials=month.num_trials,
                num_deliveries=month.num_deliveries,
                spent=_amount(month.spent),
            )
            for month in known.months
        ],
        advice=known.advice,
        break_even_trial=known.break_even_trial,
    )


def trial_range(known: Range) -> v1.ListTrialBucketsResponse:
    """What the trials of a range cost and saved, as a page of its own."""
    page = v1.ListTrialBucketsResponse(
        buckets=[
            v1.TrialBucket(
                first_trial=known.first,
                last_trial=known.last,
                batch_size=bucket.batch_size,
                num_trials=bucket.num_trials,
                num_deliveries=bucket.num_deliveries,
                num_undecided=bucket.num_undecided,
                least_cost=bucket.least_cost,
                median_cost=bucket.median_cost,
                most_cost=bucket.most_cost,
                newest_trial=bucket.newest_trial,
                last_end_time=timestamp(bucket.last_end_time),
                mean_epochs=bucket.mean_epochs,
                end_reason=_end_reason(bucket.end_reason),
                reason=bucket.reason,
                excluded=bucket.excluded,
            )
            for bucket in known.buckets
        ]
    )
    if known.point is not None:
        page.savings_points.add(
            trial_number=known.point.last,
            num_deliveries=known.point.num_deliveries,
            spent_cost=known.point.spent_cost,
            saved_cost=known.point.saved_cost,
            saved_cost_at_least=known.point.saved_at_least,
        )
    return page


def _trial_statistics(known: TrialStatistics) -> v1.TrialStatistics:
    return v1.TrialStatistics(
        batch_size=known.batch_size,
        origin=v1.TrialOrigin.Value(f"TRIAL_ORIGIN_{known.origin.value}"),
        num_trials=known.num_trials,
        num_running=known.num_running,
        num_deliveries=known.num_deliveries,
        num_missed=known.num_missed,
        num_undecided=known.num_undecided,
        spent=_amount(known.spent),
        mean_delivery=None if known.mean_delivery is None else _amount(known.mean_delivery),
        log_cost_deviation=math.sqrt(known.logs.variance) if known.logs.count > 1 else None,
        mean_epochs=known.mean_epochs,
        least_epochs=known.least_epochs,
        most_epochs=known.most_epochs,
    )


def _energy_per_step(sample: PowerSample) -> float | None:
    return None if sample.energy_joules is None else sample.energy_joules / sample.steps


def power_profile(spec: JobSpec, number: int, batch_size: int, samples: Sequence[PowerSample]) -> v1.PowerProfile:
    """The power limits that a trial has profiled."""
    limits = [
        v1.ProfiledLimit(
            power_setting=power_setting(sample.limit_watts_per_gpu),
            time_seconds_per_step=sample.time_seconds / sample.steps,
            energy_joules_per_step=_energy_per_step(sample),
            cost_per_step=cost_per_step(spec, sample),
        )
        for sample in samples
    ]
    return v1.PowerProfile(trial_number=number, batch_size=batch_size, limits=limits)


def totals(known: Totals) -> v1.Totals:
    """Figures of several jobs."""
    return v1.Totals(
        num_jobs=known.num_jobs,
        num_running_trials=known.num_running_trials,
        num_deliveries=known.num_deliveries,
        spent=_amount(known.spent),
        num_jobs_with_savings=known.num_jobs_with_savings,
        num_jobs_needing_attention=known.num_jobs_needing_attention,
        savings=_total_savings(known),
    )


def _total_savings(known: Totals) -> v1.Savings:
    spent = known.spent.quantities()

    def estimate(name: str) -> v1.SavingsEstimate | None:
        value, saved, at_least, at_most, lost = (
            getattr(each, name) for each in (spent, known.saved, known.saved_at_least, known.at_most, known.lost)
        )
        if value is None and name != "energy_joules":
            return None
        verdict = total_verdict(known.verdicts, at_least, at_most)
        return v1.SavingsEstimate(
            verdict=_verdict(verdict),
            spent=value,
            saved=saved,
            at_least=at_least,
            confidence=CONFIDENCE,
            lost=lost,
        )

    return v1.Savings(
        cost=estimate("cost"),
        energy=estimate("energy_joules"),
        time=estimate("time_seconds"),
        money=estimate("money"),
        carbon=estimate("carbon_grams"),
        num_deliveries=known.num_deliveries,
        min_baseline_trials=LEAST_RUNS,
        num_exploring_launches=EXPLORING_LAUNCHES,
    )


def preview(known: Preview) -> v1.PreviewNextResponse:
    """What the next launch would get."""
    choices = [
        v1.PreviewedChoice(
            batch_size=each.choice.batch_size,
            probability=each.num_chosen / known.num_samples,
            origin=v1.TrialOrigin.Value(f"TRIAL_ORIGIN_{each.choice.origin.value}"),
            reason=each.choice.reason,
        )
        for each in known.choices
    ]
    return v1.PreviewNextResponse(choices=choices, num_samples=known.num_samples)


def event(known: HistoryEntry) -> v1.Event:
    """An entry of the history."""
    return v1.Event(
        time=timestamp(known.time),
        kind=v1.EventKind.Value(f"EVENT_KIND_{known.kind.value}"),
        job_id=known.job_id,
        trial_number=known.trial_number,
        batch_size=known.batch_size,
        message=known.message,
        token_id=known.token_id,
    )


def factors(known: Factors) -> v1.Factors:
    """The operator's prices and carbon intensity."""
    return v1.Factors(
        electricity_price_per_kwh=known.electricity_price,
        gpu_hour_price=known.gpu_hour_price,
        currency=known.currency,
        carbon_intensity_grams_per_kwh=known.carbon_intensity,
        pue=known.pue,
        source=known.factors_source,
    )


def _job(known: Job, available: Sequence[int], failing_sizes: Collection[int]) -> v1.Job:
    search = known.search
    return v1.Job(
        spec=_spec(known.spec),
        policy_state=_policy_state(known),
        available_batch_sizes=available,
        min_cost=search.min_cost,
        min_cost_batch_size=search.min_cost_batch_size,
        create_time=timestamp(known.create_time),
        num_trials=known.num_trials,
        monitor=_monitor(known.monitor),
        other_monitors=filter(None, map(_monitor, known.other_monitors)),
        paused=known.paused,
        pinned_batch_size=known.pinned,
        baseline_requested=known.baseline_requested,
        baseline_every=known.baseline_every or None,
        best_known_batch_size=search.best_known,
        best_known_cost=search.best_known_cost,
        batch_size_in_use=batch_size_in_use(
            pinned=known.pinned,
            best_known=search.best_known,
            default=known.spec.default_batch_size,
            available=available,
            failing=failing_sizes,
        ),
        warnings=map(_warning, known.warnings),
        reset_after=known.reset_after or None,
        reset_time=timestamp(known.reset_time),
    )


def _spec(spec: JobSpec) -> v1.JobSpec:
    better = v1.DIRECTION_HIGHER_IS_BETTER if spec.higher_is_better else v1.DIRECTION_LOWER_IS_BETTER
    message = v1.JobSpec(
        job_id=spec.job_id,
        job_id_prefix=spec.job_id_prefix or None,
        batch_sizes=spec.batch_sizes,
        default_batch_size=spec.default_batch_size,
        target=v1.Target(value=spec.target_metric, direction=better),
        max_epochs=spec.max_epochs,
        eta_knob=spec.eta_knob,
        gpus=[v1.GpuGroup(**asdict(spec.gpu))],
        trial_lease_seconds=spec.trial_lease_seconds,
    )
    if spec.beta_knob is None:
        message.early_stopping.off.SetInParent()
    else:
        message.early_stopping.cost_bound.beta_knob = spec.beta_knob
    parameters = getattr(message.policy, spec.policy)
    parameters.SetInParent()
    values = {name: getattr(spec, name) for name in parameters.DESCRIPTOR.fields_by_name}
    parameters.MergeFrom(type(parameters)(**values))
    return message


def _policy_state(known: Job) -> v1.PolicyState:
    message, search = v1.PolicyState(), known.search
    if known.spec.policy in message.DESCRIPTOR.fields_by_name:
        getattr(message, known.spec.policy).SetInParent()
    if message.HasField("pruning_gts"):
        message.pruning_gts.stage = v1.PruningGtsStage.Value(f"PRUNING_GTS_STAGE_{search.stage.value}")
        message.pruning_gts.pruning_round = search.pruning_round
    return message


def _policy_details(known: Job, beliefs: Sequence[ArmBelief]) -> v1.PolicyDetails:
    message = v1.PolicyDetails()
    if known.spec.policy in message.DESCRIPTOR.fields_by_name:
        details = getattr(message, known.spec.policy)
        details.SetInParent()
        if known.search.stage is Stage.PRUNING:
            details.batch_sizes.extend(_batch_sizes_of_round(known.search))
        else:
            details.arms.extend(_arms(known.search, beliefs))
    return message


def _batch_sizes_of_round(search: Search) -> Iterator[v1.PruningGtsBatchSize]:
    exploring = next_exploration(search) if search.exploring is not None else None
    explored = exploring.batch_size if exploring is not None and exploring.running else None
    for arm in search.arms:
        yield v1.PruningGtsBatchSize(
            batch_size=arm.batch_size, round_cost=arm.round_cost, exploring=explored == arm.batch_size
        )


def _arms(search: Search, beliefs: Sequence[ArmBelief]) -> list[v1.Arm]:
    available = {arm.batch_size for arm in search.available}
    return [
        v1.Arm(
            batch_size=belief.batch_size,
            param_mean=belief.mean,
            param_precision=belief.precision,
            reward_precision=belief.reward_precision,
            num_observations=belief.observations,
        )
        for belief in beliefs
        if belief.batch_size in available
    ]


def _batch_size_states(job: Job, beliefs: Sequence[ArmBelief]) -> list[v1.BatchSizeState]:
    by_size = {belief.batch_size: belief for belief in beliefs}
    return [_batch_size_state(job, arm, by_size.get(arm.batch_size)) for arm in job.search.arms]


def _pinned(job: Job, reason: str) -> str:
    return f"pinned: every launch gets it until {jobs_command('unpin', job.spec.job_id)}; {reason}"


def _batch_size_state(job: Job, arm: Arm, belief: ArmBelief | None) -> v1.BatchSizeState:
    known, pinned = state(job.search, arm, job.spec.job_id), arm.batch_size == job.pinned
    return v1.BatchSizeState(
        batch_size=arm.batch_size,
        status=v1.BatchSizeStatus.Value(f"BATCH_SIZE_STATUS_{known.status.value}"),
        banned=arm.banned,
        pinned=pinned,
        reason=_pinned(job, known.reason) if pinned else known.reason,
        expected_cost=belief.expected_cost if belief else None,
        expected_cost_deviation=belief.deviation if belief else None,
        failure_rate=belief.failure_rate if belief else None,
        num_converged=arm.num_converged,
        num_not_converged=arm.num_decided - arm.num_converged,
        num_failed=arm.num_failed,
        num_running=arm.running,
    )


def shown_trial(known: ShownTrial) -> v1.Trial:
    """A trial as people see it."""
    message = trial(known.trial)
    message.decision_message = known.decision
    if known.recurrence is not None:
        message.recurrence = known.recurrence
    return message


def trial(known: Trial) -> v1.Trial:
    """A trial."""
    last = known.last
    return v1.Trial(
        id=v1.TrialId(**known.key._asdict()),
        batch_size=known.batch_size,
        origin=v1.TrialOrigin.Value(f"TRIAL_ORIGIN_{known.origin.value}"),
        status=v1.TrialStatus.Value(f"TRIAL_STATUS_{known.status.value}"),
        end_reason=_end_reason(known.end_reason),
        start_time=timestamp(known.start_time),
        end_time=timestamp(known.end_time),
        newest=measurement(last) if last else None,
        cost=known.cost,
        converged=known.converged,
        lease_expire_time=timestamp(known.lease_expire_time),
        monitor=_monitor(known.monitor),
        other_monitors=filter(None, map(_monitor, known.other_monitors)),
        excluded=known.excluded,
        warnings=map(_warning, warnings_of(known)),
        reason=known.launch.reason,
        cost_bound=known.cost_bound,
        target_reached=known.target_reached,
        pruning_gts=_pruning_gts_trial(known.policy_role),
        labels=dict(known.launch.labels),
        token_id=known.launch.token_id,
        heartbeat_interval=_duration(known.heartbeat_interval) if known.heartbeat_interval else None,
    )


def _pruning_gts_trial(known: PruningGtsTrial | None) -> v1.PruningGtsTrial | None:
    if known is None:
        return None
    role = v1.PruningGtsRole.Value(f"PRUNING_GTS_ROLE_{known.role.value}")
    return v1.PruningGtsTrial(role=role, pruning_round=known.pruning_round)


def _computed(used: ComputedUsage | None) -> v1.ComputedUsage | None:
    if used is None:
        return None
    return v1.ComputedUsage(
        time_seconds=used.time_seconds,
        energy_joules=used.energy_joules,
        power_setting=power_setting(used.limit_watts_per_gpu),
    )


def measurement(known: Measurement) -> v1.Measurement:
    """One epoch's measurement."""
    return v1.Measurement(
        epoch=known.epoch,
        time_seconds=known.time_seconds,
        energy_joules=known.energy_joules,
        metric=known.metric,
        report_time=timestamp(known.report_time),
        computed=_computed(known.computed),
        power_setting=power_setting(known.limit_watts_per_gpu),
    )


def timestamp(time: datetime | None) -> Timestamp | None:
    """A time as a message."""
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


@lru_cache(maxsize=64)
def _duration(span: timedelta) -> Duration:
    """A span as a message, which nobody changes."""
    message = Duration()
    message.FromTimedelta(span)
    return message


def power_samples(request: v1.ReportPowerProfileRequest) -> list[PowerSample]:
    """The samples of a profile, no more than it takes to refuse them."""
    sent = request.samples[: MAX_SAMPLES + 1]
    return [
        PowerSample(
            s.power_setting.limit_watts_per_gpu,
            s.time_seconds,
            s.energy_joules if s.HasField("energy_joules") else None,
            s.steps,
        )
        for s in sent
    ]


def acquired_limit(acquired: AcquiredLimit) -> v1.AcquirePowerLimitResponse:
    """What a trial does about the power limit."""
    return v1.AcquirePowerLimitResponse(
        action=v1.PowerAction.Value(f"POWER_ACTION_{acquired.action.value}"),
        power_setting=power_setting(acquired.cheapest.limit_watts_per_gpu) if acquired.cheapest else None,
        cheapest=_power_sample(acquired.cheapest),
        highest=_power_sample(acquired.highest),
    )


def _power_sample(sample: PowerSample | None) -> v1.PowerSample | None:
    if sample is None:
        return None
    return v1.PowerSample(
        power_setting=power_setting(sample.limit_watts_per_gpu),
        time_seconds=sample.time_seconds,
        energy_joules=sample.energy_joules,
        steps=sample.steps,
    )


def _power_limits(known: Job) -> list[v1.PowerLimit]:
    """The cheapest limit of every batch size that was profiled."""
    return [
        v1.PowerLimit(
            batch_size=state.batch_size,
            power_setting=power_setting(state.cheapest.limit_watts_per_gpu),
            cost_per_step=cost_per_step(known.spec, state.cheapest),
            time_seconds_per_step=state.cheapest.time_seconds / state.cheapest.steps,
            energy_joules_per_step=_energy_per_step(state.cheapest),
        )
        for state in known.power_limits
        if state.cheapest is not None
    ]
