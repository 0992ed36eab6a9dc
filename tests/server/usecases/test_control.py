"""Control over a job: reset, excluded trials, banned and pinned batch sizes, pauses, baselines, another policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason
from wattwise.spec import policy_name
from wattwise_server.events import Event, JobChanged
from wattwise_server.observability.observers import Notification
from wattwise_server.usecases.control import Control

from tests.jobs import Trainer, policy_message, set_policy
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.refusals import refused
from tests.server.site import Site, draft

POLICIES = ["knowledge_gradient", "pruning_gts", "gts"]


@contextmanager
def refusing(reason: str, *fields: str) -> Iterator[None]:
    """Expect the block's call to be refused for this reason, naming these fields."""
    with refused() as refusal:
        yield
    assert (refusal.reason, *refusal.faults) == (f"ERROR_REASON_{reason}", *fields)


@pytest.fixture
def admin(grpc_channel: grpc.Channel) -> PeopleStub:
    """The admin stub on the shared server."""
    return PeopleStub(grpc_channel)


Known: TypeAlias = (
    v1.GetJobResponse
    | v1.SetBatchSizeBannedResponse
    | v1.SetPinnedBatchSizeResponse
    | v1.ReadmitBatchSizeResponse
    | v1.ResetJobResponse
)


def ban(admin: PeopleStub, job: Trainer, batch_size: int, *, banned: bool = True) -> v1.SetBatchSizeBannedResponse:
    """Ban a batch size, or lift its ban."""
    request = v1.SetBatchSizeBannedRequest(job_id=job.job_id, batch_size=batch_size, banned=banned)
    return admin.SetBatchSizeBanned(request)


def pin(admin: PeopleStub, job: Trainer, batch_size: int | None) -> v1.SetPinnedBatchSizeResponse:
    """Pin a batch size, or unpin it."""
    return admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=batch_size))


def readmit(admin: PeopleStub, job: Trainer, batch_size: int) -> v1.ReadmitBatchSizeResponse:
    """Readmit a batch size."""
    request = v1.ReadmitBatchSizeRequest(job_id=job.job_id, batch_size=batch_size, request_id=new_id())
    return admin.ReadmitBatchSize(request)


def statuses(known: Known) -> dict[int, str]:
    """The status of every batch size that is not simply available, and whether it is pinned and banned."""
    found = {}
    for each in known.details.batch_size_states:
        status = v1.BatchSizeStatus.Name(each.status).removeprefix("BATCH_SIZE_STATUS_")
        people = ["PINNED"] * each.pinned + ["BANNED"] * each.banned
        words = [*people, *([] if status == "AVAILABLE" else [status])]
        if words:
            found[each.batch_size] = " ".join(words)
    return found


def spend(job: Trainer, cost: float) -> v1.Trial:
    """A launch that reaches the target at this cost."""
    trial = job.next()
    job.report(trial, cost)
    return trial


@pytest.mark.parametrize("policy", POLICIES)
def test_exhausted_job_is_healthy_after_one_command(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str
) -> None:
    """Three crashes out of memory leave no batch size; after a reset the job delivers, and its history is there."""
    job = Trainer(grpc_stub, policy=policy, batch_sizes=[16, 32, 64], default_batch_size=64)
    crashes = 0
    while True:
        try:
            trial = job.next()
        except grpc.RpcError:
            break
        crashes += 1
        job.end(trial, v1.END_REASON_OUT_OF_MEMORY)
    assert crashes <= 3
    with refusing("NO_BATCH_SIZE_LEFT"):
        job.next()
    state = admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id()))
    assert not statuses(state)
    assert state.job.num_trials == crashes
    trial = job.next()
    assert trial.id.trial_number == crashes + 1
    assert job.report(trial, 10.0).target_reached
    assert len(admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials) == crashes + 1


