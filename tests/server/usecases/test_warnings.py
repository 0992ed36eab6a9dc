"""Warnings: what looks wrong about a trial, in every answer for it, and in its job until a trial contradicts it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.domain import Job, Measurement, MonitorKinds, Trial, TrialOrigin, TrialWarning, WarningReason
from wattwise_server.policy.registry import POLICIES
from wattwise_server.usecases.job_spec import resolve
from wattwise_server.usecases.trial_warnings import without_contradicted

from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.site import BEGIN, draft
from tests.server.usecases.test_imports import epochs, imported
from tests.server.usecases.test_leases import get, lose
from tests.server.usecases.test_monitors import job_of
from tests.watched import WatchedServer


def reasons(warnings: Sequence[v1.TrialWarning]) -> list[v1.WarningReason.ValueType]:
    """What the warnings are about."""
    return [warning.reason for warning in warnings]


def report_all(trainer: Trainer, trial: v1.Trial, *metrics: float) -> v1.Decision:
    """Report an epoch for each metric; return the last decision."""
    decision = v1.Decision()
    for epoch, metric in enumerate(metrics, 1):
        decision = trainer.report(trial, 10.0 * epoch, metric=metric, epoch=epoch)
    return decision


def test_target_reached_at_once(server: LiveServer) -> None:
    """A first trial that reaches the target in its first epoch has a warning in every answer, also after a restart."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    decision = trainer.report(trial, 10.0, metric=0.95)
    (warning,) = decision.warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_TARGET_REACHED_AT_ONCE, "job.target.value")
    assert warning.trial_number == 1
    assert "0.9 with 0.95" in warning.message
    assert "if a lower metric is better" in warning.message
    server.kill()
    server.start()
    assert trainer.heartbeat(trial) == decision
    assert trainer.report(trial, 10.0, metric=0.95) == decision
    assert list(get(server, trial).warnings) == list(job_of(server, trainer).warnings) == [warning]


def test_target_reached_at_once_is_about_the_first_trial(server: LiveServer) -> None:
    """A later trial may reach the target at once; the first trial beyond its first epoch ends the job's warning."""
    trainer = Trainer(server.trainer)
    trainer.run(10.0)
    assert not trainer.report(trainer.next(), 5.0).warnings
    assert reasons(job_of(server, trainer).warnings) == [v1.WARNING_REASON_TARGET_REACHED_AT_ONCE]
    report_all(trainer, trainer.next(), 0.5, 0.95)
    assert not job_of(server, trainer).warnings
    slow = Trainer(server.trainer)
    assert not report_all(slow, slow.next(), 0.5, 0.95).warnings
    loss = Trainer(server.trainer, higher_is_better=False)
    (warning,) = loss.report(loss.next(), 10.0, metric=0.5).warnings
    assert "if a higher metric is better" in warning.message


@pytest.mark.parametrize(("target", "metric"), [(0.9, 1.5), (0.9, 95.0), (0.9, -0.2), (1.0, 95.0)])
def test_metric_out_of_range(server: LiveServer, target: float, metric: float) -> None:
    """A metric outside of [0, 1] with a target inside has a warning at that epoch, and only one."""
    trainer = Trainer(server.trainer, target_metric=target)
    trial = trainer.next()
    assert not trainer.report(trial, 10.0, metric=0.1).warnings
    (warning,) = trainer.report(trial, 20.0, metric=metric, epoch=2).warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_METRIC_OUT_OF_RANGE, "result.measurement.metric")
    assert f"{metric:g} in epoch 2" in warning.message
    assert list(trainer.report(trial, 30.0, metric=metric, epoch=3).warnings) == [warning]


