"""Which token may call which method for which job, on a server with a token file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from wattwise import v1
from wattwise.drafts import POLICIES as FIELDS
from wattwise.rpc.calls import new_id
from wattwise_server.errors import PermissionDeniedError
from wattwise_server.security.access import ACCESS, check_role
from wattwise_server.security.tokens import Role, new_token

from tests.credentials import bearing, issue
from tests.jobs import job_spec, policy_message, power_sample
from tests.live_server import LiveServer
from tests.refusals import refused

Request: TypeAlias = Callable[[str], Message]

FILES = (
    v1.RegisterJobRequest.DESCRIPTOR.file,
    v1.GetJobRequest.DESCRIPTOR.file,
    v1.DeleteJobRequest.DESCRIPTOR.file,
    v1.GetServerInfoRequest.DESCRIPTOR.file,
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
}
TRAINERS, READERS, CONTROLS = (f"/wattwise.v1.{name}/" for name in ("BatchSizeOptimizer", "JobReader", "JobControl"))
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
MINE, OTHERS = "team-a-nightly", "team-b-nightly"


def trial(job_id: str) -> v1.TrialId:
    """The first trial of a job."""
    return v1.TrialId(job_id=job_id, launch_id="looked up", trial_number=1)


def result(job_id: str) -> v1.TrainingResult:
    """A result of that trial."""
    return v1.TrainingResult(
        trial=trial(job_id), measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.1, epoch=1)
    )


def registration(job_id: str) -> v1.RegisterJobRequest:
    """Registers a job."""
    return v1.RegisterJobRequest(job=job_spec(job_id=job_id, job_id_prefix=job_id[:6]))


OF_TRAINERS: dict[str, Request] = {
    "RegisterJob": registration,
    "GetNextBatchSize": lambda job_id: v1.GetNextBatchSizeRequest(job_id=job_id, launch_id="looked up"),
    "ReportResult": lambda job_id: v1.ReportResultRequest(result=result(job_id)),
    "StreamResults": lambda job_id: v1.StreamResultsRequest(result=result(job_id)),
    "Heartbeat": lambda job_id: v1.HeartbeatRequest(trial=trial(job_id)),
    "LookupTrial": lambda job_id: v1.LookupTrialRequest(job_id=job_id, launch_id="looked up"),
    "AcquirePowerLimit": lambda job_id: v1.AcquirePowerLimitRequest(trial=trial(job_id)),
    "ReportPowerProfile": lambda job_id: v1.ReportPowerProfileRequest(trial=trial(job_id), samples=[power_sample()]),
    "EndTrial": lambda job_id: v1.EndTrialRequest(trial=trial(job_id), end_reason=v1.END_REASON_COMPLETED),
    "ImportTrial": lambda job_id: v1.ImportTrialRequest(
        job_id=job_id, launch_id=f"import {job_id}", batch_size=16, end_reason=v1.END_REASON_PREEMPTED
    ),
}
OF_READERS: dict[str, Request] = {
    "GetJob": lambda job_id: v1.GetJobRequest(job_id=job_id),
    "ListJobs": lambda job_id: v1.ListJobsRequest(job_id_prefix=job_id),
    "ListTrials": lambda job_id: v1.ListTrialsRequest(job_id=job_id),
    "GetTrial": lambda job_id: v1.GetTrialRequest(trial=trial(job_id)),
    "ListMeasurements": lambda job_id: v1.ListMeasurementsRequest(trial=trial(job_id)),
    "WatchJob": lambda job_id: v1.WatchJobRequest(job_id=job_id),
    "WatchTrials": lambda job_id: v1.WatchTrialsRequest(job_id=job_id),
    "WatchJobs": lambda job_id: v1.WatchJobsRequest(job_id_prefix=job_id),
    "GetJobStatistics": lambda job_id: v1.GetJobStatisticsRequest(job_id=job_id),
    "ListTrialBuckets": lambda job_id: v1.ListTrialBucketsRequest(job_id=job_id),
    "ListPowerProfiles": lambda job_id: v1.ListPowerProfilesRequest(job_id=job_id),
    "GetTotals": lambda job_id: v1.GetTotalsRequest(job_id_prefix=job_id),
    "PreviewNext": lambda job_id: v1.PreviewNextRequest(job_id=job_id),
    "ListEvents": lambda job_id: v1.ListEventsRequest(job_id=job_id),
}
OF_CONTROLS: dict[str, Request] = {
    "SetTrialExcluded": lambda job_id: v1.SetTrialExcludedRequest(trial=trial(job_id), excluded=False),
    "SetBatchSizeBanned": lambda job_id: v1.SetBatchSizeBannedRequest(job_id=job_id, batch_size=16, banned=False),
    "SetPinnedBatchSize": lambda job_id: v1.SetPinnedBatchSizeRequest(job_id=job_id),
    "ReadmitBatchSize": lambda job_id: v1.ReadmitBatchSizeRequest(job_id=job_id, batch_size=16, request_id=new_id()),
    "SetJobPaused": lambda job_id: v1.SetJobPausedRequest(job_id=job_id, paused=False),
    "SetBaselineEvery": lambda job_id: v1.SetBaselineEveryRequest(job_id=job_id, every=0),
    "RequestBaseline": lambda job_id: v1.RequestBaselineRequest(job_id=job_id, request_id=new_id()),
    "SetJobPolicy": lambda job_id: v1.SetJobPolicyRequest(job_id=job_id, policy=policy_message("gts")),
    "ResetJob": lambda job_id: v1.ResetJobRequest(job_id=job_id, request_id=new_id()),
    "DeleteJob": lambda job_id: v1.DeleteJobRequest(job_id=job_id),
}
REQUESTS = {
    service + name: make
    for service, requests in ((TRAINERS, OF_TRAINERS), (READERS, OF_READERS), (CONTROLS, OF_CONTROLS))
    for name, make in requests.items()
}
OF_PEOPLE = [method for method in REQUESTS if not method.startswith(TRAINERS)]


@dataclass
class Guarded:
    """A server with a token file, and a token of each kind."""

    live: LiveServer
    file: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, request: Message, token: str | None = None) -> list[Any]:
        """Makes one call of any kind with a token; returns the first response, if any."""
        kind: Any = METHODS[method]
        metadata = None if token is None else bearing(self.tokens.get(token, token))
        codec = {
            "request_serializer": type(request).SerializeToString,
            "response_deserializer": lambda data: data,
        }
        channel = self.live.channel
        if kind.client_streaming:
            return list(channel.stream_stream(method, **codec)(iter([request]), metadata=metadata, timeout=20))
        if kind.server_streaming:
            answers = channel.unary_stream(method, **codec)(request, metadata=metadata, timeout=20)
            first = [next(answers)]
            answers.cancel()
            return first
        return [channel.unary_unary(method, **codec)(request, metadata=metadata, timeout=20)]

    def jobs(self, token: str, prefix: str = "") -> list[str]:
        """The ids that a token is shown."""
        request = v1.ListJobsRequest(job_id_prefix=prefix)
        answer = self.live.admin.ListJobs(request, metadata=bearing(self.tokens[token]))
        return [row.job.spec.job_id for row in answer.jobs]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Two teams on one server, each with a job that has a trial."""
    with two_teams(tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture
def unrefused(tmp_path: Path) -> Iterator[Guarded]:
    """The same on a server that has refused nobody yet: many refusals are not logged one by one."""
    with two_teams(tmp_path) as server:
        yield server


@contextmanager
def two_teams(folder: Path) -> Iterator[Guarded]:
    """A server of two teams, each with a job that has a trial."""
    server = Guarded(LiveServer(folder), folder / "server.tokens")
    for name, role, prefix in (
        ("trainer", Role.TRAINER, "team-a-"),
        ("operator", Role.OPERATOR, "team-a-"),
        ("other operator", Role.OPERATOR, "team-b-"),
        ("viewer", Role.VIEWER, "team-a-"),
        ("viewer of all", Role.VIEWER, ""),
        ("admin", Role.ADMIN, ""),
        ("team admin", Role.ADMIN, "team-a-"),
    ):
        server.tokens[name] = issue(server.file, role, prefix)
    server.tokens["expired"] = issue(server.file, Role.ADMIN, "", timedelta(seconds=-1))
    try:
        server.live.start("--tokens", str(server.file), "--log-level", "debug")
        for job_id in (MINE, OTHERS):
            server.call(f"{TRAINERS}RegisterJob", registration(job_id), "admin")
            server.call(
                f"{TRAINERS}GetNextBatchSize", v1.GetNextBatchSizeRequest(job_id=job_id, launch_id="looked up"), "admin"
            )
        yield server
    finally:
        server.live.close()


def log_of(guarded: Guarded) -> str:
    """The log so far."""
    return guarded.live.log.read_text()


def test_every_method_has_its_entry() -> None:
    """The table of access has an entry for each method that the server answers, and for no other."""
    assert set(ACCESS) == set(METHODS)


def test_method_without_an_entry_is_denied() -> None:
    """A method without an entry is denied to admins too."""
    _, admin = new_token(Role.ADMIN, "", None)
    with pytest.raises(PermissionDeniedError, match="has no entry"):
        check_role(admin, f"{CONTROLS}DeleteEverything")


def test_requests_of_these_tests_are_complete() -> None:
    """These tests have a request for every method."""
    ours = {method for method in METHODS if method.startswith("/wattwise.")}
    # It names no job: test_server_info_says_who_asks.
    assert set(REQUESTS) == ours - {"/wattwise.v1.ServerInfo/GetServerInfo"}


@pytest.mark.parametrize("method", [*REQUESTS, REFLECTION])
def test_call_without_a_token_is_refused(guarded: Guarded, method: str) -> None:
    """Every method that needs a token refuses a missing, an unknown and an expired one, and another scheme."""
    good = guarded.tokens["admin"]
    wrong = good[:-1] + ("0" if good[-1] != "0" else "1")
    request = REQUESTS[method](MINE) if method in REQUESTS else reflection_pb2.ServerReflectionRequest(list_services="")
    for token, expected in ((None, "requires a token"), (wrong, "unknown token"), ("expired", "expired at")):
        with refused() as refusal:
            guarded.call(method, request, token)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAUTHENTICATED, "ERROR_REASON_UNAUTHENTICATED")
        assert expected in refusal.message
        assert refusal.metadata["retryable"] == "false"