def test_reset_is_on_the_wire(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """A job says after which trial and when its search was reset last."""
    job = Trainer(grpc_stub)
    spend(job, 10.0)
    before = admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job
    assert not before.HasField("reset_after")
    assert not before.HasField("reset_time")
    for number in (1, 2):
        after = admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id())).job
        assert after.reset_after == number
        assert after.reset_time.ToDatetime() > before.create_time.ToDatetime()
        assert admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job == after
        spend(job, 10.0)


def test_reset_of_a_new_job_is_after_no_trial(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """A reset before the first trial has a time, and no number of a last trial."""
    request = v1.ResetJobRequest(job_id=Trainer(grpc_stub).job_id, request_id=new_id())
    job = admin.ResetJob(request).job
    assert (job.HasField("reset_time"), job.HasField("reset_after")) == (True, False)


def test_readmitted_batch_size_says_what_is_known_of_memory(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub
) -> None:
    """Smaller ones come back too, and larger ones unless one of them ran out of memory itself."""
    job = Trainer(grpc_stub, policy="knowledge_gradient", default_batch_size=64)
    for _ in range(3):
        job.end(job.next(), v1.END_REASON_OUT_OF_MEMORY)
    state = admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job
    assert list(state.available_batch_sizes) == [8]
    assert list(readmit(admin, job, 32).job.available_batch_sizes) == [8, 16, 32]
    reason = readmit(admin, job, 64).details.batch_size_states[3].reason
    assert "tried" not in reason


def test_readmitted_batch_size_comes_back(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """Readmitting a batch size that was out of memory or set aside makes it available; a ban stays."""
    job = Trainer(grpc_stub, policy="knowledge_gradient", batch_sizes=[16, 32, 64], default_batch_size=64)
    job.end(job.next(), v1.END_REASON_OUT_OF_MEMORY)
    for _ in range(3):
        job.end(job.next(), v1.END_REASON_ERROR)
    assert statuses(ban(admin, job, 16)) == {16: "BANNED", 64: "OUT_OF_MEMORY"}
    for size in (64, 32, 16):
        state = readmit(admin, job, size)
    assert statuses(state) == {16: "BANNED"}
    assert not statuses(ban(admin, job, 16, banned=False))
    assert [each.num_failed for each in state.details.batch_size_states] == [0, 0, 0]


def test_readmitted_batch_size_returns_to_the_walk(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """A pruned batch size that is readmitted is explored again."""
    job = Trainer(grpc_stub, num_pruning_rounds=1)
    job.run(100.0)
    job.run(100.0, converges=False)
    assert statuses(admin.GetJob(v1.GetJobRequest(job_id=job.job_id))) == {8: "PRUNED"}
    assert not statuses(readmit(admin, job, 8))
    trial = job.next()
    assert (trial.batch_size, trial.pruning_gts.role) == (8, v1.PRUNING_GTS_ROLE_EXPLORATION)


@pytest.mark.parametrize("policy", POLICIES)
def test_banned_batch_size_is_never_chosen(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str
) -> None:
    """Not by any policy, not for concurrent trials, not as the cheapest one known, nor as the default."""
    job = Trainer(grpc_stub, policy=policy, num_pruning_rounds=1)
    first = spend(job, 1.0)
    assert first.batch_size == 16
    state = ban(admin, job, 16)
    assert statuses(state) == {16: "BANNED"}
    assert not state.job.HasField("min_cost")
    job.next()
    for _ in range(12):
        assert spend(job, 50.0).batch_size != 16
    with refusing("NOT_POSSIBLE_NOW"):
        admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id()))
    state = ban(admin, job, 16, banned=False)
    assert (state.job.min_cost, state.job.min_cost_batch_size) == (1.0, 16)


def test_last_batch_size_cannot_be_banned(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """A job always keeps one that may be chosen."""
    job = Trainer(grpc_stub, batch_sizes=[16, 32], default_batch_size=16)
    ban(admin, job, 16)
    with refusing("NOT_POSSIBLE_NOW"):
        ban(admin, job, 32)
    assert job.next().batch_size == 32


@pytest.mark.parametrize("batch_size", [17, 0])
def test_unknown_batch_size_is_refused(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, batch_size: int
) -> None:
    """A batch size that the job does not have can be neither banned nor pinned nor readmitted."""
    job = Trainer(grpc_stub)
    for call in (ban, pin, readmit):
        with refusing("INVALID_REQUEST", "batch_size"):
            call(admin, job, batch_size)


def test_ban_says_what_it_sets(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """A request without `banned` is refused, since it may come from a client that forgot it."""
    job = Trainer(grpc_stub)
    with refusing("INVALID_REQUEST", "banned"):
        admin.SetBatchSizeBanned(v1.SetBatchSizeBannedRequest(job_id=job.job_id, batch_size=8))


@pytest.mark.parametrize("policy", POLICIES)
def test_pinned_batch_size_is_what_every_launch_gets(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str
) -> None:
    """Until it is unpinned, whether it is banned or not; a pin changes no ban, and a ban no pin."""
    job = Trainer(grpc_stub, policy=policy)
    ban(admin, job, 64)
    assert statuses(pin(admin, job, 64)) == {64: "PINNED BANNED"}
    for _ in range(3):
        trial = job.next()
        assert (trial.batch_size, trial.origin) == (64, v1.TRIAL_ORIGIN_REQUESTED)
        job.report(trial, 500.0)
    assert statuses(pin(admin, job, 8)) == {8: "PINNED", 64: "BANNED"}
    assert statuses(pin(admin, job, None)) == {64: "BANNED"}
    assert not statuses(ban(admin, job, 64, banned=False))
    trial = job.next()
    assert trial.batch_size != 64 or trial.origin != v1.TRIAL_ORIGIN_REQUESTED
    pin(admin, job, 8)
    assert statuses(ban(admin, job, 8)) == {8: "PINNED BANNED"}


@pytest.mark.parametrize("policy", POLICIES)
def test_unpinning_forgives_nothing(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str) -> None:
    """What ran out of memory or kept failing is ruled out when its pin ends; only readmitting it forgives."""
    job = Trainer(grpc_stub, policy=policy)
    for size, reason in ((64, v1.END_REASON_OUT_OF_MEMORY), (32, v1.END_REASON_ERROR)):
        pin(admin, job, size)
        for _ in range(3):
            job.end(job.next(), reason)
    state = pin(admin, job, None)
    assert statuses(state) == {32: "SET_ASIDE", 64: "OUT_OF_MEMORY"}
    assert [each.num_failed for each in state.details.batch_size_states] == [0, 0, 3, 3]
    assert statuses(readmit(admin, job, 64)) == {32: "SET_ASIDE"}
    assert not statuses(readmit(admin, job, 32))


@pytest.mark.parametrize("policy", POLICIES)
def test_requested_trial_is_never_stopped_at_the_bound(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str
) -> None:
    """A pinned batch size and a baseline deliver, however far they are above the cheapest known cost."""
    job = Trainer(grpc_stub, policy=policy, batch_sizes=[8, 16, 32])
    pin(admin, job, 8)
    for _ in range(3):
        spend(job, 10.0)
    pin(admin, job, 32)
    pinned = job.next()
    decision = job.report(pinned, 500.0, metric=0.1)
    assert (decision.stop_train, decision.HasField("cost_bound")) == (False, False)
    assert job.report(pinned, 900.0, epoch=2).converged
    pin(admin, job, None)
    admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id()))
    baseline = job.next()
    assert baseline.batch_size == 16
    assert not job.report(baseline, 500.0, metric=0.1).stop_train
    assert job.report(baseline, 900.0, epoch=2).converged


def test_paused_job_without_its_default_gets_the_nearest(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub
) -> None:
    """Nothing is explored while a job is paused, even if its default is banned; the reason says what was chosen."""
    job = Trainer(grpc_stub)

    admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=True))
    assert job.next().reason.startswith("the default;")
    ban(admin, job, 16)
    trials = [job.next() for _ in range(3)]
    assert [(each.batch_size, each.origin) for each in trials] == [(8, v1.TRIAL_ORIGIN_REQUESTED)] * 3
    assert "the nearest to the default, 16" in trials[0].reason
    pin(admin, job, 32)
    assert job.next().reason == "pinned"


