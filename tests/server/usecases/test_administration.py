"""JobReader and DeleteJob: lists, pages, filters, watches."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.config import Factors
from wattwise_server.domain import ComputedUsage, ListedJob, Measurement
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.rpc import paging
from wattwise_server.rpc.calls import StreamLimit
from wattwise_server.rpc.paging import PageTokens
from wattwise_server.rpc.service import JobReaderService
from wattwise_server.store.base import JobList, JobPlace, ListedTrial, Place, TrialList
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.job_spec import resolve
from wattwise_server.usecases.report import LARGEST_COST, number_faults
from wattwise_server.usecases.statistics import Statistics

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.refusals import refused
from tests.server.site import BEGIN, Site, draft, report

Stub = v1.BatchSizeOptimizerStub


@pytest.fixture
def admin(grpc_channel: grpc.Channel) -> PeopleStub:
    """The admin stub on the shared server."""
    return PeopleStub(grpc_channel)


def test_jobs_are_paged_oldest_first(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Pages of two list five jobs of a prefix once each, in the order of registration."""
    job_ids = [Trainer(grpc_stub, job_id_prefix="paged", job_id=f"paged_{n}%").job_id for n in (3, 1, 5, 2, 4)]
    seen, token = [], ""
    while True:
        page = admin.ListJobs(v1.ListJobsRequest(page_size=2, page_token=token, job_id_prefix="paged_"))
        seen.append([row.job.spec.job_id for row in page.jobs])
        token = page.next_page_token
        if not token:
            break
    assert seen == [job_ids[:2], job_ids[2:4], job_ids[4:]]


