"""Figures of jobs, events and previews, as people and tools get them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rpc.client import Client
from wattwise_server.config import Factors
from wattwise_server.domain import PowerSample
from wattwise_server.rpc import paging, service
from wattwise_server.rpc.calls import StreamLimit
from wattwise_server.rpc.paging import PageTokens
from wattwise_server.store.base import EventList
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.power_limits import PowerLimitProfiler
from wattwise_server.usecases.statistics import Statistics

from tests.jobs import Trainer, power_sample
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.site import Site, draft, report

FACTORS = (
    *("--electricity-price", "0.36", "--gpu-hour-price", "1.8", "--currency", "EUR"),
    *("--carbon-intensity", "360", "--pue", "1.5", "--factors-source", "tariff of 2026"),
)


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that knows what energy and hours cost."""
    with LiveServer(tmp_path_factory.mktemp("priced")) as server:
        server.start(*FACTORS)
        yield server


def figures(server: LiveServer, job_id: str) -> v1.JobStatistics:
    """The figures of a job."""
    return server.admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=job_id)).statistics


def course(server: LiveServer, job_id: str, max_ranges: int, **fields: Any) -> v1.ListTrialBucketsResponse:
    """The ended trials of a job in ranges."""
    return server.admin.ListTrialBuckets(v1.ListTrialBucketsRequest(job_id=job_id, max_ranges=max_ranges, **fields))


class People(Trainer):
    """A job on a server, with the calls of people."""

    def __init__(self, server: LiveServer, **fields: Any) -> None:
        super().__init__(server.trainer, **fields)
        self.admin = server.admin

    def run_with(self, batch_size: int, cost: float | None, *, converges: bool = True) -> v1.Trial:
        """Runs a trial of this batch size."""
        self.pin(batch_size)
        return self.run(cost, converges=converges)

    def pin(self, batch_size: int) -> None:
        """Further launches get this batch size."""
        self.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=self.job_id, batch_size=batch_size))

    def unpin(self) -> None:
        """The search chooses again."""
        self.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=self.job_id))


def claimed(savings: v1.Savings, figure: str) -> set[str]:
    """The quantities about which there is a claim."""
    found = {field.name: value for field, value in savings.ListFields() if isinstance(value, v1.SavingsEstimate)}
    return {name for name, estimate in found.items() if estimate.HasField(figure)}  # type: ignore[arg-type]


def test_job_that_saves(priced: LiveServer) -> None:
    """Many runs of an expensive default and of a cheap batch size: the claim, its bound, its money and its carbon."""
    job = People(priced)
    for _ in range(6):
        job.run_with(16, 100.0)
    for _ in range(40):
        job.run_with(8, 10.0)
    found = figures(priced, job.job_id)
    savings = found.savings
    assert savings.cost.verdict == v1.SAVINGS_VERDICT_SAVING
    assert (savings.num_deliveries, savings.num_baseline_trials) == (46, 6)
    assert savings.newest_baseline_time.seconds
    spent = 600.0 + 400.0
    assert (savings.cost.spent, savings.energy.spent, savings.time.spent) == (spent, spent, 46.0)
    assert (savings.cost.default_mean, savings.cost.confidence) == pytest.approx((100.0, 0.95))
    assert 0 < savings.cost.at_least < savings.cost.saved < 46 * 100.0 - spent
    per_joule, per_second = 1.5 * 0.36 / 3.6e6, 1.8 / 3600
    assert savings.money.spent == pytest.approx(per_joule * spent + per_second * 46.0)
    assert savings.carbon.at_least == pytest.approx(savings.energy.at_least * 1.5 * 360 / 3.6e6)
    assert (found.spent.cost, found.spent.money) == (spent, savings.money.spent)
    assert found.break_even_trial > 6
    by_size = {each.batch_size: each for each in found.trials}
    assert {size: each.num_deliveries for size, each in by_size.items()} == {16: 6, 8: 40}
    assert by_size[8].mean_delivery.cost == pytest.approx(10.0)
    assert (by_size[8].mean_epochs, by_size[8].least_epochs, by_size[8].most_epochs) == (1.0, 1, 1)
    assert by_size[8].log_cost_deviation == 0.0
    assert by_size[8].HasField("log_cost_deviation")
    assert (found.num_requested, found.num_imported) == (46, 0)
    assert (by_size[8].mean_epoch_energy_joules, found.mean_epochs, found.num_trials) == (10.0, 1.0, 46)
    assert found.spent_per_delivery.cost == pytest.approx(spent / 46)


def test_shares_and_their_parts_follow_from_the_claim(priced: LiveServer) -> None:
    """The deliveries at what one is worth, minus what was spent; a share is of what the default would have taken."""
    job = People(priced)
    for size, number, joules in ((16, 6, 100.0), (8, 10, 150.0)):
        for _ in range(number):
            job.run_with(size, joules)
    job.report(job.next(), 7.0, metric=0.1)
    savings = figures(priced, job.job_id).savings
    cost = savings.cost
    assert savings.main_quantity == v1.SAVINGS_QUANTITY_MONEY
    assert cost.saved == pytest.approx(16 * cost.cautious_baseline - 2107.0)
    assert cost.at_least == pytest.approx(16 * cost.least_baseline - 2107.0)
    assert cost.at_least_share == pytest.approx(cost.at_least / (16 * cost.least_baseline))
    assert (cost.spent_by_ended_trials, cost.lost, cost.lost_share) == pytest.approx((2100.0, 500.0, 500.0 / 1600.0))
    assert cost.change == pytest.approx(0.5)
    without = figures(priced, People(priced).job_id).savings
    assert (
        not claimed(without, "change") | claimed(without, "at_least_share") | claimed(without, "spent_by_ended_trials")
    )