def test_another_scheme_is_refused(guarded: Guarded) -> None:
    """A valid token under another scheme than Bearer, or under none, is refused."""
    for value in (guarded.tokens["admin"], f"Basic {guarded.tokens['admin']}", "Bearer", "Bearer "):
        with refused() as refusal:
            guarded.live.admin.ListJobs(v1.ListJobsRequest(), metadata=(("authorization", value),))
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED


def test_health_needs_no_token(guarded: Guarded) -> None:
    """Probes need no token."""
    health: Any = health_pb2_grpc.HealthStub(guarded.live.channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_takes_any_token(guarded: Guarded) -> None:
    """Every token may use reflection."""
    assert guarded.call(REFLECTION, reflection_pb2.ServerReflectionRequest(list_services=""), "trainer")


@pytest.mark.parametrize("method", OF_PEOPLE)
def test_trainer_may_not_call_people(guarded: Guarded, method: str) -> None:
    """A trainer's token may not call JobReader and JobControl, not even for its own team's job; nothing is deleted."""
    with refused() as refusal:
        guarded.call(method, REQUESTS[method](MINE), "trainer")
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ERROR_REASON_PERMISSION_DENIED")
    assert f"needs the role {'operator' if method.startswith(CONTROLS) else 'viewer'}" in refusal.message
    assert refusal.metadata["token_id"] == guarded.tokens["trainer"].split("_")[1]
    assert refusal.metadata["role"] == "trainer"
    assert refusal.metadata["job_id_prefix"] == "team-a-"
    assert MINE in guarded.jobs("admin")


@pytest.mark.parametrize("name", OF_READERS)
def test_viewer_reads(guarded: Guarded, name: str) -> None:
    """A viewer's token may make every call of JobReader."""
    assert guarded.call(READERS + name, OF_READERS[name](MINE), "viewer")


@pytest.mark.parametrize("name", OF_CONTROLS)
def test_viewer_changes_nothing(guarded: Guarded, name: str) -> None:
    """A viewer's token may make no call of JobControl."""
    with refused() as refusal:
        guarded.call(CONTROLS + name, OF_CONTROLS[name](MINE), "viewer")
    assert (refusal.code, refusal.metadata["role"]) == (grpc.StatusCode.PERMISSION_DENIED, "viewer")


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_viewer_may_not_train(guarded: Guarded, name: str) -> None:
    """A viewer's token may not make the calls of trainers."""
    with refused() as refusal:
        guarded.call(TRAINERS + name, OF_TRAINERS[name](MINE), "viewer")
    assert refusal.code == grpc.StatusCode.PERMISSION_DENIED
    assert "needs the role trainer" in refusal.message


def test_lists_of_several_jobs_are_narrowed(guarded: Guarded) -> None:
    """Trials, events and totals over several jobs are those that the token reaches; a viewer may reach all."""

    def seen(token: str) -> tuple[set[str], set[str], int]:
        metadata = bearing(guarded.tokens[token])
        trials = guarded.live.admin.ListTrials(v1.ListTrialsRequest(job_id_prefix=""), metadata=metadata).trials
        events = guarded.live.admin.ListEvents(v1.ListEventsRequest(), metadata=metadata).events
        totals = guarded.live.admin.GetTotals(v1.GetTotalsRequest(), metadata=metadata).totals
        return {each.id.job_id for each in trials}, {each.job_id for each in events}, totals.num_jobs

    assert seen("viewer") == ({MINE}, {MINE}, 1)
    assert seen("other operator") == ({OTHERS}, {OTHERS}, 1)
    assert seen("viewer of all") == ({MINE, OTHERS}, {MINE, OTHERS}, 2)


def test_server_info_says_who_asks(guarded: Guarded) -> None:
    """Every role learns its own role, prefix and token id."""
    for token, role, prefix in (
        ("viewer", v1.ROLE_VIEWER, "team-a-"),
        ("trainer", v1.ROLE_TRAINER, "team-a-"),
        ("admin", v1.ROLE_ADMIN, ""),
    ):
        info = guarded.live.admin.GetServerInfo(v1.GetServerInfoRequest(), metadata=bearing(guarded.tokens[token]))
        assert (info.role, info.job_id_prefix) == (role, prefix)
        assert info.token_id == guarded.tokens[token].split("_")[1]


@pytest.mark.parametrize("method", REQUESTS)
def test_other_teams_jobs_are_out_of_reach(guarded: Guarded, method: str) -> None:
    """Every method refuses a job outside the prefix, in the same way whether the job exists or not."""
    messages = []
    for job_id in (OTHERS, "team-b-nowhere"):
        with refused() as refusal:
            guarded.call(method, REQUESTS[method](job_id), "operator")
        assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
        messages.append(refusal.message.replace(job_id, "…"))
    assert messages[0] == messages[1]
    assert "may not access" in messages[0]
    assert OTHERS in guarded.jobs("admin")


@pytest.mark.parametrize("job_id", ["", "x" * 201, "team-b-\n"])
def test_id_that_no_job_can_have_is_named_as_the_fault(guarded: Guarded, job_id: str) -> None:
    """A token with a prefix learns what is wrong with an id that is missing or invalid, instead of a denial."""
    with refused() as refusal:
        guarded.call(f"{TRAINERS}RegisterJob", registration(job_id), "trainer")
    assert refusal.reason == "ERROR_REASON_INVALID_JOB_SPEC"
    assert "job.job_id" in refusal.faults
    for method, request in REQUESTS.items():
        if not ACCESS[method].lists(request(job_id)) and method != f"{TRAINERS}RegisterJob":
            with refused() as refusal:
                guarded.call(method, request(job_id), "operator")
            assert refusal.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), method
    assert guarded.jobs("admin") == [MINE, OTHERS]


