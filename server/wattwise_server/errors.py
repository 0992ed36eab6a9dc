"""All errors that a call can end with: a closed list. Any other exception is a bug.

Each has a stable reason (a name of the proto's ErrorReason) and says whether a retry can succeed. `rpc/statuses.py`
maps them to gRPC statuses.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A field of a request that is invalid, and how to correct it."""

    field: str
    description: str


class ServiceError(Exception):
    """Base class of all errors that a call can end with."""

    reason: str
    retryable = False
    retry_seconds = 1.0
    """How long a client without pauses of its own is to wait, if it retries."""

    def __init__(
        self, message: str, *, violations: Sequence[Violation] = (), metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})


class ConflictError(Exception):
    """Another server has changed the job since it was read; nothing was saved, and the use case is to run again."""


class _FieldsError(ServiceError):
    what: str

    def __init__(self, *violations: Violation) -> None:
        faults = "; ".join(f"{v.field}: {v.description}" for v in violations)
        super().__init__(f"{self.what}: {faults}", violations=violations)


class InvalidJobSpecError(_FieldsError):
    """A JobSpec is invalid; every violation is listed."""

    reason = "ERROR_REASON_INVALID_JOB_SPEC"
    what = "invalid job"


class InvalidResultError(_FieldsError):
    """A measurement is invalid or contradicts an earlier one; nothing was changed."""

    reason = "ERROR_REASON_INVALID_RESULT"
    what = "invalid result"


class InvalidRequestError(_FieldsError):
    """Another field of a request is missing or invalid."""

    reason = "ERROR_REASON_INVALID_REQUEST"
    what = "invalid request"


class JobDiffersError(ServiceError):
    """A job with this id exists and has another configuration."""

    reason = "ERROR_REASON_JOB_DIFFERS"

    def __init__(self, job_id: str, differences: Sequence[Violation]) -> None:
        listed = "; ".join(f"{each.field}: {each.description}" for each in differences)
        super().__init__(
            f"job {job_id!r} is registered with another configuration ({listed}); "
            "register the changed job under a new job_id, or use the registered values",
            violations=differences,
            metadata={"job_id": job_id},
        )


class JobNotFoundError(ServiceError):
    """No job has this id."""

    reason = "ERROR_REASON_JOB_NOT_FOUND"

    def __init__(self, job_id: str, *, to_register: bool = False) -> None:
        listed = "`wattwise jobs list` lists the ids of all jobs"
        advice = f"register it first; {listed}" if to_register else listed
        super().__init__(f"no job has the id {job_id!r}; {advice}", metadata={"job_id": job_id})


class TrialNotFoundError(ServiceError):
    """The job has no such trial; the metadata says by what the call named it."""

    reason = "ERROR_REASON_TRIAL_NOT_FOUND"

    def __init__(self, job_id: str, launch_id: str, trial_number: int, why: str) -> None:
        named = {"job_id": job_id, "launch_id": launch_id, "trial_number": str(trial_number or "")}
        super().__init__(why, metadata={name: value for name, value in named.items() if value})


class TrialDeletedError(ServiceError):
    """The trial existed and was deleted with its job."""

    reason = "ERROR_REASON_TRIAL_DELETED"

    def __init__(self, job_id: str, launch_id: str) -> None:
        super().__init__(
            f"the trial of launch {launch_id!r} was deleted with job {job_id!r}: stop its training, and neither "
            "import it nor register the job again",
            metadata={"job_id": job_id, "launch_id": launch_id},
        )


class NoBatchSizeLeftError(ServiceError):
    """No batch size is left to try."""

    reason = "ERROR_REASON_NO_BATCH_SIZE_LEFT"

    def __init__(self, job_id: str, causes: Mapping[str, Sequence[int]]) -> None:
        """Takes the batch sizes by cause: `failed`, `out_of_memory`, `missed`, `banned` and `untried`."""
        message = f"no batch size of job {job_id!r} is left to try ({described(causes)}); {remedy(causes, job_id)}"
        listed = {cause: ", ".join(map(str, sizes)) for cause, sizes in causes.items() if sizes}
        super().__init__(message, metadata={"job_id": job_id, **listed})


MISSED = "missed the target or the bound"
"""What a decided trial did that reached the target too late, or not at all."""

_CAUSES = {
    "failed": "trials crashed, were lost or ended undecided",
    "out_of_memory": "out of memory",
    "missed": MISSED,
    "banned": "banned",
    "untried": "never tried, because a smaller or larger one missed the target or ran out of memory",
}


def described(causes: Mapping[str, Sequence[int]]) -> str:
    """Returns what happened to batch sizes, by cause."""
    return "; ".join(f"{_CAUSES[cause]}: {', '.join(map(str, sizes))}" for cause, sizes in causes.items() if sizes)