@pytest.mark.parametrize("policy", POLICIES)
def test_paused_job_tries_nothing(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str) -> None:
    """Launches get the default, and once something is known the best batch size; the search goes on afterwards."""
    job = Trainer(grpc_stub, policy=policy)
    assert admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=True)).job.paused
    assert [spend(job, 100.0).batch_size for _ in range(3)] == [16, 16, 16]
    pin(admin, job, 32)
    assert spend(job, 20.0).batch_size == 32
    pin(admin, job, None)
    assert [spend(job, 20.0).batch_size for _ in range(3)] == [32, 32, 32]
    assert not admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=False)).job.paused
    assert job.next().origin != v1.TRIAL_ORIGIN_REQUESTED


def test_what_a_baseline_waits_for(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """For a pinned batch size, a paused search or a default that may not be chosen; else for nothing."""
    job = Trainer(grpc_stub)

    def wait() -> v1.BaselineWait.ValueType:
        return admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).details.baseline_wait

    assert wait() == v1.BASELINE_WAIT_UNSPECIFIED
    admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=True))
    assert wait() == v1.BASELINE_WAIT_PAUSED
    admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=8))
    assert wait() == v1.BASELINE_WAIT_PINNED
    admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id))
    admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=False))
    admin.SetBatchSizeBanned(v1.SetBatchSizeBannedRequest(job_id=job.job_id, batch_size=16, banned=True))
    assert wait() == v1.BASELINE_WAIT_NOT_CHOOSABLE