def test_invalid_id_does_not_hide_a_prior_job_outside_the_prefix(guarded: Guarded) -> None:
    """A registration without an id that names another team's job is denied, like one with an id."""
    request = registration("")
    request.job.policy.CopyFrom(policy_message("knowledge_gradient", prior_job_ids=[OTHERS]))
    with refused() as refusal:
        guarded.call(f"{TRAINERS}RegisterJob", request, "trainer")
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("policy", [name for name, fields in FIELDS.items() if "prior_job_ids" in fields])
def test_prior_jobs_are_checked_for_every_policy(guarded: Guarded, policy: str) -> None:
    """A prior job outside the prefix is refused with any policy that has some, at registration and by a new policy."""
    chosen = policy_message(policy, prior_job_ids=[MINE, OTHERS])
    spec = job_spec(job_id="team-a-later", job_id_prefix="team-a")
    spec.policy.CopyFrom(chosen)
    for method, request in (
        (f"{TRAINERS}RegisterJob", v1.RegisterJobRequest(job=spec)),
        (f"{CONTROLS}SetJobPolicy", v1.SetJobPolicyRequest(job_id=MINE, policy=chosen)),
    ):
        with refused() as refusal:
            guarded.call(method, request, "operator")
        assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
        assert f"may not access '{OTHERS}'" in refusal.message


