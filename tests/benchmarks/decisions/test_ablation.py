"""The table of what each part of the knowledge-gradient policy brings."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from wattwise_replay.in_process import InProcess
from wattwise_replay.named_worlds import named_world
from wattwise_replay.play import PlayedTrial, play
from wattwise_replay.workload import job_spec
from wattwise_replay.world import World
from wattwise_server.policy.base import Choice, Policy
from wattwise_server.policy.knowledge_gradient import KnowledgeGradient

from benchmarks.decisions import ablation
from benchmarks.decisions.cases import Case
from benchmarks.decisions.rows import Row
from tests.server.policy.simulated import SimulatedJob, spec

# Worlds in which a part can have an effect within few launches: misses, crashes, noise, an end that is tried twice.
_WORLDS = ("all-fail", "all-crash", "small-optimum", "large-optimum", "flat-noisy", "two-humps")
_RECURRENCES = 25
_INSURANCE = "the insurance"
_POWER_HINT = "the power hint"


def trials(world: str, policy: Policy) -> tuple[PlayedTrial, ...]:
    """The trials of a policy, some of which overlap."""
    made = named_world(world)
    job = job_spec(made, "replay-1", policy="POLICY_KNOWLEDGE_GRADIENT", eta=0.5, beta=2.0, seed=0, window=0)
    return play(InProcess(job, ("VARIANT", policy)), World(made), 0, _RECURRENCES, 0.3).trials


@pytest.fixture(scope="module")
def complete() -> dict[str, tuple[PlayedTrial, ...]]:
    """The trials of the complete policy."""
    return {world: trials(world, KnowledgeGradient()) for world in _WORLDS}


@pytest.mark.parametrize("part", [part for part in ablation.PARTS if part not in (_INSURANCE, _POWER_HINT)])
def test_every_part_has_an_effect(part: str, complete: dict[str, tuple[PlayedTrial, ...]]) -> None:
    """In one of a few worlds, other trials are run without it, or trials end elsewhere."""
    assert any(trials(world, ablation.PARTS[part]()) != complete[world] for world in _WORLDS)


def test_without_the_insurance_untried_batch_sizes_stay_untried() -> None:
    """After a fortune was spent, a batch size that the model does not recommend is tried, but not without this part."""
    job = SimulatedJob(spec(policy="KNOWLEDGE_GRADIENT", batch_sizes=(8, 16, 32, 64, 128), default_batch_size=32))
    for _ in range(20):
        trial = job.next()
        job.run(trial, round(5 + trial.batch_size / 4))
    # Instead of the many launches that a share of all cost takes to pay for a trial.
    rich = replace(job.search, notes=json.dumps({**json.loads(job.search.notes), "total": 1e12}))
    complete, without = (
        policy.next(job.spec, rich, 21, np.random.default_rng(0))
        for policy in (KnowledgeGradient(), ablation.PARTS[_INSURANCE]())
    )
    assert isinstance(complete, Choice)
    assert isinstance(without, Choice)
    assert rich.arm(complete.batch_size).num_succeeded == 0
    assert rich.arm(without.batch_size).num_succeeded > 1


def test_without_the_power_hint_the_power_of_the_first_trial_tells_nothing() -> None:
    """All synthetic workloads draw the same power, so that it hardly changes a choice there, but what is expected."""
    made = named_world("large-optimum")
    job = job_spec(made, "replay-1", policy="POLICY_KNOWLEDGE_GRADIENT", eta=0.5, beta=2.0, seed=0, window=0)
    complete, without = (
        InProcess(job, ("VARIANT", policy)) for policy in (KnowledgeGradient(), ablation.PARTS[_POWER_HINT]())
    )
    for engine in (complete, without):
        play(engine, World(made), 0, 1)
    assert complete.beliefs != without.beliefs


def test_the_table_has_a_row_for_each_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without traces measured columns are left out; every other one is played over all and the first recurrences."""
    tiny = [
        Row("settings", "measured", [Case("squad/a40")]),
        Row("named", "one", [Case("1", recurrences=2)]),
        Row("named", "two", [Case("2", recurrences=2), Case("1", recurrences=2)]),
    ]
    monkeypatch.setattr(ablation, "rows", lambda _: iter(tiny))
    monkeypatch.setattr(ablation, "_COLUMNS", {"settings": "8 settings", "named": "named worlds"})
    assert ablation.main(("--seeds", "1", "--processes", "1")) == 0
    *table, note = capsys.readouterr().out.splitlines()
    assert note == "Left out, since they need --traces DIR: 8 settings."
    printed = [line for line in table if line.startswith("|")]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed]
    assert lines[0] == ["without", "named worlds", "first 40"]
    assert [cells[0] for cells in lines[2:]] == ["(complete)", *ablation.PARTS]
    assert all(float(cells[1].split()[0]) >= 1 for cells in lines[2:])


def test_columns_are_rows_of_the_table_of_decisions() -> None:
    """Every column has cases, and none twice."""
    for column in ablation.columns():
        assert column.cases
        assert len(set(column.cases)) == len(column.cases)