@pytest.mark.parametrize("policy", POLICIES)
def test_baseline_is_one_launch_of_the_default(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, policy: str
) -> None:
    """The next launch gets it, once, however often it was requested."""
    job = Trainer(grpc_stub, policy=policy, num_pruning_rounds=1)
    pin(admin, job, 8)
    spend(job, 10.0)
    pin(admin, job, None)
    spend(job, 15.0)
    for _ in range(2):
        assert admin.RequestBaseline(
            v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id())
        ).job.baseline_requested
    baseline = spend(job, 15.0)
    assert (baseline.batch_size, baseline.origin) == (16, v1.TRIAL_ORIGIN_REQUESTED)
    assert not admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.baseline_requested
    assert job.next().origin != v1.TRIAL_ORIGIN_REQUESTED


def test_late_retries_change_nothing(server: LiveServer) -> None:
    """The newest request of a reset or a baseline again changes nothing, also after a restart; another id does."""
    job = Trainer(server.trainer)
    reset, baseline = (v1.ResetJobRequest(job_id=job.job_id, request_id="reset"),
                       v1.RequestBaselineRequest(job_id=job.job_id, request_id="baseline"))  # fmt: skip
    job.run(50.0)
    assert server.admin.ResetJob(reset).job.reset_after == 1
    assert server.admin.RequestBaseline(baseline).job.baseline_requested
    job.run(40.0)
    assert not server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.baseline_requested
    server.kill()
    server.start()
    assert server.admin.ResetJob(reset).job.reset_after == 1
    assert not server.admin.RequestBaseline(baseline).job.baseline_requested
    baseline.request_id = "another baseline"
    assert server.admin.RequestBaseline(baseline).job.baseline_requested
    reset.request_id = "another reset"
    assert server.admin.ResetJob(reset).job.reset_after == 2
    job.run(40.0)
    reset.request_id = "reset"
    assert server.admin.ResetJob(reset).job.reset_after == 2