def test_prior_jobs_of_a_new_policy_are_found() -> None:
    """The prior jobs of a policy count whatever its name is."""

    class Policy:
        later = SimpleNamespace(prior_job_ids=["a", "b"])

        def WhichOneof(self, _oneof: str) -> str:  # noqa: N802 - as protobuf's
            return "later"

    message = SimpleNamespace(job_id="c", policy=Policy(), job=SimpleNamespace(job_id="c", policy=Policy()))
    for method in (f"{TRAINERS}RegisterJob", f"{CONTROLS}SetJobPolicy"):
        assert ACCESS[method].job_ids(message) == ("c", "a", "b")


def test_own_jobs_are_within_reach(guarded: Guarded) -> None:
    """A trainer registers and trains its own team's job, and an operator shows and deletes it."""
    for name, request in OF_TRAINERS.items():
        assert guarded.call(TRAINERS + name, request(MINE), "trainer"), name
    for job_id, token in (("team-a-1", "operator"), ("team-a-2", "team admin"), ("team-b-1", "admin")):
        guarded.call(f"{TRAINERS}RegisterJob", registration(job_id), token)
        guarded.call(
            f"{TRAINERS}GetNextBatchSize", v1.GetNextBatchSizeRequest(job_id=job_id, launch_id="looked up"), token
        )
        for method in OF_PEOPLE:
            assert guarded.call(method, REQUESTS[method](job_id), token), method


