"""Deliveries that are too cheap to be true: they do not count until a second one of their batch size confirms them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wattwise import Client, v1

from tests.changes import Recurring
from tests.watched import WatchedServer

CHEAP = v1.WARNING_REASON_DELIVERY_UNUSUALLY_CHEAP
POLICIES = ["knowledge_gradient", "pruning_gts", "gts"]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    """A server on each database."""
    postgres = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    url = postgres.create_database() if postgres else ""
    with WatchedServer(tmp_path_factory.mktemp("doubtful"), url) as live:
        live.start()
        yield live
    if postgres:
        postgres.drop_database(url)


class Delivering(Recurring):
    """A job whose trials deliver."""

    def deliver(self, batch_size: int, cost: float, epoch: int = 5, metric: float = 0.95) -> v1.Decision:
        """Runs a trial that reaches the target; returns the decision."""
        return self.report(self.begin(batch_size), cost, metric, epoch, 10.0)

    def doubts(self) -> list[int]:
        """The trials that the job's warnings doubt."""
        return [warning.trial_number for warning in self.shown.warnings if warning.reason == CHEAP]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_cheap_delivery(server: WatchedServer, policy: str) -> None:
    """It lowers neither the least nor the expected cost, also after a restart; a second one does."""
    job = Delivering(server, policy=policy)
    for cost in (100.0, 110.0, 90.0):
        job.deliver(16, cost)
    least, expected = job.shown.min_cost, job.details.batch_size_states[1].expected_cost
    decision = job.deliver(16, 4.0)
    (warning,) = decision.warnings
    assert (decision.converged, warning.reason, job.doubts()) == (True, CHEAP, [warning.trial_number])
    assert f"wattwise jobs exclude-trial {job.job_id} {warning.trial_number}" in warning.message
    for _ in range(2):
        shown, details = job.known.job, job.known.details
        assert (shown.min_cost, details.batch_size_states[1].expected_cost) == (least, expected)
        assert details.batch_size_states[1].num_converged == 3
        assert job.doubts() == [warning.trial_number]
        server.kill()
        server.start()
    assert not job.deliver(16, 5.0).warnings
    assert (job.shown.min_cost, job.doubts()) == (5.0, [])
    if policy == "knowledge_gradient":
        # The bounds of this policy follow from it, those of the others from the least cost.
        assert job.details.batch_size_states[1].expected_cost < expected
    assert not job.deliver(16, 4.0).warnings


def test_savings_without_a_doubtful_delivery(server: WatchedServer) -> None:
    """What it cost is spent, and no figure has it as a delivery; a confirmed one is a delivery of all figures."""
    job = Delivering(server)
    for cost in (500.0, 501.0, 502.0, 503.0):
        job.deliver(32, cost)
    for _ in range(12):
        job.deliver(16, 100.0)

    def claim() -> tuple[int, float, float, float]:
        with Client(server.address) as client:
            found = client.get_job_statistics(job.job_id)
            (point,) = client.list_trial_buckets(job.job_id, max_ranges=1).savings_points
            totals = client.get_totals(job_id_prefix=job.job_id)
            (listed,) = client.jobs(job_id_prefix=job.job_id, with_summaries=True)
        savings = found.savings
        assert {
            savings.num_deliveries,
            found.num_deliveries,
            found.months[-1].num_deliveries,
            sum(of_size.num_deliveries for of_size in found.trials),
            listed.summary.num_deliveries,
            totals.num_deliveries,
            point.num_deliveries,
            point.num_compared_deliveries,
        } == {savings.num_deliveries}
        assert sum(of_size.num_missed for of_size in found.trials) == 0
        return (
            savings.num_deliveries,
            savings.cost.spent,
            savings.cost.default_mean,
            point.saved_cost,
        )

    deliveries, spent, baseline, saved = claim()
    job.deliver(16, 4.0)
    assert claim() == pytest.approx((deliveries, spent + 4, baseline, saved - 4))
    job.deliver(16, 4.0)
    assert claim()[0] == deliveries + 1


@pytest.mark.parametrize("policy", POLICIES)
def test_excluding_a_cheap_delivery(server: WatchedServer, policy: str) -> None:
    """It ends the warning; the next cheap delivery is doubtful again, and the rebuilt search knows it."""
    job = Delivering(server, policy=policy)
    job.deliver(16, 100.0)
    number = job.deliver(16, 4.0).warnings[0].trial_number
    job.exclude(number)
    assert (job.doubts(), job.shown.min_cost) == ([], 100.0)
    assert [warning.reason for warning in job.deliver(16, 4.0).warnings] == [CHEAP]
    job.exclude(1)
    job.exclude(1, excluded=False)
    assert job.shown.min_cost == 100.0


