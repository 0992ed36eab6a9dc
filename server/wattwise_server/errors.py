"""Every way a call can be refused: a closed list. What is not here is a bug.

Each error knows its stable reason (a name of the proto's ErrorReason) and whether the same call may succeed later.
`statuses.py` turns them into statuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of one field of a request, with what to do about it."""

    field: str
    description: str


class ServiceError(Exception):
    """Base of all refusals."""

    reason: str
    retryable = False

    def __init__(
        self, message: str, *, violations: Sequence[Violation] = (), metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})


class _FieldsError(ServiceError):
    """A request some of whose fields are at fault."""

    what: str

    def __init__(self, *violations: Violation) -> None:
        faults = "; ".join(f"{v.field}: {v.description}" for v in violations)
        super().__init__(f"{self.what}: {faults}", violations=violations)


class InvalidJobSpecError(_FieldsError):
    """A JobSpec has faults; all of them are listed."""

    reason = "ERROR_REASON_INVALID_JOB_SPEC"
    what = "invalid job"


class InvalidResultError(_FieldsError):
    """A measurement contradicts itself or an earlier one; nothing was changed."""

    reason = "ERROR_REASON_INVALID_RESULT"
    what = "invalid result"


class InvalidRequestError(_FieldsError):
    """Another field of a request is missing or makes no sense."""

    reason = "ERROR_REASON_INVALID_REQUEST"
    what = "invalid request"


class JobDiffersError(ServiceError):
    """The id is taken by a job with another configuration."""

    reason = "ERROR_REASON_JOB_DIFFERS"

    def __init__(self, job_id: str, differences: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name}: {both}" for name, both in differences.items())
        super().__init__(
            f"job {job_id!r} is registered with another configuration ({listed}); "
            "register the changed job under a new job_id, or go back to the registered values",
            metadata={"job_id": job_id, **differences},
        )


class JobNotFoundError(ServiceError):
    """No job has this id."""

    reason = "ERROR_REASON_JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"there is no job {job_id!r}; register it first, or look its id up with `wattwise jobs list`",
            metadata={"job_id": job_id},
        )


class TrialNotFoundError(ServiceError):
    """The job has no such trial, or it has another batch size."""

    reason = "ERROR_REASON_TRIAL_NOT_FOUND"

    def __init__(self, job_id: str, trial_number: int, batch_size: int, why: str) -> None:
        super().__init__(
            f"{why}; pass the id of the trial as it was dispatched",
            metadata={"job_id": job_id, "trial_number": str(trial_number), "batch_size": str(batch_size)},
        )


class NoTrialToResumeError(ServiceError):
    """The job has no trial of the request that is to go on."""

    reason = "ERROR_REASON_TRIAL_NOT_FOUND"

    def __init__(self, job_id: str, request_id: str) -> None:
        super().__init__(
            f"job {job_id!r} has no trial of request_id {request_id!r}, so that none can go on; pass the request_id of "
            "the launch that wrote the checkpoint, or leave resume out to be given a new trial",
            metadata={"job_id": job_id},
        )


class NoBatchSizeConvergedError(ServiceError):
    """A whole pruning round passed and nothing converged."""

    reason = "ERROR_REASON_NO_BATCH_SIZE_CONVERGED"

    def __init__(self, job_id: str, pruning_round: int, crashed: Sequence[int], untried: Sequence[int]) -> None:
        message = (
            f"no batch size of job {job_id!r} reached its target in pruning round {pruning_round + 1}; register under "
            "a new job_id with other batch_sizes, a target_metric within reach, more max_epochs or a larger beta_knob"
        )
        if crashed:
            message += (
                f"; but trials with {_sizes(crashed)} crashed, were lost or ran out of memory: mend that first, and "
                "delete the job to use its id again"
            )
        if untried:
            message += f"; {_sizes(untried)} not tried, for a smaller or larger one before had failed"
        super().__init__(message, metadata={"job_id": job_id, "pruning_round": str(pruning_round)})


def _sizes(batch_sizes: Sequence[int]) -> str:
    return f"batch size{'s' if len(batch_sizes) > 1 else ''} {', '.join(map(str, batch_sizes))}"


class TooManyJobsError(ServiceError):
    """The prefix has as many jobs as it may."""

    reason = "ERROR_REASON_TOO_MANY_JOBS"

    def __init__(self, prefix: str, limit: int) -> None:
        super().__init__(
            f"prefix {prefix!r} has {limit} jobs, as many as this server takes; give a job_id that stays the same from "
            "launch to launch, delete jobs that are done with, or have --max-jobs-per-prefix raised",
            metadata={"job_id_prefix": prefix, "limit": str(limit)},
        )


class TooManyStreamsError(ServiceError):
    """As many streams are open as may be."""

    reason = "ERROR_REASON_TOO_MANY_STREAMS"
    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} streams are open, as many as this server takes; go on by ReportResult and Heartbeat, close "
            "streams that are not needed, or have --max-streams raised",
            metadata={"limit": str(limit)},
        )


class StorageUnavailableError(ServiceError):
    """The database could not be read or written; nothing of the call was kept."""

    reason = "ERROR_REASON_STORAGE_UNAVAILABLE"
    retryable = True


class ShuttingDownError(ServiceError):
    """The server is on its way out."""

    reason = "ERROR_REASON_SHUTTING_DOWN"
    retryable = True

    def __init__(self) -> None:
        super().__init__("the server is shutting down; retry, the next one takes over")


class UnauthenticatedError(ServiceError):
    """The call brought no token that is known here."""

    reason = "ERROR_REASON_UNAUTHENTICATED"


class PermissionDeniedError(ServiceError):
    """The call's token may not do this, or not to this job."""

    reason = "ERROR_REASON_PERMISSION_DENIED"


class StartError(Exception):
    """The server cannot start; the message says what to do."""