def remedy(causes: Mapping[str, Sequence[int]], job_id: str) -> str:
    """Returns what helps a job without batch sizes, by what happened to them, and the commands that bring them back."""
    readmit = f"{jobs_command('readmit', job_id, 'BATCH_SIZE')} brings one batch size back"
    if causes.get("banned"):
        unban = f"{jobs_command('unban', job_id, 'BATCH_SIZE')} lifts a ban"
        readmit = f"{unban}, {readmit}" if any(causes[cause] for cause in causes if cause != "banned") else unban
    other = other_job(causes)
    if not (other or causes.get("failed")):
        return readmit
    back = f"after which {begin_again(job_id)} and {readmit}"
    if causes.get("failed"):
        return f"fix what makes trials crash, {back}{f'; or {other}' if other else ''}"
    return f"{other}; or fix the training, {back}"


def other_job(causes: Mapping[str, Sequence[int]]) -> str:
    """Returns the job that would not miss its target or run out of memory; empty if nothing did."""
    missed, too_large = causes.get("missed"), causes.get("out_of_memory")
    if not (missed or too_large):
        return ""
    sizes = "smaller batch_sizes" if not missed else "other batch_sizes"
    fitting = " that fit into memory" if missed and too_large else ""
    easier = ", an easier target, a larger max_epochs or a larger beta_knob" if missed else ""
    return f"register the job under a new job_id with {sizes}{fitting}{easier}"


def begin_again(job_id: str) -> str:
    """Returns which command begins the search of a job again."""
    return f"{jobs_command('reset', job_id)} begins the search again"


def jobs_command(action: str, job_id: str, *arguments: object) -> str:
    """Returns a `wattwise jobs` command, for a person to copy."""
    return f"`wattwise jobs {' '.join((action, shlex.quote(job_id), *map(str, arguments)))}`"


class NotPossibleNowError(ServiceError):
    """A valid call is not possible in the job's present state; the message says what to change first."""

    reason = "ERROR_REASON_NOT_POSSIBLE_NOW"

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"not possible now for job {job_id!r}: {why}", metadata={"job_id": job_id})


class TooManyJobsError(ServiceError):
    """The limit of jobs whose ids start with one prefix is reached."""

    reason = "ERROR_REASON_TOO_MANY_JOBS"

    def __init__(self, prefix: str, limit: int) -> None:
        super().__init__(
            f"the ids of {limit} jobs start with {prefix!r}, the limit of this server; use the same job_id for every "
            "launch, delete jobs that are no longer used, or ask the operator to raise --max-jobs-per-prefix",
            metadata={"job_id_prefix": prefix, "limit": str(limit)},
        )


class TooManyTrialsError(ServiceError):
    """The limit of running trials of one job is reached."""

    reason = "ERROR_REASON_TOO_MANY_TRIALS"
    retryable = True

    def __init__(self, job_id: str, limit: int) -> None:
        super().__init__(
            f"job {job_id!r} has {limit} running trials, the limit of this server: wait until some end (those "
            "without a trainer end with their lease), or ask the operator to raise --max-running-trials",
            metadata={"job_id": job_id, "limit": str(limit)},
        )


class TooManyStreamsError(ServiceError):
    """The limit of open streams is reached."""

    reason = "ERROR_REASON_TOO_MANY_STREAMS"
    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} streams are open, the limit of this server; use ReportResult and Heartbeat instead, "
            "close streams that are not needed, or ask the operator to raise --max-streams",
            metadata={"limit": str(limit)},
        )


class StorageUnavailableError(ServiceError):
    """The database could not be read or written; if it broke off during a commit, the call may have been saved."""

    reason = "ERROR_REASON_STORAGE_UNAVAILABLE"
    retryable = True


class StateFormatError(StorageUnavailableError, ValueError):
    """A job's search was stored by another version of its policy; nothing of it is read as something else."""

    def __init__(self, policy: str, found: object, known: object) -> None:
        super().__init__(
            f"the state of {policy} has format {found}; this version reads {known}: use the server version that wrote "
            "it, or start the search again with `wattwise jobs reset`"
        )


class ShuttingDownError(ServiceError):
    """The server is shutting down."""

    reason = "ERROR_REASON_SHUTTING_DOWN"
    retryable = True
    retry_seconds = 0.1
    """Another server may answer at once."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; retry")


class UnauthenticatedError(ServiceError):
    """The call has no valid token."""

    reason = "ERROR_REASON_UNAUTHENTICATED"


class PermissionDeniedError(ServiceError):
    """The call's token does not permit the method, or not for this job."""

    reason = "ERROR_REASON_PERMISSION_DENIED"


class StartError(Exception):
    """The server cannot start; the message says what to do."""
