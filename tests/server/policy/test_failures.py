"""Failures: what counts, what is set aside and for how long, what is excluded, and what failed trials cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from wattwise.rules import EndReason
from wattwise_server.domain import Arm, Moments, Observation, Search, Stage
from wattwise_server.errors import NoBatchSizeLeftError
from wattwise_server.policy.base import Exhausted
from wattwise_server.policy.failures import Status, advice, choosable, ruled_out, state, with_readmitted
from wattwise_server.policy.thompson import belief, draw

from tests.server.policy.simulated import SimulatedJob, spec


def bandit(*sizes: int) -> SimulatedJob:
    """A job of gts."""
    return SimulatedJob(spec(policy="gts", batch_sizes=sizes, default_batch_size=sizes[0]))


def sizes(search: Search) -> list[int]:
    """The batch sizes that the next trial may have."""
    return [arm.batch_size for arm in choosable(search, search.num_trials + 1)]


def fail_at(job: SimulatedJob, size: int, reason: EndReason = EndReason.ERROR, cost: float | None = None) -> None:
    """Dispatches a trial of this batch size, whatever the policy would choose, and lets it fail."""
    job.fail(job.dispatch(size), reason, cost)


def test_revived_trial_is_not_a_failure() -> None:
    """Reviving a lost trial undoes its failure and what it cost."""
    job = bandit(8, 16)
    lost = job.fail(job.dispatch(16), EndReason.LOST, 70.0)
    arm = job.search.arm(16)
    assert (arm.failed_trials, arm.num_failed, arm.failed_cost, arm.running) == ((1,), 1, 70.0, 0)
    job.revive(lost)
    arm = job.search.arm(16)
    assert (arm.failed_trials, arm.num_failed, arm.failed_cost, arm.running) == ((), 0, 0.0, 1)


def test_only_the_revived_failure_is_undone() -> None:
    """Of three failures the other two stay, with what they cost; without any, nothing was spent."""
    job = bandit(8, 16)
    lost = [job.fail(job.dispatch(16), EndReason.LOST, cost) for cost in (0.1, 0.2, 0.3)]
    fail_at(job, 8, cost=70.0)
    job.revive(lost[1])
    arm = job.search.arm(16)
    assert (arm.failed_trials, arm.num_failed) == ((1, 3), 2)
    assert arm.failed_cost == pytest.approx(0.4)
    job.revive(lost[0])
    job.revive(lost[2])
    arm, other = job.search.arms[1], job.search.arms[0]
    assert (arm.failed_trials, arm.num_failed, arm.failed_cost) == ((), 0, 0.0)
    assert (other.failed_trials, other.num_failed, other.failed_cost) == ((4,), 1, 70.0)


def test_failure_before_the_first_report_cost_nothing() -> None:
    """A trial that reported nothing before it failed counts as a failure without a cost, and so it is undone."""
    job = bandit(8, 16)
    fail_at(job, 16, cost=70.0)
    lost = job.fail(job.dispatch(16), EndReason.LOST)
    arm = job.search.arm(16)
    assert (arm.num_failed, arm.failed_cost) == (2, 70.0)
    job.revive(lost)
    arm = job.search.arm(16)
    assert (arm.num_failed, arm.failed_cost) == (1, 70.0)


def test_other_trials_of_a_batch_size_still_run() -> None:
    """A trial that ends is one fewer of those that run with its batch size, however it ends."""
    job = bandit(8, 16)
    trials = [job.dispatch(16) for _ in range(5)]
    job.decide(trials[0], 100)
    assert job.search.arm(16).running == 4
    job.fail(trials[1], EndReason.ERROR)
    assert job.search.arm(16).running == 3


def test_allowed_batch_size_starts_again() -> None:
    """Nothing that failed before counts any more: neither its cost nor what ran out of memory."""
    job = bandit(8, 16)
    fail_at(job, 16, cost=70.0)
    fail_at(job, 16, EndReason.OUT_OF_MEMORY, cost=70.0)
    search = with_readmitted(job.search, 16)
    assert search.arms == (Arm(8), Arm(16))


def test_preemption_is_no_failure() -> None:
    """Any number of preemptions sets nothing aside."""
    job = bandit(8, 16)
    for _ in range(5):
        fail_at(job, 16, EndReason.PREEMPTED)
    assert sizes(job.search) == [8, 16]
    assert job.search.arm(16).num_failed == 0


def test_smallest_batch_size_needs_no_second_trial_out_of_memory() -> None:
    """Two are needed only where a trial was decided: a batch size of 1 is excluded by its first, like any other."""
    job = bandit(1, 2)
    fail_at(job, 1, EndReason.OUT_OF_MEMORY)
    assert [arm.excluded for arm in job.search.arms] == [True, True]


def test_nearest_to_the_default_is_tried_again_first() -> None:
    """Of batch sizes whose pauses end together, none of which runs, the one nearest to the default comes first."""
    arms = (Arm(8, failed_trials=(1, 2, 3, 5)), Arm(32, failed_trials=(2, 3, 4, 5)))
    search = Search(Stage.BANDIT, arms, 0, 32, num_trials=6)
    assert sizes(search) == [32]
    running = replace(search, arms=(arms[0], replace(arms[1], running=1)))
    assert sizes(running) == [8]


def test_pause_ends_with_its_last_trial() -> None:
    """A batch size that is set aside until trial 7 is shown and chosen again for trial 8, not before."""
    paused = Arm(16, failed_trials=(1, 2, 3, 5))
    for num_trials, status in ((5, Status.SET_ASIDE), (6, Status.SET_ASIDE), (7, Status.AVAILABLE)):
        search = Search(Stage.BANDIT, (Arm(8), paused), 0, 8, num_trials=num_trials)
        assert state(search, paused, "j").status is status
        assert (16 in sizes(search)) is (status is Status.AVAILABLE)


def test_pauses_grow_to_1024_trials() -> None:
    """After the third failure in a row every other batch size has its turn; then the pauses double from 2 to 1024."""
    job, pauses = bandit(8, 16, 32), []
    for _ in range(3):
        fail_at(job, 8)
    for _ in range(12):
        waited = 0
        while 8 not in sizes(job.search):
            job.decide(job.dispatch(16), 100)
            waited += 1
        pauses.append(waited)
        fail_at(job, 8)
    assert pauses == [2, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]


def test_decided_trial_ends_a_row_of_failures() -> None:
    """A batch size that is set aside is available as soon as one of its trials was decided, even if it missed."""
    job = bandit(8, 16)
    late = job.dispatch(8)
    for _ in range(3):
        fail_at(job, 8)
    assert sizes(job.search) == [16]
    job.decide(late, 100, converged=False)
    assert sizes(job.search) == [8, 16]


def test_one_trial_at_a_time_tries_a_failing_batch_size() -> None:
    """While a trial of a failing batch size is running, no other one gets it."""
    job = bandit(8, 16)
    for _ in range(3):
        fail_at(job, 8)
    job.decide(job.dispatch(16), 100)
    assert sizes(job.search) == [8, 16]
    job.dispatch(8)
    assert sizes(job.search) == [16]


def test_something_is_available_while_anything_survives() -> None:
    """If every batch size is set aside, the one that is due first is available."""
    job = bandit(8, 16)
    for size in (16, 16, 16, 8, 8, 8):
        fail_at(job, size)
    assert sizes(job.search) == [16]


@pytest.mark.parametrize("converged", [(), (16,), (32,), (64,)])
def test_out_of_memory_excludes_larger_batch_sizes(converged: tuple[int, ...]) -> None:
    """One such trial excludes its batch size and larger ones; two are needed if one of these has converged before."""
    job = bandit(8, 16, 32, 64)
    for size in converged:
        job.decide(job.dispatch(size), 100)
    fail_at(job, 32, EndReason.OUT_OF_MEMORY)
    if not {32, 64}.isdisjoint(converged):
        assert sizes(job.search) == [8, 16, 32, 64]
        job.decide(job.dispatch(64), 100)
        fail_at(job, 32, EndReason.OUT_OF_MEMORY)
        assert sizes(job.search) == [8, 16, 32, 64]
        fail_at(job, 32, EndReason.OUT_OF_MEMORY)
    assert sizes(job.search) == [8, 16]


def test_out_of_memory_trials_of_smaller_batch_sizes_count() -> None:
    """Where a trial was decided before, one such trial there and one of a smaller batch size exclude it together."""
    job = bandit(8, 16, 32, 64)
    job.decide(job.dispatch(64), 100)
    fail_at(job, 16, EndReason.OUT_OF_MEMORY)
    assert sizes(job.search) == [8, 16, 32, 64]
    fail_at(job, 32, EndReason.OUT_OF_MEMORY)
    assert sizes(job.search) == [8, 16]
    assert "trials with batch sizes 16 and 32 ran out of memory" in state(job.search, job.search.arm(64), "j").reason


def test_every_decided_trial_shows_that_its_batch_size_fits() -> None:
    """One that was stopped at its bound ran for an epoch at least: out-of-memory trials before it no longer count."""
    job = bandit(8, 128)
    job.decide(job.dispatch(8), 100)
    for _ in range(3):
        job.decide(job.dispatch(128), 300, EndReason.COST_BOUND, converged=False)
        fail_at(job, 128, EndReason.OUT_OF_MEMORY)
        assert sizes(job.search) == [8, 128]
    fail_at(job, 128, EndReason.OUT_OF_MEMORY)
    assert sizes(job.search) == [8]


def test_what_was_excluded_by_a_refuted_trial_is_tried_again() -> None:
    """A decided trial of 64 refutes that 32 does not fit, so that 128 is allowed again as well."""
    job = bandit(16, 32, 64, 128)
    late = job.dispatch(64)
    fail_at(job, 32, EndReason.OUT_OF_MEMORY)
    assert sizes(job.search) == [16]
    assert "trials with batch size 32 ran out of memory" in state(job.search, job.search.arm(128), "j").reason
    job.decide(late, 100, converged=False)
    assert sizes(job.search) == [16, 32, 64, 128]
    fail_at(job, 128, EndReason.OUT_OF_MEMORY)
    assert sizes(job.search) == [16, 32, 64]


def test_out_of_memory_is_no_crash() -> None:
    """A batch size whose only failures ran out of memory is not listed as one that crashed, even if it fits by now."""
    job = bandit(8, 16)
    late = job.dispatch(8)
    fail_at(job, 8, EndReason.OUT_OF_MEMORY)
    job.decide(late, 100)
    for _ in range(2):
        fail_at(job, 8, EndReason.OUT_OF_MEMORY)
    causes = ruled_out(job.search)
    assert (causes["failed"], causes["out_of_memory"]) == ([], [8])
    job.decide(job.dispatch(8), 100)
    assert ruled_out(job.search)["failed"] == ruled_out(job.search)["out_of_memory"] == []


def test_state_of_the_batch_size_that_is_tried_although_all_are_set_aside() -> None:
    """It is allowed, since the next trial will have it; the others are set aside."""
    job = bandit(8, 16)
    for size in (16, 16, 16, 8, 8, 8, 16, 8):
        fail_at(job, size)
    assert [state(job.search, arm, "j").status for arm in job.search.arms] == [Status.SET_ASIDE, Status.AVAILABLE]
    assert "the next to be tried" in state(job.search, job.search.arm(16), "j").reason
    assert job.next().batch_size == 16


def test_nothing_is_left_if_the_smallest_does_not_fit() -> None:
    """The bandit is exhausted when every batch size is excluded, and a late converged trial brings them back."""
    job = bandit(8, 16)
    late = job.dispatch(16)
    fail_at(job, 8, EndReason.OUT_OF_MEMORY)
    assert isinstance(job.choose(), Exhausted)
    assert ruled_out(job.search) == {"failed": [], "out_of_memory": [8], "missed": [], "banned": [], "untried": [16]}
    job.decide(late, 100)
    assert sizes(job.search) == [8, 16]


def test_states_of_batch_sizes() -> None:
    """Each has a status and a sentence that says what would change it."""
    job = bandit(8, 16, 32, 64)
    fail_at(job, 64, EndReason.OUT_OF_MEMORY)
    for _ in range(3):
        fail_at(job, 16)
    arms = tuple(replace(arm, pruned=arm.batch_size == 8) for arm in job.search.arms)
    search = replace(job.search, arms=arms)
    found = {arm.batch_size: state(search, arm, "j") for arm in arms}
    assert [each.status for each in found.values()] == [
        Status.PRUNED,
        Status.SET_ASIDE,
        Status.AVAILABLE,
        Status.OUT_OF_MEMORY,
    ]
    again = "from trial 6 on, or earlier if every other one is set aside"
    assert (
        found[16].reason
        == f"its last 3 trials failed; it may be tried again {again}; `wattwise jobs readmit j 16` readmits it now"
    )
    walking = replace(search, stage=Stage.PRUNING)
    assert "once every other batch size has a result in this round" in state(walking, search.arm(16), "j").reason
    assert found[32].reason == "no trial of it counts yet"
    assert state(search, replace(search.arm(32), running=1), "j").reason == "its first trial is running"
    assert "trials with batch size 64 ran out of memory" in found[64].reason
    assert (
        found[8].reason == "pruned: it lies beyond one that missed the target or the bound; "
        "`wattwise jobs readmit j 8` brings it back"
    )


@pytest.mark.parametrize(
    ("arm", "known"),
    [
        (
            Arm(16, num_decided=5, num_converged=2, num_failed=1),
            "2 reached the target within the bound, 3 missed the target or the bound, 1 failed",
        ),
        (Arm(16, num_decided=2, num_converged=2), "2 reached the target within the bound"),
        (Arm(16, num_decided=1), "1 missed the target or the bound"),
    ],
)
def test_state_counts_how_trials_ended(arm: Arm, known: str) -> None:
    """The reason of an available batch size says how many of its trials reached the target, missed it, and failed."""
    assert state(Search(Stage.BANDIT, (Arm(8), arm), 0, 8), arm, "j") == (Status.AVAILABLE, f"its trials: {known}")


def test_state_of_what_was_pruned_by_its_own_miss() -> None:
    """It says so; one that has converged before it was pruned lies beyond another that missed."""
    search = Search(Stage.BANDIT, (Arm(8),), 0, 8)
    assert "it missed the target" in state(search, Arm(8, pruned=True, num_decided=1), "j").reason
    beyond = Arm(8, pruned=True, num_decided=1, num_converged=1)
    assert "it lies beyond one that missed" in state(search, beyond, "j").reason


def test_state_of_a_failing_batch_size_that_is_tried_again() -> None:
    """While its trial is running no other one is dispatched, and the reason says so."""
    paused = Arm(16, failed_trials=(1, 2, 3), running=1)
    found = state(Search(Stage.BANDIT, (Arm(8), paused), 0, 8, num_trials=9), paused, "j")
    assert found.status is Status.SET_ASIDE
    assert "it may be tried again after its running trial has ended;" in found.reason


@pytest.mark.parametrize(
    ("running", "helps"),
    [
        (None, "`wattwise jobs readmit j 64` readmits it if it fits after all"),
        (4, "`wattwise jobs readmit j 64` readmits it if it fits after all"),
        (32, "64 is available again if the trial that is still running ends with a decision"),
    ],
)
def test_state_of_an_excluded_batch_size_says_what_brings_it_back(running: int | None, helps: str) -> None:
    """A running trial of a batch size that ran out of memory or a larger one can show that it fits; else a person."""
    job = bandit(4, 8, 16, 32, 64)
    if running:
        job.dispatch(running)
    for size in (8, 16, 32):
        fail_at(job, size, EndReason.OUT_OF_MEMORY)
    reason = state(job.search, job.search.arm(64), "j").reason
    assert reason == f"trials with batch sizes 8, 16 and 32 ran out of memory; {helps}"


def test_advice_once_everything_has_missed() -> None:
    """A job gets advice once every batch size that may be chosen has missed, until one reaches the target."""
    job = bandit(8, 16, 32, 64)
    fail_at(job, 64, EndReason.OUT_OF_MEMORY)
    for _ in range(3):
        fail_at(job, 32)
    job.decide(job.dispatch(8), 100, converged=False)
    assert advice(job.search, "j") == ""
    late = job.dispatch(16)
    job.decide(job.dispatch(16), 100, converged=False)
    missed = advice(job.search, "j")
    assert "under a new job_id with other batch_sizes that fit into memory, an easier target" in missed
    words = "missed the target or the bound"
    assert f"(8, 16) has {words} (trials crashed, were lost or ended undecided: 32; out of memory: 64): reg" in missed
    assert missed.endswith("`wattwise jobs reset j` begins the search again")
    job.decide(late, 100)
    assert advice(job.search, "j") == ""


def test_advice_once_everything_fails() -> None:
    """A job gets advice once nothing but failures is known of it, or all its batch sizes are set aside."""
    job = bandit(8, 16)
    fail_at(job, 8)
    fail_at(job, 16)
    assert advice(job.search, "j") == ""
    fail_at(job, 8)
    assert "fix what makes them crash" in advice(job.search, "j")
    assert "ended undecided: 8, 16)" in advice(job.search, "j")
    assert advice(job.search, "j").endswith("the next launches try again")
    pruned = replace(job.search, arms=(*job.search.arms, Arm(32, pruned=True)))
    assert advice(pruned, "j").endswith(", and `wattwise jobs reset j` brings the pruned batch sizes back")
    job.decide(job.dispatch(16), 100)
    assert advice(job.search, "j") == ""


def test_advice_however_failures_are_spread() -> None:
    """Preempted trials between them hide neither that nothing but failures is known nor that all is set aside."""
    job = bandit(8, 16, 32)
    for size in (8, 16):
        fail_at(job, size)
    fail_at(job, 8, EndReason.PREEMPTED)
    assert advice(job.search, "j") == ""
    fail_at(job, 8)
    assert "ended undecided: 8, 16)" in advice(job.search, "j")
    job = bandit(8, 16)
    job.decide(job.dispatch(8), 100)
    for _ in range(3):
        assert advice(job.search, "j") == ""
        for size in (8, 16):
            fail_at(job, size)
        fail_at(job, 8, EndReason.PREEMPTED)
    assert "ended undecided: 8, 16)" in advice(job.search, "j")


def test_advice_once_the_newest_trials_fail() -> None:
    """Earlier successes hide no failures: three in a row are named, until a trial is decided."""
    job = bandit(8, 16, 32)
    for size in (8, 16, 32):
        job.decide(job.dispatch(size), 100)
    fail_at(job, 16)
    job.dispatch(8)
    job.dispatch(8)
    assert advice(job.search, "j") == ""
    job = bandit(8, 16, 32)
    for size in (8, 16, 32):
        job.decide(job.dispatch(size), 100)
    fail_at(job, 16)
    fail_at(job, 8, EndReason.LOST)
    assert advice(job.search, "j") == ""
    fail_at(job, 16)
    # The trial that is running has not ended yet.
    running = job.dispatch(32)
    found = advice(job.search, "j")
    assert "trials 4 to 6 failed" in found
    assert "ended undecided: 8, 16)" in found
    assert "jobs reset" not in found
    job.decide(running, 100)
    assert advice(job.search, "j") == ""


def test_advice_once_memory_runs_out_where_it_did_not() -> None:
    """What ran out of memory counts where trials have fitted; larger batch sizes are only how the search finds out."""
    job = bandit(8, 16, 32, 64, 128)
    job.decide(job.dispatch(8), 100)
    for size in (128, 64, 32):
        fail_at(job, size, EndReason.OUT_OF_MEMORY)
    assert advice(job.search, "j") == ""
    job = bandit(8, 16, 32)
    for size in (8, 16, 32):
        job.decide(job.dispatch(size), 100)
    for size in (32, 32, 16):
        fail_at(job, size, EndReason.OUT_OF_MEMORY)
    assert "out of memory: 16, 32)" in advice(job.search, "j")


def test_advice_while_memory_runs_out() -> None:
    """Trials that run out of memory are no crashes: smaller batch sizes may fit."""
    job = bandit(8, 16, 32, 64)
    for size in (64, 32, 16):
        fail_at(job, size, EndReason.OUT_OF_MEMORY)
    assert advice(job.search, "j") == ""


def test_advice_when_nothing_fits() -> None:
    """If everything ran out of memory, the advice is the one of the error that the next launch gets."""
    job = bandit(8, 16)
    fail_at(job, 8, EndReason.OUT_OF_MEMORY)
    assert "a new job_id with smaller batch_sizes" in advice(job.search, "j")
    assert advice(job.search, "j").partition(": ")[2] in NoBatchSizeLeftError("j", ruled_out(job.search)).message


def test_expected_cost_counts_misses_and_failures() -> None:
    """A model costs what its batch size's decided and failed trials cost together, per converged trial."""
    arm = replace(
        Arm(8, num_decided=4, num_converged=2, num_failed=1, failed_cost=60.0),
        reached=Moments(2, 105.0, 350.0),
        kept=(Observation(95.0, converged=False),) * 2,
    )
    known = belief(spec(), arm, 295.0)
    assert known.mean == -200
    assert (known.expected_cost, known.failure_rate) == (230.0, 0.2)
    # The means of both differ by 10, which adds 4·5² to the 350.
    assert known.deviation == pytest.approx(2 * math.sqrt(450 / 4 / 4))
    unknown = belief(spec(), Arm(8), 0.0)
    assert (unknown.expected_cost, unknown.deviation, unknown.failure_rate) == (None, None, None)
    # What failed is added to the only trial that did not; one observation says nothing about the deviation.
    once = belief(
        spec(),
        Arm(8, num_decided=1, num_failed=2, failed_cost=60.0, reached=Moments(1, 100.0)),
        0.0,
    )
    assert (once.expected_cost, once.deviation) == (160.0, None)


