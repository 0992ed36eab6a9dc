"""The driver of the conformance suite notices a runner that loses, invents or falsifies observations."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.replay import Replay
from tests.conformance.runner import Outcome, Runner, RunnerError, outcome_of
from tests.live_server import LiveServer

SCENARIO: dict[str, Any] = {
    "name": "one step of every kind of observation",
    "steps": [
        {"next": {"trial": "a"}, "then": {"trial_number": 1, "batch_size": 16, "origin": "TRIAL_ORIGIN_SEARCH"}},
        {
            "report": {"trial": "a", "epoch": 1, "cost": 50, "metric": 0.5},
            "then": {"stop_train": False, "cost": 50, "cost_bound": None, "warnings": []},
        },
        {
            "heartbeat": {"trial": "a"},
            "then": {"stop_train": False, "last_epoch": 1},
        },
        {
            "next": {"trial": "b", "launch_id": ""},
            "error": "ERROR_REASON_INVALID_REQUEST",
            "status": "INVALID_ARGUMENT",
            "fields": ["launch_id"],
            "metadata": {"retryable": "false"},
        },
        {"open": {"trial": "a"}},
        {"send": {"trial": "a", "epoch": 2, "cost": 60, "metric": 0.95}},
        {"expect": {"trial": "a"}, "then": {"stop_train": True, "end_reason": "END_REASON_TARGET_REACHED"}},
        {"close": {"trial": "a"}},
    ],
    "job_then": {"min_cost": 60, "available_batch_sizes": [8, 16, 32, 64]},
}


FALSEHOODS = [
    (1, "answer.trial.id.trialNumber", 2),
    (1, "answer.trial.batchSize", 32),
    (1, "answer.trial.origin", "TRIAL_ORIGIN_REQUESTED"),
    (1, "answer.trial.reason", ""),
    (2, "answer.decision.cost", 50.000001),
    (2, "answer.decision.costBound", 0),
    (2, "answer.decision.stopTrain", True),
    (2, "answer.decision.warnings", [{}]),
    (3, "answer.decision.lastEpoch", 2),
    (4, "error.reason", "ERROR_REASON_JOB_NOT_FOUND"),
    (4, "error.status", "NOT_FOUND"),
    (4, "error.fields", []),
    (4, "error.metadata.retryable", "true"),
    (8, "answer.decision.stopTrain", False),
    (8, "answer.decision.endReason", "END_REASON_MAX_EPOCHS"),
    (10, "answer", {"decision": {}}),
    (11, "answer.job.minCost", 61),
    (11, "answer.job.availableBatchSizes", [8, 16, 32]),
]
"""The numbers of observations, and fields with values that the table excludes."""
UNSET = {(2, f"answer.decision.{name}") for name in ("costBound", "stopTrain", "warnings")}
"""The fields above that are not set in correct observations."""


class Recording(Runner):
    """A runner whose observations are kept."""

    def __init__(self, command: Sequence[str | Path], server: str) -> None:
        super().__init__(command, server)
        self.observed: list[bytes] = []

    async def exchange(self, line: str) -> bytes:
        """Keeps the observation."""
        self.observed.append(await super().exchange(line))
        return self.observed[-1]


class Playback(Runner):
    """Observations without a process."""

    def __init__(self, observed: Sequence[bytes]) -> None:
        super().__init__([], "")
        self._observed = iter(observed)

    async def exchange(self, line: str) -> bytes:
        """Returns the next observation."""
        del line
        return next(self._observed, b"")


def replayed(runner: Runner) -> Outcome:
    """Replays the scenario."""

    async def replay() -> Outcome:
        try:
            return await outcome_of(Replay(SCENARIO, runner, "test-conformance").run())
        finally:
            await runner.close()

    return asyncio.run(replay())


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[bytes]]:
    """What the Python client's runner observes."""
    with LiveServer(tmp_path_factory.mktemp("server")) as server:
        runner = Recording([sys.executable, "-m", "tests.conformance.python_runner"], server.start())
        assert replayed(runner) == Outcome("passed", "")
        yield runner.observed


def holder_of(line: Any, parents: Sequence[str]) -> Any:
    """Returns the object that holds a field."""
    for name in parents:
        line = line[name]
    return line


def altered(observed: Sequence[bytes], number: int, alter: Callable[[dict[str, Any]], object]) -> Outcome:
    """Replays observations of which one is altered."""
    lines = [json.loads(line) for line in observed]
    alter(lines[number])
    return replayed(Playback([json.dumps(line).encode() for line in lines]))


def test_observations_pass_as_they_were(observed: Sequence[bytes]) -> None:
    """The observations of a correct runner pass."""
    assert replayed(Playback(observed)) == Outcome("passed", "")


def test_lost_observation(observed: Sequence[bytes]) -> None:
    """A scenario fails if any of its observations is missing, late or of another call."""
    for number in range(len(observed)):
        assert replayed(Playback([*observed[:number], *observed[number + 1 :]])).how == "failed"
        assert replayed(Playback([*observed[:number], b"no JSON\n", *observed[number:]])).how == "failed"
        assert altered(observed, number, lambda line: line.update(id=line["id"] + 1)).how == "failed"


def test_invented_observation(observed: Sequence[bytes]) -> None:
    """A scenario fails if an observation is of an unknown kind, of two kinds, or none at all."""
    for number in range(len(observed)):
        for alter in (
            lambda line: line.update(dance={}),
            lambda line: line.update(answer={"dance": 1}, error=None),
            lambda line: [line.pop(kind, None) for kind in ("answer", "error")],
        ):
            assert altered(observed, number, alter).how == "failed"


@pytest.mark.parametrize(("number", "path", "value"), FALSEHOODS)
def test_false_observation(observed: Sequence[bytes], number: int, path: str, value: object) -> None:
    """A scenario fails if a field that its table names has another value in an observation."""
    *parents, name = path.split(".")
    assert altered(observed, number, lambda line: holder_of(line, parents).__setitem__(name, value)).how == "failed"


@pytest.mark.parametrize(
    ("number", "path"), [(number, path) for number, path, _ in FALSEHOODS if (number, path) not in UNSET]
)
def test_missing_field(observed: Sequence[bytes], number: int, path: str) -> None:
    """A scenario fails if a field that its table names is missing in an observation."""
    *parents, name = path.split(".")
    assert altered(observed, number, lambda line: holder_of(line, parents).pop(name)).how == "failed"


@pytest.mark.parametrize("script", ["exit 3", "read line; exit 3", "while read line; do echo lines; done"])
def test_broken_runner(script: str) -> None:
    """A scenario fails if the process of the runner exits or prints something else."""
    assert replayed(Runner(["sh", "-c", script], "localhost:1")).how == "failed"


@pytest.mark.parametrize(("end", "fault"), [("exit 3", "exited with 3"), ("echo more", "after b'more")])
def test_runner_that_fails_at_its_end(observed: Sequence[bytes], tmp_path: Path, end: str, fault: str) -> None:
    """A runner fails if it exits with an error after the last scenario, as under a sanitizer, or prints a line more."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(observed))
    script = f'while read -r call && read -r line <&3; do echo "$line"; done 3< {lines}; {end}'
    with pytest.raises(RunnerError, match=fault):
        replayed(Runner(["bash", "-c", script], ""))