def test_admin_with_a_prefix_stays_within_it(guarded: Guarded) -> None:
    """An admin with a prefix may not access other teams' jobs."""
    with refused() as refusal:
        guarded.call(f"{CONTROLS}DeleteJob", v1.DeleteJobRequest(job_id=OTHERS), "team admin")
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED


def test_lists_show_what_the_token_reaches(guarded: Guarded) -> None:
    """A list is narrowed to the token's prefix; listing another team's jobs is refused."""
    assert (
        guarded.jobs("operator") == guarded.jobs("operator", "team-") == guarded.jobs("operator", "team-a-n") == [MINE]
    )
    assert guarded.jobs("other operator") == [OTHERS]
    assert guarded.jobs("admin") == [MINE, OTHERS]
    for prefix in ("team-b-", "team-b", "x", "Team-a-"):
        with refused() as refusal:
            guarded.jobs("operator", prefix)
        assert refusal.code is grpc.StatusCode.PERMISSION_DENIED


def test_page_token_is_for_its_caller(guarded: Guarded) -> None:
    """A page token that another caller was given is refused."""
    page = guarded.live.admin.ListJobs(v1.ListJobsRequest(page_size=1), metadata=bearing(guarded.tokens["admin"]))
    request = v1.ListJobsRequest(page_token=page.next_page_token)
    assert len(guarded.live.admin.ListJobs(request, metadata=bearing(guarded.tokens["admin"])).jobs) == 1
    with refused() as refusal:
        guarded.live.admin.ListJobs(request, metadata=bearing(guarded.tokens["operator"]))
    assert list(refusal.faults) == ["page_token"]


@pytest.mark.parametrize(("job_id", "reached"), [("team-a-x", True), ("team-ab", False), ("team", False)])
def test_registered_ids_are_within_the_prefix(guarded: Guarded, job_id: str, reached: bool) -> None:
    """A job may be registered if its id starts with the token's prefix."""
    request = v1.RegisterJobRequest(job=job_spec(job_id=job_id, job_id_prefix="team"))
    if reached:
        answer = v1.RegisterJobResponse.FromString(guarded.call(f"{TRAINERS}RegisterJob", request, "trainer")[0])
        assert answer.job.spec.job_id == job_id
        guarded.call(f"{CONTROLS}DeleteJob", v1.DeleteJobRequest(job_id=job_id), "operator")
        return
    with refused() as refusal:
        guarded.call(f"{TRAINERS}RegisterJob", request, "trainer")
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED


