"""What a request asks for: the use cases' values of a message, or the faults of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet
from wattwise import drafts, v1
from wattwise.rules import (
    BASELINE_ADVICE,
    MAX_ID_LENGTH,
    MAX_MEASUREMENTS,
    EndReason,
    JobDraft,
    TrialStatus,
    identifier_fault,
)

from wattwise_server.domain import (
    ComputedUsage,
    EnergyQuality,
    Measurement,
    MonitorKinds,
    PowerSample,
    TrialId,
    UnknownEndReason,
)
from wattwise_server.errors import InvalidJobSpecError, InvalidRequestError, InvalidResultError, Violation
from wattwise_server.store.base import EventList, JobList, JobOrder, JobState, Place, TrialList
from wattwise_server.usecases.finding import job_id_faults
from wattwise_server.usecases.imports import UNKNOWN_TIME, ImportedTrial
from wattwise_server.usecases.labels import label_faults
from wattwise_server.usecases.power_limits import MAX_SAMPLES
from wattwise_server.usecases.report import NO_METRIC, Report
from wattwise_server.usecases.statistics import MAX_RANGES

TrainersRequest: TypeAlias = (
    v1.HeartbeatRequest | v1.EndTrialRequest | v1.AcquirePowerLimitRequest | v1.ReportPowerProfileRequest
)
"""A call of a trainer about its trial, results aside."""
PersonsRequest: TypeAlias = v1.GetTrialRequest | v1.ListMeasurementsRequest | v1.SetTrialExcludedRequest
"""A call of a person about a trial."""


def job_draft(request: v1.RegisterJobRequest) -> JobDraft:
    """Returns the fields of the job that the client set.

    Raises:
        InvalidJobSpecError: the request contains no job, or fields that are unknown.
    """
    if not request.HasField("job"):
        raise InvalidJobSpecError(Violation("job", "is not set; send the job's configuration"))
    _check_known(request.job, "job")
    return drafts.job_draft(request.job)


def policy_draft(request: v1.SetJobPolicyRequest) -> JobDraft:
    """Returns the policy and those of its parameters that the client set.

    Raises:
        InvalidJobSpecError: the request contains no policy, or fields that are unknown.
    """
    _check_known(request.policy, "policy")
    if not request.policy.WhichOneof("policy"):
        known = ", ".join(field.name for field in v1.PolicySpec.DESCRIPTOR.fields)
        raise InvalidJobSpecError(
            *job_id_faults(request.job_id), Violation("policy", f"is not set; use one of {known}")
        )
    return drafts.policy_draft(request.policy)


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
    """Yields the numbers of the unknown fields in a message and in those inside, with the paths of their messages."""
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # its stub lacks __iter__
        yield path, unknown.field_number
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _unknown_fields(value, f"{path}.{field.name}")
        elif field.message_type is not None:
            for place, each in enumerate(value):
                yield from _unknown_fields(each, f"{path}.{field.name}[{place}]")


def trial_id(request: TrainersRequest) -> TrialId:
    """Returns the trial of a trainer's request.

    Raises:
        InvalidRequestError: the request names no trial.
    """
    return _trainers_trial(request, "trial")


def shown_trial_id(request: PersonsRequest) -> TrialId:
    """Returns the trial of a person's call, named by its launch or its number or both.

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
    """Returns one epoch's measurement.

    Raises:
        InvalidResultError: the request contains no result.
        InvalidRequestError: the result names no trial.
    """
    if not request.HasField("result"):
        raise InvalidResultError(Violation("result", "is not set; send the measurements up to the end of the epoch"))
    return result(request.result)