def test_what_would_prove_a_saving(server: LiveServer) -> None:
    """More deliveries of the default, then launches; nothing where every launch gets the default."""
    job = People(server)
    job.run_with(16, 100.0)
    assert figures(server, job.job_id).proof.state == v1.PROOF_STATE_DEFAULT_ONLY
    job.run_with(8, 90.0)
    needs = figures(server, job.job_id).proof
    assert (needs.state, needs.num_baselines, needs.num_launches) == (v1.PROOF_STATE_NEEDS_BASELINES, 2, 0)
    assert needs.price == pytest.approx(20.0)
    for _ in range(2):
        job.run_with(16, 100.0)
    job.pin(32)
    assert figures(server, job.job_id).proof == v1.SavingsProof()
    for _ in range(10):
        job.run_with(8, 60.0)
    way = figures(server, job.job_id)
    assert (way.savings.cost.verdict, way.proof.state) == (v1.SAVINGS_VERDICT_UNCERTAIN, v1.PROOF_STATE_NEEDS_LAUNCHES)
    assert way.proof.num_baselines + way.proof.num_launches > 0
    for _ in range(30):
        job.run_with(8, 40.0)
    shown = figures(server, job.job_id)
    assert (shown.savings.cost.verdict, shown.proof) == (v1.SAVINGS_VERDICT_SAVING, v1.SavingsProof())


def test_nothing_is_said_of_deliveries_without_one(server: LiveServer) -> None:
    """Epochs need a delivery, and a deviation two; all trials are compared unless the job's behaviour has changed."""
    job = People(server)
    optional = {"log_cost_deviation", "mean_epochs", "least_epochs", "most_epochs", "mean_delivery"}

    def set_of(trials: v1.TrialStatistics) -> set[str]:
        return optional & {field.name for field, _ in trials.ListFields()}

    job.run_with(16, 100.0, converges=False)
    (missed,) = figures(server, job.job_id).trials
    assert not set_of(missed)
    job.run_with(8, 100.0)
    found = figures(server, job.job_id)
    assert set_of(found.trials[0]) == optional - {"log_cost_deviation"}
    assert not found.savings.HasField("compared_from_trial")


def verdicts(server: LiveServer, job_id: str) -> list[v1.SavingsVerdict.ValueType]:
    """Returns the verdicts about a job's cost: of its statistics, of its place in a list, and of its totals."""
    (row,) = server.admin.ListJobs(v1.ListJobsRequest(job_id_prefix=job_id, with_summaries=True)).jobs
    totals = server.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix=job_id)).totals
    savings = figures(server, job_id).savings, row.summary.savings, totals.savings
    return [each.cost.verdict for each in savings]


def test_paused_job_does_not_explore(priced: LiveServer) -> None:
    """A pause and its end change the verdict without a launch, in the totals too."""
    job = People(priced)
    job.run_with(8, 100.0)
    job.unpin()
    assert verdicts(priced, job.job_id) == [v1.SAVINGS_VERDICT_EXPLORING] * 3
    for paused, verdict in ((True, v1.SAVINGS_VERDICT_NO_BASELINE), (False, v1.SAVINGS_VERDICT_EXPLORING)):
        job.admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=paused))
        assert verdicts(priced, job.job_id) == [verdict] * 3


def test_loss_is_said_as_such(priced: LiveServer) -> None:
    """Where trying other batch sizes has cost more than it saved, ten launches explore and then it is a loss."""
    job = People(priced)
    for _ in range(9):
        job.run_with(16, 100.0)
    job.run_with(64, 5000.0, converges=False)
    assert verdicts(priced, job.job_id) == [v1.SAVINGS_VERDICT_UNCERTAIN] * 3
    job.unpin()
    statistics = figures(priced, job.job_id)
    early = statistics.savings
    assert verdicts(priced, job.job_id) == [v1.SAVINGS_VERDICT_EXPLORING] * 3
    assert early.num_exploring_launches == 10
    assert early.cost.saved < 0
    assert statistics.advice == []
    job.run_with(16, 100.0)
    statistics = figures(priced, job.job_id)
    savings = statistics.savings
    assert verdicts(priced, job.job_id) == [v1.SAVINGS_VERDICT_LOSS] * 3
    assert savings.money.verdict == v1.SAVINGS_VERDICT_LOSS
    assert savings.cost.saved < 0
    assert any("16" in line for line in statistics.advice)
    assert not statistics.HasField("break_even_trial")


def test_running_trial_is_no_loss(priced: LiveServer) -> None:
    """A job loses nothing while a trial runs, but by one of another batch size that ends without a model."""
    job = People(priced)
    for _ in range(11):
        job.run_with(16, 100.0)
    job.pin(8)
    running = job.next()
    job.report(running, 90.0, metric=0.1)
    savings = figures(priced, job.job_id).savings
    assert savings.cost.verdict == v1.SAVINGS_VERDICT_UNCERTAIN
    assert (savings.cost.spent, savings.cost.lost) == (1190.0, 0.0)
    job.end(running, v1.END_REASON_ERROR)
    savings = figures(priced, job.job_id).savings
    assert savings.cost.verdict == v1.SAVINGS_VERDICT_LOSS
    assert savings.cost.lost == 90.0


def test_misses_of_the_default_are_no_loss(priced: LiveServer) -> None:
    """They would have been paid for without a search: a job that always trains its default loses nothing by them."""
    job = People(priced)
    for converges in (True, True, False) * 5:
        job.run_with(16, 100.0, converges=converges)
    found = figures(priced, job.job_id)
    assert (found.savings.cost.default_mean, found.savings.cost.with_default) == (100.0, 150.0)
    assert (found.savings.cost.verdict, found.savings.cost.lost) == (v1.SAVINGS_VERDICT_UNCERTAIN, 0.0)
    for _ in range(10):
        job.run_with(8, 400.0)
    found = figures(priced, job.job_id)
    assert (found.savings.cost.verdict, found.savings.cost.lost) == (v1.SAVINGS_VERDICT_LOSS, 5500.0 - 20 * 150.0)


