"""The conformance suite: how it judges the lines of a runner, and what it alters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conformance.__main__ import print_outcomes
from tests.conformance.altered import write_altered
from tests.conformance.clients import ROOT, Client, ConformanceError, Outcome

SCENARIO = ("walks.yaml", "down and up")
TABLES = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))


def client(folder: Path, *lines: object, status: int = 0) -> Client:
    """A client whose runner prints these lines."""
    (folder / "build").mkdir()
    printed = "\n".join(json.dumps(line) for line in lines)
    runner = folder / "build" / "runner"
    runner.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\nexit {status}\n")
    runner.chmod(0o755)
    return Client(folder)


def line(outcome: str, why: str = "") -> dict[str, str]:
    """A runner's line for the one scenario."""
    return {"file": SCENARIO[0], "scenario": SCENARIO[1], "outcome": outcome, "why": why}


def test_a_scenario_that_a_client_leaves_out_is_printed_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scenario may be left out for a reason; it is not a fault."""
    replay = client(tmp_path, line("left out", "no streams")).run("localhost:1", [])
    assert print_outcomes({"cobol": replay}, [SCENARIO]) == []
    printed = capsys.readouterr().out
    assert "cobol: 0 of 1 scenarios passed" in printed
    assert "cobol left out: down and up (walks.yaml): no streams" in printed


@pytest.mark.parametrize(
    ("replay", "fault"),
    [
        ({SCENARIO: Outcome("left out", "")}, "cobol left out: down and up (walks.yaml): no reason given"),
        ({SCENARIO: Outcome("failed", "cost is 2")}, "cobol failed: down and up (walks.yaml): cost is 2"),
        ({SCENARIO: Outcome("shrugged", "")}, "cobol shrugged: down and up (walks.yaml): no reason given"),
        ({}, "cobol did not replay: down and up (walks.yaml)"),
    ],
)
def test_every_other_outcome_is_a_fault(replay: dict[tuple[str, str], Outcome], fault: str) -> None:
    """A scenario must pass or be left out for a reason."""
    assert print_outcomes({"cobol": replay}, [SCENARIO]) == [fault]


def test_an_unknown_scenario_is_a_fault() -> None:
    """A runner may only replay scenarios of the tables."""
    replay = {SCENARIO: Outcome("passed", ""), ("other.yaml", "x"): Outcome("passed", "")}
    assert print_outcomes({"cobol": replay}, [SCENARIO]) == ["cobol replayed an unknown scenario: x (other.yaml)"]


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ([line("passed"), line("passed")], 0, "printed a scenario twice"),
        ([line("failed", "cost is 2")], 0, "exited with 0"),
        ([line("passed")], 1, "exited with 1"),
        (["a word"], 0, "printed invalid lines"),
    ],
)
def test_a_runner_that_breaks_its_contract_is_an_error(
    tmp_path: Path, lines: list[object], status: int, message: str
) -> None:
    """Its lines must be valid, unique and consistent with its exit status."""
    with pytest.raises(ConformanceError, match=message):
        client(tmp_path, *lines, status=status).run("localhost:1", [])


def differing(copies: list[Path]) -> set[tuple[str, str]]:
    """The scenarios that differ between the tables and their copies."""
    pairs = [
        (table, yaml.safe_load(table.read_text()), yaml.safe_load(copy.read_text()))
        for table, copy in zip(TABLES, copies, strict=True)
    ]
    # By repr, because NaN differs from itself.
    return {
        (table.name, one["name"])
        for table, old, new in pairs
        for one, other in zip(old, new, strict=True)
        if repr(one) != repr(other)
    }


def test_every_kind_of_expectation_is_altered_once_in_its_own_scenario(tmp_path: Path) -> None:
    """A copy of the tables differs from them only in the scenarios that it names."""
    kinds: list[str] = []
    for copies, altered in write_altered(TABLES, tmp_path):
        assert differing(copies) == set(altered)
        kinds += altered.values()
    assert len(set(kinds)) == len(kinds)
    assert {
        "batch size of a walk",
        "convergence of a walk's trial",
        "set field",
        "unset field",
        "error of a call",
        "no error of expect",
        "additional fault of an error",
        "present metadata",
        "absent metadata",
        "unknown argument of close",
        "end after close",
        "then of until",
        "then of import",
        "length of warnings",
    } <= set(kinds)