def result(measured: v1.TrainingResult) -> Report:
    """Returns one epoch's measurement.

    Raises:
        InvalidRequestError: the result names no trial.
    """
    key = _trainers_trial(measured, "result.trial")
    if not measured.HasField("measurement"):
        fault = "is not set; send what was measured up to the end of the epoch"
        raise InvalidResultError(Violation("result.measurement", fault))
    sent = measured.measurement
    # By position, which is faster: for every report.
    return Report(
        key,
        sent.epoch,
        sent.time_seconds,
        sent.energy_joules if sent.HasField("energy_joules") else None,
        sent.metric if sent.HasField("metric") else None,
        _monitor_kinds(measured.monitor) if measured.HasField("monitor") else None,
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


def _computed_usage(computed: v1.ComputedUsage) -> ComputedUsage:
    energy = computed.energy_joules if computed.HasField("energy_joules") else None
    return ComputedUsage(computed.time_seconds, energy, computed.power_setting.limit_watts_per_gpu)


def imported_trial(request: v1.ImportTrialRequest) -> ImportedTrial:
    """Returns a trial that ran without the server, with the faults of its times, and of metrics that are not set."""
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
        if not each.HasField("metric"):
            faults.append(Violation(f"measurements[{place}].metric", NO_METRIC))
        time = UNKNOWN_TIME
        if each.HasField("report_time"):
            time = _time(each.report_time, f"measurements[{place}].report_time", faults)
        measured.append(
            Measurement(
                epoch=each.epoch,
                time_seconds=each.time_seconds,
                energy_joules=each.energy_joules if each.HasField("energy_joules") else None,
                metric=each.metric if each.HasField("metric") else math.nan,
                report_time=time,
                computed=_computed_usage(each.computed) if each.HasField("computed") else None,
                limit_watts_per_gpu=_limit(each.power_setting),
            )
        )
    return ImportedTrial(
        job_id=request.job_id,
        launch_id=request.launch_id,
        batch_size=request.batch_size,
        measurements=measured,
        end_reason=end_reason(request.end_reason),
        start_time=start,
        monitor=_monitor_kinds(request.monitor) if request.HasField("monitor") else None,
        malformed=tuple(faults),
        validate_only=request.validate_only,
    )


def _time(stamp: Timestamp, field: str, faults: list[Violation]) -> datetime:
    try:
        return stamp.ToDatetime(timezone.utc)
    except (ValueError, OverflowError):
        faults.append(Violation(field, f"is {stamp.seconds} s since 1970, which is no valid time; use UTC"))
        return UNKNOWN_TIME


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
    """Returns a trainer's reason; None if it is unspecified."""
    if reason not in v1.EndReason.values():
        return UnknownEndReason(reason)
    name = _choice(reason, v1.EndReason, "end_reason", [])
    return EndReason(name) if name else None


def _choice(value: int, kind: Any, field: str, faults: list[Violation]) -> str:
    """Returns an enum's name without its prefix; empty if the value is unspecified or, which is a fault, unknown."""
    if not value:
        return ""
    unset, *names = kind.keys()
    if value not in kind.values():
        faults.append(Violation(field, f"{value} is unknown; use one of {', '.join(names)}"))
        return ""
    return str(kind.Name(value)).removeprefix(unset.removesuffix("UNSPECIFIED"))


def _choices(values: Sequence[int], kind: Any, field: str, faults: list[Violation]) -> list[str]:
    """Returns the distinct names of an enum's values without their prefix; adds the faults of all other values."""
    names: dict[str, None] = {}
    for place, value in enumerate(values):
        if not value:
            fault = f"is not set; use one of {', '.join(kind.keys()[1:])}"
            faults.append(Violation(f"{field}[{place}]", fault))
        elif name := _choice(value, kind, f"{field}[{place}]", faults):
            names[name] = None
    return list(names)


def job_list(request: v1.ListJobsRequest) -> JobList:
    """Returns which jobs a list contains.

    Raises:
        InvalidRequestError: a value is unknown or too long.
    """
    faults: list[Violation] = []
    order = _choice(request.order, v1.JobOrder, "order", faults)
    states = _choices(request.states, v1.JobState, "states", faults)
    if len(request.contains) > MAX_ID_LENGTH:
        faults.append(Violation("contains", f"has more than {MAX_ID_LENGTH} characters; use at most so many"))
    if faults:
        raise InvalidRequestError(*faults)
    return JobList(
        prefix=request.job_id_prefix,
        contains=request.contains,
        states=tuple(map(JobState, states)),
        order=JobOrder(order) if order else JobOrder.OLDEST,
        with_activity=request.with_summaries,
    )


def trial_list(request: v1.ListTrialsRequest) -> TrialList:
    """Returns which trials a list contains.

    Raises:
        InvalidRequestError: a value is unknown, or fields contradict each other.
    """
    of_several = request.HasField("job_id_prefix")
    faults = [] if of_several else job_id_faults(request.job_id)
    statuses = _choices(request.statuses, v1.TrialStatus, "statuses", faults)
    reasons = _choices(request.end_reasons, v1.EndReason, "end_reasons", faults)
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
        job_id=None if of_several else request.job_id,
        prefix=request.job_id_prefix,
        statuses=tuple(map(TrialStatus, statuses)),
        end_reasons=tuple(map(EndReason, reasons)),
        batch_size=request.batch_size or None,
        newest_first=request.newest_first,
        labels=tuple(sorted(request.labels.items())),
    )


