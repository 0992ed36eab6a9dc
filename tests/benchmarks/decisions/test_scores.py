"""What a case costs, beside the best batch size and the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from wattwise.rules import EndReason, ResolvedJob
from wattwise_replay.compare import HINDSIGHT, compare
from wattwise_replay.engines import Fixed
from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import Crash, RecordedRun
from wattwise_replay.world import World
from wattwise_server.domain import ChangedQuantity, DetectedChange, Search
from wattwise_server.policy.base import Choice, Prior
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.pruning_gts import PruningGts

from benchmarks.decisions.cases import Case
from benchmarks.decisions.scores import (
    MAX_TRIES,
    SEEDS,
    Contender,
    Score,
    joined,
    model_cost,
    played,
    reference,
    score,
)
from tests.replay.worlds import workload

_PRUNING = Contender("pruning_gts", PruningGts)


class Stubborn(Gts):
    """A policy that chooses the default and nothing else."""

    def next(self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        return Choice(spec.default_batch_size, "it is the default")


_STUBBORN = Contender("gts", Stubborn)


@pytest.mark.parametrize("case", [Case("1"), Case("1", mirrored_at=20), Case("all-fail"), Case("random-4", eta=1.0)])
def test_the_best_in_hindsight_is_that_of_the_replay(case: Case) -> None:
    """Computed at once, it is the baseline that `wattwise replay` plays trial by trial with the usual seeds."""
    case = replace(case, recurrences=30)
    made = case.load()
    comparison = compare(
        World(made, case.eta), lambda *_: Fixed(made, made.default_batch_size), (), seeds=SEEDS, recurrences=30
    )
    expected = np.array([ledger.costs for ledger in comparison.ledgers[HINDSIGHT]])
    assert reference(case, made, range(2)).best == pytest.approx(expected[:2])


def test_the_default_is_retried_until_it_delivers() -> None:
    """Every other run misses after ten epochs of 100 J: the first attempts with such a draw cost 1 kJ more."""
    made = workload(2)
    (only,) = made.batch_sizes
    made = replace(made, batch_sizes=(replace(only, runs=(RecordedRun(2), RecordedRun(None))),))
    costs = reference(Case("made", recurrences=20, eta=1.0), made, range(1)).default
    assert (costs % 1000 == 200).all()
    assert len(set(costs.ravel())) > 1


def test_a_score_compares_a_policy_with_the_best() -> None:
    """8 costs four times the best, 16: the walk tries it once to the end, and once to the bound, before 16 again."""
    made = replace(workload(4, 1), usual_recurrences=40)
    found = score(Case("made", eta=1.0), made, _PRUNING, range(3))
    assert found.reference.best.tolist() == [[100.0] * 40] * 3
    assert found.played.costs.tolist() == [[400.0, 100.0, 100.0, 300.0 + 100.0] + [100.0] * 36] * 3
    assert found.played.launches.tolist() == [[1, 1, 1, 2] + [1] * 36] * 3
    assert found.ratio() == 46 / 40
    assert found.ratio(1) == 4.0
    assert found.to_default(4).tolist() == [10 / 16] * 3
    assert (found.undelivered(), found.played.fallbacks.tolist()) == (0, [0, 0, 0])
    assert (found.played.settled.tolist(), found.excess.tolist()) == ([16] * 3, [1.0] * 3)


def test_a_launch_without_a_batch_size_trains_the_default() -> None:
    """Nothing converges, so the policy gives up: every other launch of the recurrence is the default's, and counted."""
    found = score(Case("made", recurrences=2), workload(None, None), _PRUNING, (0,))
    assert found.played.launches.tolist() == [[MAX_TRIES] * 2]
    assert found.undelivered() == 2
    assert 0 < found.played.fallbacks[0] < 2 * MAX_TRIES


def test_a_model_that_was_not_delivered_is_never_cheap() -> None:
    """Where every launch fails at once and for nothing, a recurrence counts as many times the best as it has tries."""
    made = Case("default-out-of-memory").load()
    found = score(Case("made", recurrences=2), made, _STUBBORN, (0,))
    assert found.undelivered() == 2
    assert found.ratio() == MAX_TRIES
    assert (found.reference.best > 0).all()


