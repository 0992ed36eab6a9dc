"""Builds every client's runner, replays the tables with each of them against a real server, and prints the outcomes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from tests.conformance.altered import write_altered
from tests.conformance.clients import ROOT, Client, ConformanceError, Outcome, Scenario, clients
from tests.live_server import LiveServer

Outcomes = Mapping[str, Mapping[Scenario, Outcome]]

LABELS = {"passed": "ok", "failed": "FAILED", "left out": "left out"}


def main() -> int:
    """Returns the exit status."""
    tables = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))
    known = [(table.name, scenario["name"]) for table in tables for scenario in yaml.safe_load(table.read_text())]
    languages = clients()
    try:
        for client in languages:
            print(f"building the runner: {client.name}", flush=True)
            client.build()
        with tempfile.TemporaryDirectory() as scratch, LiveServer(Path(scratch)) as server:
            address = server.start()
            outcomes = replay_all(languages, address, tables)
            faults = print_outcomes(outcomes, known)
            faults += [] if faults else replay_altered(languages, address, tables, Path(scratch), outcomes)
    except ConformanceError as error:
        faults = [str(error)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def replay_all(languages: Sequence[Client], address: str, tables: Sequence[Path]) -> Outcomes:
    """Replays the tables in all languages at the same time."""
    with ThreadPoolExecutor() as pool:
        replays = pool.map(lambda client: client.run(address, tables), languages)
        return dict(zip((client.name for client in languages), replays, strict=True))


def print_outcomes(outcomes: Outcomes, known: Sequence[Scenario]) -> list[str]:
    """Prints a table of scenarios and languages; returns the faults."""
    file, width = "", max(len(name) for _, name in known)
    for scenario in known:
        if scenario[0] != file:
            file = scenario[0]
            print(f"\n{file:<{width}}" + "".join(f"  {language:>10}" for language in outcomes))
        labels = (
            LABELS.get(replay[scenario].how, "?") if scenario in replay else "missing" for replay in outcomes.values()
        )
        print(f"{scenario[1]:<{width}}" + "".join(f"  {label:>10}" for label in labels))
    print()
    for language, replay in outcomes.items():
        passed = sum(outcome.how == "passed" for outcome in replay.values())
        print(f"{language}: {passed} of {len(known)} scenarios passed")
    return [fault for language, replay in outcomes.items() for fault in _faults(language, replay, known)]


def _faults(language: str, replay: Mapping[Scenario, Outcome], known: Sequence[Scenario]) -> list[str]:
    faults = [f"{language} did not replay: {name} ({file})" for file, name in known if (file, name) not in replay]
    for (file, name), (how, why) in replay.items():
        if (file, name) not in known:
            faults.append(f"{language} replayed an unknown scenario: {name} ({file})")
        elif how == "left out" and why:
            print(f"{language} left out: {name} ({file}): {why}")
        elif how != "passed":
            faults.append(f"{language} {how}: {name} ({file}): {why or 'no reason given'}")
    return faults


def replay_altered(
    languages: Sequence[Client], address: str, tables: list[Path], scratch: Path, before: Outcomes
) -> list[str]:
    """Replays the tables with altered expectations; returns missed alterations and false alarms."""
    kinds, faults = 0, []
    for copies, altered in write_altered(tables, scratch):
        kinds += len(altered)
        for language, replay in replay_all(languages, address, copies).items():
            failed = {scenario for scenario, outcome in replay.items() if outcome.how == "failed"}
            to_fail = {scenario for scenario in altered if before[language][scenario].how != "left out"}
            faults += [f"{language} did not notice the altered {altered[s]}: {s[1]} ({s[0]})" for s in to_fail - failed]
            faults += [
                f"{language} failed an unaltered scenario: {s[1]} ({s[0]}): {replay[s].why}" for s in failed - to_fail
            ]
    if not faults:
        print(f"every runner noticed all {kinds} kinds of altered expectations, and failed nothing else")
    return faults


if __name__ == "__main__":
    sys.exit(main())
