"""Who may call what: one table, with an entry for every method that the server answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from wattwise_server.errors import PermissionDeniedError
from wattwise_server.security.tokens import Role, Token

Names: TypeAlias = Callable[[Any], tuple[str, ...]]
"""From a message to the job ids, or the beginnings of some, that it is about."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a method asks of a token.

    Attributes:
        role: The least role that may call it; None is everybody, without a token.
        names: What a message names; all of it must start with the token's prefix.
        lists: Whether it asks for all jobs with a prefix, and is given those among them that the token reaches.
    """

    role: Role | None
    names: Names
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
    """The id that is given, and what every id begins with that can be made of the job's prefix."""
    job = message.job
    made = f"{job.job_id_prefix}-"
    return (job.job_id, made) if job.HasField("job_id") else (made,)


def _listed(message: Any) -> tuple[str, ...]:
    return (message.job_id_prefix,)


_SHOWN = 200
"""Characters of what a client sent that a message repeats: as many as an id may have."""

_TRAINERS = "/wattwise.v1.BatchSizeOptimizer/"
_PEOPLES = "/wattwise.v1.JobAdmin/"

ACCESS: Mapping[str, Access] = {
    f"{_TRAINERS}RegisterJob": Access(Role.TRAINER, _registered),
    f"{_TRAINERS}GetNextBatchSize": Access(Role.TRAINER, _job),
    f"{_TRAINERS}ReportResult": Access(Role.TRAINER, _result),
    f"{_TRAINERS}StreamResults": Access(Role.TRAINER, _event),
    f"{_TRAINERS}Heartbeat": Access(Role.TRAINER, _trial),
    f"{_TRAINERS}EndTrial": Access(Role.TRAINER, _trial),
    f"{_TRAINERS}GetPowerLimit": Access(Role.TRAINER, _job),
    f"{_TRAINERS}ReportPowerProfile": Access(Role.TRAINER, _trial),
    f"{_PEOPLES}GetJob": Access(Role.OPERATOR, _job),
    f"{_PEOPLES}ListJobs": Access(Role.OPERATOR, _listed, lists=True),
    f"{_PEOPLES}ListTrials": Access(Role.OPERATOR, _job),
    f"{_PEOPLES}GetTrial": Access(Role.OPERATOR, _trial),
    f"{_PEOPLES}DeleteJob": Access(Role.OPERATOR, _job),
    f"{_PEOPLES}WatchJob": Access(Role.OPERATOR, _job),
    # Probes have no token, and hear of nothing but SERVING.
    "/grpc.health.v1.Health/Check": Access(None, _nothing),
    "/grpc.health.v1.Health/List": Access(None, _nothing),
    "/grpc.health.v1.Health/Watch": Access(None, _nothing),
    # The contract is public, but strangers need not be told what is served here.
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Access(Role.TRAINER, _nothing),
}


def check_role(token: Token, method: str) -> None:
    """Lets a token's role call a method, or not; nobody may call one that has no entry.

    Raises:
        PermissionDeniedError: it may not.
    """
    access = ACCESS.get(method)
    if access is None or access.role is None:
        raise _denied(token, f"may not call {method}: the server's table of access has no entry for it")
    if token.role < access.role:
        role = access.role.name.lower()
        raise _denied(token, f"may not call {method}: that takes the role {role}; ask for a token that has it")


def check_reach(token: Token, method: str, message: Any) -> None:
    """Lets a token send a message, or not; a list is narrowed to the jobs that the token reaches.

    Raises:
        PermissionDeniedError: it names a job that the token does not reach, whether there is one or not.
    """
    access, prefix = ACCESS[method], token.prefix
    if access.lists and prefix.startswith(message.job_id_prefix):
        message.job_id_prefix = prefix
    outside = next((name for name in access.names(message) if not name.startswith(prefix)), None)
    if outside is not None:
        raise _denied(
            token,
            f"does not reach {outside[:_SHOWN]!r}: name a job whose id starts with {prefix!r}, "
            "or ask for a token that reaches this one",
        )


def _denied(token: Token, why: str) -> PermissionDeniedError:
    metadata = {"token_id": token.id, "role": token.role.name.lower(), "job_id_prefix": token.prefix}
    return PermissionDeniedError(f"{token} {why}", metadata=metadata)
