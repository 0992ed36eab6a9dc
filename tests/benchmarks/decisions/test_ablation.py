"""The tables of what each part and each constant of the knowledge-gradient policy brings."""

from __future__ import annotations

from dataclasses import fields

import pytest
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import PlayedTrial, play
from wattwise_replay.workload import job_spec
from wattwise_replay.world import World
from wattwise_server.policy.base import Policy
from wattwise_server.policy.knowledge_gradient import Constants, KnowledgeGradient

from benchmarks.decisions import ablation
from benchmarks.decisions.cases import NOWHERE, Case, loaded
from benchmarks.decisions.rows import REAL, Row

# Worlds in which a part can have an effect within few launches: misses, crashes, noise, unlucky runs, changes.
_WORLDS = ("small-begin-to-diverge", "all-fail", "all-crash", "small-optimum", "left-20-never")
_RECURRENCES = 80
_AT_ONCE = 3
_INSURANCE = "the insurance"

_Walks = dict[str, tuple[PlayedTrial, ...]]


def trials(world: str, policy: Policy, recurrences: int = _RECURRENCES) -> tuple[PlayedTrial, ...]:
    """The trials of a policy, some of which run at the same time."""
    made = loaded(NOWHERE, world, None, None)
    job = job_spec(made, "replay-1", policy="knowledge_gradient", eta=0.5, beta=2.0, seed=0, window=0)
    return play(InProcess(job, ("VARIANT", policy)), World(made), 0, recurrences, at_once=_AT_ONCE).trials


@pytest.fixture(scope="module")
def complete() -> _Walks:
    """The trials of the complete policy."""
    return {world: trials(world, KnowledgeGradient()) for world in _WORLDS}


@pytest.mark.thorough
@pytest.mark.parametrize("part", [part for part in ablation.PARTS if part != _INSURANCE])
def test_every_part_has_an_effect(part: str, complete: _Walks) -> None:
    """In one of a few worlds, other trials are run without it, or trials end elsewhere."""
    assert any(trials(world, ablation.PARTS[part]()) != complete[world] for world in _WORLDS)


@pytest.mark.thorough
def test_the_insurance_has_an_effect_after_hundreds_of_launches() -> None:
    """It may cost a small share of all launches."""
    worlds = ("steep-noisy", "two-humps")
    without = ablation.PARTS[_INSURANCE]()
    assert any(trials(world, without, 500) != trials(world, KnowledgeGradient(), 500) for world in worlds)


def test_every_constant_has_a_low_and_a_high_value() -> None:
    """All but the switches; both values differ from the usual one."""
    numbers = {field.name for field in fields(Constants) if not isinstance(field.default, bool)}
    assert {each.constant.split(",")[0] for each in ablation.ranges()} == numbers
    for make in ablation.SENSITIVITY.values():
        policy = make()
        assert isinstance(policy, KnowledgeGradient)
        changed = [name for name in numbers if getattr(policy.constants, name) != getattr(Constants(), name)]
        assert len(changed) == 1


def test_without_misses_only_successes_count(complete: _Walks) -> None:
    """The cost of a model is that of a trial which reaches the target, although others have missed it."""
    assert any(not trial.target_reached for trial in complete["all-fail"])
    made = loaded(NOWHERE, "all-fail", None, None)
    job = job_spec(made, "replay-1", policy="knowledge_gradient", eta=0.5, beta=2.0, seed=0, window=0)
    with_misses, without = (
        InProcess(job, ("VARIANT", policy))
        for policy in (KnowledgeGradient(), ablation.PARTS["misses in the cost of a model"]())
    )
    for engine in (with_misses, without):
        play(engine, World(made), 0, 2)
    for one, other in zip(with_misses.beliefs, without.beliefs, strict=True):
        assert one.expected_cost is not None
        assert other.expected_cost is not None
        assert other.expected_cost < one.expected_cost


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns of few launches, one of which needs traces."""
    found = [
        Row("settings", "measured", [Case("squad/a40")]),
        Row("named", "one", [Case("1", recurrences=2)]),
        Row("named", "two", [Case("2", recurrences=2), Case("1", recurrences=2)]),
    ]
    titles = {"settings": "8 settings", "named": "named worlds"}
    monkeypatch.setattr(ablation, "rows", lambda _: iter(found))
    monkeypatch.setattr(ablation, "_COLUMNS", titles)
    monkeypatch.setattr(ablation, "_FEW", titles)


def _table(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    assert ablation.main((*words, "--seeds", "1", "--processes", "1")) == 0
    *lines, note = capsys.readouterr().out.splitlines()
    assert note == "Left out, since they need --traces DIR: 8 settings."
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


@pytest.mark.usefixtures("tiny")
def test_the_table_has_a_row_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    """Without traces measured columns are left out; every other one is played over all and the first recurrences."""
    titles, _, *found = _table(capsys)
    assert titles == ["without", "named worlds", "first 40"]
    assert [cells[0] for cells in found] == ["(complete)", *ablation.PARTS]
    assert all(float(cells[1].split()[0]) >= 1 for cells in found)


@pytest.mark.usefixtures("tiny")
def test_the_table_of_constants_has_a_row_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the low and the high value cost beside the usual one, whose costs come first."""
    few = list(ablation.ranges())[:2]
    variants = {name: make for name, make in ablation.SENSITIVITY.items() if name.startswith("usual_")}
    monkeypatch.setattr(ablation, "ranges", lambda: iter(few))
    monkeypatch.setattr(ablation, "SENSITIVITY", variants)
    titles, _, *found = _table(capsys, "--constants")
    assert titles == ["constant", "usual", "low", "high", "named worlds"]
    assert found[0][:1] == ["(usual)"]
    assert float(found[0][-1]) >= 1
    assert [cells[:4] for cells in found[1:]] == [
        ["usual_epochs", "10", "5", "20"],
        ["usual_spread", "1.3", "0.65", "2.6"],
    ]
    assert all(len(cells[4].split()) == 2 for cells in found[1:])


@pytest.mark.parametrize("constants", [False, True])
def test_columns_are_cases_of_the_table_of_decisions(*, constants: bool) -> None:
    """Every column but that of recorded workloads has cases without a folder, and none twice."""
    for column in ablation.columns(constants=constants):
        assert column.cases or column.group == REAL
        assert len(set(column.cases)) == len(column.cases)
