"""The sizes of error statuses."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from google.rpc import error_details_pb2, status_pb2
from wattwise.rules import MAX_ID_LENGTH
from wattwise_server.errors import (
    InvalidRequestError,
    JobDiffersError,
    NoBatchSizeLeftError,
    PermissionDeniedError,
    ServiceError,
    TooManyJobsError,
    TrialNotFoundError,
    Violation,
)
from wattwise_server.rpc.statuses import status_of

LONGEST = "\U0001f600" * MAX_ID_LENGTH
SIZES = [2**31 - 1 - number for number in range(64)]
FAULTS = [Violation(f"job.field_{number}", "é" * 300) for number in range(9)]


def info_of(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of a status."""
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


@pytest.mark.parametrize(
    ("error", "ids"),
    [
        (
            TrialNotFoundError(LONGEST, LONGEST, 7, LONGEST),
            {"job_id": LONGEST, "launch_id": LONGEST, "trial_number": "7"},
        ),
        (
            NoBatchSizeLeftError(LONGEST, dict.fromkeys(("failed", "out_of_memory", "missed", "banned"), SIZES)),
            {"job_id": LONGEST},
        ),
        (JobDiffersError(LONGEST, FAULTS), {"job_id": LONGEST}),
        (TooManyJobsError(LONGEST, 100_000), {"job_id_prefix": LONGEST}),
        (
            PermissionDeniedError(
                "no", metadata={"role": "r" * 2000, "more_words": "w" * 2000, "token_id": "t", "job_id_prefix": LONGEST}
            ),
            {"token_id": "t", "job_id_prefix": LONGEST},
        ),
    ],
)
def test_ids_are_never_cut(error: ServiceError, ids: dict[str, str]) -> None:
    """Metadata has ids of 200 characters whole, and the status still fits into the 8 KiB of trailers of clients."""
    status = status_of(error)
    metadata = dict(info_of(status).metadata)
    assert {name: metadata[name] for name in ids} == ids
    trailers = len(quote(status.message)) + len(base64.b64encode(status.SerializeToString()))
    assert trailers < 8 * 1024


def test_long_values_are_cut() -> None:
    """Any other value is cut at 500 bytes, and of many values those that fit are kept."""
    status = status_of(NoBatchSizeLeftError("j", dict.fromkeys(("failed", "missed", "banned", "untried"), SIZES)))
    metadata = info_of(status).metadata
    assert all(metadata[cause].endswith("…") and len(metadata[cause].encode()) <= 500 for cause in ("failed", "missed"))
    omitted = {"failed", "missed", "banned", "untried"} - set(metadata)
    assert "untried" in omitted
    assert (metadata["more"], metadata["job_id"]) == (f"{len(omitted)} more omitted", "j")


def test_more_faults_than_fit_are_counted() -> None:
    """The last violation, without a field, says how many are left out; a long description is cut."""
    status = status_of(InvalidRequestError(*FAULTS))
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    *listed, rest = bad.field_violations
    assert [fault.field for fault in listed] == [fault.field for fault in FAULTS[: len(listed)]]
    assert all(fault.description.endswith("…") for fault in listed)
    assert (rest.field, rest.description) == ("", f"{len(FAULTS) - len(listed)} more violations omitted")