def test_imported_trials_without_a_start_are_not_the_jobs_own(priced: LiveServer) -> None:
    """They may be older than the job: they tell what batch sizes cost, but nothing was spent or delivered by them."""
    job = People(priced)
    for number in range(20):
        size, cost = (16, 100.0) if number < 5 else (8, 10.0)
        epoch = v1.Measurement(epoch=1, time_seconds=1.0, energy_joules=cost, metric=0.95)
        priced.trainer.ImportTrial(
            v1.ImportTrialRequest(job_id=job.job_id, launch_id=str(number), batch_size=size, measurements=[epoch])
        )
    found = figures(priced, job.job_id)
    assert (found.num_deliveries, found.spent.cost, list(found.months)) == (0, 0.0, [])
    assert (found.num_imported, found.num_requested) == (20, 0)
    assert found.savings.cost.verdict == v1.SAVINGS_VERDICT_NO_DELIVERY
    assert (found.savings.cost.in_use, found.savings.cost.with_default) == (10.0, 100.0)
    assert found.savings.money.in_use > 0


def test_imported_trials_without_energy_cost_no_money(priced: LiveServer) -> None:
    """Where energy has a price, the money of a model is unknown without its energy, also before the first delivery."""
    job = People(priced, eta_knob=0.5)
    epoch = v1.Measurement(epoch=1, time_seconds=1.0, metric=0.95)
    request = v1.ImportTrialRequest(job_id=job.job_id, launch_id="a", batch_size=16, measurements=[epoch])
    priced.trainer.ImportTrial(request)
    savings = figures(priced, job.job_id).savings
    assert savings.cost.verdict == v1.SAVINGS_VERDICT_NO_DELIVERY
    assert savings.cost.with_default == 50.0
    for unknown in (savings.energy, savings.money):
        assert not unknown.HasField("with_default")


def test_energy_that_no_trial_measured_is_unset(priced: LiveServer) -> None:
    """Sums, means, months and totals have neither energy nor carbon until a trial measures energy."""
    job = People(priced, job_id_prefix="without", job_id="without-energy", eta_knob=0.5)

    def run(joules: float | None) -> None:
        measured = v1.Measurement(epoch=1, time_seconds=1.0, energy_joules=joules, metric=0.95)
        done = v1.TrainingResult(trial=job.next().id, measurement=measured)
        priced.trainer.ReportResult(v1.ReportResultRequest(result=done))

    def usages() -> list[v1.Usage]:
        found = figures(priced, job.job_id)
        (of_size,), (month,) = found.trials, found.months
        totals = priced.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="without")).totals
        (listed,) = priced.admin.ListJobs(v1.ListJobsRequest(job_id_prefix="without", with_summaries=True)).jobs
        return [of_size.spent, of_size.mean_delivery, month.spent, found.spent, totals.spent, listed.summary.spent]

    def estimates() -> list[v1.Savings]:
        totals = priced.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="without")).totals
        return [figures(priced, job.job_id).savings, totals.savings]

    priced.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=16))
    run(None)
    for usage in usages():
        assert not usage.HasField("energy_joules")
        assert not usage.HasField("carbon_grams")
        assert usage.time_seconds == 1.0
    for savings in estimates():
        assert not savings.energy.HasField("spent")
        assert not savings.HasField("carbon")
    run(100.0)
    assert [usage.energy_joules for usage in usages()] == [100.0, 50.0, 100.0, 100.0, 100.0, 100.0]
    assert [savings.energy.spent for savings in estimates()] == [100.0, 100.0]
    assert all(savings.HasField("carbon") for savings in estimates())


def test_no_claim_without_three_runs_of_the_default(priced: LiveServer) -> None:
    """Until then the default's mean is known and what would settle the claim; nothing was saved for certain."""
    job = People(priced)
    assert figures(priced, job.job_id).savings.cost.verdict == v1.SAVINGS_VERDICT_NO_DELIVERY
    job.run_with(8, 10.0)
    assert figures(priced, job.job_id).savings.cost.verdict == v1.SAVINGS_VERDICT_NO_BASELINE
    job.unpin()
    savings = figures(priced, job.job_id).savings
    assert savings.cost.verdict == v1.SAVINGS_VERDICT_EXPLORING
    assert not savings.cost.HasField("default_mean")
    for _ in range(11):
        job.run_with(8, 10.0)
    assert figures(priced, job.job_id).savings.cost.verdict == v1.SAVINGS_VERDICT_NO_BASELINE
    for runs in (1, 2):
        job.run_with(16, 477.0)
        savings = figures(priced, job.job_id).savings
        assert (savings.cost.verdict, savings.min_baseline_trials) == (v1.SAVINGS_VERDICT_NO_BASELINE, 3)
        assert (savings.num_baseline_trials, savings.cost.default_mean) == (runs, 477.0)
        assert not savings.cost.HasField("saved")
        assert not savings.cost.HasField("at_least")
    priced.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=8))
    savings = figures(priced, job.job_id).savings
    assert (savings.batch_size_in_use, savings.num_in_use_trials, savings.cost.in_use) == (8, 12, 10.0)
    assert savings.cost.with_default == 477.0
    # One run more or less unlike the others would change everything.
    proof = figures(priced, job.job_id).proof
    assert (proof.state, proof.num_baselines) == (v1.PROOF_STATE_NEEDS_BASELINES, 1)
    job.run_with(16, 477.0)
    found = figures(priced, job.job_id)
    assert found.savings.cost.verdict == v1.SAVINGS_VERDICT_SAVING
    # In money, since each launch takes as long: nothing is saved while every launch gets the default.
    assert found.proof.state == v1.PROOF_STATE_DEFAULT_ONLY