def test_late_retry_of_a_readmission_forgives_no_later_failure(server: LiveServer) -> None:
    """A request that readmitted a batch size again changes nothing, also one that found nothing to readmit."""
    job = Trainer(server.trainer)
    pin(server.admin, job, 16)
    for name in ("early", "late"):
        request = v1.ReadmitBatchSizeRequest(job_id=job.job_id, batch_size=16, request_id=name)
        assert statuses(server.admin.ReadmitBatchSize(request)) == {16: "PINNED"}
        job.end(job.next(), v1.END_REASON_OUT_OF_MEMORY)
        server.kill()
        server.start()
        assert statuses(server.admin.ReadmitBatchSize(request))[16] == "PINNED OUT_OF_MEMORY"
    request.request_id = "early"
    assert statuses(server.admin.ReadmitBatchSize(request))[16] == "PINNED OUT_OF_MEMORY"


def test_readmission_of_another_batch_size_is_a_new_request(server: LiveServer) -> None:
    """The id of a request with another batch size readmits that one, also after a restart."""
    job = Trainer(server.trainer)
    for size in (8, 16):
        pin(server.admin, job, size)
        job.end(job.next(), v1.END_REASON_OUT_OF_MEMORY)
    for size in (8, 16):
        server.kill()
        server.start()
        request = v1.ReadmitBatchSizeRequest(job_id=job.job_id, batch_size=size, request_id="one")
        found = statuses(server.admin.ReadmitBatchSize(request))
        assert "OUT_OF_MEMORY" not in found.get(size, "")


def test_late_retry_of_a_baseline_that_waited_already(server: LiveServer) -> None:
    """The id of a request that found a baseline waiting is remembered too: its retry requests no second one."""
    job = Trainer(server.trainer)
    first, second = (v1.RequestBaselineRequest(job_id=job.job_id, request_id=name) for name in ("first", "second"))
    assert server.admin.RequestBaseline(first).job.baseline_requested
    assert server.admin.RequestBaseline(second).job.baseline_requested
    job.run(40.0)
    server.kill()
    server.start()
    assert not server.admin.RequestBaseline(second).job.baseline_requested


def test_request_of_a_baseline_and_its_schedule_are_independent(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub
) -> None:
    """A schedule withdraws no baseline, and after it the retry of a request is still recognized."""
    job = Trainer(grpc_stub)
    request = v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id())
    admin.RequestBaseline(request)
    assert admin.SetBaselineEvery(v1.SetBaselineEveryRequest(job_id=job.job_id, every=50)).job.baseline_requested
    job.run(40.0)
    shown = admin.RequestBaseline(request).job
    assert (shown.baseline_every, shown.baseline_requested) == (50, False)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda admin, job_id: admin.ResetJob(v1.ResetJobRequest(job_id=job_id)), "request_id"),
        (lambda admin, job_id: admin.ResetJob(v1.ResetJobRequest(job_id=job_id, request_id="x" * 201)), "request_id"),
        (lambda admin, job_id: admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job_id)), "request_id"),
        (lambda admin, job_id: admin.ReadmitBatchSize(
            v1.ReadmitBatchSizeRequest(job_id=job_id, batch_size=16)), "request_id"),
        (lambda admin, job_id: admin.SetBaselineEvery(v1.SetBaselineEveryRequest(job_id=job_id)), "every"),
        (lambda admin, job_id: admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job_id)), "paused"),
        (lambda admin, job_id: admin.SetTrialExcluded(
            v1.SetTrialExcludedRequest(trial=v1.TrialId(job_id=job_id, trial_number=1))), "excluded"),
    ],
)  # fmt: skip
def test_required_fields_of_controls(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub, call: Callable[[PeopleStub, str], object], field: str
) -> None:
    """A control without a required field is refused, and the field is named."""
    job = Trainer(grpc_stub)
    job.run(10.0)
    with refusing("INVALID_REQUEST", field):
        call(admin, job.job_id)