def test_a_failing_default_is_not_in_use(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Without a known one, the batch size in use is the nearest to the default whose trials do not keep failing."""
    trainer = Trainer(grpc_stub, policy="knowledge_gradient")

    def in_use() -> int:
        (listed,) = admin.ListJobs(v1.ListJobsRequest(job_id_prefix=trainer.job_id)).jobs
        job = admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id)).job
        assert listed.job.batch_size_in_use == job.batch_size_in_use
        return job.batch_size_in_use

    for _ in range(2):
        trainer.end(trainer.next(), v1.END_REASON_ERROR)
    assert in_use() == 16
    trainer.end(trainer.next(), v1.END_REASON_ERROR)
    assert in_use() == 8


def test_oldest_jobs_come_first_by_default(grpc_stub: Stub, admin: PeopleStub) -> None:
    """The order that a request may name is the one that it gets without naming any."""
    for number in (2, 1, 3):
        Trainer(grpc_stub, job_id_prefix="oldest", job_id=f"oldest-{number}")
    requests = [
        v1.ListJobsRequest(job_id_prefix="oldest-", order=order)
        for order in (v1.JOB_ORDER_UNSPECIFIED, v1.JOB_ORDER_OLDEST)
    ]
    listed = [[row.job.spec.job_id for row in admin.ListJobs(request).jobs] for request in requests]
    assert listed == [["oldest-2", "oldest-1", "oldest-3"]] * 2


def test_only_failing_batch_sizes_stay_in_use(grpc_stub: Stub, admin: PeopleStub) -> None:
    """If the trials of every batch size keep failing, the default is in use."""
    trainer = Trainer(grpc_stub, batch_sizes=[16])
    for _ in range(3):
        trainer.end(trainer.next(), v1.END_REASON_ERROR)
    (listed,) = admin.ListJobs(v1.ListJobsRequest(job_id_prefix=trainer.job_id)).jobs
    assert listed.job.batch_size_in_use == 16


def test_no_batch_size_is_in_use_if_none_is_left(grpc_stub: Stub, admin: PeopleStub) -> None:
    """The field is unset rather than 0 once every batch size is out of memory."""
    trainer = Trainer(grpc_stub, batch_sizes=[16])
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    job = admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id)).job
    assert (list(job.available_batch_sizes), job.HasField("batch_size_in_use")) == ([], False)


def test_prefix_is_taken_literally(grpc_stub: Stub, admin: PeopleStub) -> None:
    """SQL's wildcards have no special meaning in a prefix."""
    Trainer(grpc_stub, job_id_prefix="a", job_id="a%b")
    Trainer(grpc_stub, job_id_prefix="a", job_id="axb")
    assert [j.job.spec.job_id for j in admin.ListJobs(v1.ListJobsRequest(job_id_prefix="a%")).jobs] == ["a%b"]


def test_trials_are_filtered(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Trials are filtered by status, by batch size, and by both."""
    job = Trainer(grpc_stub)
    job.run(100.0)
    job.run(90.0)
    job.end(job.next(), v1.END_REASON_ERROR)
    job.next()
    job.end(job.next(), v1.END_REASON_PREEMPTED)

    def numbers(*statuses: v1.TrialStatus.ValueType, batch_size: int = 0) -> list[int]:
        request = v1.ListTrialsRequest(job_id=job.job_id, statuses=statuses, batch_size=batch_size)
        return [trial.id.trial_number for trial in admin.ListTrials(request).trials]

    assert numbers() == [1, 2, 3, 4, 5]
    assert numbers(v1.TRIAL_STATUS_INTERRUPTED) == [5]
    assert numbers(v1.TRIAL_STATUS_DECIDED) == [1, 2]
    assert numbers(v1.TRIAL_STATUS_FAILED) == [3]
    assert numbers(v1.TRIAL_STATUS_RUNNING) == [4]
    assert numbers(batch_size=8) == [2, 5]
    assert numbers(v1.TRIAL_STATUS_FAILED, batch_size=16) == []
    assert numbers(v1.TRIAL_STATUS_FAILED, v1.TRIAL_STATUS_RUNNING, v1.TRIAL_STATUS_FAILED) == [3, 4]
    reasons = [v1.END_REASON_ERROR, v1.END_REASON_TARGET_REACHED]
    found = admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id, end_reasons=reasons)).trials
    assert [trial.id.trial_number for trial in found] == [1, 2, 3]
    states = [v1.JOB_STATE_NEW, v1.JOB_STATE_RUNNING]
    listed = admin.ListJobs(v1.ListJobsRequest(job_id_prefix=job.job_id, states=states, with_total_size=True))
    assert ([row.job.spec.job_id for row in listed.jobs], listed.total_size) == ([job.job_id], 1)
    assert not admin.ListJobs(v1.ListJobsRequest(job_id_prefix=job.job_id, states=states[:1])).jobs
    kinds = [v1.EVENT_KIND_JOB_REGISTERED, v1.EVENT_KIND_TRIAL_FAILED, v1.EVENT_KIND_TRIAL_INTERRUPTED]
    events = admin.ListEvents(v1.ListEventsRequest(job_id=job.job_id, kinds=kinds)).events
    assert [event.kind for event in events] == kinds[::-1]
    only = admin.ListEvents(v1.ListEventsRequest(job_id=job.job_id, kinds=kinds[2:])).events
    assert [(event.trial_number, event.message) for event in only] == [
        (5, "trial 5, batch size 8, was preempted before its first report")
    ]


def test_trials_are_filtered_by_label(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Pages and their total have the trials with all labels; labels that no launch may have are refused."""
    job = Trainer(grpc_stub)
    for host in ("a", "b", "a"):
        launch = v1.GetNextBatchSizeRequest(
            job_id=job.job_id, launch_id=new_id(), labels={"host": host, "commit": "5f0"}
        )
        job.report(grpc_stub.GetNextBatchSize(launch).trial, 100.0)
    job.run(100.0)
    request = v1.ListTrialsRequest(job_id=job.job_id, page_size=1, with_total_size=True, labels={"host": "a"})
    first = admin.ListTrials(request)
    assert ([trial.id.trial_number for trial in first.trials], first.total_size) == ([1], 2)
    request.page_token = first.next_page_token
    assert [trial.id.trial_number for trial in admin.ListTrials(request).trials] == [3]
    request.labels["commit"] = "other"
    with refused() as refusal:
        # The token is that of another list.
        admin.ListTrials(request)
    assert list(refusal.faults) == ["page_token"]
    request.page_token = ""
    assert admin.ListTrials(request).total_size == 0
    with refused() as refusal:
        admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id, labels={"k" * 64: "a"}))
    assert list(refusal.faults) == ["labels"]


def test_pages_of_trials_follow_their_filter(grpc_stub: Stub, admin: PeopleStub) -> None:
    """A filtered list is paged without gaps."""
    job = Trainer(grpc_stub, batch_sizes=[16])
    for _ in range(5):
        job.end(job.next(), v1.END_REASON_PREEMPTED)
    request = v1.ListTrialsRequest(job_id=job.job_id, page_size=2, statuses=[v1.TRIAL_STATUS_INTERRUPTED])
    seen = []
    while True:
        page = admin.ListTrials(request)
        seen += [trial.id.trial_number for trial in page.trials]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == [1, 2, 3, 4, 5]


