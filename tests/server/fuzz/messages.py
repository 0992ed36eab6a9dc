"""Strategies that build any message of the protos, near-valid ones included, and corrupt its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import strategies as st
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import job_spec, monitor_of, policy_message, power_sample
from tests.server.fuzz.methods import OTHERS

BASE, VICTIM = "fuzz-base", "fuzz-victim"
"""Jobs that exist unless a call deleted them."""

BASE_SPEC = job_spec(job_id=BASE, job_id_prefix="fuzz", trial_lease_seconds=0)
VICTIM_SPEC = job_spec(job_id=VICTIM, job_id_prefix="fuzz", trial_lease_seconds=0, num_pruning_rounds=0)

_F = FieldDescriptor
_EDGES = (0, 1, -1, 2, 8, 16, 10, 1000, 1001)
_DOUBLES = (0.0, -0.0, 1.0, 300.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, 1e100)
_LEASES = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e6, 1e100, 1.7e308)
_TEXTS = ("", "\0", "\x1b[31m", "a" * 300, "é" * 100_000, "\ufffe\uffff", "\u202e", "'; DROP TABLE jobs; --", "%s%n{0}")


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [edge for edge in (*_EDGES, low, high) if low <= edge <= high]
    return st.sampled_from(edges) | st.integers(low, high)


def _texts(field: FieldDescriptor) -> st.SearchStrategy[str]:
    anything = st.sampled_from(_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=20)
    if field.name == "job_id":
        return st.sampled_from((BASE, VICTIM, "fuzz-other")) | anything
    return st.just("fuzz") | anything if field.name == "job_id_prefix" else anything


_SCALARS: dict[int, Callable[[FieldDescriptor], st.SearchStrategy[Any]]] = {
    _F.TYPE_INT32: lambda _: _integers(-(2**31), 2**31 - 1),
    _F.TYPE_INT64: lambda _: _integers(-(2**63), 2**63 - 1),
    _F.TYPE_ENUM: lambda _: _integers(-(2**31), 2**31 - 1),
    # A lease that soon runs out would change the state in the middle of a comparison.
    _F.TYPE_DOUBLE: lambda field: (
        st.sampled_from(_LEASES)
        if field.name == "trial_lease_seconds"
        else st.sampled_from(_DOUBLES) | st.floats(width=64)
    ),
    _F.TYPE_BOOL: lambda _: st.booleans(),
    _F.TYPE_STRING: _texts,
    _F.TYPE_BYTES: lambda _: st.binary(max_size=50),
}


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type)
    return _SCALARS[field.type](field)


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor) -> Message:
    """Any message of a type: every field may be unset, extreme or meaningless."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if not draw(st.integers(0, 3)):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update(draw(st.dictionaries(_texts(field), _texts(field), max_size=20)))
        elif field.is_repeated:
            values = draw(st.lists(_values(field), max_size=5))
            # gRPC itself refuses a message beyond its limit: test_message_beyond_the_limit.
            short = [value for value in values if not isinstance(value, str) or len(value) <= 300]
            getattr(message, field.name).extend(values + short * draw(st.sampled_from((0, 0, 0, 399))))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(_values(field)))
        else:
            setattr(message, field.name, draw(_values(field)))
    return message