def test_baseline_is_withdrawn(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """Banning the default withdraws a baseline for good, and so does a reset; banning another one does not."""
    job = Trainer(grpc_stub)
    baseline = v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id())
    admin.RequestBaseline(baseline)
    assert ban(admin, job, 8).job.baseline_requested
    assert not ban(admin, job, 16).job.baseline_requested
    assert not ban(admin, job, 16, banned=False).job.baseline_requested
    baseline.request_id = new_id()
    assert admin.RequestBaseline(baseline).job.baseline_requested
    assert not admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id())).job.baseline_requested


def test_baselines_are_scheduled(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """One launch in three gets the default, whatever the policy chooses, until that is ended; a pin comes first."""
    job = Trainer(grpc_stub)
    spend(job, 10.0)
    every = v1.SetBaselineEveryRequest(job_id=job.job_id, every=3)
    shown = admin.SetBaselineEvery(every).job
    assert (shown.baseline_every, shown.baseline_requested) == (3, False)
    pin(admin, job, 8)
    sizes = [spend(job, 5.0).batch_size for _ in range(2)]
    pin(admin, job, None)
    trials = [spend(job, 5.0) for _ in range(6)]
    sizes += [trial.batch_size for trial in trials]
    requested = [trial.id.trial_number for trial in trials if trial.origin == v1.TRIAL_ORIGIN_REQUESTED]
    assert (sizes[:2], requested) == ([8, 8], [6, 9])
    assert {trial.batch_size for trial in trials if trial.id.trial_number in requested} == {16}
    kinds = [v1.EVENT_KIND_BASELINE_SCHEDULE_CHANGED]
    events = admin.ListEvents(v1.ListEventsRequest(job_id=job.job_id, kinds=kinds)).events
    assert [event.message for event in events] == ["baselines scheduled: batch size 16: one launch in 3"]
    every.every = 0
    assert not admin.SetBaselineEvery(every).job.HasField("baseline_every")
    assert spend(job, 5.0).origin != v1.TRIAL_ORIGIN_REQUESTED
    for wrong in (1, -3):
        every.every = wrong
        with refused() as refusal:
            admin.SetBaselineEvery(every)
        assert list(refusal.faults) == ["every"]


def test_decision_of_a_requested_trial_says_why_it_has_no_bound(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub
) -> None:
    """It has none on purpose: none is to come."""
    job = Trainer(grpc_stub)
    admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id()))
    trial = job.next()
    assert "no bound: its batch size was set by a person" in job.report(trial, 10.0, metric=0.1).message
    assert "no bound: its batch size was set by a person" in job.heartbeat(trial).message
    assert "no cost bound yet" in job.report(job.next(), 10.0, metric=0.1).message


def test_excluded_trial_is_marked_and_no_longer_counts(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """Its cost is not the least one known; included again it is. Excluding it twice is excluding it once."""
    job = Trainer(grpc_stub, beta_knob="off")
    bogus = spend(job, 1e-3)
    spend(job, 100.0)
    for _ in range(2):
        response = admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=bogus.id, excluded=True))
        assert response.trial.excluded
        assert response.job.min_cost == 100.0
    assert admin.GetTrial(v1.GetTrialRequest(trial=bogus.id)).trial.excluded
    response = admin.SetTrialExcluded(
        v1.SetTrialExcludedRequest(trial=v1.TrialId(job_id=job.job_id, trial_number=1), excluded=False)
    )
    assert not response.trial.excluded
    assert response.job.min_cost == 1e-3
    with refusing("TRIAL_NOT_FOUND"):
        admin.SetTrialExcluded(
            v1.SetTrialExcludedRequest(trial=v1.TrialId(job_id=job.job_id, trial_number=9), excluded=False)
        )


