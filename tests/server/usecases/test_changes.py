"""Changes of a job's behaviour: what follows from them, beyond the policy that detects them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.domain import ChangedQuantity, DetectedChange, Measurement, WarningReason
from wattwise_server.events import ChangeDetected
from wattwise_server.policy.knowledge_gradient.state import read_changes
from wattwise_server.policy.savings import LEAST_SPREAD, boundary
from wattwise_server.store.base import EventList, PolicyState
from wattwise_server.usecases.changes import SHOWN_TRIALS, changes, compared_from
from wattwise_server.usecases.imports import ImportedTrial, Importer

from tests.changes import USUAL, Recurring
from tests.jobs import policy_message
from tests.server.site import Site, draft
from tests.watched import WatchedServer


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    """A server on each database."""
    postgres = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    url = postgres.create_database() if postgres else ""
    with WatchedServer(tmp_path_factory.mktemp("changes"), url) as live:
        live.start()
        yield live
    if postgres:
        postgres.drop_database(url)


_Answer = v1.GetJobResponse | v1.SetTrialExcludedResponse | v1.SetJobPolicyResponse | v1.ResetJobResponse


def kinds(job: v1.Job) -> list[int]:
    """The reasons of a job's warnings."""
    return [warning.reason for warning in job.warnings]


def needs_attention(job: Recurring) -> bool:
    """Whether a job is marked in a list, and thus among those that are."""
    request = v1.ListJobsRequest(job_id_prefix=job.job_id, states=[v1.JOB_STATE_ATTENTION])
    found = job.job_id in [each.job.spec.job_id for each in job.admin.ListJobs(request).jobs]
    assert job.listed.summary.needs_attention is found
    return found


@pytest.mark.parametrize(
    ("quantity", "factor", "what"),
    [
        (ChangedQuantity.EPOCHS, 2.1, "batch size 64 takes 2.1 times as many epochs; older trials"),
        (ChangedQuantity.EPOCH_COST, 1.023, "an epoch of batch size 64 costs 1.02 times as much; older costs"),
        (ChangedQuantity.EPOCHS, 12.0, "batch size 64 takes about 12 times as many epochs; older trials"),
        (ChangedQuantity.EPOCHS, 0.484, "batch size 64 takes 0.48 times as many epochs; older trials"),
        (ChangedQuantity.EPOCHS, math.inf, "batch size 64 misses the target; older trials"),
        (ChangedQuantity.EPOCH_COST, 345.9, "an epoch of batch size 64 costs about 350 times as much; older costs"),
        (ChangedQuantity.EPOCH_COST, 2.0, "an epoch of batch size 64 costs 2.0 times as much; older costs"),
        (ChangedQuantity.EPOCH_COST, 0.5, "an epoch of batch size 64 costs 0.5 times as much; older costs"),
    ],
)
def test_change_in_a_sentence(quantity: ChangedQuantity, factor: float, what: str) -> None:
    """The trial, the batch size, the factor, and what no longer counts."""
    assert DetectedChange(quantity, 51, 64, factor, False, 53).message == f"since trial 51, {what} no longer count"


def test_change_of_stopped_trials_in_a_sentence() -> None:
    """A factor that is a lower limit is named as one."""
    for factor, times in ((2.1, "2.1"), (1240.0, "1,200")):
        what = f"batch size 64 takes at least {times} times as many epochs; older trials no longer count"
        assert DetectedChange(ChangedQuantity.EPOCHS, 51, 64, factor, True, 53).message == f"since trial 51, {what}"


def test_change_is_published(server: WatchedServer) -> None:
    """A change is in the job, an event, a warning, a line of the log and a counter; it is new only once."""
    before = server.figure("wattwise_changes_detected_total", quantity="epochs")
    job = Recurring(server)
    last = job.train(16, 10, times=USUAL)
    assert (list(job.details.changes), job.events(), kinds(job.shown)) == ([], [], [])
    known = job.until_detected(16, 21)
    shown, details = known.job, known.details
    (change,) = details.changes
    assert (change.quantity, change.batch_size) == (v1.CHANGED_QUANTITY_EPOCHS, 16)
    assert change.since_trial == last.id.trial_number + 1
    assert change.factor == pytest.approx(2.1, rel=0.1)
    assert change.detected_by_trial == shown.num_trials
    assert not change.factor_is_lower_limit
    assert change.message.startswith(f"since trial {change.since_trial}, batch size 16 takes 2.1 times as many epochs;")
    (event,) = job.events()
    assert (event.trial_number, event.batch_size, event.message) == (change.detected_by_trial, 16, change.message)
    (warning,) = shown.warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_EPOCHS_CHANGED, "result.measurement.epoch")
    assert (warning.trial_number, warning.message) == (change.detected_by_trial, change.message)
    assert job.listed.job.warnings == shown.warnings
    (line,) = [each for each in server.events("change detected") if each["job"] == job.job_id]
    assert (line["trial"], line["batch_size"], line["since_trial"]) == (
        change.detected_by_trial,
        16,
        change.since_trial,
    )
    assert (line["quantity"], line["message"], line["level"]) == ("EPOCHS", change.message, "warning")
    assert server.figure("wattwise_changes_detected_total", quantity="epochs") == before + 1
    job.train(16, 21)
    assert len(job.events()) == 1
    assert job.details.changes == details.changes