def test_deviation_follows_a_fixed_reward_precision() -> None:
    """With a fixed 1/variance of a reward the costs that were seen do not change it."""
    arm = Arm(8, num_decided=2, num_converged=2, reached=Moments(2, 100.0))
    known = belief(spec(), arm, 0.0, 0.5)
    assert (known.precision, known.reward_precision, known.deviation) == (1.0, 0.5, 1.0)


def test_expected_cost_is_what_trials_cost() -> None:
    """A miss counts as more for the bandit, but a model costs what its trials did cost."""
    job = bandit(8, 16)
    job.decide(job.dispatch(8), 100)
    job.decide(job.dispatch(8), 1, converged=False)
    known = job.policy.belief(job.spec, job.search)[0]
    assert (known.mean, known.expected_cost) == (-150, 101)


def test_expected_cost_follows_the_window() -> None:
    """Only the trials in the window tell how many it takes for a model."""
    job = SimulatedJob(spec(policy="gts", batch_sizes=(8,), default_batch_size=8, window_size=3))
    for _ in range(5):
        job.decide(job.dispatch(8), 900, converged=False)
    assert job.policy.belief(job.spec, job.search)[0].expected_cost is None
    for cost in (90, 100, 110):
        job.decide(job.dispatch(8), cost)
    assert job.policy.belief(job.spec, job.search)[0].expected_cost == 100
    job.decide(job.dispatch(8), 30, converged=False)
    assert job.policy.belief(job.spec, job.search)[0].expected_cost == (100 + 110 + 30) / 2