def seeds(trial: v1.TrialId) -> dict[str, list[Message]]:
    """Valid requests by the full name of their type, from which malformed ones are made."""
    result = v1.TrainingResult(
        trial=trial,
        measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.1, epoch=1),
        monitor=monitor_of("nvml"),
    )
    known: list[Message] = [
        v1.RegisterJobRequest(job=BASE_SPEC),
        v1.RegisterJobRequest(job=VICTIM_SPEC),
        v1.GetNextBatchSizeRequest(job_id=BASE, launch_id="r"),
        v1.ReportResultRequest(result=result),
        v1.StreamResultsRequest(result=result),
        v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial)),
        v1.HeartbeatRequest(trial=trial),
        v1.EndTrialRequest(trial=trial, end_reason=v1.END_REASON_ERROR),
        v1.LookupTrialRequest(job_id=BASE, launch_id=trial.launch_id),
        v1.AcquirePowerLimitRequest(trial=trial),
        v1.ReportPowerProfileRequest(trial=trial, samples=[power_sample(250), power_sample(225, energy=90)]),
        v1.GetJobRequest(job_id=BASE),
        v1.ListJobsRequest(page_size=3, job_id_prefix="fuzz"),
        v1.ListTrialsRequest(job_id=BASE, page_size=3, batch_size=16),
        v1.GetTrialRequest(trial=trial),
        v1.ListMeasurementsRequest(trial=trial, page_size=3, newest_first=True),
        v1.ImportTrialRequest(
            job_id=BASE,
            launch_id="imported",
            batch_size=16,
            measurements=[v1.Measurement(epoch=1, time_seconds=1, energy_joules=100, metric=0.95)],
            end_reason=v1.END_REASON_COMPLETED,
        ),
        v1.GetNextBatchSizeRequest(job_id=BASE, launch_id=new_id(), labels={"host": "node-7"}),
        v1.ListJobsRequest(
            order=v1.JOB_ORDER_ATTENTION, states=[v1.JOB_STATE_RUNNING], contains="u", with_summaries=True
        ),
        v1.ListTrialsRequest(job_id_prefix="fuzz", newest_first=True, with_total_size=True),
        v1.ListTrialsRequest(job_id=BASE, from_trial_number=2, end_reasons=[v1.END_REASON_LOST]),
        v1.ListTrialsRequest(job_id=BASE, labels={"host": "a"}),
        v1.ListEventsRequest(job_id_prefix="fuzz", kinds=[v1.EVENT_KIND_TRIAL_FAILED]),
        v1.GetJobStatisticsRequest(job_id=BASE),
        v1.ListTrialBucketsRequest(job_id=BASE, max_ranges=7, with_excluded=True),
        v1.ListPowerProfilesRequest(job_id=BASE),
        v1.GetTotalsRequest(job_id_prefix="fuzz"),
        v1.PreviewNextRequest(job_id=BASE),
        v1.GetServerInfoRequest(),
        v1.WatchTrialsRequest(job_id=BASE),
        v1.WatchJobsRequest(job_id_prefix="fuzz"),
        v1.SetTrialExcludedRequest(trial=trial, excluded=True),
        v1.SetBatchSizeBannedRequest(job_id=BASE, batch_size=8, banned=True),
        v1.SetBatchSizeBannedRequest(job_id=BASE, batch_size=8, banned=False),
        v1.SetPinnedBatchSizeRequest(job_id=BASE, batch_size=8),
        v1.SetPinnedBatchSizeRequest(job_id=BASE),
        v1.ReadmitBatchSizeRequest(job_id=BASE, batch_size=8, request_id=new_id()),
        v1.SetJobPausedRequest(job_id=BASE, paused=True),
        v1.RequestBaselineRequest(job_id=BASE, request_id=new_id()),
        v1.SetBaselineEveryRequest(job_id=BASE, every=3),
        v1.SetJobPolicyRequest(job_id=BASE, policy=policy_message("gts")),
        v1.ResetJobRequest(job_id=VICTIM, request_id=new_id()),
        v1.DeleteJobRequest(job_id=VICTIM),
        v1.WatchJobRequest(job_id=BASE),
        health_pb2.HealthCheckRequest(service="wattwise.v1.JobReader"),
        reflection_pb2.ServerReflectionRequest(host="h", file_containing_symbol="wattwise.v1.JobReader"),
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(GetMessageClass(method.input_type)() for method in OTHERS),
    ]
    found: dict[str, list[Message]] = {}
    for message in known:
        found.setdefault(message.DESCRIPTOR.full_name, []).append(message)
    return found


def _varint(value: int) -> bytes:
    sevens = bytearray()
    while value > 0x7F:
        sevens.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*sevens, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _nested(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = _field(1, inner)
    return inner


_APPENDED = (
    _field(1000, b"unknown"),
    _field(1, b"\xff\xfe"),
    _field(1, b"\xed\xa0\x80"),
    _nested(40),
    _nested(300),
    b"\x0b" * 200,
    b"\x08" + b"\xff" * 10,
    b"\x08" + b"\xff" * 9 + b"\x01",
    b"\x0a\xff\xff\xff\xff\x07",
    b"\x0d\x00",
    b"\x00",
    _varint(2**29 << 3 | 2) + b"\x00",
)


@st.composite
def spoilt(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes after bit flips, cuts, insertions, repetitions, and undeclared fields."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(("flip", "cut", "insert", "twice", "append"))):
            case "flip" if data:
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
            case "cut":
                data = data[:at]
            case "insert":
                data = data[:at] + draw(st.binary(max_size=8)) + data[at:]
            case "twice":
                data += data
            case _:
                data += draw(st.sampled_from(_APPENDED))
    return data