def test_a_model_costs_what_missed_trials_cost_too(priced: LiveServer) -> None:
    """With the batch size in use: everything its ended trials took, by its deliveries."""
    job = People(priced)
    job.run_with(8, 10.0)
    job.run_with(8, 20.0, converges=False)
    job.report(job.next(), 7.0, metric=0.1)
    savings = figures(priced, job.job_id).savings
    assert (savings.batch_size_in_use, savings.num_in_use_trials) == (8, 1)
    assert (savings.cost.in_use, savings.energy.in_use, savings.cost.spent) == (30.0, 30.0, 37.0)


def test_months_have_what_was_spent_in_them(priced: LiveServer) -> None:
    """All trials of this test ended in the same month, or in two if it changes meanwhile."""
    job = People(priced)
    job.run_with(8, 10.0)
    job.run_with(8, 20.0, converges=False)
    job.report(job.next(), 7.0, metric=0.1)
    months = figures(priced, job.job_id).months
    assert sum(month.num_trials for month in months) == 2
    assert sum(month.num_deliveries for month in months) == 1
    assert sum(month.spent.cost for month in months) == 30.0
    assert sum(month.spent.money for month in months) == pytest.approx(1.5 * 0.36 / 3.6e6 * 30.0 + 1.8 / 3600 * 2)
    starts = [month.start_time.ToDatetime() for month in months]
    assert all((start.day, start.hour, start.minute) == (1, 0, 0) for start in starts)
    assert starts == sorted(set(starts))


def test_excluded_trials_and_those_before_a_reset_do_not_count(priced: LiveServer) -> None:
    """An exclusion and a reset show at once, also of what was asked for before; an inclusion too."""
    job = People(priced)
    job.run_with(16, 100.0)
    wrong = job.run_with(16, 7e6)
    assert figures(priced, job.job_id).spent.cost == 7e6 + 100.0
    exclude = v1.SetTrialExcludedRequest(trial=wrong.id, excluded=True)
    priced.admin.SetTrialExcluded(exclude)
    found = figures(priced, job.job_id)
    assert (found.spent.cost, list(found.excluded_trials)) == (100.0, [2])
    priced.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=wrong.id, excluded=False))
    assert figures(priced, job.job_id).spent.cost == 7e6 + 100.0
    priced.admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id()))
    assert figures(priced, job.job_id).spent.cost == 0.0
    job.run_with(16, 30.0)
    assert figures(priced, job.job_id).savings.num_deliveries == 1


def test_running_trials_are_spent_but_not_delivered(priced: LiveServer) -> None:
    """What a running trial has used so far is part of what was spent, with every report."""
    job = People(priced)
    running = job.next()
    for epoch in (1, 2):
        job.report(running, 40.0 * epoch, metric=0.1, epoch=epoch)
        found = figures(priced, job.job_id)
        assert (found.spent.cost, found.savings.num_deliveries) == (40.0 * epoch, 0)
    (group,) = found.trials
    assert (group.num_trials, group.num_running, group.spent.time_seconds) == (1, 1, 1.0)


def test_buckets_of_single_trials_say_when_and_why(priced: LiveServer) -> None:
    """Each has its trial's number, end, epochs and reasons; an excluded trial is among them only if requested."""
    job = People(priced)
    job.run(100.0)
    job.run(20.0, converges=False)
    excluded = job.run(7e9)
    key = v1.TrialId(job_id=job.job_id, trial_number=excluded.id.trial_number)
    job.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=key, excluded=True))
    trials = job.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials
    found = course(priced, job.job_id, 10, with_excluded=True)
    assert [
        (each.newest_trial, each.last_end_time, each.mean_epochs, each.end_reason, each.reason, each.excluded)
        for each in found.buckets
    ] == [
        (trial.id.trial_number, trial.end_time, trial.newest.epoch, trial.end_reason, trial.reason, trial.excluded)
        for trial in trials
    ]
    assert [each.excluded for each in found.buckets] == [False, False, True]
    assert all(each.reason for each in found.buckets)
    assert list(course(priced, job.job_id, 10).buckets) == list(found.buckets[:2])
    assert [point.trial_number for point in found.savings_points] == [1, 2]


def test_buckets_cover_the_trials(priced: LiveServer) -> None:
    """With as many buckets as trials each has one; with fewer each has several, and the points are cumulative."""
    job = People(priced)
    costs = [100.0, 20.0, 30.0, 40.0, 50.0]
    for number, cost in enumerate(costs):
        job.run_with(16 if number == 0 else 8, cost)
    single = course(priced, job.job_id, 0)
    assert [(each.first_trial, each.last_trial, each.median_cost) for each in single.buckets] == [
        (number, number, cost) for number, cost in enumerate(costs, 1)
    ]
    joint, savings = course(priced, job.job_id, 2), figures(priced, job.job_id).savings
    assert [(each.first_trial, each.last_trial, each.batch_size, each.num_trials) for each in joint.buckets] == [
        (1, 3, 8, 2),
        (1, 3, 16, 1),
        (4, 5, 8, 2),
    ]
    assert [(point.trial_number, point.num_deliveries, point.cost_per_delivery) for point in joint.savings_points] == [
        (3, 3, 50.0),
        (5, 5, 48.0),
    ]
    assert joint.savings_points[-1].saved_cost == pytest.approx(savings.cost.saved)
    assert joint.savings_points[-1].saved_cost_at_least == pytest.approx(savings.cost.at_least)
    with refused() as refusal:
        course(priced, job.job_id, 1001)
    assert list(refusal.faults) == ["max_ranges"]
    for call in (lambda: course(priced, "no-such-job", 0), lambda: figures(priced, "no-such-job")):
        with refused() as refusal:
            call()
        assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def test_pages_of_buckets_go_on_with_their_ranges(priced: LiveServer) -> None:
    """A page has whole ranges; the next one goes on with the same ranges, also if trials have started since."""
    job = People(priced)
    for number in range(6):
        job.run_with(8 if number % 2 else 16, 100.0)
    whole = course(priced, job.job_id, 3)
    assert [(each.first_trial, each.last_trial, each.batch_size) for each in whole.buckets] == [
        (first, first + 1, size) for first in (1, 3, 5) for size in (8, 16)
    ]
    first = course(priced, job.job_id, 3, page_size=1)
    for _ in range(3):
        job.run_with(8, 100.0)
    second = course(priced, job.job_id, 3, page_size=2, page_token=first.next_page_token)
    assert [*first.buckets, *second.buckets] == list(whole.buckets)
    assert [point.trial_number for point in (*first.savings_points, *second.savings_points)] == [2, 4, 6]
    last = course(priced, job.job_id, 3, page_token=second.next_page_token)
    assert [(each.first_trial, each.last_trial, each.num_trials) for each in last.buckets] == [(7, 8, 2), (9, 9, 1)]
    assert not last.next_page_token
    with refused() as refusal:
        course(priced, job.job_id, 2, page_token=first.next_page_token)
    assert list(refusal.faults) == ["page_token"]


