"""The sentences about a job that the page, the terminal and the demo share."""

from __future__ import annotations

from typing import Any

import pytest
from wattwise import v1
from wattwise.presentation.sentences import Answer, answer, main_quantity, spent_by_month, total_answer
from wattwise.presentation.states import uncounted

from tests.jobs import Trainer
from tests.live_server import LiveServer

SAVING, LOSS = v1.SAVINGS_VERDICT_SAVING, v1.SAVINGS_VERDICT_LOSS
EXPLORING, UNCERTAIN = v1.SAVINGS_VERDICT_EXPLORING, v1.SAVINGS_VERDICT_UNCERTAIN
NO_BASELINE, NO_DELIVERY = v1.SAVINGS_VERDICT_NO_BASELINE, v1.SAVINGS_VERDICT_NO_DELIVERY


def said(
    verdict: v1.SavingsVerdict.ValueType,
    *,
    runs: int = 3,
    job: dict[str, Any] | None = None,
    default: v1.BatchSizeState = v1.BatchSizeState(status=v1.BATCH_SIZE_STATUS_AVAILABLE),  # noqa: B008 - not changed
    proof: v1.SavingsProof | None = None,
    wait: v1.BaselineWait.ValueType = v1.BASELINE_WAIT_UNSPECIFIED,
    **cost: Any,
) -> Answer:
    """Returns the answer about a job with the default 64 that uses 16 now, in 20 deliveries that took 500 J."""
    known: dict[str, Any] = {"best_known_batch_size": 16, "best_known_cost": 16.4, "batch_size_in_use": 16}
    known |= {"num_trials": 25, "available_batch_sizes": [16, 32, 64]}
    known["spec"] = v1.JobSpec(job_id="a job", default_batch_size=64)
    shown = v1.Job(**known | (job or {}))
    amounts = {"spent": 500.0, "in_use": 16.4, "default_mean": 29.4, "with_default": 29.4} | cost
    savings = v1.Savings(
        cost=v1.SavingsEstimate(
            verdict=verdict, **{name: value for name, value in amounts.items() if value is not None}
        ),
        num_deliveries=0 if verdict == NO_DELIVERY else 20,
        num_baseline_trials=runs,
        num_in_use_trials=15,
        batch_size_in_use=shown.batch_size_in_use,
        min_baseline_trials=3,
        num_exploring_launches=10,
    )
    state = v1.BatchSizeState(batch_size=64)
    state.MergeFrom(default)
    details = v1.JobDetails(batch_size_states=[state], baseline_wait=wait)
    statistics = v1.JobStatistics(savings=savings, proof=proof)
    return answer(shown, details, statistics, v1.Factors(), [v1.PreviewedChoice(batch_size=32, probability=1.0)])


def needs(baselines: int, launches: int = 0, price: float | None = None) -> v1.SavingsProof:
    """Returns what would prove a saving: a comparison first, unless launches follow."""
    state = v1.PROOF_STATE_NEEDS_LAUNCHES if launches else v1.PROOF_STATE_NEEDS_BASELINES
    return v1.SavingsProof(state=state, num_baselines=baselines, num_launches=launches, price=price)


def test_a_saving_has_what_a_launch_costs_and_what_was_saved_at_least() -> None:
    """Both are in the first line, with the batch size that is used and the next one."""
    found = said(SAVING, at_least=100.0, at_least_share=1 / 6, change=-0.4422)
    assert found.now == "A model costs 16.4 J now, 29.4 J with the default, 64: 44% less."
    assert found.saved == "Saved at least 100 J in 20 deliveries, at least 17% of what the default would have cost."
    assert (found.kind, found.settle) == ("saving", "")
    assert found.used == "Batch size 16 is used now, because its expected cost is the lowest."
    assert found.upcoming == "The next launch tries 32."


def test_nothing_is_compared_with_few_runs_of_the_default() -> None:
    """One run tells no percentage and promises nothing; what is missing, its price and the commands are told."""
    found = said(NO_BASELINE, runs=1, proof=needs(2, price=26.0))
    assert found.now == "A model costs 16.4 J now, 29.4 J with the default, 64 (one delivery)."
    assert found.kind == "none"
    assert "1 of the 3 deliveries" in found.saved
    assert found.settle.startswith(
        "2 more runs of the default that reach the target would allow a comparison, and cost 26.0 J more than"
    )
    assert "`wattwise jobs baseline 'a job'`" in found.settle
    assert "--every" in found.settle
    unknown = said(NO_BASELINE, runs=0, proof=needs(3), with_default=None)
    assert unknown.settle.startswith("3 more runs of the default that reach the target would allow a comparison; ")


