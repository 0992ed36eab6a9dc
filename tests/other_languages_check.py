"""Types what docs/other-languages.md prints for each language into an empty folder, and runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.live_server import LiveServer

HOUSE = Path(__file__).parents[1]
PRINTED_ADDRESS = "localhost:50051"


def main() -> None:
    """Fails at the first language that does not get to a decided trial."""
    page = (HOUSE / "docs/other-languages.md").read_text()
    check_names(page)
    with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder)) as live:
        address = live.start()
        for section in re.split(r"^### ", page.split("\n## What a client")[0], flags=re.MULTILINE)[1:]:
            title = section.splitlines()[0]
            own = Path(folder, re.sub(r"\W", "", title))
            own.mkdir()
            follow(title, section.replace(PRINTED_ADDRESS, address), own)


def follow(title: str, section: str, folder: Path) -> None:
    """Types one section."""
    for name, program in re.findall(r"^`([\w.]+)`[^\n`]*:\n\n```\w+\n(.*?)```", section, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(program)
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    if not commands:
        say(f"{title}: nothing to type")
        return
    # A machine without Node.js has it where `make conformance` has put it.
    path = f"{HOUSE / '.venv/bin'}:{HOUSE / 'client/typescript/build/node/bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "WATTWISE": str(HOUSE), "PATH": path}
    done = subprocess.run(
        ["sh", "-e"], input=commands, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode or "target reached" not in done.stdout:
        sys.exit(f"{title} did not get to a decided trial ({done.returncode}):\n{done.stdout}{done.stderr}")
    if (folder / "first.mjs").exists():
        check_types(folder, environment)
    say(f"{title}: a decided trial")


def check_types(folder: Path, environment: Mapping[str, str]) -> None:
    """Fails if TypeScript does not take the program as it is, or takes one that gives a text for a number."""
    program = (folder / "first.mjs").read_text()
    (folder / "first.mts").write_text(program)
    (folder / "wrong.mts").write_text(program.replace("metric: 0.93", 'metric: "0.93"'))
    tsc = HOUSE / "client/typescript/node_modules/.bin/tsc"
    command = ["node", str(tsc), "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022"]
    good, wrong = (
        subprocess.run([*command, name], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        for name in ("first.mts", "wrong.mts")
    )
    if good.returncode or "not assignable to type 'number'" not in wrong.stdout:
        sys.exit(f"the package's types do not hold:\n{good.stdout}{wrong.stdout}")


def check_names(page: str) -> None:
    """Fails if the checklist names a scenario that no table has."""
    tables = (HOUSE / "tests/scenarios").glob("*.yaml")
    known = {scenario["name"] for table in tables for scenario in yaml.safe_load(table.read_text())}
    rows = [line.split("|") for line in page.split("## What a client")[1].splitlines() if line.startswith("|")]
    unknown = [name for row in rows for name in re.findall(r"\*([^*]+)\*", row[3]) if name not in known]
    if unknown:
        sys.exit(f"no table has these scenarios: {unknown}")


def say(text: str) -> None:
    """Tells what is done."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