async def test_page_of_buckets_or_profiles_is_cut_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends with the range or profile that reaches the size of a page; the pages together have all of them."""
    monkeypatch.setattr(paging, "PAGE_BYTES", 300)
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft())
    control, profiler = Control(site.store), PowerLimitProfiler(site.store)
    for number in range(9):
        await control.pin("j", (8, 16, 32)[number % 3])
        trial = await site.training.next_trial("j", new_id())
        await profiler.report(trial.key, [PowerSample(100.0 + watts, 1.0, 100.0, 10) for watts in range(9)])
        await report(site, trial.key, 1, 0.99)
    reader = service.JobReaderService(
        site.administration, Statistics(site.store, Factors()), StreamLimit(0), PageTokens(site.store.page_token_key)
    )
    requests: tuple[Any, ...] = (v1.ListTrialBucketsRequest(job_id="j"), v1.ListPowerProfilesRequest(job_id="j"))
    calls: tuple[Callable[..., Awaitable[Any]], ...] = (reader.ListTrialBuckets, reader.ListPowerProfiles)
    found: list[list[Any]] = [[], []]
    num_pages = [0, 0]
    for place, (request, call) in enumerate(zip(requests, calls, strict=True)):
        while not num_pages[place] or request.page_token:
            page = await call(request, cast("Any", None))
            found[place] += getattr(page, ("buckets", "power_profiles")[place])
            num_pages[place] += 1
            request.page_token = page.next_page_token
            assert page.ByteSize() < 2000
    assert [each.first_trial for each in found[0]] == list(range(1, 10))
    assert [each.batch_size for each in found[1]] == [8, 16, 32]
    assert min(num_pages) > 1
    await site.close()


def test_every_change_of_a_job_shows_in_its_course(priced: LiveServer) -> None:
    """What was answered before is not repeated once a trial has ended or was excluded."""
    job = People(priced)
    job.run_with(16, 100.0)
    assert [point.cost_per_delivery for point in course(priced, job.job_id, 1).savings_points] == [100.0]
    wrong = job.run_with(16, 300.0)
    assert [point.cost_per_delivery for point in course(priced, job.job_id, 1).savings_points] == [200.0]
    priced.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=wrong.id, excluded=True))
    assert [point.cost_per_delivery for point in course(priced, job.job_id, 1).savings_points] == [100.0]


def test_totals_claim_only_what_was_measured(priced: LiveServer) -> None:
    """A job without measurements of energy has a claim about its time, but none about energy, money and carbon."""
    job = People(priced, job_id_prefix="unmeasured", job_id="unmeasured-one", eta_knob=0.0)
    for size in (16, 16, 16, 8):
        job.run_with(size, None)
    found = priced.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="unmeasured")).totals
    for name in ("saved", "at_least", "lost"):
        assert claimed(found.savings, name) == {"time", "cost"}
    assert not found.spent.HasField("energy_joules")


def test_numbers_whose_sums_would_not_be_finite_are_refused(priced: LiveServer) -> None:
    """Seconds and joules have the limit of costs each, also where the cost leaves one of them out."""
    job = People(priced, eta_knob=1.0)
    trial = job.next()
    for field in ("time_seconds", "energy_joules"):
        measured = v1.TrainingResult(
            trial=trial.id, measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.5, epoch=1)
        )
        setattr(measured.measurement, field, 1.5e100)
        with refused() as refusal:
            priced.trainer.ReportResult(v1.ReportResultRequest(result=measured))
        assert list(refusal.faults) == [f"result.measurement.{field}"]


def test_totals_and_summaries_agree_with_the_jobs(priced: LiveServer) -> None:
    """Totals of a prefix are the sums of its jobs, losses included; a list shows the same of each job."""
    saves, loses, new = (People(priced, job_id_prefix="sum", job_id=f"sum-{name}") for name in ("a", "b", "c"))
    for _ in range(8):
        saves.run_with(16, 100.0)
    for _ in range(40):
        saves.run_with(8, 1.0)
    for _ in range(11):
        loses.run_with(16, 10.0)
    loses.run_with(8, 900.0, converges=False)
    loses.next()
    request = v1.ListJobsRequest(job_id_prefix="sum-", with_summaries=True, with_total_size=True)
    listed = priced.admin.ListJobs(request)
    assert listed.total_size == 3
    summaries = {row.job.spec.job_id: row.summary for row in listed.jobs}
    for job in (saves, loses, new):
        one = figures(priced, job.job_id).savings
        assert summaries[job.job_id].savings.cost == one.cost
        assert summaries[job.job_id].savings.cost.verdict == one.cost.verdict
    assert [summaries[job.job_id].num_running_trials for job in (saves, loses, new)] == [0, 1, 0]
    assert not summaries[new.job_id].HasField("last_activity_time")
    totals = priced.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="sum-")).totals
    assert (totals.num_jobs, totals.num_running_trials, totals.num_deliveries) == (3, 1, 59)
    assert totals.num_jobs_with_savings == 2
    assert totals.spent.cost == 800.0 + 40.0 + 1010.0
    both = [summaries[job.job_id].savings for job in (saves, loses)]
    assert totals.savings.cost.saved == pytest.approx(sum(each.cost.saved for each in both))
    assert totals.savings.energy.at_least == pytest.approx(sum(each.energy.at_least for each in both))
    assert totals.savings.money.saved == pytest.approx(sum(each.money.saved for each in both))
    assert not totals.savings.HasField("batch_size_in_use")
    assert totals.savings.cost.verdict == v1.SAVINGS_VERDICT_SAVING
    assert totals.savings.money.verdict == v1.SAVINGS_VERDICT_UNCERTAIN
    one = priced.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="sum-b")).totals.savings
    assert (one.cost.verdict, one.cost.lost) == (v1.SAVINGS_VERDICT_LOSS, both[1].cost.lost)
    nothing = priced.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="sum-c")).totals.savings
    assert nothing.cost.verdict == v1.SAVINGS_VERDICT_NO_DELIVERY
    plain = priced.admin.ListJobs(v1.ListJobsRequest(job_id_prefix="sum-"))
    assert not any(job.HasField("summary") for job in plain.jobs)


def test_without_factors_there_is_no_money(server: LiveServer) -> None:
    """A server without prices and carbon intensity names neither."""
    job = People(server)
    job.run_with(16, 100.0)
    found = figures(server, job.job_id)
    assert not found.spent.HasField("money")
    assert not found.spent.HasField("carbon_grams")
    assert not found.savings.HasField("money")
    assert not found.savings.HasField("carbon")
    factors = server.admin.GetServerInfo(v1.GetServerInfoRequest()).factors
    assert factors == v1.Factors(pue=1.0)


def test_server_info_has_the_factors(priced: LiveServer) -> None:
    """The operator's factors as given, and what else a client can know."""
    info = priced.admin.GetServerInfo(v1.GetServerInfoRequest())
    assert info.factors == v1.Factors(
        electricity_price_per_kwh=0.36,
        gpu_hour_price=1.8,
        currency="EUR",
        carbon_intensity_grams_per_kwh=360,
        pue=1.5,
        source="tariff of 2026",
    )
    assert (info.role, info.token_id, info.job_id_prefix) == (v1.ROLE_ANYONE, "", "")
    assert info.version
    assert info.start_time.seconds