def test_a_default_that_may_not_be_chosen_comes_back_first() -> None:
    """Without it no baseline is accepted; a request waits, as long as the job is paused as well."""
    job = {"available_batch_sizes": [16, 32]}
    banned = said(NO_BASELINE, runs=1, job=job, proof=needs(2), default=v1.BatchSizeState(banned=True))
    assert banned.settle.endswith("; the default may not be chosen before `wattwise jobs unban 'a job' 64`.")
    state = v1.BatchSizeState(status=v1.BATCH_SIZE_STATUS_PRUNED)
    pruned = said(NO_BASELINE, runs=1, job=job, proof=needs(2), default=state)
    assert pruned.settle.endswith("; the default may not be chosen before `wattwise jobs readmit 'a job' 64`.")
    held = {"paused": True, "baseline_every": 9}
    paused = said(NO_BASELINE, runs=1, job=held, proof=needs(2), wait=v1.BASELINE_WAIT_PAUSED)
    assert paused.settle.endswith("; one launch in 9 gets the default, but it waits until the search is resumed.")


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ({"baseline_requested": True}, "one is requested already"),
        ({"baseline_every": 9}, "one launch in 9 gets the default"),
    ],
)
def test_what_is_requested_is_not_advised_again(job: dict[str, Any], text: str) -> None:
    """The sentence ends with what is known of the request."""
    assert said(NO_BASELINE, runs=1, job=job, proof=needs(2)).settle.endswith(f"; {text}.")


def test_exploration_is_no_loss() -> None:
    """What the first launches cost more is said as usual; without a claim there is no percentage."""
    found = said(EXPLORING, spent=682.0, saved=-100.0, at_least=-200.0, lost=94.0, lost_share=0.16)
    assert found.kind == "exploring"
    assert found.saved == "Exploring: 16% more than with the default so far, which is usual in the first 10 launches."
    assert "usually costs more than it saves" in said(EXPLORING, runs=1, spent=682.0).saved


def test_a_baseline_of_a_held_job_waits() -> None:
    """A paused or pinned job is said to wait with its baseline."""
    for held, wait, text in (
        ({"paused": True}, v1.BASELINE_WAIT_PAUSED, "until the search is resumed"),
        ({"pinned_batch_size": 16}, v1.BASELINE_WAIT_PINNED, "until 16 is unpinned"),
        ({}, v1.BASELINE_WAIT_NOT_CHOOSABLE, "until 64 may be chosen"),
    ):
        found = said(NO_BASELINE, runs=1, job=held, proof=needs(2), wait=wait)
        assert "1 of the 3 deliveries" in found.saved
        assert "requests one" in found.settle
        assert found.settle.endswith(f", but it waits {text}.")


def test_an_uncertain_claim_has_no_negative_numbers() -> None:
    """It says what would settle it."""
    found = said(UNCERTAIN, saved=-100.0, at_least=-7e6, lost=94.0, proof=needs(0, 20))
    assert (
        "It is not certain yet whether 20 deliveries saved anything. "
        "About 20 more launches would prove a saving, if they go on to cost the same. "
    ) in found.brief
    assert found.kind == "uncertain"
    assert "Batch size 16 is used now" in found.brief
    assert "-" not in found.brief
    both = said(UNCERTAIN, saved=-1.0, at_least=-2.0, proof=needs(2, 1, -3.0)).settle
    assert both.startswith(
        "2 more runs of the default, followed by about 1 launch, would prove a saving, if they go on to cost the same, "
        "and cost no more than other launches; "
    )
    for state, text in (
        (v1.PROOF_STATE_DEFAULT_IN_USE, "Nothing is saved while the default is the best known batch size."),
        (v1.PROOF_STATE_TOO_SMALL, "To prove so small a saving takes more than 20 further runs of the default."),
        (v1.PROOF_STATE_NO_SAVING, "So far a model costs no less than with the default."),
        (v1.PROOF_STATE_UNSPECIFIED, ""),
    ):
        assert said(UNCERTAIN, saved=-1.0, at_least=-2.0, proof=v1.SavingsProof(state=state)).settle == text
    only = said(UNCERTAIN, saved=-1.0, proof=v1.SavingsProof(state=v1.PROOF_STATE_DEFAULT_ONLY))
    nothing = "Nothing can be saved while every launch gets the default batch size."
    assert (only.saved, only.settle) == (nothing, "")


def test_a_loss_is_said() -> None:
    """As a share of what the default would have cost, its misses included."""
    found = said(LOSS, lost=147.0, lost_share=0.25, default_mean=10.0)
    assert found.saved == "Lost 147 J in 20 deliveries, 25% more than the default would have cost."


def test_states_of_a_job_are_told() -> None:
    """New, pinned and paused jobs, and one without a batch size left."""
    unknown = v1.Job(spec=v1.JobSpec(job_id="a", default_batch_size=64), batch_size_in_use=64)
    cost = v1.SavingsEstimate(verdict=NO_DELIVERY)
    nothing = v1.JobStatistics(savings=v1.Savings(cost=cost, batch_size_in_use=64))
    stuck = answer(unknown, v1.JobDetails(), nothing, v1.Factors(), [])
    assert (stuck.used, stuck.upcoming) == ("No batch size is used now, because no batch size is left to try.", "")
    unknown.available_batch_sizes.append(64)
    new = answer(unknown, v1.JobDetails(), nothing, v1.Factors(), [v1.PreviewedChoice(batch_size=64, probability=1.0)])
    assert new.now == "No launch yet: the first one begins the search."
    assert new.used.startswith("Batch size 64, the default, is used now")
    unknown.batch_size_in_use = 32
    assert "the nearest to the default, 64, is used now" in answer(unknown, v1.JobDetails(), nothing, v1.Factors()).used
    unknown.num_trials = 1
    assert (
        answer(unknown, v1.JobDetails(), nothing, v1.Factors()).now
        == "No launch that counts has reached the target since the job was registered."
    )
    unknown.reset_after = 50
    after = answer(unknown, v1.JobDetails(), nothing, v1.Factors())
    assert after.now == "No launch that counts has reached the target since the reset after trial 50."
    assert after.saved == "Nothing was saved since then."
    assert said(SAVING, at_least=1.0, job={"pinned_batch_size": 16}).used.endswith("because it is pinned.")
    assert said(SAVING, at_least=1.0, job={"paused": True}).used.endswith("; the search is paused.")