@pytest.mark.parametrize(
    ("target", "metric", "reason"),
    [
        (0.9, 85.0, v1.WARNING_REASON_METRIC_OUT_OF_RANGE),
        (0.0, 85.0, v1.WARNING_REASON_METRIC_OUT_OF_RANGE),
        (0.9, 1.0, v1.WARNING_REASON_TARGET_REACHED_AT_ONCE),
    ],
)
def test_metric_in_percent_is_the_one_warning(
    server: LiveServer, target: float, metric: float, reason: v1.WarningReason.ValueType
) -> None:
    """A metric in percent reaches a target within [0, 1] at once: its range is the cause, not the target."""
    trainer = Trainer(server.trainer, target_metric=target)
    decision = trainer.report(trainer.next(), 10.0, metric=metric)
    assert decision.target_reached
    assert reasons(decision.warnings) == [reason]


@pytest.mark.parametrize(
    ("metrics", "at"),
    [
        ((0.3, 0.5), 2),
        ((0.0, 0.5), 2),
        ((0.4, math.nan, 0.5), None),
        ((1.0, 0.5), 2),
        ((0.8, 2.0, 0.9), None),
        ((0.0, 0.0, 0.0), None),
        ((30.0, 40.0), None),
    ],
)
def test_target_in_percent(server: LiveServer, metrics: Sequence[float], at: int | None) -> None:
    """A target above 1 is out of reach of a metric that stays within [0, 1]; a first epoch below 1 percent is usual."""
    trainer = Trainer(server.trainer, target_metric=85)
    trial = trainer.next()
    for epoch, metric in enumerate(metrics, 1):
        warnings = trainer.report(trial, 10.0 * epoch, metric=metric, epoch=epoch).warnings
        found = [(warning.reason, warning.field) for warning in warnings]
        expected = at is not None and epoch >= at
        assert found == [(v1.WARNING_REASON_METRIC_OUT_OF_RANGE, "job.target.value")] * expected


def test_target_in_percent_of_trials_with_one_report(server: LiveServer) -> None:
    """A trial whose only report is its last epoch has the warning too."""
    trainer = Trainer(server.trainer, target_metric=85)
    assert reasons(trainer.report(trainer.next(), 10.0, metric=0.9, epoch=10).warnings) == [
        v1.WARNING_REASON_METRIC_OUT_OF_RANGE
    ]
    single = Trainer(server.trainer, target_metric=2, max_epochs=1)
    assert reasons(single.report(single.next(), 10.0, metric=1.0).warnings) == [v1.WARNING_REASON_METRIC_OUT_OF_RANGE]


@pytest.mark.parametrize(
    ("fields", "metric"),
    [
        ({"higher_is_better": False, "target_metric": 0.3}, 2.3),
        ({"target_metric": 90.0}, 89.0),
        ({"target_metric": 2.0}, 1.5),
        ({}, math.nan),
        ({}, 0.0),
        ({"target_metric": 1.0}, 0.99),
    ],
)
def test_metric_within_its_range(server: LiveServer, fields: dict[str, Any], metric: float) -> None:
    """A loss may exceed 1, a target in percent has metrics in percent, and NaN is no number outside of a range."""
    trainer = Trainer(server.trainer, **fields)
    assert not report_all(trainer, trainer.next(), metric, metric).warnings


@pytest.mark.parametrize(
    ("higher", "metrics", "away"),
    [
        (True, (0.5, 0.4, 0.3), True),
        (True, (0.5, 0.5, 0.3), True),
        (True, (0.5, math.nan, 0.3), True),
        (True, (0.5, 0.6, 0.3), False),
        (True, (0.5, 0.4, 0.5), False),
        (True, (0.5, 0.4, math.nan), False),
        (True, (math.nan, 0.4, 0.3), False),
        (True, (0.5, 0.3), False),
        (False, (2.0, 2.5, 3.0), True),
        (False, (2.0, 1.9, 3.0), False),
        (False, (2.0, 2.5, 2.0), False),
    ],
)
def test_metric_moves_away(server: LiveServer, higher: bool, metrics: Sequence[float], away: bool) -> None:
    """Of a trial that missed, no epoch was better than the first of at least three, and the last was worse."""
    target = 0.9 if higher else 0.1
    fields = {"target_metric": target, "higher_is_better": higher, "max_epochs": len(metrics)}
    trainer = Trainer(server.trainer, **fields)
    decision = report_all(trainer, trainer.next(), *metrics)
    assert decision.stop_train
    assert reasons(decision.warnings) == [v1.WARNING_REASON_METRIC_MOVES_AWAY] * away
    if away:
        (warning,) = job_of(server, trainer).warnings
        assert warning.field == "job.target.direction"
        assert f"from {metrics[0]:g} to {metrics[-1]:g}" in warning.message
        assert f"if a {'lower' if higher else 'higher'} metric is better" in warning.message


