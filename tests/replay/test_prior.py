"""Replays of a job that has a prior."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from wattwise import Client
from wattwise.commands.main import main
from wattwise.drafts import POLICIES as FIELDS
from wattwise_replay.compare import POLICIES
from wattwise_replay.engines import Dispatch, Fixed, TrialEnd
from wattwise_replay.errors import ExhaustedError
from wattwise_replay.in_process import InProcess
from wattwise_replay.named_worlds import named_world
from wattwise_replay.play import play, play_prior
from wattwise_replay.synthetic import synthetic
from wattwise_replay.workload import Workload
from wattwise_replay.world import TrialCourse, World

from tests.live_server import LiveServer
from tests.replay.worlds import job, workload

_ONE = ("--seeds", "1", "--recurrences", "6", "--policy", "gts")


@pytest.mark.thorough
def test_a_server_is_told_the_prior(grpc_server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The prior is a job of its own, trained over its horizon, and the replayed job names it."""
    reader = next(name for name in POLICIES if "prior_job_ids" in FIELDS[name])
    words = ("--synthetic", "two-humps", "--prior", "flat-noisy", "--seeds", "1", "--recurrences", "6")
    assert main(("replay", *words, "--policy", reader, "--server", grpc_server.address)) == 0
    capsys.readouterr()
    with Client(grpc_server.address) as client:
        prior, job = [each for each in client.jobs() if "two-humps" in each.job.spec.job_id]
    assert list(job.job.spec.policy.knowledge_gradient.prior_job_ids) == [prior.job.spec.job_id]
    assert not prior.job.spec.policy.knowledge_gradient.prior_job_ids
    assert prior.job.num_trials >= 100
    assert job.job.num_trials < 50


@pytest.mark.parametrize("prior", ["v1", "squad", "mirrored"])
def test_a_prior_of_the_traces_is_a_gpu_or_a_workload(
    folder: Path, prior: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same workload on another GPU, another workload on the same one, or the same reversed."""
    (folder / "summary_power_v1.csv").write_text((folder / "summary_power_t4.csv").read_text())
    words = ("replay", "--traces", str(folder), "--workload", "squad", "--gpu", "t4", *_ONE, "--json", "-")
    assert main((*words, "--prior", prior)) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["workload"], found["gpu"], found["recurrences"]) == ("squad", "t4", 6)


def test_an_unknown_prior_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the workloads and the GPUs; without traces it is a synthetic workload or a workload file."""
    words = ("replay", "--traces", str(folder), "--workload", "squad", "--gpu", "t4", *_ONE)
    assert main((*words, "--prior", "h100")) == 1
    assert "--prior h100 is neither a workload nor a GPU" in (error := capsys.readouterr().err)
    assert "cifar100, imagenet, librispeech, squad, t4, mirrored" in error
    assert main(("replay", "--synthetic", "1", *_ONE, "--prior", "valley")) == 1
    assert "no synthetic workload is named 'valley'" in capsys.readouterr().err


def test_a_policy_that_takes_no_priors_starts_without(
    grpc_server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """No job is played before, and the replayed one names none."""
    assert main(("replay", "--synthetic", "drift", "--prior", "mirrored", *_ONE, "--server", grpc_server.address)) == 0
    capsys.readouterr()
    with Client(grpc_server.address) as client:
        (job,) = [each for each in client.jobs() if "drift" in each.job.spec.job_id]
    assert not job.job.spec.policy.knowledge_gradient.prior_job_ids


def _cost(made: Workload, seed: int, before: Workload | None = None) -> float:
    """What a hundred recurrences cost with the knowledge-gradient policy, after a job on another workload or none."""
    spec = job(made, "knowledge_gradient", seed=seed)
    priors = []
    if before is not None:
        priors = [InProcess(job(before, "knowledge_gradient", seed=seed))]
        play_prior(priors[0], before, 0.5, seed)
    return float(play(InProcess(spec, priors=priors), World(made), seed, recurrences=100).costs.sum())


@pytest.mark.thorough
def test_a_wrong_prior_is_outvoted() -> None:
    """With a prior whose epochs are mirrored over the batch sizes, a hundred recurrences cost at most 5% more."""
    ratios = []
    for name in ("flat-noisy", "large-optimum", "small-optimum", "edge-of-divergence"):
        made = named_world(name)
        ratios += [_cost(made, seed, made.mirrored()) / _cost(made, seed) for seed in (1, 2)]
    assert np.exp(np.log(ratios).mean()) < 1.05, ratios


def test_a_right_prior_saves() -> None:
    """With a prior on the same workload, no time is spent on what the prior has found out."""
    made = synthetic(3)
    assert _cost(made, 1, made) < 0.99 * _cost(made, 1)


class Recording(Fixed):
    """Always the default of a workload; keeps the epochs of its trials."""

    def __init__(self, made: Workload) -> None:
        super().__init__(made, made.default_batch_size)
        self.epochs: list[int] = []

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        ended = super().run(trial, epochs)
        self.epochs.append(ended.epochs)
        return ended


def test_a_prior_has_other_draws_and_its_whole_horizon() -> None:
    """A prior of the same workload and seed takes its own course."""
    made = named_world("flat-noisy")
    prior, later = Recording(made), Recording(made)
    play_prior(prior, made, 0.5, seed=3)
    play(later, World(made), seed=3, recurrences=made.horizon)
    assert len(prior.epochs) >= made.horizon == 100
    assert prior.epochs[:100] != later.epochs[:100]


def test_a_prior_without_a_batch_size_left_ends_early() -> None:
    """What it has learned until then is its knowledge; the replay goes on."""
    made = workload(None, None)
    engine = InProcess(job(made))
    play_prior(engine, made, 0.5, seed=3)
    with pytest.raises(ExhaustedError):
        engine.dispatch()
