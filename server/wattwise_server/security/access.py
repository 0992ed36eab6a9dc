"""Which role may call which method: one table, with an entry for every method of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from wattwise_server.errors import PermissionDeniedError
from wattwise_server.security.tokens import Role, Token

JobIds: TypeAlias = Callable[[Any], tuple[str, ...]]
"""From a message to the job ids, or the prefixes of job ids, that it names."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a method requires of a token.

    Attributes:
        role: The lowest role that may call it; None means every caller, without a token.
        job_ids: The job ids of a message; each must start with the token's prefix.
        lists: Whether it lists jobs by prefix; the list is then narrowed to the token's prefix.
    """

    role: Role | None
    job_ids: JobIds
    lists: bool = False


def _nothing(_message: Any) -> tuple[str, ...]:
    return ()


def _job(message: Any) -> tuple[str, ...]:
    return (message.job_id,)


def _trial(message: Any) -> tuple[str, ...]:
    return (message.trial.job_id,)


def _result(message: Any) -> tuple[str, ...]:
    return (message.result.trial.job_id,)


def _event(message: Any) -> tuple[str, ...]:
    return _result(message) if message.HasField("result") else _trial(message.heartbeat)


def _registered(message: Any) -> tuple[str, ...]:
    """The job id, if it is set, the start of every id that can be generated from the prefix, and the prior jobs."""
    job = message.job
    made = f"{job.job_id_prefix}-"
    own = (job.job_id, made) if job.HasField("job_id") else (made,)
    return (*own, *job.prior_job_ids)


def _listed(message: Any) -> tuple[str, ...]:
    return (message.job_id_prefix,)


_SHOWN = 200
"""Characters of a client's text that an error repeats: the maximum length of an id."""

_TRAINERS = "/wattwise.v1.BatchSizeOptimizer/"
_ADMINS = "/wattwise.v1.JobAdmin/"

ACCESS: Mapping[str, Access] = {
    f"{_TRAINERS}RegisterJob": Access(Role.TRAINER, _registered),
    f"{_TRAINERS}GetNextBatchSize": Access(Role.TRAINER, _job),
    f"{_TRAINERS}ReportResult": Access(Role.TRAINER, _result),
    f"{_TRAINERS}StreamResults": Access(Role.TRAINER, _event),
    f"{_TRAINERS}Heartbeat": Access(Role.TRAINER, _trial),
    f"{_TRAINERS}EndTrial": Access(Role.TRAINER, _trial),
    f"{_TRAINERS}ImportTrial": Access(Role.TRAINER, _job),
    f"{_TRAINERS}GetPowerLimit": Access(Role.TRAINER, _job),
    f"{_TRAINERS}ReportPowerProfile": Access(Role.TRAINER, _trial),
    f"{_ADMINS}GetJob": Access(Role.OPERATOR, _job),
    f"{_ADMINS}ListJobs": Access(Role.OPERATOR, _listed, lists=True),
    f"{_ADMINS}ListTrials": Access(Role.OPERATOR, _job),
    f"{_ADMINS}GetTrial": Access(Role.OPERATOR, _trial),
    f"{_ADMINS}DeleteJob": Access(Role.OPERATOR, _job),
    f"{_ADMINS}ResetJob": Access(Role.OPERATOR, _job),
    f"{_ADMINS}SetTrialExcluded": Access(Role.OPERATOR, _trial),
    f"{_ADMINS}SetBatchSizeState": Access(Role.OPERATOR, _job),
    f"{_ADMINS}SetJobPaused": Access(Role.OPERATOR, _job),
    f"{_ADMINS}RequestBaseline": Access(Role.OPERATOR, _job),
    f"{_ADMINS}SetJobPolicy": Access(Role.OPERATOR, _job),
    f"{_ADMINS}WatchJob": Access(Role.OPERATOR, _job),
    # Probes have no token and learn only whether the server is serving.
    "/grpc.health.v1.Health/Check": Access(None, _nothing),
    "/grpc.health.v1.Health/List": Access(None, _nothing),
    "/grpc.health.v1.Health/Watch": Access(None, _nothing),
    # The protos are public, but which services run here need not be.
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Access(Role.TRAINER, _nothing),
}


def check_role(token: Token, method: str) -> None:
    """Checks that a token's role may call a method. A method without an entry is denied to every role.

    Raises:
        PermissionDeniedError: the role may not call it.
    """
    access = ACCESS.get(method)
    if access is None or access.role is None:
        raise _denied(token, f"may not call {method}: the server's access table has no entry for it")
    if token.role < access.role:
        role = access.role.name.lower()
        raise _denied(token, f"may not call {method}: it needs the role {role}; ask for a token with that role")


def check_reach(token: Token, method: str, message: Any) -> None:
    """Checks that a token may name the jobs of a message; narrows a list to the token's prefix.

    Raises:
        PermissionDeniedError: a job is outside the token's prefix, whether it exists or not.
    """
    access, prefix = ACCESS[method], token.prefix
    if access.lists and prefix.startswith(message.job_id_prefix):
        message.job_id_prefix = prefix
    outside = next((name for name in access.job_ids(message) if not name.startswith(prefix)), None)
    if outside is not None:
        raise _denied(
            token,
            f"may not access {outside[:_SHOWN]!r}: use a job whose id starts with {prefix!r}, "
            "or ask for a token with another prefix",
        )


def _denied(token: Token, why: str) -> PermissionDeniedError:
    metadata = {"token_id": token.id, "role": token.role.name.lower(), "job_id_prefix": token.prefix}
    return PermissionDeniedError(f"{token} {why}", metadata=metadata)