def test_repeated_epoch_is_one_epoch(server: LiveServer) -> None:
    """A metric of two epochs does not move away, although one of them is reported again and ends the trial."""
    trainer = Trainer(server.trainer, trial_lease_seconds=1)
    trial = trainer.next()
    trainer.report(trial, 50.0, metric=0.5)
    trainer.report(trial, 100.0, metric=0.4, epoch=3)
    lose(server, trial)
    imported(trainer, batch_size=8, measurements=epochs(0.95))
    decision = trainer.report(trial, 100.0, metric=0.4, epoch=3)
    assert (decision.stop_train, decision.cost_bound, len(decision.warnings)) == (True, 20.0, 0)


def test_metric_moves_away_until_the_trainer_completes(server: LiveServer) -> None:
    """A trainer that ends by itself without the target has missed it; one that crashed says nothing."""
    trainer = Trainer(server.trainer)
    completed, crashed = trainer.next(), trainer.next()
    for trial in (completed, crashed):
        report_all(trainer, trial, 0.5, 0.4, 0.3)
    assert reasons(trainer.end(completed, v1.END_REASON_COMPLETED).warnings) == [v1.WARNING_REASON_METRIC_MOVES_AWAY]
    assert not trainer.end(crashed, v1.END_REASON_ERROR).warnings


def test_no_energy(server: LiveServer) -> None:
    """A first report of 0 J has a warning unless energy has no weight."""
    trainer = Trainer(server.trainer)
    (warning,) = trainer.report(trainer.next(), 0.0, metric=0.1).warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_NO_ENERGY, "result.measurement.energy_joules")
    of_time = Trainer(server.trainer, eta_knob=0)
    assert not of_time.report(of_time.next(), 0.0, metric=0.1).warnings


def test_unconnected_ranks(server: LiveServer) -> None:
    """A launch of several processes that each ask has a warning from its dispatch on; one process has none."""
    trainer = Trainer(server.trainer)

    def ask(ranks: int) -> v1.Trial:
        request = v1.GetNextBatchSizeRequest(job_id=trainer.job_id, launch_id=f"r{ranks}", unconnected_ranks=ranks)
        return server.trainer.GetNextBatchSize(request).trial

    trials = {ranks: ask(ranks) for ranks in (0, 1, 2)}
    assert [len(trial.warnings) for trial in trials.values()] == [0, 0, 1]
    with refused() as refusal:
        ask(-1)
    assert (refusal.reason, list(refusal.faults)) == ("ERROR_REASON_INVALID_REQUEST", ["unconnected_ranks"])
    (warning,) = trials[2].warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_UNCONNECTED_RANKS, "unconnected_ranks")
    assert "2 processes" in warning.message
    assert list(trainer.report(trials[2], 10.0, metric=0.1).warnings) == [warning]
    assert ask(2).warnings == trials[2].warnings
    assert list(job_of(server, trainer).warnings) == [warning]