def test_a_failing_policy_is_named() -> None:
    """The error of a policy in the table names it as everywhere else."""

    class Failing(Gts):
        def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:  # noqa: ARG002 - the protocol's
            raise ValueError(f"not {spec.policy}")

    with pytest.raises(ReplayError, match=r"^mine \(policy/mine\.py\) failed in register: ValueError: not gts$"):
        score(Case("made", recurrences=1), workload(1), Contender("mine", Failing), (0,))


def test_groups_of_seeds_are_joined_in_order() -> None:
    """Two groups of seeds give the score of all of them together, whose first seeds are the first group."""
    case, made = Case("2"), Case("2").load()
    whole = played(case, made, _PRUNING, range(3))
    parts = [played(case, made, _PRUNING, seeds) for seeds in ((0, 1), (2,))]
    assert joined(parts).costs.tolist() == whole.costs.tolist()
    first = Score(whole, reference(case, made, range(3))).first_seeds(2)
    assert first.played.costs.tolist() == parts[0].costs.tolist()
    assert first.reference.best.shape == (2, made.horizon)


def test_a_model_costs_least_if_its_trials_are_stopped_in_time() -> None:
    """If one run in two takes 30 epochs instead of 2, stopping after 2 costs 400 J; a crash costs what it trains."""
    made = workload(2, max_epochs=30)
    (only,) = made.batch_sizes

    def cost(*runs: RecordedRun) -> float:
        return model_cost(replace(made, batch_sizes=(replace(only, runs=runs),)), 8, 1.0)

    assert cost(RecordedRun(2), RecordedRun(30)) == 400.0
    assert cost(RecordedRun(2), RecordedRun(3)) == 250.0
    assert cost(RecordedRun(2), RecordedRun(None)) == 400.0
    assert cost(RecordedRun(2), RecordedRun(9, Crash(1, EndReason.ERROR))) == 300.0
    assert cost(RecordedRun(None)) == np.inf


def test_a_search_is_stuck_on_what_it_ends_with() -> None:
    """The most used batch size of the last twenty recurrences costs twice the best there, after the change."""
    made = replace(workload(1, 4).drifting(30), usual_recurrences=60)
    found = score(Case("made", eta=1.0), made, _STUBBORN, range(2))
    assert found.excess.tolist() == [4.0, 4.0]
    made = replace(workload(4, 1).drifting(30), usual_recurrences=60)
    assert score(Case("made", eta=1.0), made, _STUBBORN, range(2)).excess.tolist() == [1.0, 1.0]


def test_concurrent_recurrences_start_together() -> None:
    """The walk repeats the default while its first trial runs: four launches of a wave do what one does alone."""
    made = replace(workload(4, 1), usual_recurrences=8)
    found = score(Case("made", eta=1.0, at_once=4), made, _PRUNING, (0,))
    assert found.played.costs[0, :4].tolist() == [400.0] * 4
    assert found.to_default(4).tolist() == [1.0]


def test_baselines_are_run_but_not_counted() -> None:
    """After the first of five recurrences the default, which costs twice the best, is run for a person."""
    made = workload(2, 1)
    counting = _Counting()
    found = score(
        Case("made", recurrences=10, eta=1.0, baseline_every=5), made, Contender("gts", lambda: counting), (0,)
    )
    assert counting.numbers == [1, *range(3, 8), *range(9, 13)]
    assert found.played.costs.tolist() == [[100.0] * 10]
    assert found.reference.best.shape == (1, 10)


class _Counting(Gts):
    """Chooses 16 and keeps the numbers of its trials."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def next(self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        self.numbers.append(trial_number)
        return Choice(16, "it is the larger one")


class _Alarming(Stubborn):
    """Notices a change after every third trial, and forgets the one before."""

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        ended = sum(arm.num_decided for arm in search.arms)
        return [DetectedChange(ChangedQuantity.EPOCHS, ended // 3, 16, 2.0, False, ended // 3)] if ended >= 3 else []


def test_alarms_are_distinct_changes() -> None:
    """A change that stays for three trials is one alarm; a policy that notices none has none."""
    case, made = Case("made", recurrences=10), workload(1)
    assert played(case, made, Contender("gts", _Alarming), range(2)).alarms.tolist() == [3, 3]
    assert played(case, made, _STUBBORN, range(2)).alarms.tolist() == [0, 0]
