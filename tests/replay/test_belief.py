"""The picture of a belief, and what is drawn in it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from wattwise.commands.main import main
from wattwise.drafts import Policy
from wattwise_replay.belief import Snapshot, snapshots
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import PlayedTrial
from wattwise_replay.workload import BatchSize, RecordedRun
from wattwise_replay.world import World
from wattwise_server.policy.base import ArmBelief

from tests.replay.worlds import POINTS, job, workload, world

_WORLD = ("replay", "--synthetic", "all-crash")


def taken(there: World, recurrences: int, policy: Policy = "knowledge_gradient") -> list[Snapshot]:
    """The snapshots of a world."""
    return list(snapshots(lambda: InProcess(job(there.workload, policy, eta=1.0)), there, recurrences))


def texts(picture: Path) -> list[str]:
    """What is written in a picture."""
    elements = ET.parse(picture).iter()  # noqa: S314 - our own picture
    return ["".join(each.itertext()).strip() for each in elements if each.tag.endswith("}text")]


@pytest.mark.parametrize(("recurrences", "numbers"), [(1, [1]), (3, [1, 3]), (4, [1, 4]), (12, [1, 4, 12])])
def test_snapshots_are_taken_early_and_at_the_end(recurrences: int, numbers: list[int]) -> None:
    """After the first recurrence, after four and after the last, each of them once."""
    found = taken(world(1, 2, 3), recurrences)
    assert [each.recurrences for each in found] == numbers
    assert [len({trial.recurrence for trial in each.trials}) for each in found] == numbers


def test_later_snapshots_continue_earlier_ones() -> None:
    """The trials of one snapshot are the first of the next one."""
    first, second, third = taken(world(3, 2, 1), 6)
    assert second.trials[: len(first.trials)] == first.trials
    assert third.trials[: len(second.trials)] == second.trials


def test_the_next_choice_and_the_best_known_are_those_of_the_policy() -> None:
    """The paper's policy walks from 8, which cost 100 J, to 16: stopped at twice the lowest cost."""
    (first,) = taken(world(1, 4, None), 1, "pruning_gts")
    assert (first.best, first.bound) == (8, 200.0)
    assert first.next is not None
    assert (first.next.batch_size, first.beliefs[0].expected_cost) == (16, 100.0)


def test_without_a_batch_size_the_default_is_trained() -> None:
    """Nothing converges, and the paper's policy gives up: its launches are the default's; there is no next trial."""
    *_, last = taken(world(None, None), 4, "pruning_gts")
    assert (last.recurrences, last.next) == (4, None)
    assert {trial.batch_size for trial in last.trials if trial.recurrence == 3} == {8}


def test_only_a_batch_size_that_delivered_is_the_best_known() -> None:
    """16 is expected to cost less than 8, but only 8 has reached the target."""
    beliefs = [ArmBelief(size, -cost, 1.0, 1.0, 1, cost, 1.0) for size, cost in ((8, 100.0), (16, 50.0))]
    reached = PlayedTrial(0, 0, 8, 50.0, 1, 2.0, 100.0, 100.0, target_reached=True)
    missed = replace(reached, batch_size=16, target_reached=False)
    assert Snapshot(1, beliefs, [missed, reached], [100.0, 50.0], None, None).best == 8
    assert Snapshot(1, beliefs, [missed], [100.0, 50.0], None, None).best is None


def test_without_a_success_there_is_no_bound() -> None:
    """Nothing has reached the target: there is no best known batch size and no bound."""
    (first,) = taken(world(None, None), 1)
    assert (first.best, first.bound) == (None, None)


def test_the_true_cost_counts_missed_trials() -> None:
    """One of three runs of 8 misses after 10 epochs, so two models cost 4 + 6 + 10 epochs; 16 never delivers one."""
    runs = (RecordedRun(4), RecordedRun(6), RecordedRun(None))
    sizes = (BatchSize(8, runs, POINTS), BatchSize(16, (RecordedRun(None),), POINTS))
    there = World(replace(workload(1), batch_sizes=sizes), 1.0)
    (first,) = taken(there, 1)
    assert first.costs[0] == 1000.0
    assert math.isnan(first.costs[1])


def test_the_true_cost_follows_a_drift() -> None:
    """After the drift the measurements are those of the other batch size."""
    early, late = taken(world(1, 3, drift_at=2), 3)
    assert (early.costs, late.costs) == ([100.0, 300.0], [300.0, 100.0])


@pytest.mark.parametrize(
    ("policy", "ends"),
    [("knowledge_gradient", ["reached"]), ("gts", ["reached", "missed", "crashed"])],
)
def test_the_picture_has_a_panel_for_each_snapshot(
    policy: str, ends: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three panels with batch sizes and one legend with all that is drawn; the table has the same recurrences."""
    picture = tmp_path / "belief.svg"
    assert main((*_WORLD, "--recurrences", "12", "--belief", str(picture), "--policy", policy)) == 0
    written = texts(picture)
    assert written.count("4096") == 3
    assert sum(text.startswith("after ") for text in written) == 3
    drawn = ["2 std dev", "1 std dev", "expected", "best known", "next", "true mean", "bound", *ends]
    assert [written.count(label) for label in (*drawn, f"all-crash/simulated, {policy}")] == [1] * (len(drawn) + 1)
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cells[1].strip() for cells in lines[2:]] == ["1", "4", "12"]
    assert all(re.match(r" \d+: \w", cells[-2]) for cells in lines[2:])


def test_after_a_drift_the_best_known_may_have_no_true_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only 1024 converged before the drift, and only 32 does after it."""
    world = ("--synthetic", "one-converges", "--recurrences", "8", "--drift-at", "7")
    assert main(("replay", *world, "--policy", "gts", "--belief", str(tmp_path / "belief.svg"))) == 0
    *_, last = (line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|"))
    assert [last[place].strip() for place in (1, 3, 5)] == ["8", "1024", "-"]


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    """Two runs write the same bytes; the default policy needs no option."""
    pictures = [tmp_path / name for name in ("one.svg", "two.svg")]
    for picture in pictures:
        assert main((*_WORLD, "--recurrences", "2", "--belief", str(picture))) == 0
    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second
    assert b"knowledge_gradient" in first
