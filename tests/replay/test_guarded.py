"""Errors in a policy file, as its author sees them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import pytest
from wattwise.commands.main import UnavailableCommand, main
from wattwise_replay.errors import ReplayError
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import play
from wattwise_server.domain import JobSpec, Search, TrialType
from wattwise_server.policy import gts, registry
from wattwise_server.policy.base import Choice, Event, Exhausted, Prior, Succeeded
from wattwise_server.policy.gts import Gts

from tests.replay.worlds import job, world

T = TypeVar("T")


class Faulty(Gts):
    """The policy GTS with a fault in one of its methods."""

    def __init__(self, method: str, answer: object) -> None:
        super().__init__()
        self._method = method
        self._answer = answer

    def register(self, spec: JobSpec, priors: Sequence[Prior]) -> Search:
        return self._faulty("register", super().register(spec, priors))

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice | Exhausted:
        choice = super().next(spec, search, trial_number, rng)
        return self._faulty("next", choice) if trial_number == 2 else choice

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        after = super().observe(spec, search, event)
        return self._faulty("observe", after) if isinstance(event, Succeeded) else after

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
        ("next", Choice(TrialType.MAB, 7, "why"), "next for trial 2: ValueError: chose batch size 7"),
        ("observe", ValueError("odd"), "observe for Succeeded of trial 1: ValueError: odd"),
        ("observe", None, "observe for Succeeded of trial 1: TypeError: returned None"),
    ],
)
def test_the_policy_and_the_event_are_named(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: object, message: str
) -> None:
    """Whatever a policy raises or wrongly returns, the error names it, its file and the call."""
    monkeypatch.setitem(registry.POLICIES, "GTS", Faulty(method, answer))
    here = world(5, 4)
    with pytest.raises(ReplayError) as failed:
        play(InProcess(job(here.workload, "POLICY_GTS")), here, seed=1, recurrences=3)
    assert str(failed.value).startswith("POLICY_GTS (policy/gts.py")
    assert f"failed in {message}" in str(failed.value)


def test_the_line_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error in the policy's own file is reported with its line number, in one line of output."""
    monkeypatch.setattr(gts, "thompson", None)
    assert main(("replay", "--synthetic", "1", "--seeds", "1", "--policy", "POLICY_GTS")) == 1
    printed = capsys.readouterr().err
    line = 1 + next(
        number for number, text in enumerate(Path(gts.__file__).read_text().splitlines()) if "thompson.draw(" in text
    )
    assert f"POLICY_GTS (policy/gts.py, line {line}) failed in next for trial 2: AttributeError" in printed
    assert printed.count("\n") == 1


def test_object_without_the_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is not a policy is named as well."""
    monkeypatch.setitem(registry.POLICIES, "GTS", object())
    with pytest.raises(ReplayError, match=r"policy/gts\.py\) .*AttributeError"):
        InProcess(job(world(5).workload, "POLICY_GTS"))


def test_command_that_cannot_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """A policy file that fails at import is reported in one line with status 1, and does not break --help."""
    stand_in = UnavailableCommand("replay", ImportError("the policy in policy/mine.py cannot be loaded: NameError: x"))
    assert stand_in.help == "cannot be loaded"
    assert stand_in.run(None) == 1  # type: ignore[arg-type]
    assert capsys.readouterr().err == "wattwise replay: the policy in policy/mine.py cannot be loaded: NameError: x\n"