def test_batch_size_that_no_longer_reaches_the_target_has_no_factor(server: WatchedServer) -> None:
    """No factor is known of it, and the sentence says what it does."""
    job = Recurring(server)
    job.train(16, 10, times=USUAL)
    for _ in range(20):
        if not job.details.changes:
            job.miss(16)
    (change,) = job.details.changes
    assert not change.HasField("factor")
    assert not change.factor_is_lower_limit
    assert "batch size 16 misses the target" in change.message


def test_factor_of_stopped_trials_is_a_lower_limit(server: WatchedServer) -> None:
    """If trials were stopped at their bound, the job says that they take at least so many times as many epochs."""
    job = Recurring(server, batch_sizes=[16], beta_knob=2, max_epochs=100)
    for _ in range(USUAL):
        job.report(job.next(), 100.0, epoch=10)
    while not job.details.changes:
        trial, epoch = job.next(), 20
        while not job.report(trial, 10.0 * epoch, metric=0.1, epoch=epoch).stop_train:
            epoch += 10
    (change,) = job.details.changes
    assert change.factor_is_lower_limit
    assert 1.5 < change.factor < 10
    assert f"batch size 16 takes at least {change.factor:.1f} times as many epochs" in change.message


def test_each_quantity_has_its_warning(server: WatchedServer) -> None:
    """Epochs and the cost of an epoch may change apart; the cost's field is the one that it is made of."""
    job = Recurring(server)
    job.train(16, 10, times=USUAL)
    job.until_detected(16, 10, 30.0)
    known = job.until_detected(16, 30, 30.0, changes=2)
    shown, details = known.job, known.details
    cost, epochs = details.changes
    assert (cost.quantity, epochs.quantity) == (v1.CHANGED_QUANTITY_EPOCH_COST, v1.CHANGED_QUANTITY_EPOCHS)
    assert cost.since_trial < epochs.since_trial
    assert kinds(shown) == [v1.WARNING_REASON_EPOCH_COST_CHANGED, v1.WARNING_REASON_EPOCHS_CHANGED]
    assert shown.warnings[0].field == "result.measurement.energy_joules"
    assert "an epoch of batch size 16 costs 3.0 times as much" in cost.message
    assert job.figures.savings.compared_from_trial == epochs.since_trial
    timed = Recurring(server, eta_knob=0.0)
    for seconds in (*[1.0] * USUAL, *[3.0] * 10):
        timed.report(timed.begin(16), 0.0, epoch=10, time=10 * seconds)
    assert [warning.field for warning in timed.shown.warnings] == ["result.measurement.time_seconds"]


def test_warning_is_withdrawn(server: WatchedServer) -> None:
    """Once twenty later trials have ended, the job needs no attention any more; the change stays."""
    job = Recurring(server)
    job.train(16, 10, times=USUAL)
    known = job.until_detected(16, 30)
    details = known.details
    running = [job.begin(16) for _ in range(2 * SHOWN_TRIALS)]
    for trial in running[: SHOWN_TRIALS - 1]:
        job.report(trial, 300.0, epoch=30)
    assert kinds(job.shown) == [v1.WARNING_REASON_EPOCHS_CHANGED]
    assert needs_attention(job)
    job.end(running[SHOWN_TRIALS - 1], v1.END_REASON_ERROR)
    assert kinds(job.shown) == []
    assert not needs_attention(job)
    assert job.details.changes == details.changes
    assert job.figures.savings.compared_from_trial == details.changes[0].since_trial