def test_job_has_one_warning_for_each_reason(server: LiveServer) -> None:
    """The newest warning of a reason replaces the older one; a later trial with reports and without it withdraws it."""
    trainer = Trainer(server.trainer)
    first, second, third = (trainer.next() for _ in range(3))
    trainer.report(first, 0.0, metric=95.0, epoch=1)
    trainer.report(second, 0.0, metric=0.1)
    warned = job_of(server, trainer).warnings
    assert [(warning.reason, warning.trial_number) for warning in warned] == [
        (v1.WARNING_REASON_METRIC_OUT_OF_RANGE, 1),
        (v1.WARNING_REASON_NO_ENERGY, 2),
    ]
    trainer.report(second, 5.0, metric=0.2, epoch=2)
    trainer.end(second, v1.END_REASON_ERROR)
    assert reasons(job_of(server, trainer).warnings) == [v1.WARNING_REASON_NO_ENERGY]
    trainer.end(third, v1.END_REASON_ERROR)
    assert reasons(job_of(server, trainer).warnings) == [v1.WARNING_REASON_NO_ENERGY]
    trainer.report(trainer.next(), 5.0)
    assert not job_of(server, trainer).warnings


def test_trials_that_do_not_count_warn_their_job_no_longer(server: LiveServer) -> None:
    """Excluding a trial withdraws its warnings from the job, and a reset all of them; the trials keep theirs."""
    trainer = Trainer(server.trainer)
    first, second = trainer.next(), trainer.next()
    trainer.report(first, 10.0, metric=0.95)
    trainer.report(second, 0.0, metric=0.1)
    server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=second.id, excluded=True))
    assert reasons(job_of(server, trainer).warnings) == [v1.WARNING_REASON_TARGET_REACHED_AT_ONCE]
    server.admin.ResetJob(v1.ResetJobRequest(job_id=trainer.job_id, request_id=new_id()))
    assert not job_of(server, trainer).warnings
    assert [len(get(server, trial).warnings) for trial in (first, second)] == [1, 1]


def test_differing_monitors_are_warnings_of_the_job(server: LiveServer) -> None:
    """The warning of another monitor is in the decision, the trial and the job."""
    trainer = Trainer(server.trainer)
    trainer.run(10.0, monitor=monitor_of("nvml"))
    trial = trainer.next()
    decision = trainer.report(trial, 10.0, metric=0.1, monitor=monitor_of("rapl"))
    assert reasons(decision.warnings) == [v1.WARNING_REASON_MONITORS_DIFFER]
    assert list(get(server, trial).warnings) == list(decision.warnings)
    assert decision.warnings[0] in job_of(server, trainer).warnings


def test_imported_trials_are_checked_too(server: LiveServer) -> None:
    """An import has the warnings that live reports would have had."""
    trainer = Trainer(server.trainer)
    trial = imported(trainer, measurements=epochs(0.5, -0.4, -0.5, cost=0.0), end_reason=v1.END_REASON_COMPLETED).trial
    assert reasons(trial.warnings) == [
        v1.WARNING_REASON_NO_ENERGY,
        v1.WARNING_REASON_METRIC_OUT_OF_RANGE,
        v1.WARNING_REASON_METRIC_MOVES_AWAY,
    ]
    assert list(get(server, trial).warnings) == list(trial.warnings)
    running = trainer.next("launch")
    report_all(trainer, running, 0.5, 0.4)
    rest = imported(
        trainer, "launch", running.batch_size, measurements=epochs(0.3, first=3), end_reason=v1.END_REASON_COMPLETED
    ).trial
    assert reasons(rest.warnings) == [v1.WARNING_REASON_METRIC_MOVES_AWAY]
    short = Trainer(server.trainer, max_epochs=3)
    lost = imported(short, measurements=epochs(0.5, 0.4, 0.3), end_reason=v1.END_REASON_LOST).trial
    assert reasons(lost.warnings) == [v1.WARNING_REASON_METRIC_MOVES_AWAY]


