"""Who may call what: one table, with an entry for every method that the server answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from wattwise_server.errors import PermissionDeniedError
from wattwise_server.tokens import Role, Token

Outside: TypeAlias = Callable[[Any, str], str | None]
"""From a message and a token's prefix to what the message names that does not start with it; None if nothing does."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a method asks of a token.

    Attributes:
        role: The least role that may call it; None is everybody, without a token.
        outside: What a message names beyond a token's reach.
    """

    role: Role | None
    outside: Outside


def _nothing(_message: Any, _prefix: str) -> None:
    """For methods that are about no job."""


def _job(message: Any, prefix: str) -> str | None:
    return _first_outside(prefix, message.job_id)


def _trial(message: Any, prefix: str) -> str | None:
    return _first_outside(prefix, message.trial.job_id)


def _result(message: Any, prefix: str) -> str | None:
    return _trial(message.result, prefix)


def _event(message: Any, prefix: str) -> str | None:
    return _trial(message.result if message.HasField("result") else message.heartbeat, prefix)


def _registered(message: Any, prefix: str) -> str | None:
    """The id that is given, and every id that can be made of the job's prefix."""
    job = message.job
    made = f"{job.job_id_prefix}-"
    return _first_outside(prefix, job.job_id if job.HasField("job_id") else made, made)


def _listed(message: Any, prefix: str) -> str | None:
    """Narrows the list to what the token reaches; to ask for jobs elsewhere is refused."""
    if prefix.startswith(message.job_id_prefix):
        message.job_id_prefix = prefix
    return _first_outside(prefix, message.job_id_prefix)


def _first_outside(prefix: str, *names: str) -> str | None:
    return next((name for name in names if not name.startswith(prefix)), None)


_TRAINERS = "/wattwise.v1.BatchSizeOptimizer/"
_PEOPLES = "/wattwise.v1.JobAdmin/"

ACCESS: Mapping[str, Access] = {
    f"{_TRAINERS}RegisterJob": Access(Role.TRAINER, _registered),
    f"{_TRAINERS}GetNextBatchSize": Access(Role.TRAINER, _job),
    f"{_TRAINERS}ReportResult": Access(Role.TRAINER, _result),
    f"{_TRAINERS}StreamResults": Access(Role.TRAINER, _event),
    f"{_TRAINERS}Heartbeat": Access(Role.TRAINER, _trial),
    f"{_TRAINERS}EndTrial": Access(Role.TRAINER, _trial),
    f"{_PEOPLES}GetJob": Access(Role.OPERATOR, _job),
    f"{_PEOPLES}ListJobs": Access(Role.OPERATOR, _listed),
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
    outside = ACCESS[method].outside(message, token.prefix)
    if outside is not None:
        raise _denied(
            token,
            f"does not reach {outside[:200]!r}: name a job whose id starts with {token.prefix!r}, "
            "or ask for a token that reaches this one",
        )


def _denied(token: Token, why: str) -> PermissionDeniedError:
    metadata = {"token_id": token.id, "role": token.role.name.lower(), "job_id_prefix": token.prefix}
    return PermissionDeniedError(f"{token} {why}", metadata=metadata)
