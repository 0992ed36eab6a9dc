"""Errors in a policy file, as its author sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import pytest
from wattwise.commands.main import importing, main
from wattwise.rules import GpuGroup, ResolvedJob
from wattwise_replay.errors import ReplayError
from wattwise_replay.guarded import Guarded
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import play
from wattwise_server.domain import DetectedChange, Search
from wattwise_server.events import SearchEvent, TrialDecided
from wattwise_server.policy import gts, registry, thompson
from wattwise_server.policy.base import ArmBelief, Choice, Exhausted, Prior
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.knowledge_gradient import policy

from tests.replay.worlds import job, world

T = TypeVar("T")


class Faulty(Gts):
    """The policy GTS with a fault in one of its methods."""

    def __init__(self, method: str, answer: object) -> None:
        super().__init__()
        self._method = method
        self._answer = answer

    def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:
        return self._faulty("register", super().register(spec, priors))

    def next(
        self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator
    ) -> Choice | Exhausted:
        choice = super().next(spec, search, trial_number, rng)
        return self._faulty("next", choice) if trial_number == 2 else choice

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        after = super().observe(spec, search, event)
        return self._faulty("observe", after) if isinstance(event, TrialDecided) else after

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        return self._faulty("bound", super().bound(spec, search, batch_size))

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        return self._faulty("belief", super().belief(spec, search))

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        return self._faulty("changes", super().changes(search))

    def _faulty(self, method: str, right: T) -> T:
        if method != self._method:
            return right
        if isinstance(self._answer, Exception):
            raise self._answer
        return cast("T", self._answer)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("register", KeyError("arms"), "register: KeyError: 'arms'"),
        ("register", None, "register: TypeError: returned None"),
        ("next", ZeroDivisionError("no arms"), "next for trial 2: ZeroDivisionError: no arms"),
        ("next", 8, "next for trial 2: TypeError: returned 8"),
        ("next", Choice(7, "why"), "next for trial 2: ValueError: chose batch size 7"),
        ("observe", ValueError("odd"), "observe for TrialDecided of trial 1: ValueError: odd"),
        ("observe", None, "observe for TrialDecided of trial 1: TypeError: returned None"),
        ("bound", KeyError("arms"), "bound for batch size 8: KeyError: 'arms'"),
        ("bound", "100", "bound for batch size 8: TypeError: returned '100', which is neither a cost nor None"),
        ("bound", math.nan, "bound for batch size 8: TypeError: returned nan, which is neither a cost nor None"),
    ],
)
def test_the_policy_and_the_event_are_named(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: object, message: str
) -> None:
    """Whatever a policy raises or wrongly returns, the error names it, its file and the call."""
    monkeypatch.setitem(registry.POLICIES, "gts", Faulty(method, answer))
    here = world(5, 4)
    with pytest.raises(ReplayError) as failed:
        play(InProcess(job(here.workload, "gts")), here, seed=1, recurrences=3)
    assert str(failed.value).startswith("gts (policy/gts.py")
    assert f"failed in {message}" in str(failed.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ValueError("odd"), "ValueError: odd"),
        (None, "TypeError: returned None, which is not a sequence of DetectedChange"),
        ([("EPOCHS", 4)], "TypeError: returned [('EPOCHS', 4)], which is not a sequence of DetectedChange"),
    ],
)
def test_faulty_changes_are_named(answer: object, message: str) -> None:
    """One line names the policy, its file and the call."""
    spec = ResolvedJob(
        "j", (8, 16), 8, GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100.0), 0.5, True
    )
    search = Gts().register(spec, ())
    with pytest.raises(ReplayError) as failed:
        Guarded("gts", Faulty("changes", answer)).changes(search)
    assert str(failed.value).startswith("gts (policy/gts.py")
    assert f"failed in changes: {message}" in str(failed.value)


def _beliefs(**changed: object) -> list[ArmBelief]:
    """Of batch sizes 8 and 16, the second with something else."""
    right = [ArmBelief(size, -100.0, 0.0, math.inf, 0) for size in (8, 16)]
    return [right[0], right[1]._replace(**changed)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ValueError("odd"), "ValueError: odd"),
        (None, "TypeError: returned None, which is not a sequence of ArmBelief"),
        (np.ones((2, 2)), "TypeError: returned array([[1., 1... [1., 1.]]), which is not a sequence of ArmBelief"),
        ([(8, 100.0)], "TypeError: returned [(8, 100.0)], which is not a sequence of ArmBelief"),
        ([], "ValueError: returned batch sizes []; return one ArmBelief for each of 8, 16, in this order"),
        (_beliefs()[::-1], "ValueError: returned batch sizes [16, 8]; return one ArmBelief for each of 8, 16"),
        (_beliefs(batch_size=32), "ValueError: returned batch sizes [8, 32]; "),
        (_beliefs(mean=math.inf), "ValueError: returned mean inf for batch size 16"),
        (_beliefs(mean=None), "ValueError: returned mean None for batch size 16"),
        (_beliefs(precision=math.nan), "ValueError: returned precision nan for batch size 16"),
        (_beliefs(observations="2"), "ValueError: returned observations '2' for batch size 16"),
        (_beliefs(expected_cost=math.nan), "ValueError: returned expected_cost nan for batch size 16"),
        (_beliefs(expected_cost=-1.0), "ValueError: returned expected_cost -1.0 for batch size 16"),
        (_beliefs(deviation=math.inf), "ValueError: returned deviation inf for batch size 16"),
        (_beliefs(failure_rate=1.5), "ValueError: returned failure_rate 1.5 for batch size 16"),
    ],
)
def test_a_faulty_belief_is_named(monkeypatch: pytest.MonkeyPatch, answer: object, message: str) -> None:
    """One line names the policy, its file and the call."""
    monkeypatch.setitem(registry.POLICIES, "gts", Faulty("belief", answer))
    engine = InProcess(job(world(5, 4).workload, "gts"))
    with pytest.raises(ReplayError) as failed:
        _ = engine.beliefs
    assert str(failed.value).startswith("gts (policy/gts.py")
    assert f"failed in belief: {message}" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_belief_without_an_opinion_is_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No expected cost and no doubt; NumPy's numbers are numbers. Without batch sizes one line replaces the picture."""
    picture = tmp_path / "belief.svg"
    words = ("replay", "--synthetic", "large-optimum", "--recurrences", "2", "--policy", "gts")
    beliefs = [ArmBelief(8 << place, np.float32(-1), math.inf, math.inf, 0) for place in range(10)]
    monkeypatch.setitem(registry.POLICIES, "gts", Faulty("belief", beliefs))
    assert main((*words, "--belief", str(picture))) == 0
    assert picture.exists()
    monkeypatch.setitem(registry.POLICIES, "gts", Faulty("belief", []))
    assert main((*words, "--belief", str(picture))) == 1
    printed = capsys.readouterr().err
    assert "gts (policy/gts.py) failed in belief: ValueError: returned batch sizes []" in printed
    assert printed.count("\n") == 1