def test_imported_epoch_is_checked_beside_the_one_before_it(server: LiveServer) -> None:
    """A metric that was above 1 before is not one within [0, 1]."""
    trainer = Trainer(server.trainer, target_metric=85)
    trainer.report(trainer.next("launch"), 10.0, metric=2.0)
    rest = imported(trainer, "launch", measurements=epochs(0.9, first=2), end_reason=v1.END_REASON_ERROR).trial
    whole = imported(trainer, "b", measurements=epochs(0.8, 2.0, 0.9), end_reason=v1.END_REASON_ERROR).trial
    assert [(trial.newest.epoch, len(trial.warnings)) for trial in (rest, whole)] == [(2, 0), (3, 0)]


def test_loss_that_reaches_its_target_at_once_names_both_causes(server: LiveServer) -> None:
    """A metric above 1 that reaches the target in its first epoch may be a loss; one that does not is none."""
    trainer = Trainer(server.trainer, target_metric=0.1)
    (warning,) = trainer.report(trainer.next(), 10.0, metric=2.3).warnings
    assert warning.reason == v1.WARNING_REASON_METRIC_OUT_OF_RANGE
    assert "unit" in warning.message
    assert "register the job under a new job_id" in warning.message
    later = trainer.next()
    trainer.report(later, 10.0, metric=0.05)
    (warning,) = trainer.report(later, 20.0, metric=2.3, epoch=2).warnings
    assert "direction" not in warning.message
    low = Trainer(server.trainer, target_metric=0)
    (warning,) = low.report(low.next(), 10.0, metric=-0.2).warnings
    assert "direction" not in warning.message


def test_warnings_of_imported_trials_stay(server: LiveServer) -> None:
    """Another import contradicts no warning; without the trial, that of an earlier import is shown again."""
    trainer = Trainer(server.trainer)
    wrong = [imported(trainer, name, measurements=epochs(0.5, 0.95, cost=1e9)).trial for name in "ab"]
    imported(trainer, "c", measurements=epochs(0.5, 0.95))
    # A launch is never checked for what an import without a monitor is checked for.
    report_all(trainer, trainer.next(), 0.5, 0.95)

    def shown() -> list[tuple[int, int]]:
        return [(warning.reason, warning.trial_number) for warning in job_of(server, trainer).warnings]

    power = v1.WARNING_REASON_POWER_OUT_OF_RANGE
    assert shown() == [(power, 2)]
    for trial, excluded, left in ((1, True, [(power, 1)]), (0, True, []), (1, False, [(power, 2)])):
        server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=wrong[trial].id, excluded=excluded))
        assert shown() == left


def test_report_without_a_new_warning_is_one_row(watched: WatchedServer) -> None:
    """A warning costs rows once, also in the history; the reports after it, and those without one, are one row."""
    trainer = Trainer(watched.trainer)
    trial = trainer.next()

    def rows_of(epoch: int) -> float:
        before = watched.figure("wattwise_commit_rows_sum")
        trainer.report(trial, 10.0 * epoch, metric=-0.5 if epoch > 2 else 0.1, epoch=epoch)
        return watched.figure("wattwise_commit_rows_sum") - before

    trainer.report(trial, 5.0, metric=0.0)
    server_rows = [rows_of(epoch) for epoch in (2, 3, 4)]
    assert server_rows == [1, 4, 1]