def test_preview_is_what_the_next_launch_gets(server: LiveServer) -> None:
    """A choice without chance is certain and comes true, a bandit's has shares; nothing is dispatched."""
    certain = Trainer(server.trainer, policy="knowledge_gradient", seed=None)
    preview = server.admin.PreviewNext(v1.PreviewNextRequest(job_id=certain.job_id))
    (choice,) = preview.choices
    assert (choice.probability, preview.num_samples) == (1.0, 1)
    answer = server.trainer.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=certain.job_id, launch_id=new_id()))
    assert (answer.trial.batch_size, answer.trial.origin, answer.trial.reason) == (
        choice.batch_size,
        choice.origin,
        choice.reason,
    )
    bandit = Trainer(server.trainer, num_pruning_rounds=0, num_explorations=1, seed=None)
    preview = server.admin.PreviewNext(v1.PreviewNextRequest(job_id=bandit.job_id))
    assert {each.batch_size for each in preview.choices} == {8, 16, 32, 64}
    assert preview.num_samples > 100
    assert math.isclose(sum(each.probability for each in preview.choices), 1.0)
    assert server.admin.GetJob(v1.GetJobRequest(job_id=bandit.job_id)).job.num_trials == 0


def test_trial_says_why_it_was_chosen_and_why_it_ended(server: LiveServer) -> None:
    """The reason of the dispatch, labels, the message of the decision and the recurrence are kept with the trial."""
    job = Trainer(server.trainer)
    labels = {"host": "node-7", "commit": "5f0c2a9"}
    answer = server.trainer.GetNextBatchSize(
        v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id(), labels=labels)
    )
    decision = job.report(answer.trial, 10.0)
    asked = v1.LookupTrialRequest(job_id=job.job_id, launch_id=answer.trial.id.launch_id)
    for trial in (answer.trial, server.trainer.LookupTrial(asked).trial):
        # A trainer's calls do not say what takes a query or the job's state.
        assert not trial.HasField("decision_message")
        assert not trial.HasField("recurrence")
    second = job.next()
    job.report(second, 10.0, metric=0.2)
    for trials in (
        server.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials,
        [server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial for trial in (answer.trial, second)],
    ):
        first, other = trials
        assert (first.reason, dict(first.labels)) == (answer.trial.reason, labels)
        assert (first.decision_message, first.target_reached) == (decision.message, True)
        assert other.decision_message.startswith("continue")
        assert (first.recurrence, other.recurrence) == (1, 2)
        assert first.newest.report_time.seconds
    assert server.stop() == 0
    server.start()
    kept = server.admin.GetTrial(v1.GetTrialRequest(trial=answer.trial.id)).trial
    assert (kept.reason, dict(kept.labels)) == (answer.trial.reason, labels)