def test_imported_trials_tell_what_a_model_costs() -> None:
    """Before the first delivery of the job itself, of which nothing was saved."""
    found = said(NO_DELIVERY, change=-0.4422)
    assert found.now == "A model costs 16.4 J now, 29.4 J with the default, 64: 44% less."
    assert found.saved.startswith("No launch that counts has reached the target since the job was registered. ")
    assert found.saved.endswith(" Nothing was saved yet.")


def test_estimates_are_marked() -> None:
    """Costs of a monitor that estimates have a mark."""
    for quality, mark in (
        (v1.ENERGY_QUALITY_ESTIMATED, "~"),
        (v1.ENERGY_QUALITY_PARTLY_ESTIMATED, "~"),
        (v1.ENERGY_QUALITY_MEASURED, ""),
    ):
        monitor = v1.Monitor(kinds=["estimate"], quality=quality)
        found = said(SAVING, at_least=100.0, change=-0.4422, job={"monitor": monitor})
        assert found.now == f"A model costs {mark}16.4 J now, {mark}29.4 J with the default, 64: 44% less."
        assert found.saved.startswith(f"Saved at least {mark}100 J in ")


def test_why_a_trial_does_not_count() -> None:
    """It is from before a reset, excluded, or a doubtful delivery; other warnings do not matter."""
    doubt = v1.TrialWarning(reason=v1.WARNING_REASON_DELIVERY_UNUSUALLY_CHEAP)
    other = v1.TrialWarning(reason=v1.WARNING_REASON_NO_ENERGY)
    job = v1.Job(reset_after=1)
    trials = [
        v1.Trial(id=v1.TrialId(trial_number=number), excluded=number == 2, warnings=warnings)
        for number, warnings in ((1, [doubt]), (2, [doubt]), (3, [other, doubt]), (4, [other]))
    ]
    assert [uncounted(job, trial) for trial in trials] == ["before reset", "excluded", "doubtful", ""]


def test_choices_that_are_not_named_are_said() -> None:
    """Three are named with their shares."""
    job = v1.Job(spec=v1.JobSpec(job_id="a", default_batch_size=64), batch_size_in_use=64)
    choices = [v1.PreviewedChoice(batch_size=size, probability=0.25) for size in (8, 16, 32, 64)]
    found = answer(job, v1.JobDetails(), v1.JobStatistics(), v1.Factors(), choices)
    assert found.upcoming == "The next launch gets one of 8 (25%), 16 (25%), 32 (25%) or another one."
    assert "another" not in answer(job, v1.JobDetails(), v1.JobStatistics(), v1.Factors(), choices[:3]).upcoming


def test_a_single_job_has_the_verdict_of_its_totals(
    grpc_server: LiveServer, grpc_stub: v1.BatchSizeOptimizerStub
) -> None:
    """From a new job to one that has explored."""
    trainer = Trainer(grpc_stub, job_id_prefix="answers", job_id="answers-one")
    admin = grpc_server.admin
    for trials in (0, 1, 12):
        for _ in range(trials):
            trainer.run(10.0)
        known = admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id))
        statistics = admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=trainer.job_id)).statistics
        totals = admin.GetTotals(v1.GetTotalsRequest(job_id_prefix="answers")).totals
        assert totals.savings.cost.verdict == statistics.savings.cost.verdict
        assert (
            total_answer(totals, v1.Factors()).kind == answer(known.job, known.details, statistics, v1.Factors()).kind
        )


def test_months_are_compared() -> None:
    """The newest one with the one before, by what a delivery took."""
    statistics = v1.JobStatistics()
    for month, deliveries, spent, change in ((10, 10, 39.0, None), (11, 12, 31.8, -0.3205)):
        each = v1.Usage(cost=spent / deliveries)
        added = statistics.months.add(
            num_deliveries=deliveries, spent=v1.Usage(cost=spent), spent_per_delivery=each, change=change
        )
        added.start_time.FromJsonString(f"2026-{month}-01T00:00:00Z")
    text = "November 2026: 12 deliveries for 31.8 J, 2.65 J each; October 2026 had 3.90 J each: 32% less."
    quantity = main_quantity(statistics.savings, v1.Factors(), mark="")
    assert spent_by_month(statistics, quantity) == text
    assert spent_by_month(v1.JobStatistics(), quantity) == ""
