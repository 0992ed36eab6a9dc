"""Which role may call which method: the roles follow from the service, and every method has an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from wattwise.rules import identifier_fault

from wattwise_server.errors import PermissionDeniedError
from wattwise_server.security.tokens import Role, Token

JobIds: TypeAlias = Callable[[Any], tuple[str, ...]]
"""Maps a message to the job ids, or the prefixes of job ids, that it names."""


def _never(_message: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Access:
    """What a method requires of a token.

    Attributes:
        roles: The roles that may call it; None means every caller, without a token.
        job_ids: The job ids of a message; each must start with the token's prefix if a job can have it.
        lists: Whether a message is about all jobs with a prefix, which is then narrowed to the token's.
    """

    roles: frozenset[Role] | None
    job_ids: JobIds
    lists: Callable[[Any], bool] = _never


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
    return (message.job.job_id, *_priors(message.job.policy))


def _with_policy(message: Any) -> tuple[str, ...]:
    return (message.job_id, *_priors(message.policy))


def _priors(policy: Any) -> tuple[str, ...]:
    """Returns the prior jobs, of whatever policy has some."""
    name = policy.WhichOneof("policy")
    parameters = getattr(policy, name) if name else None
    return tuple(getattr(parameters, "prior_job_ids", ()))


def _listed(message: Any) -> tuple[str, ...]:
    return (message.job_id_prefix,)


def _always(_message: Any) -> bool:
    return True


def _of_several(message: Any) -> bool:
    return bool(message.HasField("job_id_prefix"))


def _listed_trials(message: Any) -> tuple[str, ...]:
    return _listed(message) if _of_several(message) else _job(message)


def _listed_events(message: Any) -> tuple[str, ...]:
    return (*_listed(message), *((message.job_id,) if message.job_id else ()))


_SHOWN = 200
"""Characters of a client's text that an error repeats: the maximum length of an id."""

_TRAINER = frozenset({Role.TRAINER, Role.OPERATOR, Role.ADMIN})
_VIEWER = frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMIN})
_OPERATOR = frozenset({Role.OPERATOR, Role.ADMIN})
_ANY = frozenset(Role)

_LISTS: Mapping[str, Callable[[Any], bool]] = {
    "ListJobs": _always,
    "ListTrials": _of_several,
    "WatchJobs": _always,
    "GetTotals": _always,
    "ListEvents": _always,
}
"""The methods whose messages may be about all jobs with a prefix."""


def _service(name: str, roles: frozenset[Role], methods: Mapping[str, JobIds]) -> dict[str, Access]:
    return {
        f"/wattwise.v1.{name}/{method}": Access(roles, job_ids, _LISTS.get(method, _never))
        for method, job_ids in methods.items()
    }


ACCESS: Mapping[str, Access] = {
    **_service(
        "BatchSizeOptimizer",
        _TRAINER,
        {
            "RegisterJob": _registered,
            "GetNextBatchSize": _job,
            "ReportResult": _result,
            "StreamResults": _event,
            "Heartbeat": _trial,
            "EndTrial": _trial,
            "ImportTrial": _job,
            "LookupTrial": _job,
            "AcquirePowerLimit": _trial,
            "ReportPowerProfile": _trial,
        },
    ),
    **_service(
        "JobReader",
        _VIEWER,
        {
            "GetJob": _job,
            "ListJobs": _listed,
            "ListTrials": _listed_trials,
            "GetTrial": _trial,
            "ListMeasurements": _trial,
            "WatchJob": _job,
            "WatchTrials": _job,
            "WatchJobs": _listed,
            "GetJobStatistics": _job,
            "ListTrialBuckets": _job,
            "ListPowerProfiles": _job,
            "GetTotals": _listed,
            "PreviewNext": _job,
            "ListEvents": _listed_events,
        },
    ),
    **_service(
        "JobControl",
        _OPERATOR,
        {
            "DeleteJob": _job,
            "ResetJob": _job,
            "SetTrialExcluded": _trial,
            "SetBatchSizeBanned": _job,
            "SetPinnedBatchSize": _job,
            "ReadmitBatchSize": _job,
            "SetJobPaused": _job,
            "RequestBaseline": _job,
            "SetBaselineEvery": _job,
            "SetJobPolicy": _with_policy,
        },
    ),
    **_service("ServerInfo", _ANY, {"GetServerInfo": _nothing}),
    # Probes have no token and learn only whether the server is serving.
    "/grpc.health.v1.Health/Check": Access(None, _nothing),
    "/grpc.health.v1.Health/List": Access(None, _nothing),
    "/grpc.health.v1.Health/Watch": Access(None, _nothing),
    # The protos are public, but which services run here need not be.
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Access(_ANY, _nothing),
}


def check_role(token: Token, method: str) -> None:
    """Checks that a token's role may call a method. A method without an entry is denied to every role.

    Raises:
        PermissionDeniedError: the role may not call it.
    """
    access = ACCESS.get(method)
    if access is None or access.roles is None:
        raise _denied(token, f"may not call {method}: the server's access table has no entry for it")
    if token.role not in access.roles:
        # An operator's token may do what each of the lesser ones may.
        role = min(access.roles).name.lower()
        raise _denied(token, f"may not call {method}: it needs the role {role}; ask for a token with that role")


def check_reach(token: Token, method: str, message: Any) -> None:
    """Checks that a token may name the jobs of a message; narrows a list to the token's prefix.

    Raises:
        PermissionDeniedError: a job is outside the token's prefix, whether it exists or not.
    """
    access, prefix = ACCESS[method], token.prefix
    if not prefix:
        return
    lists = access.lists(message)
    if lists and prefix.startswith(message.job_id_prefix):
        message.job_id_prefix = prefix
    for name in access.job_ids(message):
        # No job has an empty or invalid id: the call itself says what is wrong.
        if name.startswith(prefix) or not (lists or (name and identifier_fault(name) is None)):
            continue
        raise _denied(
            token,
            f"may not access {name[:_SHOWN]!r}: use a job whose id starts with {prefix!r}, "
            "or ask for a token with another prefix",
        )


def _denied(token: Token, why: str) -> PermissionDeniedError:
    metadata = {"token_id": token.id, "role": token.role.name.lower(), "job_id_prefix": token.prefix}
    return PermissionDeniedError(f"{token} {why}", metadata=metadata)