def test_the_line_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error in the policy's own file is reported with its line number, in one line of output."""
    monkeypatch.setattr(thompson, "draw", None)
    assert main(("replay", "--synthetic", "1", "--seeds", "1", "--policy", "gts")) == 1
    printed = capsys.readouterr().err
    line = 1 + next(
        number for number, text in enumerate(Path(gts.__file__).read_text().splitlines()) if "thompson.draw(" in text
    )
    assert f"gts (policy/gts.py, line {line}) failed in next for trial 2: TypeError" in printed
    assert printed.count("\n") == 1


def test_the_module_of_a_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a policy that is a package names the module and the line in it."""
    monkeypatch.setattr(policy, "choosable", None)
    with pytest.raises(
        ReplayError, match=r"\(policy/knowledge_gradient/policy\.py, line \d+\) failed in next for trial 1"
    ):
        InProcess(job(world(5).workload, "knowledge_gradient")).dispatch()


def test_object_without_the_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is not a policy is named as well."""
    monkeypatch.setitem(registry.POLICIES, "gts", object())
    with pytest.raises(ReplayError, match=r"policy/gts\.py\) .*AttributeError"):
        InProcess(job(world(5).workload, "gts"))


def test_command_that_cannot_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """A policy file that fails at import is reported in one line with status 1."""
    with pytest.raises(SystemExit) as left, importing("replay"):
        raise ImportError("the policy in policy/mine.py cannot be loaded: NameError: x")
    assert left.value.code == 1
    assert capsys.readouterr().err == "wattwise replay: the policy in policy/mine.py cannot be loaded: NameError: x\n"
