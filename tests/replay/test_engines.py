"""The policies in process decide as a server does."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise import Client
from wattwise.drafts import Policy
from wattwise.rules import GpuGroup, ResolvedJob
from wattwise_replay.compare import POLICIES
from wattwise_replay.errors import ReplayError
from wattwise_replay.in_process import InProcess, measurement
from wattwise_replay.over_grpc import OverGrpc
from wattwise_replay.play import play
from wattwise_replay.synthetic import synthetic
from wattwise_replay.world import TrialCourse, World
from wattwise_server.policy.stopping import judge

from tests.live_server import LiveServer
from tests.replay.worlds import job, workload


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_makes_the_same_choices_as_the_policies_in_process(policy: Policy, grpc_server: LiveServer) -> None:
    """The same seed, with overlapping recurrences and a drift: the same trials, to the last digit of their costs."""
    made = synthetic(2, sizes=5)
    there = World(made.drifting(12))
    here = play(InProcess(job(made, policy, seed=7)), there, seed=7, recurrences=24, overlap=0.3)
    spec = job(made, policy, seed=7)
    with Client(grpc_server.address) as client:
        over = play(
            OverGrpc(client, replace(spec, job_id=f"replay-{policy}-same")), there, seed=7, recurrences=24, overlap=0.3
        )
    assert over.trials == here.trials
    assert len({trial.batch_size for trial in here.trials}) > 1


def test_existing_job_is_refused(grpc_server: LiveServer) -> None:
    """A job that already exists is refused: what it has learned would change the replay."""
    spec = replace(job(synthetic(2)), job_id="replay-twice")
    with Client(grpc_server.address) as client:
        OverGrpc(client, spec)
        with pytest.raises(ReplayError, match="already exists on the server"):
            OverGrpc(client, spec)


def _epochs(seconds: float, watts: float, target: int | None) -> TrialCourse:
    return TrialCourse(seconds, seconds * watts, target, 100.0)


@given(
    epochs=st.builds(_epochs, st.floats(1e-3, 1e4), st.floats(1e-2, 1e4), st.one_of(st.none(), st.integers(1, 60))),
    eta=st.floats(0, 1),
    beta=st.floats(0.1, 5),
    min_cost=st.one_of(st.none(), st.floats(1e-3, 1e9)),
)
def test_the_epoch_that_decides_is_the_first_at_which_the_rule_ends_the_trial(
    epochs: TrialCourse, eta: float, beta: float, min_cost: float | None
) -> None:
    """Skipping epochs finds the same last epoch as going through all of them."""
    spec = ResolvedJob(
        "x",
        (8,),
        8,
        GpuGroup(gpu_model="made", count=1, max_power_watts_per_gpu=250.0),
        0.9,
        True,
        eta_knob=eta,
        beta_knob=beta,
        max_epochs=50,
    )
    bound = None if min_cost is None else beta * min_cost
    steps = (judge(spec, bound, measurement(epochs, epoch, 0.9)) for epoch in itertools.count(1))
    first = next(epoch for epoch, verdict in enumerate(steps, 1) if verdict.end_reason is not None)
    engine = InProcess(job(workload(1), eta=eta, beta=beta))
    engine.spec = spec
    # Any bound, without the trials that lead to it.
    engine.search = replace(engine.search, min_cost=min_cost, min_cost_batch_size=0)
    assert engine.run(engine.dispatch(), epochs).epochs == first


def test_no_trial_costs_more_than_its_bound_and_one_epoch() -> None:
    """Early stopping: beyond its bound a trial has no second epoch. The best known batch size has no bound."""
    made = synthetic(3)
    engine = InProcess(job(made, "gts", seed=3))
    cheapest, best, stops = math.inf, 0, 0
    for trial in play(engine, World(made), seed=3, recurrences=60).trials:
        bound = math.inf if trial.batch_size == best else 2.0 * cheapest * 2.0 ** max(0, stops - 1)
        assert trial.cost <= bound + trial.cost / trial.epochs + 1e-6
        stops = 0 if trial.cost <= bound and trial.target_reached else stops + (trial.cost > bound)
        if trial.target_reached and trial.cost < cheapest:
            cheapest, best = trial.cost, trial.batch_size


def test_a_job_that_the_server_would_refuse_is_refused_in_process() -> None:
    """The error of an invalid job is the server's."""
    with pytest.raises(ReplayError, match="eta_knob"):
        InProcess(job(workload(1), eta=1.5))


def test_a_target_that_no_batch_size_reaches_is_an_error() -> None:
    """A whole round without convergence leaves nothing to dispatch."""
    made = workload(None)
    with pytest.raises(ReplayError, match="no batch size is left: each missed the target within 10 epochs"):
        play(InProcess(job(made)), World(made), seed=0, recurrences=1)