def test_changed_policy_is_confirmed_with_either(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """Trainers that register the job with its first policy, its present one or none go on; a third is refused."""
    job = Trainer(grpc_stub, policy="pruning_gts")
    spend(job, 100.0)
    changed = admin.SetJobPolicy(
        v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy_message("knowledge_gradient"))
    ).job
    assert policy_name(changed.spec) == "knowledge_gradient"
    assert changed.policy_state.WhichOneof("state") == "knowledge_gradient"
    assert changed.min_cost == 100.0
    for policy, parameters in (("pruning_gts", {"seed": 1}), ("knowledge_gradient", {}), (None, {})):
        set_policy(job.spec, policy, **parameters)
        answer = grpc_stub.RegisterJob(v1.RegisterJobRequest(job=job.spec))
        assert (answer.created, policy_name(answer.job.spec)) == (False, "knowledge_gradient")
    set_policy(job.spec, "gts")
    with refusing("JOB_DIFFERS", "job.policy"):
        grpc_stub.RegisterJob(v1.RegisterJobRequest(job=job.spec))


def test_policy_of_a_job_with_prior_jobs_can_be_changed(
    grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub
) -> None:
    """A policy that does not read prior jobs ignores them, and launches register the job as before."""
    prior = Trainer(grpc_stub)
    spend(prior, 10.0)
    job = Trainer(grpc_stub, policy="knowledge_gradient", prior_job_ids=[prior.job_id])
    admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy_message("gts")))
    for policy, parameters in (("knowledge_gradient", {"prior_job_ids": [prior.job_id]}), (None, {}), ("gts", {})):
        set_policy(job.spec, policy, **parameters)
        assert not grpc_stub.RegisterJob(v1.RegisterJobRequest(job=job.spec)).created
    assert spend(job, 10.0).batch_size == 16


def test_event_says_what_a_new_policy_changes(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """With the parameters that are not the defaults, and both values of one that changes."""
    job = Trainer(grpc_stub, policy="knowledge_gradient", window_size=20)
    for size in (50, 60):
        policy = policy_message("gts", window_size=size, seed=3)
        admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy))
    events = admin.ListEvents(v1.ListEventsRequest(job_id=job.job_id, kinds=[v1.EVENT_KIND_POLICY_CHANGED])).events
    assert [event.message for event in events] == [
        "policy changed: gts, window_size from 50 to 60",
        "policy changed: from knowledge_gradient (window_size 20) to gts (window_size 50, seed 3)",
    ]


def test_policy_that_does_not_fit_is_refused(grpc_stub: v1.BatchSizeOptimizerStub, admin: PeopleStub) -> None:
    """A policy with a fault, one with prior jobs, and one that is unset."""
    job = Trainer(grpc_stub, policy="gts", window_size=5000)
    refusals: dict[str, v1.PolicySpec] = {
        "policy": v1.PolicySpec(),
        "policy.knowledge_gradient.window_size": policy_message("knowledge_gradient", window_size=5000),
        "policy.knowledge_gradient.prior_job_ids": policy_message("knowledge_gradient", prior_job_ids=["a"]),
        "policy.pruning_gts.num_pruning_rounds": policy_message("pruning_gts", num_pruning_rounds=-1),
    }
    for field, policy in refusals.items():
        with refusing("INVALID_JOB_SPEC", field):
            admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy))
    assert admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.spec.policy.gts.window_size == 5000


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.ResetJob(v1.ResetJobRequest(job_id="unknown", request_id=new_id())),
        lambda admin: admin.SetTrialExcluded(
            v1.SetTrialExcludedRequest(trial=v1.TrialId(job_id="unknown", trial_number=1), excluded=False)
        ),
        lambda admin: admin.SetBatchSizeBanned(
            v1.SetBatchSizeBannedRequest(job_id="unknown", batch_size=8, banned=True)
        ),
        lambda admin: admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id="unknown")),
        lambda admin: admin.ReadmitBatchSize(
            v1.ReadmitBatchSizeRequest(job_id="unknown", batch_size=8, request_id=new_id())
        ),
        lambda admin: admin.SetJobPaused(v1.SetJobPausedRequest(job_id="unknown", paused=True)),
        lambda admin: admin.RequestBaseline(v1.RequestBaselineRequest(job_id="unknown", request_id=new_id())),
        lambda admin: admin.SetBaselineEvery(v1.SetBaselineEveryRequest(job_id="unknown", every=2)),
        lambda admin: admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id="unknown", policy=policy_message("gts"))),
    ],
)
def test_unknown_job_is_not_found(admin: PeopleStub, call: object) -> None:
    """Every call says that the job does not exist."""
    assert callable(call)
    with refusing("JOB_NOT_FOUND"):
        call(admin)