def test_failure_rate_counts_no_misses() -> None:
    """Trials that were decided have not failed, whether they reached the target or not."""
    job = bandit(8, 16)
    job.decide(job.dispatch(8), 100, converged=False)
    assert job.policy.belief(job.spec, job.search)[0].failure_rate == 0
    fail_at(job, 8)
    assert job.policy.belief(job.spec, job.search)[0].failure_rate == 0.5


def test_sampled_cost_includes_failed_trials() -> None:
    """An arm that is cheap per decided trial is not drawn if its failures make it expensive; the reason says so."""
    cheap = Arm(8, num_decided=2, num_failed=2, failed_cost=400.0, reached=Moments(2, 100.0))
    steady = Arm(16, num_decided=2, reached=Moments(2, 150.0))
    drawn = draw(spec(), [cheap, steady], 0.0, np.random.default_rng(1))
    assert drawn.batch_size == 16
    assert "failed trials" not in drawn.reason
    assert "failed trials 200 J per decided one" in draw(spec(), [cheap], 0.0, np.random.default_rng(1)).reason


def test_walk_ends_its_round_without_what_is_set_aside() -> None:
    """A batch size that fails again after its first pause goes into the next round with the others."""
    job = SimulatedJob(spec(batch_sizes=(8, 16)))
    job.decide(job.next(), 100)
    for _ in range(4):
        assert job.search.pruning_round == 0
        trial = job.next()
        assert trial.batch_size == 8
        job.fail(trial, EndReason.ERROR)
    assert (job.search.stage, job.search.pruning_round) == (Stage.PRUNING, 1)
    assert [arm.batch_size for arm in job.search.available] == [8, 16]


def test_walk_does_not_wait_for_a_failing_batch_size_that_is_running() -> None:
    """A round ends while a concurrent trial tries what has failed three times; no second trial tries it as well."""
    job = SimulatedJob(spec(batch_sizes=(8, 16), num_pruning_rounds=1))
    trials = [job.next() for _ in range(4)]
    for trial in trials[:3]:
        job.fail(trial, EndReason.ERROR)
    small = job.next()
    assert small.batch_size == 8
    job.decide(small, 100)
    assert job.search.stage is Stage.BANDIT
    assert sizes(job.search) == [8]


def test_default_that_does_not_fit_stays_replaced_in_its_round() -> None:
    """The round continues from the next smaller batch size, even if a late trial shows that the default fits."""
    job = SimulatedJob(spec(batch_sizes=(8, 16, 32), default_batch_size=32))
    exploration, late = job.next(), job.next()
    job.fail(exploration, EndReason.OUT_OF_MEMORY)
    job.decide(late, 100)
    walked = []
    for _ in range(3):
        trial = job.next()
        walked.append(trial.batch_size)
        job.decide(trial, 100)
    assert walked == [16, 8, 32]