def test_warning_agrees_with_a_rebuilt_search(server: WatchedServer) -> None:
    """Without one of the trials that show it, without any, and under another policy there is no change."""
    job = Recurring(server)
    job.train(16, 10, times=USUAL)
    known = job.until_detected(16, 30)
    details = known.details
    since = details.changes[0].since_trial
    numbers = range(since, details.changes[0].detected_by_trial + 1)

    def set_excluded(*, excluded: bool) -> v1.SetTrialExcludedResponse:
        return [job.exclude(number, excluded=excluded) for number in numbers][-1]

    def set_policy(policy: str) -> v1.SetJobPolicyResponse:
        return job.admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy_message(policy)))

    def is_changed(found: _Answer) -> bool:
        assert (found.job, found.details) == (job.shown, job.details)
        (of_list,) = {bool(job.listed.job.warnings), job.listed.summary.needs_attention}
        compared = {job.figures.savings.compared_from_trial, job.listed.summary.savings.compared_from_trial}
        assert compared == {since if found.details.changes else 0}
        assert bool(found.details.changes) is bool(found.job.warnings) is of_list
        return of_list

    assert is_changed(known)
    assert not is_changed(set_excluded(excluded=True))
    assert is_changed(set_excluded(excluded=False))
    assert not is_changed(set_policy("gts"))
    assert is_changed(set_policy("knowledge_gradient"))
    # What a person's call rebuilds is not detected again.
    assert len(job.events()) == 1
    assert not is_changed(job.admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id())))


def test_claim_begins_again(server: WatchedServer) -> None:
    """Once epochs have tripled, neither the cheap default from before nor what was spent then is part of the claim."""
    job = Recurring(server)
    job.train(16, 10, times=5)
    job.train(8, 5, times=USUAL)
    early = job.figures
    assert (early.savings.compared_from_trial, early.savings.num_deliveries, early.num_deliveries) == (0, 25, 25)
    known = job.until_detected(8, 15)
    shown, details = known.job, known.details
    since = details.changes[0].since_trial
    found, savings = job.figures, job.figures.savings
    number = shown.num_trials - since + 1
    assert (savings.compared_from_trial, savings.num_deliveries, savings.num_baseline_trials) == (since, number, 0)
    assert (savings.cost.verdict, savings.cost.spent) == (v1.SAVINGS_VERDICT_NO_BASELINE, 150.0 * number)
    assert (found.num_deliveries, found.spent.cost) == (25 + number, 1500.0 + 150.0 * number)
    assert not any(point.HasField("saved_cost") for point in job.savings_points)
    job.train(16, 30, times=5)
    job.train(8, 15, times=20)
    found, savings = job.figures, job.figures.savings
    deliveries = number + 25
    assert (savings.num_deliveries, savings.num_baseline_trials, savings.cost.default_mean) == (deliveries, 5, 300.0)
    assert savings.cost.spent == 150.0 * (number + 20) + 1500.0
    assert savings.cost.verdict == v1.SAVINGS_VERDICT_SAVING
    # All trials of a batch size cost the same.
    least_baseline = savings.cost.default_mean * math.exp(-LEAST_SPREAD * boundary(5) / 5)
    assert savings.cost.at_least == pytest.approx(deliveries * least_baseline - savings.cost.spent)
    # The five trials of the default may cost more than was saved for certain by then; a few launches save that again.
    tried = since + number + 4
    assert since <= found.break_even_trial <= tried + 3
    points = {point.trial_number: point for point in job.savings_points}
    assert [number for number, point in points.items() if not point.HasField("saved_cost")] == list(range(1, since))
    newest = points[job.shown.num_trials]
    assert newest.saved_cost == pytest.approx(savings.cost.saved)
    assert newest.saved_cost_at_least == pytest.approx(savings.cost.at_least)
    assert (newest.num_deliveries, newest.num_compared_deliveries) == (found.num_deliveries, savings.num_deliveries)
    assert newest.cost_per_delivery == pytest.approx(found.spent_per_delivery.cost)


def test_lists_and_totals_have_the_same_claim(server: WatchedServer) -> None:
    """Totals are sums of claims, and of all that was spent; of a job without a change nothing else is compared."""
    changed, same = (Recurring(server, job_id_prefix="sum", job_id=f"sum-{name}") for name in ("changed", "same"))
    for job in (changed, same):
        job.train(16, 10, times=5)
        job.train(8, 5, times=USUAL)
    changed.until_detected(8, 15)
    changed.train(16, 30, times=3)
    totals = server.admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="sum-")).totals
    summaries = [job.listed.summary for job in (changed, same)]
    for job, summary in zip((changed, same), summaries, strict=True):
        figures = job.figures
        assert summary.savings.cost == figures.savings.cost
        assert summary.savings.compared_from_trial == figures.savings.compared_from_trial
        assert (summary.num_deliveries, summary.spent) == (figures.num_deliveries, figures.spent)
    assert [bool(summary.savings.compared_from_trial) for summary in summaries] == [True, False]
    assert summaries[0].savings.cost.spent < summaries[0].spent.cost
    assert totals.num_deliveries == sum(summary.num_deliveries for summary in summaries)
    assert totals.spent.cost == sum(summary.spent.cost for summary in summaries)
    assert totals.savings.cost.saved == pytest.approx(sum(summary.savings.cost.saved for summary in summaries))
    assert totals.savings.time.at_least == pytest.approx(sum(summary.savings.time.at_least for summary in summaries))