def test_pages_begin_behind_a_start_before_1970(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Imported trials that started before 1970 are listed once each, over pages of one."""
    job = Trainer(grpc_stub, job_id_prefix="ancient", job_id="ancient-1")
    for seconds in (86_400, -86_400, -2 * 86_400):
        measured = v1.Measurement(epoch=1, time_seconds=1.0, energy_joules=100.0, metric=0.95)
        imported = v1.ImportTrialRequest(
            job_id=job.job_id, launch_id=str(seconds), batch_size=16, measurements=[measured]
        )
        imported.start_time.FromSeconds(seconds)
        grpc_stub.ImportTrial(imported)
    request = v1.ListTrialsRequest(job_id_prefix="ancient-", page_size=1)
    seen = []
    while True:
        page = admin.ListTrials(request)
        seen += [trial.start_time.seconds for trial in page.trials]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == [-2 * 86_400, -86_400, 86_400]


def test_jobs_are_paged_by_id(grpc_stub: Stub, admin: PeopleStub) -> None:
    """A token leads behind the longest ids, in any script; one that is far longer is refused."""
    job_ids = [f"by_id_{sign * 190}" for sign in ("\U0001f680", "x", "\u00e9")]
    for job_id in job_ids:
        Trainer(grpc_stub, job_id_prefix="by_id", job_id=job_id)
    request = v1.ListJobsRequest(page_size=1, job_id_prefix="by_id_", order=v1.JOB_ORDER_ID)
    seen = []
    while True:
        page = admin.ListJobs(request)
        seen += [row.job.spec.job_id for row in page.jobs]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == sorted(job_ids)
    request.page_token = "x" * 400_000
    with refused() as refusal:
        admin.ListJobs(request)
    assert list(refusal.faults) == ["page_token"]


@pytest.mark.parametrize("token", ["nonsense", "am9iczp4", "dHJpYWxzOjE=", "\u00e4", "am9iczotMQ=="])
def test_foreign_page_token_is_refused(admin: PeopleStub, token: str) -> None:
    """A page token that this list did not return is refused."""
    with refused() as refusal:
        admin.ListJobs(v1.ListJobsRequest(page_token=token))
    assert (refusal.reason, list(refusal.faults)) == ("ERROR_REASON_INVALID_REQUEST", ["page_token"])


def test_page_token_is_for_its_list(grpc_stub: Stub, admin: PeopleStub) -> None:
    """A token is refused with another filter or another job; the size of the page may change."""
    job, other = Trainer(grpc_stub), Trainer(grpc_stub)
    for each in (job, other):
        for _ in range(3):
            each.end(each.next(), v1.END_REASON_PREEMPTED)
    token = admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id, page_size=1)).next_page_token
    for changed in (
        v1.ListTrialsRequest(job_id=other.job_id, page_token=token),
        v1.ListTrialsRequest(job_id=job.job_id, page_token=token, statuses=[v1.TRIAL_STATUS_FAILED]),
        v1.ListTrialsRequest(job_id=job.job_id, page_token=token, batch_size=16),
    ):
        with refused() as refusal:
            admin.ListTrials(changed)
        assert list(refusal.faults) == ["page_token"]
    more = admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id, page_token=token)).trials
    assert [trial.id.trial_number for trial in more] == [2, 3]


def test_page_token_outlives_the_server(server: LiveServer) -> None:
    """A list goes on after a restart; the server of another database refuses its token."""
    for _ in range(3):
        Trainer(server.trainer)
    token = server.admin.ListJobs(v1.ListJobsRequest(page_size=1)).next_page_token
    server.kill()
    server.start()
    assert len(server.admin.ListJobs(v1.ListJobsRequest(page_token=token)).jobs) == 2
    server.stop()
    server.lose_database()
    server.start()
    with refused() as refusal:
        server.admin.ListJobs(v1.ListJobsRequest(page_token=token))
    assert list(refusal.faults) == ["page_token"]


def test_invalid_filters_are_refused(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Negative page sizes and batch sizes and unknown statuses are violations of their field."""
    job = Trainer(grpc_stub)
    unset, unknown = v1.TRIAL_STATUS_UNSPECIFIED, v1.TrialStatus.ValueType(99)
    for field, wrong in (
        ("page_size", v1.ListTrialsRequest(page_size=-1)),
        ("batch_size", v1.ListTrialsRequest(batch_size=-1)),
        ("statuses[1]", v1.ListTrialsRequest(statuses=[v1.TRIAL_STATUS_RUNNING, unknown])),
        ("statuses[0]", v1.ListTrialsRequest(statuses=[unset])),
    ):
        request = v1.ListTrialsRequest(job_id=job.job_id)
        request.MergeFrom(wrong)
        with refused() as refusal:
            admin.ListTrials(request)
        assert list(refusal.faults) == [field]


def test_unknown_job_is_not_found_by_any_method(admin: PeopleStub) -> None:
    """Every method of people that names a job returns NOT_FOUND for an unknown one."""
    trial = v1.TrialId(job_id="unknown", trial_number=1)
    calls = (
        lambda: admin.GetJob(v1.GetJobRequest(job_id="unknown")),
        lambda: admin.ListTrials(v1.ListTrialsRequest(job_id="unknown")),
        lambda: admin.GetTrial(v1.GetTrialRequest(trial=trial)),
        lambda: admin.DeleteJob(v1.DeleteJobRequest(job_id="unknown")),
        lambda: next(admin.WatchJob(v1.WatchJobRequest(job_id="unknown"))),
    )
    for call in calls:
        with refused() as refusal:
            call()
        assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def test_every_measurement_is_kept(grpc_stub: Stub, admin: PeopleStub) -> None:
    """ListMeasurements returns each epoch's time, energy and metric, NaN included."""
    job = Trainer(grpc_stub)
    trial = job.next()
    sent = [(1, 1.5, 10.25, 0.1), (2, 3.0, 20.5, math.nan), (5, 7.0, 50.0, 0.3)]
    for epoch, time, energy, metric in sent:
        job.report(trial, energy, metric, epoch, time)
        job.report(trial, energy, metric, epoch, time)
    shown = v1.TrialId(job_id=job.job_id, trial_number=1)
    response = admin.GetTrial(v1.GetTrialRequest(trial=shown))
    measured = admin.ListMeasurements(v1.ListMeasurementsRequest(trial=shown)).measurements
    kept = [(m.epoch, m.time_seconds, m.energy_joules, m.metric) for m in measured]
    assert str(kept) == str(sent)
    times = [m.report_time.ToNanoseconds() for m in measured]
    assert response.trial.start_time.ToNanoseconds() <= times[0] < times[1] < times[2]
    last = response.trial
    assert (last.newest.epoch, last.newest.time_seconds, last.newest.energy_joules, last.newest.metric, last.cost) == (
        5,
        7,
        50,
        0.3,
        50,
    )


def test_measurements_are_paged(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Pages of measurements hold every epoch once, in both directions; a token is for one trial and direction."""
    job = Trainer(grpc_stub)
    trial, other = job.next(), job.next()
    for epoch in range(1, 8):
        job.report(trial, epoch, metric=0.1, epoch=epoch)

    def pages(*, newest_first: bool) -> list[list[int]]:
        found, token = [], ""
        while True:
            request = v1.ListMeasurementsRequest(
                trial=trial.id, page_size=3, page_token=token, newest_first=newest_first
            )
            page = admin.ListMeasurements(request)
            found.append([measured.epoch for measured in page.measurements])
            token = page.next_page_token
            if not token:
                return found

    assert pages(newest_first=False) == [[1, 2, 3], [4, 5, 6], [7]]
    assert pages(newest_first=True) == [[7, 6, 5], [4, 3, 2], [1]]
    token = admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id, page_size=7)).next_page_token
    assert token == ""
    token = admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id, page_size=3)).next_page_token
    for wrong in (
        v1.ListMeasurementsRequest(trial=other.id, page_token=token),
        v1.ListMeasurementsRequest(trial=trial.id, page_token=token, newest_first=True),
        v1.ListMeasurementsRequest(trial=trial.id, page_size=-1),
    ):
        with refused() as refusal:
            admin.ListMeasurements(wrong)
        assert refusal.reason == "ERROR_REASON_INVALID_REQUEST"
    with refused() as refusal:
        admin.ListMeasurements(v1.ListMeasurementsRequest(trial=v1.TrialId(job_id=job.job_id, trial_number=9)))
    assert refusal.reason == "ERROR_REASON_TRIAL_NOT_FOUND"


def test_watch_shows_every_change_and_the_end(grpc_stub: Stub, admin: PeopleStub) -> None:
    """WatchJob sends the job at once and after each change, and ends with NOT_FOUND when the job is deleted."""
    job = Trainer(grpc_stub)
    watch = admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id), timeout=30)
    assert next(watch).job.num_trials == 0
    trial = job.next()
    assert next(watch).job.num_trials == 1
    job.report(trial, 42.0)
    assert next(watch).job.min_cost == 42.0
    admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    with refused() as refusal:
        next(watch)
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def test_deleted_id_can_be_registered_again(grpc_stub: Stub, admin: PeopleStub) -> None:
    """After a deletion the id is free; its new job starts at trial 1 and has none of the old trials."""
    job = Trainer(grpc_stub)
    job.run(100.0)
    admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    assert grpc_stub.RegisterJob(v1.RegisterJobRequest(job=job.spec)).created
    assert job.next("again").id.trial_number == 1
    assert len(admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials) == 1


def test_deletion_names_the_job_by_its_registration(grpc_stub: Stub, admin: PeopleStub) -> None:
    """A late retry does not delete a job that was registered with the id since: it finds none."""
    job = Trainer(grpc_stub)
    first = admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.create_time
    delete = v1.DeleteJobRequest(job_id=job.job_id, create_time=first)
    assert admin.DeleteJob(delete).job.create_time == first
    assert grpc_stub.RegisterJob(v1.RegisterJobRequest(job=job.spec)).created
    with refused() as refusal:
        admin.DeleteJob(delete)
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"
    delete.allow_missing = True
    assert not admin.DeleteJob(delete).HasField("job")
    second = admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.create_time
    assert second != first
    delete.create_time.seconds = 10**15
    with refused() as refusal:
        admin.DeleteJob(delete)
    assert list(refusal.faults) == ["create_time"]
    second.FromMilliseconds(second.ToMilliseconds())
    delete.create_time.CopyFrom(second)
    assert admin.DeleteJob(delete).HasField("job")


async def test_running_trial_shows_its_current_cost_and_bound(tmp_path: Path) -> None:
    """Of a running trial the cost is the newest and the bound today's; an ended trial keeps those it ended with."""
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft())
    delivered = await site.training.next_trial("j", new_id())
    await report(site, delivered.key, 3, metric=0.95)
    running = await site.training.next_trial("j", new_id())
    await report(site, running.key, 1)
    await report(site, running.key, 2)
    paged = await site.administration.trials(TrialList("j"), (), 10)
    listed = [each.trial.trial for each in paged if each.trial is not None]
    assert [(each.cost, each.cost_bound) for each in listed] == [(30.0, None), (20.0, 60.0)]
    job = await site.administration.job("j")
    assert (job.num_trials, job.num_observations, job.num_search_events) == (2, 1, 3)
    shown = (await site.administration.trial(running.key)).trial
    epochs = await site.administration.measurements(running.key, 0, 10, newest_first=False)
    assert (shown.trial.cost, shown.trial.cost_bound, len(epochs)) == (20.0, 60.0, 2)
    await site.close()


async def test_list_goes_on_behind_a_job_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is deleted after a page was read takes no trials of other jobs from the list."""
    site = Site(tmp_path / "site.db")
    await site.open()
    for job_id in ("j-a", "j-b", "j-c", "j-d"):
        await site.training.register(draft(job_id))
        await site.training.next_trial(job_id, new_id())
    read = site.store.reads.trials

    async def read_and_delete(wanted: TrialList, after: Place, limit: int) -> Sequence[ListedTrial]:
        found = await read(wanted, after, limit)
        if not after:
            await site.administration.delete_job("j-b")
        return found

    monkeypatch.setattr(site.store.reads, "trials", read_and_delete)
    service = JobReaderService(
        site.administration, Statistics(site.store, Factors()), StreamLimit(0), PageTokens(site.store.page_token_key)
    )
    request = v1.ListTrialsRequest(job_id_prefix="j-", page_size=2)
    seen: list[str] = []
    while not seen or request.page_token:
        page = await service.ListTrials(request, cast("Any", None))
        seen += [trial.id.job_id for trial in page.trials]
        request.page_token = page.next_page_token
    assert seen == ["j-a", "j-c", "j-d"]
    await site.close()


async def test_page_of_jobs_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of many jobs that need attention is read at once: a job that is deleted meanwhile hides no other one."""
    site = Site(tmp_path / "site.db")
    await site.open()
    job_ids = [f"j-{number}" for number in range(120)]
    for job_id in job_ids:
        await site.training.register(draft(job_id))
    read = site.store.reads.jobs

    async def read_and_delete(wanted: JobList, after: JobPlace, limit: int) -> Sequence[ListedJob]:
        found = await read(wanted, after, limit)
        if not after:
            await site.administration.delete_job(found[0].job.spec.job_id)
        return found

    monkeypatch.setattr(site.store.reads, "jobs", read_and_delete)
    service = JobReaderService(
        site.administration, Statistics(site.store, Factors()), StreamLimit(0), PageTokens(site.store.page_token_key)
    )
    request = v1.ListJobsRequest(page_size=110, order=v1.JOB_ORDER_ATTENTION, with_summaries=True)
    page = await service.ListJobs(request, cast("Any", None))
    assert [row.job.spec.job_id for row in page.jobs] == job_ids[:9:-1]
    assert page.next_page_token
    await site.close()


async def test_leases_begin_again_after_a_failed_commit(tmp_path: Path) -> None:
    """While commits fail nobody can renew a lease: the job's trials get whole ones when it is read again."""
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft())
    trial = await site.training.next_trial("j", new_id())
    with closing(sqlite3.connect(site.file)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON measurements BEGIN SELECT RAISE(ABORT, 'full'); END")
        site.now += timedelta(hours=2)
        with pytest.raises(StorageUnavailableError):
            await report(site, trial.key, 1)
        other.execute("DROP TRIGGER full")
    shown = (await site.administration.trial(trial.key)).trial
    epochs = await site.administration.measurements(trial.key, 0, 10, newest_first=False)
    assert (shown.trial.lease_expire_time, epochs) == (site.now + timedelta(hours=1), [])
    await site.close()


async def test_missed_target_names_the_command_that_helps(tmp_path: Path) -> None:
    """The decision that ends a trial without a model says where the job's advice is; one with a model does not."""
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft(max_epochs=1))
    missed = await site.training.next_trial("j", new_id())
    assert "wattwise jobs show j" in (await report(site, missed.key, 1)).message
    reached = await site.training.next_trial("j", new_id())
    assert "wattwise jobs" not in (await report(site, reached.key, 1, metric=0.95)).message
    await site.close()