def test_every_message_of_a_stream_is_checked(guarded: Guarded) -> None:
    """A stream that began with an allowed job is refused at the first message about another team's job."""
    metadata = bearing(guarded.tokens["trainer"])
    beat = v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial(OTHERS)))
    mine = v1.StreamResultsRequest(result=result(MINE))
    with refused() as refusal:
        list(guarded.live.trainer.StreamResults(iter([mine, beat]), metadata=metadata))
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
    assert OTHERS in refusal.message


def test_flood_of_one_caller_hides_no_other(unrefused: Guarded) -> None:
    """From the same host, refusals of one token's calls leave room for its other methods and for other tokens."""
    before = len(log_of(unrefused))
    get, delete = v1.GetJobRequest(job_id=OTHERS), v1.DeleteJobRequest(job_id=OTHERS)
    for _ in range(30):
        with refused():
            unrefused.call(f"{READERS}GetJob", get, "operator")
    with refused():
        unrefused.call(f"{CONTROLS}DeleteJob", delete, "operator")
    with refused():
        unrefused.call(f"{READERS}GetJob", v1.GetJobRequest(job_id=MINE), "other operator")
    lines = [line for line in log_of(unrefused)[before:].splitlines() if "call refused" in line]
    id_of = {name: token.split("_")[1] for name, token in unrefused.tokens.items()}
    assert sum("method=DeleteJob" in line for line in lines) == 1
    assert sum(f"token={id_of['other operator']}" in line for line in lines) == 1
    # More than twenty only if a new span of time began meanwhile.
    assert sum("method=GetJob" in line and f"token={id_of['operator']}" in line for line in lines) >= 20


def test_flood_of_a_stranger_has_few_lines(unrefused: Guarded) -> None:
    """Whatever tokens it makes up and whatever it calls, a host without a valid token is one caller."""
    before = len(log_of(unrefused))
    for number in range(60):
        method = f"{READERS}{('GetJob', 'ListTrials')[number % 2]}"
        with refused():
            unrefused.call(method, REQUESTS[method](MINE), f"ww_{number:012x}_{number:064x}")
    lines = [line for line in log_of(unrefused)[before:].splitlines() if "call refused" in line]
    # More than twenty only if a new span of time began meanwhile.
    assert 20 <= len(lines) <= 40


def test_refusals_are_logged_with_who_and_what(unrefused: Guarded) -> None:
    """The log names the token's id, the peer, the method and the job, and no line of it holds a token."""
    guarded = unrefused
    ids = {name: token.split("_")[1] for name, token in guarded.tokens.items()}
    before = len(log_of(guarded))
    with refused():
        guarded.call(f"{CONTROLS}DeleteJob", v1.DeleteJobRequest(job_id=OTHERS), "operator")
    with refused():
        guarded.call(f"{READERS}GetJob", v1.GetJobRequest(job_id=MINE), guarded.tokens["admin"][:-4] + "beef")
    with refused():
        guarded.call(f"{READERS}GetJob", v1.GetJobRequest(job_id=MINE), "ww_a_slip_of_the_keyboard")
    beat = v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial(OTHERS)))
    for request in (v1.StreamResultsRequest(result=result(OTHERS)), beat):
        with refused():
            guarded.call(f"{TRAINERS}StreamResults", request, "operator")
    lines = [line for line in log_of(guarded)[before:].splitlines() if "refused" in line]
    assert len(lines) == 5
    streamed = (f"token={ids['operator']}", "method=StreamResults", f"job={OTHERS} trial=1 ", "127.0.0.1")
    for line, words in zip(
        lines,
        (
            (f"token={ids['operator']}", "method=DeleteJob", OTHERS, "127.0.0.1"),
            (f"token={ids['admin']}", "method=GetJob", MINE, "unknown token", "127.0.0.1"),
            ("token=(none)", "method=GetJob", MINE, "unknown token", "127.0.0.1"),
            streamed,
            streamed,
        ),
        strict=True,
    ):
        assert all(word in line for word in words), line
    secrets = [token.split("_")[2] for token in guarded.tokens.values()]
    assert not any(secret[:60] in log_of(guarded) for secret in (*secrets, "slip_of_the_keyboard"))