def test_trial_from_before_a_change_is_not_compared_while_it_runs(server: WatchedServer) -> None:
    """What it takes is spent, but not part of the claim, neither while it runs nor once it has ended."""
    job = Recurring(server)
    job.train(16, 10, times=USUAL)
    slow = job.begin(8)
    job.report(slow, 1000.0, metric=0.1)
    known = job.until_detected(16, 30)
    shown, details = known.job, known.details
    assert slow.id.trial_number < details.changes[0].since_trial
    running = job.begin(16)
    job.report(running, 7.0, metric=0.1)
    number = shown.num_trials - details.changes[0].since_trial + 1
    found = job.figures
    assert found.savings.cost.spent == 300.0 * number + 7.0
    assert found.spent.cost == 100.0 * USUAL + 1000.0 + 300.0 * number + 7.0
    job.report(slow, 1500.0, epoch=2)
    found = job.figures
    assert (found.savings.num_deliveries, found.savings.cost.spent) == (number, 300.0 * number + 7.0)
    assert found.num_deliveries == USUAL + 1 + number
    assert found.spent.cost == 100.0 * USUAL + 1500.0 + 300.0 * number + 7.0


def test_claim_of_a_change_survives_a_restart(server: WatchedServer) -> None:
    """It follows from what is stored."""
    job = Recurring(server)
    job.train(16, 10, times=USUAL)
    known = job.until_detected(16, 30)
    shown = known.job
    figures = job.figures
    server.stop()
    server.start()
    assert job.figures == figures
    assert job.shown == shown


@pytest.mark.parametrize("notes", ["", "no JSON", '{"format":1,"changes":[["EPOCHS",4,16,3.0,6]]}'])
def test_notes_that_cannot_be_read_change_nothing(notes: str) -> None:
    """A job whose notes are damaged, or of another version, has figures like one without a change."""
    with pytest.raises(ValueError):  # noqa: PT011 - of the JSON parser or of the policy
        read_changes(notes)
    assert compared_from(PolicyState("knowledge_gradient", notes)) == 0


def test_paper_policies_detect_nothing(tmp_path: Path) -> None:
    """A job of them that changes keeps all its trials."""
    with WatchedServer(tmp_path) as server:
        server.start()
        for policy in ("gts", "pruning_gts"):
            job = Recurring(server, policy=policy)
            job.train(16, 10, times=USUAL)
            job.train(16, 40, times=5)
            assert (list(job.details.changes), job.figures.savings.compared_from_trial) == ([], 0)


async def test_imported_trials_reveal_a_change(tmp_path: Path) -> None:
    """What a job did before it was registered may have changed, too: one event and one warning, both durable."""
    site = Site(tmp_path / "site.db")
    await site.open()
    await site.training.register(draft(policy="knowledge_gradient", max_epochs=50))
    importer = Importer(site.store)
    for number, epochs in enumerate([10] * USUAL + [30] * 10, 1):
        last = Measurement(epochs, float(epochs), 10.0 * epochs, 0.95, site.now)
        await importer.import_trial(ImportedTrial("j", f"night {number}", 16, [last], None))
    await site.open()
    job = await site.administration.job("j")
    (change,) = changes(job)
    assert (change.quantity, change.since_trial, change.batch_size) == (ChangedQuantity.EPOCHS, USUAL + 1, 16)
    assert change.factor == pytest.approx(3.0, rel=0.1)
    assert change.since_trial < change.detected_by_trial < job.num_trials
    (warning,) = job.warnings
    assert (warning.reason, warning.trial_number) == (WarningReason.EPOCHS_CHANGED, change.detected_by_trial)
    (listed,) = await site.store.reads.events(EventList(kinds=(ChangeDetected.kind,)), (), 9)
    assert (listed.event.message, listed.event.trial_number) == (change.message, change.detected_by_trial)
    await site.close()
