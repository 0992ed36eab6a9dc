"""Replays the behaviour tables through the runners of the clients against a real server, and prints the outcomes.

By default it builds the runners of all languages. At the end it replays altered tables, which must fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.conformance.altered import write_altered
from tests.conformance.clients import ROOT, ConformanceError, clients
from tests.conformance.runner import Outcome, Runner, RunnerError, Scenario, replay_tables
from tests.live_server import LiveServer

Runners = Mapping[str, Path]
Outcomes = Mapping[str, Mapping[Scenario, Outcome]]

LABELS = {"passed": "ok", "failed": "FAILED", "left out": "left out"}


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", type=Path, help="replay through this runner alone, without altered tables")
    parser.add_argument("--server", help="address of a running server; default: a new server")
    args = parser.parse_args()
    tables = sorted((ROOT / "tests" / "scenarios").rglob("*.yaml"))
    known = [(table.name, scenario["name"]) for table in tables for scenario in yaml.safe_load(table.read_text())]
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            runners = build_all() if args.runner is None else {"runner": args.runner}
            address = args.server or stack.enter_context(LiveServer(scratch)).start()
            outcomes = replay_all(runners, address, tables)
            faults = print_outcomes(outcomes, known)
            if not faults and args.runner is None:
                faults = replay_altered(runners, address, tables, scratch, outcomes)
        except (ConformanceError, RunnerError) as error:
            faults = [str(error)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def build_all() -> Runners:
    """Builds the runners of all languages."""
    for client in clients():
        print(f"building the runner: {client.name}", flush=True)
        client.build()
    return {client.name: client.runner for client in clients()}


def replay_all(runners: Runners, address: str, tables: Sequence[Path]) -> Outcomes:
    """Replays the tables in all languages at the same time."""

    async def replay() -> Sequence[Mapping[Scenario, Outcome]]:
        return await asyncio.gather(
            *(replay_tables(language, Runner([path], address), tables) for language, path in runners.items())
        )

    return dict(zip(runners, asyncio.run(replay()), strict=True))


def print_outcomes(outcomes: Outcomes, known: Sequence[Scenario]) -> list[str]:
    """Prints a table of scenarios and languages; returns the faults."""
    file, width = "", max(len(name) for _, name in known)
    for scenario in known:
        if scenario[0] != file:
            file = scenario[0]
            print(f"\n{file:<{width}}" + "".join(f"  {language:>10}" for language in outcomes))
        labels = (LABELS[replay[scenario].how] for replay in outcomes.values())
        print(f"{scenario[1]:<{width}}" + "".join(f"  {label:>10}" for label in labels))
    print()
    faults = []
    for language, replay in outcomes.items():
        passed = sum(outcome.how == "passed" for outcome in replay.values())
        print(f"{language}: {passed} of {len(known)} scenarios passed")
        for (file, name), (how, why) in replay.items():
            if how == "left out" and why:
                print(f"{language} left out: {name} ({file}): {why}")
            elif how != "passed":
                faults.append(f"{language} {how}: {name} ({file}): {why or 'no reason given'}")
    return faults


def replay_altered(runners: Runners, address: str, tables: list[Path], scratch: Path, before: Outcomes) -> list[str]:
    """Replays the tables with altered expectations; returns missed alterations and false alarms."""
    kinds, faults = 0, []
    for copies, altered in write_altered(tables, scratch):
        kinds += len(altered)
        for language, replay in replay_all(runners, address, copies).items():
            failed = {scenario for scenario, outcome in replay.items() if outcome.how == "failed"}
            to_fail = {scenario for scenario in altered if before[language][scenario].how != "left out"}
            faults += [f"{language}: the altered {altered[s]} passed: {s[1]} ({s[0]})" for s in to_fail - failed]
            faults += [
                f"{language} failed an unaltered scenario: {s[1]} ({s[0]}): {replay[s].why}" for s in failed - to_fail
            ]
    if not faults:
        print(f"in every language all {kinds} kinds of altered expectations failed, and nothing else")
    return faults


if __name__ == "__main__":
    sys.exit(main())
