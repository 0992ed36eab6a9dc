"""Synthetic workloads by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from wattwise import Client
from wattwise.drafts import Policy
from wattwise.rules import EndReason
from wattwise_replay.compare import HINDSIGHT, compare
from wattwise_replay.engines import Fixed
from wattwise_replay.errors import ReplayError
from wattwise_replay.in_process import InProcess
from wattwise_replay.named_worlds import NAMES, named_world
from wattwise_replay.over_grpc import OverGrpc
from wattwise_replay.play import play
from wattwise_replay.workload import Workload, epoch_cost
from wattwise_replay.world import MAX_TRIES, World, draws

from tests.live_server import LiveServer
from tests.replay.worlds import job

_ALL = [name.replace("-K", "-7") for name in NAMES]


def _expected_costs(made: Workload) -> dict[int, float]:
    """Cost in kJ of a delivered model with one batch size alone, retried until the target."""
    found = {}
    for each in made.batch_sizes:
        epochs = np.array([run.target_epoch or np.inf for run in each.runs])
        reached = epochs <= made.max_epochs
        if reached.any():
            price = epoch_cost(each.points[0], 0.5, made.max_power_watts) / 1000
            wasted = (1 / reached.mean() - 1) * made.max_epochs
            found[each.size] = price * (epochs[reached].mean() + wasted)
    return found


@pytest.mark.parametrize(
    ("name", "sizes", "default", "best", "converging"),
    [
        ("flat-noisy", 10, 256, None, 10),
        ("large-optimum", 10, 64, {512, 1024}, 10),
        ("small-optimum", 10, 512, {8}, 8),
        ("two-humps", 10, 32, {1024}, 10),
        ("small-diverge", 10, 256, {256}, 6),
        ("edge-of-divergence", 10, 256, {128}, 6),
        ("one-converges", 10, 256, {1024}, 1),
        ("all-fail", 10, 256, {128}, 8),
        ("steep-noisy", 10, 512, {64, 128}, 10),
        ("drift", 8, 128, {8, 16}, 8),
        ("bimodal", 10, 256, {64, 128}, 10),
        ("lucky", 10, 256, {64, 128}, 10),
        ("lucky-default", 10, 256, None, 10),
        ("heavy-tailed", 10, 256, None, 10),
        ("uneven-noise", 10, 256, {64, 128}, 10),
        ("best-default", 10, 64, {64, 128}, 10),
        ("best-default-noisy", 10, 64, {64, 128}, 10),
    ],
)
def test_a_named_world_has_its_shape(
    name: str, sizes: int, default: int, best: set[int] | None, converging: int
) -> None:
    """The number of batch sizes, the default, the cheapest, and how many ever reach the target."""
    made = named_world(name)
    costs = _expected_costs(made)
    assert (len(made.sizes), made.default_batch_size, len(costs)) == (sizes, default, converging)
    assert best is None or min(costs, key=costs.__getitem__) in best
    assert {len(each.runs) for each in made.batch_sizes} == {200}


def test_two_humps_have_a_cheaper_valley_beyond_a_hill() -> None:
    """32 costs 1.3 times the best, 1024; between them 128 costs 1.7 times."""
    costs = _expected_costs(named_world("two-humps"))
    ratios = [costs[size] / costs[1024] for size in (32, 128, 1024)]
    assert ratios == pytest.approx([1.3, 1.7, 1.0], abs=0.03)


def test_a_fifth_of_the_runs_fail_where_all_fail() -> None:
    """Every batch size misses its target in a fifth of its runs."""
    missed = [run.target_epoch is None for each in named_world("all-fail").batch_sizes for run in each.runs]
    assert np.mean(missed) == pytest.approx(0.2, abs=0.02)


def test_the_noise_of_a_world_is_in_its_runs() -> None:
    """The longest and the shortest runs beside the median, and how much runs differ."""

    def epochs(name: str, size: int) -> np.ndarray:
        return np.array([run.target_epoch for run in named_world(name).of(size).runs], float)

    assert np.mean(epochs("bimodal", 256) > 2 * np.median(epochs("bimodal", 256))) == pytest.approx(0.2, abs=0.06)
    for size, share in ((256, 0.2), (128, 0.0)):
        few = np.mean(epochs("lucky-default", size) < np.median(epochs("lucky-default", size)) / 2)
        assert few == pytest.approx(share, abs=0.06)
    tail = epochs("heavy-tailed", 64)
    assert tail.max() > 5 * tail.mean()
    spread = {size: np.log(epochs("uneven-noise", size)).std() for size in (128, 256)}
    assert spread[256] > 8 * spread[128]


@pytest.mark.parametrize("name", _ALL)
def test_a_name_gives_the_same_world_again(name: str) -> None:
    """Names are as reproducible as seeds, and every batch size costs the same at each of its recurrences."""
    assert named_world(name) == named_world(name)
    made = named_world(name)
    assert made.horizon == (120 if name == "drift" else 100)
    assert [change.at for change in made.changes] == ([60] if name == "drift" else [])
    assert {len(each.points) for each in made.batch_sizes} == {1}


def test_random_worlds_differ_and_have_usable_defaults() -> None:
    """The default of a random world reaches its target, at no more than about four times the best cost."""
    for number in range(60):
        made = named_world(f"random-{number}")
        costs = _expected_costs(made)
        assert costs[made.default_batch_size] < 5.5 * min(costs.values())
    assert named_world("random-1").sizes != named_world("random-2").sizes


def test_defaults_of_far_worlds_are_far_from_the_best() -> None:
    """Best and default lie at least two octaves apart."""
    for number in range(10):
        made = named_world(f"far-{number}")
        costs = _expected_costs(made)
        best = min(costs, key=costs.__getitem__)
        assert abs(np.log2(best / made.default_batch_size)) >= 2


@pytest.mark.parametrize("name", ["random", "random-", "random-x", "random-K", "valley", "-1", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    """The error names every world."""
    with pytest.raises(ReplayError, match="use a seed from 0 or one of flat-noisy"):
        named_world(name)


def test_half_of_the_defaults_trainers_crash_in_their_last_epoch() -> None:
    """The crash comes when all epochs but the last have been reported; other batch sizes never crash."""
    for each in named_world("default-crashes").batch_sizes:
        crashes = [(run.crash, run.target_epoch) for run in each.runs if run.crash is not None]
        if each.size != 256:
            assert not crashes
            continue
        assert len(crashes) / len(each.runs) == pytest.approx(0.5, abs=0.1)
        assert {(crash.reason, crash.epochs + 1 - (target or 0)) for crash, target in crashes} == {(EndReason.ERROR, 0)}


@pytest.mark.parametrize(
    ("name", "fails"),
    [("memory-limit", lambda size: size >= 512), ("default-out-of-memory", lambda size: size >= 256)],
)
def test_large_batch_sizes_run_out_of_memory(name: str, fails: Callable[[int], bool]) -> None:
    """Every trial above the limit fails before its first epoch, and none below."""
    made = named_world(name)
    for size in made.sizes:
        (trial, *_) = play(Fixed(made, size), World(made), seed=1, recurrences=1).trials
        assert (trial.failure is EndReason.OUT_OF_MEMORY) == fails(size)
        assert (trial.cost == 0) == fails(size)


def test_what_delivers_nothing_is_not_the_best_in_hindsight() -> None:
    """A batch size that runs out of memory costs nothing and is no baseline."""
    made = named_world("memory-limit")
    found = compare(World(made), lambda *_: Fixed(made, 64), (), seeds=1, recurrences=5)
    assert found.best_sizes == [256]
    (ledger,) = found.ledgers[HINDSIGHT]
    assert ledger.delivered.all()


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["pruning_gts", "knowledge_gradient"])
@pytest.mark.parametrize("name", ["default-crashes", "all-crash", "memory-limit", "default-out-of-memory"])
def test_crashes_are_the_same_over_grpc(name: str, policy: Policy, grpc_server: LiveServer) -> None:
    """A server that is notified of crashes chooses as the policies in process, to the last digit of the costs."""
    made = named_world(name)
    spec = job(made, policy, seed=3)
    here = play(InProcess(spec), World(made), seed=3, recurrences=20)
    with Client(grpc_server.address) as client:
        over = play(OverGrpc(client, spec), World(made), seed=3, recurrences=20)
    assert over.trials == here.trials
    assert any(trial.failure for trial in here.trials)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [0, 8])
def test_priors_are_the_same_over_grpc(window: int, grpc_server: LiveServer) -> None:
    """After a prior job with misses, overlapping trials of which some crash lead to the same choices and beliefs."""
    before, made = named_world("all-fail"), named_world("all-crash")
    earlier = replace(job(before, "knowledge_gradient", seed=4), job_id=f"replay-earlier-{window}")
    later = replace(job(made, "knowledge_gradient", seed=5), job_id=f"replay-later-{window}", window_size=window)
    prior = InProcess(earlier)
    known = play(prior, World(before), seed=4, recurrences=8, overlap=0.3)
    assert not all(trial.target_reached for trial in known.trials)
    warm = InProcess(later, priors=[prior])
    here = play(warm, World(made), seed=5, recurrences=20, overlap=0.3)
    assert any(trial.failure for trial in here.trials)
    with Client(grpc_server.address) as client:
        there = OverGrpc(client, earlier)
        assert play(there, World(before), seed=4, recurrences=8, overlap=0.3).trials == known.trials
        successor = OverGrpc(client, later, [there])
        over = play(successor, World(made), seed=5, recurrences=20, overlap=0.3)
        states = client.get_job(successor.job_id).details.batch_size_states
    assert over.trials == here.trials
    assert [state.expected_cost for state in states] == [belief.expected_cost for belief in warm.beliefs]


def test_more_tries_do_not_change_the_first() -> None:
    """The draws of a recurrence's first 20 trials are the same however many follow."""
    few, many = draws(1, 10), draws(1, 10, 50)
    assert many.shape == (10, 50)
    assert (many[:, :MAX_TRIES] == few).all()
    assert (draws(1, 10, 3) == few[:, :3]).all()