@pytest.mark.parametrize(
    "labels",
    [
        {f"key-{number}": "value" for number in range(17)},
        {"": "value"},
        {"k" * 64: "value"},
        {"key": "v" * 201},
        {"key": "line\nbreak"},
    ],
    ids=["many", "empty key", "long key", "long value", "control"],
)
def test_invalid_labels_are_refused(server: LiveServer, labels: dict[str, str]) -> None:
    """Nothing is dispatched for them."""
    job = Trainer(server.trainer)
    with refused() as refusal:
        server.trainer.GetNextBatchSize(
            v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id(), labels=labels)
        )
    assert set(refusal.faults) == {"labels"}
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.num_trials == 0


def test_whole_profile_is_kept(server: LiveServer) -> None:
    """A trial shows all power limits that it has profiled, and so do the figures of its job."""
    job = Trainer(server.trainer)
    trial = job.next()
    samples = [power_sample(300, energy=120), power_sample(250, energy=90), power_sample(200, energy=100)]
    server.trainer.ReportPowerProfile(v1.ReportPowerProfileRequest(trial=trial.id, samples=samples))
    profile = server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).power_profile
    assert [limit.power_setting.limit_watts_per_gpu for limit in profile.limits] == [200.0, 250.0, 300.0]
    assert [limit.cost_per_step for limit in profile.limits] == [10.0, 9.0, 12.0]
    with Client(server.address) as client:
        assert list(client.power_profiles(job.job_id)) == [profile]


def test_pages_of_power_profiles(server: LiveServer) -> None:
    """They are by batch size, as many on a page as wanted; an unknown job has none."""
    job = Trainer(server.trainer, batch_sizes=[8, 16, 32])
    for size in (32, 8):
        server.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=size))
        samples = [power_sample(300, energy=120)]
        server.trainer.ReportPowerProfile(v1.ReportPowerProfileRequest(trial=job.next().id, samples=samples))
    request = v1.ListPowerProfilesRequest(job_id=job.job_id, page_size=1)
    first = server.admin.ListPowerProfiles(request)
    request.page_token = first.next_page_token
    second = server.admin.ListPowerProfiles(request)
    assert [each.batch_size for each in (*first.power_profiles, *second.power_profiles)] == [8, 32]
    assert first.next_page_token
    assert not second.next_page_token
    with refused() as refusal:
        server.admin.ListPowerProfiles(v1.ListPowerProfilesRequest(job_id="no-such-job"))
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def events(server: LiveServer, job_id: str) -> list[v1.Event]:
    """The events of a job, oldest first."""
    return list(server.admin.ListEvents(v1.ListEventsRequest(job_id=job_id)).events)[::-1]


def test_events_tell_what_happened_to_a_job(server: LiveServer) -> None:
    """Registration, failures, what a batch size became, what people did, and the deletion, which they outlive."""
    job = People(server, trial_lease_seconds=0)
    job.run(50.0)
    for _ in range(2):
        crashed = job.next()
        job.end(crashed, v1.END_REASON_OUT_OF_MEMORY)
    assert crashed.batch_size == 8
    job.admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=True))
    job.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    found = events(server, job.job_id)
    kinds = [v1.EventKind.Name(each.kind).removeprefix("EVENT_KIND_") for each in found]
    assert kinds[0] == "JOB_REGISTERED"
    assert kinds[-2:] == ["JOB_PAUSED", "JOB_DELETED"]
    by_kind = dict(zip(kinds, found, strict=True))
    failed = by_kind["TRIAL_FAILED"]
    assert (failed.trial_number, failed.batch_size) == (crashed.id.trial_number, crashed.batch_size)
    assert "ran out of memory" in failed.message
    about = {kind: (each.HasField("trial_number"), each.HasField("batch_size")) for kind, each in by_kind.items()}
    assert about["JOB_REGISTERED"] == about["JOB_PAUSED"] == about["JOB_DELETED"] == (False, False)
    assert (about["TRIAL_FAILED"], about["BEST_KNOWN_CHANGED"]) == ((True, True), (False, True))
    changed = [each.batch_size for each in found if each.kind == v1.EVENT_KIND_BATCH_SIZE_STATUS_CHANGED]
    assert changed == [8, 16, 32, 64]
    assert by_kind["BEST_KNOWN_CHANGED"].batch_size == 16
    times = [each.time.ToNanoseconds() for each in found]
    assert times == sorted(times)
    request = v1.ListEventsRequest(job_id=job.job_id, kinds=[v1.EVENT_KIND_TRIAL_FAILED], page_size=1)
    assert list(server.admin.ListEvents(request).events) == [failed]


def test_trials_stopped_with_their_job_have_no_events(server: LiveServer) -> None:
    """The event of the deletion says how many trials were stopped; it is not said of each that it failed."""
    job = People(server)
    job.next()
    job.next()
    job.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    registered, deleted = events(server, job.job_id)
    assert (registered.kind, deleted.kind) == (v1.EVENT_KIND_JOB_REGISTERED, v1.EVENT_KIND_JOB_DELETED)
    assert deleted.message == "deleted with its 2 trials; running ones that were stopped: 2"


def test_events_are_paged(server: LiveServer) -> None:
    """Pages of two list all events of a prefix once each, newest first."""
    jobs = [Trainer(server.trainer, job_id_prefix="events", job_id=f"events-{number}") for number in range(5)]
    seen, token = [], ""
    while True:
        page = server.admin.ListEvents(v1.ListEventsRequest(job_id_prefix="events-", page_size=2, page_token=token))
        seen += [event.job_id for event in page.events]
        token = page.next_page_token
        if not token:
            break
    assert seen == [job.job_id for job in reversed(jobs)]