def test_control_survives_a_kill(server: LiveServer) -> None:
    """Bans, pins, pauses, excluded trials, the policy and a reset are durable once answered."""
    job = Trainer(server.trainer)
    bogus = spend(job, 1.0)
    ban(server.admin, job, 64)
    pin(server.admin, job, 8)
    server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=bogus.id, excluded=True))
    server.admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=True))
    server.admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id()))
    before = server.admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy_message("gts"))).job
    server.kill()
    server.start()
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job == before
    assert statuses(server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id))) == {8: "PINNED", 64: "BANNED"}
    after = server.admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id())).job
    server.kill()
    server.start()
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job == after


class Changes:
    """An observer that keeps what operators changed."""

    wants_reports = False

    def __init__(self) -> None:
        self.seen: list[tuple[str, int | None, int | None]] = []

    def opened(self, jobs: int, running_trials: int) -> None:
        """Of no interest here."""

    def counted(self, jobs: int, running_trials: int) -> None:
        """Of no interest here."""

    def committed(self, rows: int, seconds: float) -> None:
        """Of no interest here."""

    def commit_failed(self) -> None:
        """Of no interest here."""

    def conflicted(self) -> None:
        """Of no interest here."""

    def prepare(self, event: Event) -> Notification:
        assert isinstance(event, JobChanged)
        return lambda: self.seen.append((event.change, event.about.batch_size, event.about.trial_number))


async def test_every_change_is_published_once(tmp_path: Path) -> None:
    """Observers learn what was changed, of which batch size and trial; asking for what is so changes nothing."""
    site, changes = Site(tmp_path / "site.db"), Changes()
    await site.open()
    await site.training.register(draft())
    trial = await site.training.next_trial("j", new_id())
    await site.training.end_trial(trial.key, EndReason.ERROR)
    site.store.observer = changes
    control = Control(site.store)
    calls: dict[tuple[str, int | None, int | None], Any] = {
        ("batch size banned", 8, None): lambda: control.set_banned("j", 8, banned=True),
        ("batch size unbanned", 8, None): lambda: control.set_banned("j", 8, banned=False),
        ("batch size pinned", 32, None): lambda: control.pin("j", 32),
        ("batch size unpinned", 32, None): lambda: control.unpin("j"),
        ("batch size readmitted", 16, None): lambda: control.readmit("j", 16, new_id()),
        ("paused", None, None): lambda: control.set_paused("j", paused=True),
        ("resumed", None, None): lambda: control.set_paused("j", paused=False),
        ("baseline requested", 16, None): lambda: control.request_baseline("j", new_id()),
        ("baselines scheduled", 16, None): lambda: control.set_baseline_every("j", 20),
        ("baselines ended", 16, None): lambda: control.set_baseline_every("j", 0),
        ("policy changed", None, None): lambda: control.set_policy("j", {"policy": "gts"}),
        ("trial excluded", 16, 1): lambda: control.set_trial_excluded(trial.key, excluded=True),
        ("trial included", 16, 1): lambda: control.set_trial_excluded(trial.key, excluded=False),
    }
    for call in calls.values():
        await call()
        await call()
    assert changes.seen == list(calls)
    await control.reset("j", new_id())
    assert changes.seen[-1] == ("reset", None, None)
    await site.close()