@pytest.mark.parametrize(
    ("reason", "fields", "kept"),
    [
        (WarningReason.NO_ENERGY, {}, False),
        (WarningReason.NO_ENERGY, {"origin": TrialOrigin.IMPORTED}, True),
        (WarningReason.NO_ENERGY, {"excluded": True}, True),
        (WarningReason.NO_ENERGY, {"last": None}, True),
        (WarningReason.NO_ENERGY, {"number": 2}, True),
        (WarningReason.NO_ENERGY, {"number": 1}, True),
        (WarningReason.NO_ENERGY, {"warnings": (WarningReason.NO_ENERGY,)}, True),
        (WarningReason.NO_ENERGY, {"warnings": (WarningReason.METRIC_OUT_OF_RANGE,)}, False),
        (WarningReason.POWER_OUT_OF_RANGE, {}, True),
        (WarningReason.DELIVERY_UNUSUALLY_CHEAP, {}, True),
        (WarningReason.TARGET_REACHED_AT_ONCE, {}, False),
        (WarningReason.TARGET_REACHED_AT_ONCE, {"number": 1}, False),
        (WarningReason.TARGET_REACHED_AT_ONCE, {"epoch": 1}, True),
        (WarningReason.MONITORS_DIFFER, {}, False),
        (WarningReason.MONITORS_DIFFER, {"other_monitors": (MonitorKinds(("rapl",)),)}, True),
        (WarningReason.METRIC_MOVES_AWAY, {}, False),
        (WarningReason.METRIC_MOVES_AWAY, {"epoch": 2}, True),
        (WarningReason.METRIC_MOVES_AWAY, {"epoch": 2, "target_reached": True}, False),
    ],
)
def test_launch_that_contradicts_a_warning(reason: WarningReason, fields: dict[str, Any], kept: bool) -> None:
    """A warning is withdrawn by a later launch that counts, had reports long enough to have it, and has it not."""
    spec = resolve(draft())
    warning = TrialWarning(reason, "result.measurement.metric", "a message", 2)
    job = Job(spec, POLICIES[spec.policy].register(spec, ()), BEGIN, warnings=(warning,))
    changed = dict(fields)
    last = Measurement(changed.pop("epoch", 3), 1.0, 1.0, 0.1, BEGIN)
    own = tuple(TrialWarning(each, "result.measurement.metric", "", 3) for each in changed.pop("warnings", ()))
    ended = Trial("j", 3, 16, TrialOrigin.SEARCH, None, BEGIN, "launch 3", last=last, warnings=own)
    assert without_contradicted(job, ended._replace(**changed)).warnings == (warning,) * kept


@pytest.mark.parametrize("reported", [False, True])
def test_unknown_end_reason(server: LiveServer, *, reported: bool) -> None:
    """A reason that only newer clients know ends a trial as an error, with a warning, until a later trial ends."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    if reported:
        trainer.report(trial, 10.0, metric=0.1)
    ended = trainer.end(trial, 77)  # type: ignore[arg-type]
    assert (ended.status, ended.end_reason) == (v1.TRIAL_STATUS_FAILED, v1.END_REASON_ERROR)
    (warning,) = ended.warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_END_REASON_UNKNOWN, "end_reason")
    assert "reason 77" in warning.message
    # A retry changes nothing.
    assert trainer.end(trial, 77) == ended  # type: ignore[arg-type]
    assert list(job_of(server, trainer).warnings) == list(get(server, trial).warnings) == [warning]
    trainer.report(trainer.next(), 10.0, metric=0.95, epoch=2)
    assert not job_of(server, trainer).warnings


def test_unknown_end_reason_of_import(server: LiveServer) -> None:
    """An import with such a reason is an error with a warning; its measurements come first if they decide it."""
    trainer = Trainer(server.trainer)
    unknown: Any = 77
    answer = imported(trainer, "a", measurements=epochs(0.1), end_reason=unknown)
    assert (answer.created, answer.trial.end_reason) == (True, v1.END_REASON_ERROR)
    assert reasons(answer.trial.warnings) == [v1.WARNING_REASON_END_REASON_UNKNOWN]
    decided = imported(trainer, "b", measurements=epochs(0.1, 0.95), end_reason=unknown).trial
    assert (decided.end_reason, reasons(decided.warnings)) == (v1.END_REASON_TARGET_REACHED, [])
    running = trainer.next()
    ended = imported(trainer, running.id.launch_id, running.batch_size, measurements=(), end_reason=unknown)
    assert (ended.created, ended.trial.end_reason) == (False, v1.END_REASON_ERROR)
