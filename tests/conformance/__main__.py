"""Builds every client's runner, replays the tables with all of them against a real server, and prints the outcomes."""

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

SIGNS = {"passed": "ok", "failed": "FAILED", "left out": "left out"}


def main() -> int:
    """The command; returns its exit status."""
    tables = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))
    known = [(table.name, scenario["name"]) for table in tables for scenario in yaml.safe_load(table.read_text())]
    languages = clients()
    try:
        for client in languages:
            print(f"building the runner of {client.name}", flush=True)
            client.build()
        with tempfile.TemporaryDirectory() as scratch, LiveServer(Path(scratch)) as server:
            address = server.start()
            outcomes = replayed(languages, address, tables)
            faults = shown(outcomes, known)
            faults += [] if faults else unnoticed(languages, address, tables, Path(scratch), outcomes)
    except ConformanceError as error:
        faults = [str(error)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def replayed(languages: Sequence[Client], address: str, tables: Sequence[Path]) -> Outcomes:
    """The outcomes of all languages, which run side by side."""
    with ThreadPoolExecutor() as pool:
        said = pool.map(lambda client: client.run(address, tables), languages)
        return dict(zip((client.name for client in languages), said, strict=True))


def shown(outcomes: Outcomes, known: Sequence[Scenario]) -> list[str]:
    """Prints the table, languages against scenarios; returns what is wrong."""
    file, width = "", max(len(name) for _, name in known)
    for scenario in known:
        if scenario[0] != file:
            file = scenario[0]
            print(f"\n{file:<{width}}" + "".join(f"  {language:>10}" for language in outcomes))
        signs = (SIGNS.get(said[scenario].how, "?") if scenario in said else "missing" for said in outcomes.values())
        print(f"{scenario[1]:<{width}}" + "".join(f"  {sign:>10}" for sign in signs))
    print()
    for language, said in outcomes.items():
        passed = sum(outcome.how == "passed" for outcome in said.values())
        print(f"{language}: {passed} of {len(known)} scenarios passed")
    return [fault for language, said in outcomes.items() for fault in _faults(language, said, known)]


def _faults(language: str, said: Mapping[Scenario, Outcome], known: Sequence[Scenario]) -> list[str]:
    faults = [f"{language} says nothing of: {name} ({file})" for file, name in known if (file, name) not in said]
    for (file, name), (how, why) in said.items():
        if (file, name) not in known:
            faults.append(f"{language} speaks of a scenario that is in no table: {name} ({file})")
        elif how == "left out" and why:
            print(f"{language} leaves out: {name} ({file}): {why}")
        elif how != "passed":
            faults.append(f"{language} {how}: {name} ({file}): {why or 'it does not say why'}")
    return faults


def unnoticed(
    languages: Sequence[Client], address: str, tables: list[Path], scratch: Path, before: Outcomes
) -> list[str]:
    """Replays the tables with altered expectations; returns what a runner did not notice, or noticed wrongly."""
    kinds, faults = 0, []
    for copies, altered in write_altered(tables, scratch):
        kinds += len(altered)
        for language, said in replayed(languages, address, copies).items():
            failed = {scenario for scenario, outcome in said.items() if outcome.how == "failed"}
            to_fail = {scenario for scenario in altered if before[language][scenario].how != "left out"}
            faults += [
                f"{language} did not notice that {altered[s]} was altered: {s[1]} ({s[0]})" for s in to_fail - failed
            ]
            faults += [
                f"{language} failed what was not altered: {s[1]} ({s[0]}): {said[s].why}" for s in failed - to_fail
            ]
    if not faults:
        print(f"every runner noticed altered expectations of {kinds} kinds, and failed nothing else")
    return faults


if __name__ == "__main__":
    sys.exit(main())
