"""The suite that holds all clients to the tables: what it makes of a runner's words, and what it alters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conformance.__main__ import shown
from tests.conformance.altered import write_altered
from tests.conformance.clients import ROOT, Client, ConformanceError, Outcome

SCENARIO = ("walks.yaml", "down and up")
TABLES = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))


def client(folder: Path, *lines: object, status: int = 0) -> Client:
    """A client whose runner says these lines."""
    (folder / "build").mkdir()
    printed = "\n".join(json.dumps(line) for line in lines)
    runner = folder / "build" / "runner"
    runner.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\nexit {status}\n")
    runner.chmod(0o755)
    return Client(folder)


def line(outcome: str, why: str = "") -> dict[str, str]:
    """A runner's word on the one scenario."""
    return {"file": SCENARIO[0], "scenario": SCENARIO[1], "outcome": outcome, "why": why}


def test_a_scenario_that_a_client_leaves_out_is_named_with_what_the_client_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no fault, and stands in the table and below it."""
    said = client(tmp_path, line("left out", "it has no streams")).run("localhost:1", [])
    assert shown({"cobol": said}, [SCENARIO]) == []
    printed = capsys.readouterr().out
    assert "cobol: 0 of 1 scenarios passed" in printed
    assert "cobol leaves out: down and up (walks.yaml): it has no streams" in printed


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({SCENARIO: Outcome("left out", "")}, "cobol left out: down and up (walks.yaml): it does not say why"),
        ({SCENARIO: Outcome("failed", "cost is 2")}, "cobol failed: down and up (walks.yaml): cost is 2"),
        ({SCENARIO: Outcome("shrugged", "")}, "cobol shrugged: down and up (walks.yaml): it does not say why"),
        ({}, "cobol says nothing of: down and up (walks.yaml)"),
    ],
)
def test_every_other_word_is_a_fault(said: dict[tuple[str, str], Outcome], fault: str) -> None:
    """A scenario passes, or is left out for a reason."""
    assert shown({"cobol": said}, [SCENARIO]) == [fault]


def test_a_scenario_of_no_table_is_a_fault() -> None:
    """A runner that replays other tables is not believed."""
    said = {SCENARIO: Outcome("passed", ""), ("other.yaml", "x"): Outcome("passed", "")}
    assert shown({"cobol": said}, [SCENARIO]) == ["cobol speaks of a scenario that is in no table: x (other.yaml)"]


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ([line("passed"), line("passed")], 0, "printed a scenario twice"),
        ([line("failed", "cost is 2")], 0, "left with 0"),
        ([line("passed")], 1, "left with 1"),
        (["a word"], 0, "printed no outcomes"),
    ],
)
def test_a_runner_that_breaks_its_contract_is_told_of(
    tmp_path: Path, lines: list[object], status: int, message: str
) -> None:
    """Its lines and its exit status must agree."""
    with pytest.raises(ConformanceError, match=message):
        client(tmp_path, *lines, status=status).run("localhost:1", [])


def differing(copies: list[Path]) -> set[tuple[str, str]]:
    """The scenarios in which copies differ from the tables."""
    pairs = [
        (table, yaml.safe_load(table.read_text()), yaml.safe_load(copy.read_text()))
        for table, copy in zip(TABLES, copies, strict=True)
    ]
    # As text: NaN differs from itself.
    return {
        (table.name, one["name"])
        for table, old, new in pairs
        for one, other in zip(old, new, strict=True)
        if repr(one) != repr(other)
    }


def test_every_kind_of_expectation_is_altered_once_in_a_scenario_of_its_own(tmp_path: Path) -> None:
    """A copy of the tables differs from them in the scenarios that it says, and in no other."""
    kinds: list[str] = []
    for copies, altered in write_altered(TABLES, tmp_path):
        assert differing(copies) == set(altered)
        kinds += altered.values()
    assert len(set(kinds)) == len(kinds)
    assert {
        "the batch size of a walk",
        "that a walk's trial converged",
        "a field that is set",
        "a field that is unset",
        "error of a call",
        "no error of expect",
        "one fault more of an error",
        "metadata that is there",
        "metadata that is absent",
        "an argument of close that nobody knows",
        "the end after close",
        "then of until",
    } <= set(kinds)