def test_doubtful_exploration_is_repeated(server: WatchedServer) -> None:
    """A doubtful delivery that holds the walk's slot frees it; the walk tries the batch size again."""
    job = Delivering(server, policy="pruning_gts", batch_sizes=[16, 32])
    job.report(job.next(), 100.0, 0.95, 5, 10.0)
    job.report(job.next(), 100.0, 0.95, 5, 10.0)
    first = job.next()
    assert (first.batch_size, first.pruning_gts.role) == (16, v1.PRUNING_GTS_ROLE_EXPLORATION)
    job.report(first, 3.0, 0.95, 5, 10.0)
    again = job.next()
    assert (again.batch_size, again.pruning_gts.role) == (16, v1.PRUNING_GTS_ROLE_EXPLORATION)


@pytest.mark.parametrize(
    ("fields", "epoch", "metric", "cost", "doubtful"),
    [
        ({}, 1, 1.0, 50.0, True),
        ({}, 2, 1.0, 50.0, False),
        ({}, 1, 0.99, 50.0, False),
        ({}, 1, 1.0, 150.0, False),
        ({"target_metric": 90.0}, 1, 100.0, 50.0, True),
        ({"higher_is_better": False, "target_metric": 0.5}, 1, 0.0, 50.0, True),
        ({"higher_is_better": False, "target_metric": 0.5}, 1, 0.1, 50.0, False),
    ],
)
def test_perfect_metric_in_the_first_epoch(
    server: WatchedServer, fields: dict[str, object], epoch: int, metric: float, cost: float, *, doubtful: bool
) -> None:
    """It is doubtful at any batch size if it would be the cheapest delivery and the others took more epochs."""
    job = Delivering(server, **fields)
    usual = 0.3 if fields.get("higher_is_better") is False else 95.0 if "target_metric" in fields else 0.95
    job.deliver(16, 100.0, 5, usual)
    assert bool(job.deliver(32, cost, epoch, metric).warnings) == doubtful
    assert job.shown.min_cost == min(100.0, 100.0 if doubtful else cost)


def test_job_that_delivers_in_its_first_epoch(server: WatchedServer) -> None:
    """Where earlier deliveries took one epoch, a perfect metric in the first one is usual."""
    job = Delivering(server)
    job.deliver(16, 100.0, 1)
    assert not job.deliver(16, 50.0, 1, 1.0).warnings


def test_power_of_launches(server: WatchedServer) -> None:
    """A report of more energy than the GPUs can draw is kept, with a warning of the trial and of the job."""
    job = Delivering(server)
    trial = job.begin(16)
    assert not job.report(trial, 100.0, 0.1, 1, 1.0).warnings
    (warning,) = job.report(trial, 5e7, 0.1, 2, 2.0).warnings
    assert warning.reason == v1.WARNING_REASON_POWER_OUT_OF_RANGE
    assert f"wattwise jobs exclude-trial {job.job_id} {trial.id.trial_number}" in warning.message
    job.end(trial, v1.END_REASON_COMPLETED)
    job.deliver(16, 10.0)
    assert [warning.reason for warning in job.shown.warnings] == [v1.WARNING_REASON_POWER_OUT_OF_RANGE]
    job.exclude(trial.id.trial_number)
    assert not job.shown.warnings


@pytest.mark.parametrize(("joules", "warns"), [(5e4, False), (5e6, True)])
def test_first_energy_after_epochs_without_energy(server: WatchedServer, joules: float, *, warns: bool) -> None:
    """The energy is that of the whole trial, so that it is compared with what the GPUs draw in the whole time."""
    job = Delivering(server)
    trial = job.begin(16)
    for epoch in range(1, 6):
        silent = v1.Measurement(epoch=epoch, time_seconds=60.0 * epoch, metric=0.1)
        job.stub.ReportResult(v1.ReportResultRequest(result=v1.TrainingResult(trial=trial.id, measurement=silent)))
    found = [warning.reason for warning in job.report(trial, joules, 0.1, 6, 360.0).warnings]
    assert found == [v1.WARNING_REASON_NO_ENERGY, *[v1.WARNING_REASON_POWER_OUT_OF_RANGE] * warns]