def test_watch_of_trials_has_every_epoch(server: LiveServer) -> None:
    """The running trials first, then each that starts, reports or ends; the stream ends with the job."""
    job = Trainer(server.trainer)
    first = job.next()
    with closing_call(server.admin.WatchTrials(v1.WatchTrialsRequest(job_id=job.job_id))) as answers:
        (shown,) = next(answers).trials
        assert (shown.id, shown.HasField("newest")) == (first.id, False)
        job.report(first, 5.0, metric=0.1)
        (shown,) = next(answers).trials
        assert (shown.id, shown.newest.epoch, shown.newest.metric) == (first.id, 1, 0.1)
        job.report(first, 10.0, epoch=2)
        (shown,) = next(answers).trials
        assert (shown.status, shown.end_reason) == (v1.TRIAL_STATUS_DECIDED, v1.END_REASON_TARGET_REACHED)
        second = job.next()
        (shown,) = next(answers).trials
        assert shown.id == second.id
        server.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
        with refused() as refusal:
            next(answers)
        assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def test_watch_of_jobs_names_those_that_change(server: LiveServer) -> None:
    """At first everything may have changed; then the jobs of the prefix with a report, a new job and a deleted one."""
    job = Trainer(server.trainer, job_id_prefix="seen", job_id="seen-1")
    trial = job.next()
    with closing_call(server.admin.WatchJobs(v1.WatchJobsRequest(job_id_prefix="seen-"))) as answers:
        answer = next(answers)
        assert (list(answer.job_ids), answer.all_jobs) == ([], True)
        Trainer(server.trainer)
        job.report(trial, 5.0, metric=0.1)
        answer = next(answers)
        assert (list(answer.job_ids), answer.all_jobs) == (["seen-1"], False)
        server.admin.DeleteJob(v1.DeleteJobRequest(job_id="seen-1"))
        assert list(next(answers).job_ids) == ["seen-1"]


@contextmanager
def closing_call(call: Any) -> Iterator[Any]:
    """Cancels a stream at the end of the block."""
    try:
        yield call
    finally:
        call.cancel()


async def test_months_are_compared_by_a_delivery(tmp_path: Path) -> None:
    """Each month with the one before it in the list, if a model was delivered in both, by the cost without prices."""
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft(max_epochs=3, beta_knob=None))
    statistics = Statistics(site.store, Factors())
    for epochs, metric in ((1, 0.99), (2, 0.99), (3, 0.1), (1, 0.99)):
        trial = await site.training.next_trial("j", new_id())
        for epoch in range(1, epochs + 1):
            await report(site, trial.key, epoch, metric if epoch == epochs else 0.1)
        site.now += timedelta(days=31)
    months = (await statistics.job("j")).months
    assert [month.num_deliveries for month in months] == [1, 1, 0, 1]
    first, second, third, fourth = months
    assert first.spent_per_delivery is not None
    assert second.spent_per_delivery is not None
    assert (first.change, third.change, fourth.change) == (None, None, None)
    assert second.change == pytest.approx(second.spent_per_delivery.cost / first.spent_per_delivery.cost - 1)
    assert third.spent_per_delivery is None
    await site.close()


async def test_old_events_are_deleted(tmp_path: Path) -> None:
    """With a limit of days, events older than that are deleted, and newer ones stay."""
    site = Site(tmp_path / "site.db", keep_events_days=2.0)
    await site.open()
    await site.training.register(draft(job_id="j-old"))
    site.now += timedelta(days=1.5)
    await site.training.register(draft(job_id="j-new"))
    site.now += timedelta(days=1)
    await site.training.prune()
    left = await site.administration.events(EventList(), (), 10)
    assert [each.event.job_id for each in left] == ["j-new"]
    await site.close()


@pytest.mark.parametrize(
    ("joules", "eta", "energy", "cost"),
    [
        (0.0, 0.0, v1.SAVINGS_VERDICT_EXPLORING, v1.SAVINGS_VERDICT_EXPLORING),
        (0.0, 1.0, v1.SAVINGS_VERDICT_EXPLORING, v1.SAVINGS_VERDICT_EXPLORING),
        (None, 0.0, v1.SAVINGS_VERDICT_NOT_MEASURED, v1.SAVINGS_VERDICT_EXPLORING),
        (None, 0.5, v1.SAVINGS_VERDICT_NOT_MEASURED, v1.SAVINGS_VERDICT_EXPLORING),
        (None, 1.0, v1.SAVINGS_VERDICT_NOT_MEASURED, v1.SAVINGS_VERDICT_NOT_MEASURED),
    ],
)
def test_zero_joules_are_measured(
    server: LiveServer,
    joules: float | None,
    eta: float,
    energy: v1.SavingsVerdict.ValueType,
    cost: v1.SavingsVerdict.ValueType,
) -> None:
    """A delivery that reports 0 J has a measurement of its energy; one that reports none has not."""
    job = Trainer(server.trainer, eta_knob=eta)
    measured = v1.Measurement(epoch=1, time_seconds=5.0, energy_joules=joules, metric=0.95)
    job.stub.ReportResult(v1.ReportResultRequest(result=v1.TrainingResult(trial=job.next().id, measurement=measured)))
    request = v1.GetJobStatisticsRequest(job_id=job.job_id)
    savings = server.admin.GetJobStatistics(request).statistics.savings
    assert (savings.energy.verdict, savings.cost.verdict) == (energy, cost)


def test_savings_use_the_batch_size_of_the_job(server: LiveServer) -> None:
    """Without a pinned or best known batch size it is the default, else the nearest one that may be chosen."""
    job = Trainer(server.trainer, batch_sizes=[8, 16, 64])

    def in_use() -> set[int | None]:
        known = server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job
        request = v1.GetJobStatisticsRequest(job_id=job.job_id)
        savings = server.admin.GetJobStatistics(request).statistics.savings
        return {part.batch_size_in_use if part.HasField("batch_size_in_use") else None for part in (known, savings)}

    assert in_use() == {16}
    server.admin.SetBatchSizeBanned(v1.SetBatchSizeBannedRequest(job_id=job.job_id, batch_size=16, banned=True))
    assert in_use() == {8}
    server.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=64))
    assert in_use() == {64}