def first_place(request: v1.ListTrialsRequest) -> Place:
    """Returns the place behind which the first page of trials begins."""
    number = request.from_trial_number
    if not number:
        return ()
    return (number + 1,) if request.newest_first else (number - 1,)


def event_list(request: v1.ListEventsRequest) -> EventList:
    """Returns which events a list contains.

    Raises:
        InvalidRequestError: the kind is unknown.
    """
    faults: list[Violation] = []
    kinds = _choices(request.kinds, v1.EventKind, "kinds", faults)
    if faults:
        raise InvalidRequestError(*faults)
    return EventList(request.job_id or None, request.job_id_prefix, tuple(kinds))


def batch_size(
    request: v1.SetBatchSizeBannedRequest | v1.SetPinnedBatchSizeRequest | v1.ReadmitBatchSizeRequest,
) -> int:
    """Returns the batch size of a request.

    Raises:
        InvalidRequestError: it is not set.
    """
    if not request.batch_size:
        raise InvalidRequestError(Violation("batch_size", "is not set, or 0; use a batch size of the job"))
    return request.batch_size


def required(
    request: v1.SetTrialExcludedRequest | v1.SetBatchSizeBannedRequest | v1.SetJobPausedRequest, field: str
) -> bool:
    """Returns the value of a field that must be set.

    Raises:
        InvalidRequestError: it is unset.
    """
    if not request.HasField(field):  # type: ignore[arg-type]
        raise InvalidRequestError(Violation(field, "is not set; use true or false"))
    return bool(getattr(request, field))


def every(request: v1.SetBaselineEveryRequest) -> int:
    """Returns how many launches one baseline comes in.

    Raises:
        InvalidRequestError: it is not set.
    """
    if not request.HasField("every"):
        raise InvalidRequestError(Violation("every", f"is not set; {BASELINE_ADVICE}"))
    return request.every


def request_id(request: v1.ResetJobRequest | v1.RequestBaselineRequest | v1.ReadmitBatchSizeRequest) -> str:
    """Returns the id by which a retry is recognized.

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
    """Returns when the job to delete was registered; None if that does not matter.

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
    """Returns the largest number of ranges that the trials are divided into.

    Raises:
        InvalidRequestError: it is negative or too large.
    """
    if not 0 <= request.max_ranges <= MAX_RANGES:
        fault = f"is {request.max_ranges}; use 1 to {MAX_RANGES}, or 0 for {MAX_RANGES}"
        raise InvalidRequestError(Violation("max_ranges", fault))
    return request.max_ranges or MAX_RANGES


def power_samples(request: v1.ReportPowerProfileRequest) -> list[PowerSample]:
    """Returns the samples of a profile, no more than it takes to refuse them."""
    sent = request.samples[: MAX_SAMPLES + 1]
    return [
        PowerSample(
            limit_watts_per_gpu=sample.power_setting.limit_watts_per_gpu,
            time_seconds=sample.time_seconds,
            energy_joules=sample.energy_joules if sample.HasField("energy_joules") else None,
            steps=sample.steps,
        )
        for sample in sent
    ]