@pytest.mark.parametrize(("joules", "faulty"), [(LARGEST_COST, False), (math.nextafter(LARGEST_COST, math.inf), True)])
def test_largest_cost_is_still_valid(joules: float, faulty: bool) -> None:
    """Costs up to the largest are taken, measured and computed ones."""
    spec = resolve(draft())
    measured = Measurement(1, 1.0, joules, 0.1, BEGIN)
    assert [name for name, _ in number_faults(spec, measured)] == ["energy_joules"] * faulty
    computed = Measurement(1, 1.0, 1.0, 0.1, BEGIN, ComputedUsage(1.0, joules, 100.0))
    assert [name for name, _ in number_faults(spec, computed)] == ["computed.energy_joules"] * faulty


async def test_page_of_events_is_cut_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page of events is larger than a page; the pages together have all of them, newest first."""
    monkeypatch.setattr(paging, "PAGE_BYTES", 300)
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft())
    control = Control(site.store)
    for number in range(120):
        await control.set_paused("j", paused=number % 2 == 0)
    reader = JobReaderService(
        site.administration, Statistics(site.store, Factors()), StreamLimit(0), PageTokens(site.store.page_token_key)
    )
    request = v1.ListEventsRequest(job_id="j", page_size=1000)
    events: list[v1.Event] = []
    while not events or request.page_token:
        page = await reader.ListEvents(request, cast("Any", None))
        assert len(page.events) > 1 or not page.next_page_token
        assert v1.ListEventsResponse(events=page.events).ByteSize() <= 300
        events += page.events
        request.page_token = page.next_page_token
    changes = [v1.EVENT_KIND_JOB_RESUMED, v1.EVENT_KIND_JOB_PAUSED] * 60
    assert [each.kind for each in events] == [*changes, v1.EVENT_KIND_JOB_REGISTERED]
    await site.close()
