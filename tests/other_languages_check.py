"""Follows docs/other-languages.md for each language in an empty folder."""

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

ROOT = Path(__file__).parents[1]
PRINTED_ADDRESS = "localhost:50051"


def main() -> None:
    """Fails at the first language whose trial is not decided."""
    page = (ROOT / "docs/other-languages.md").read_text()
    check_names(page)
    with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder)) as live:
        address = live.start()
        for section in re.split(r"^### ", page.split("\n## Requirements")[0], flags=re.MULTILINE)[1:]:
            title = section.splitlines()[0]
            workspace = Path(folder, re.sub(r"\W", "", title))
            workspace.mkdir()
            follow(title, section.replace(PRINTED_ADDRESS, address), workspace)


def follow(title: str, section: str, folder: Path) -> None:
    """Writes the programs of a section and runs its commands."""
    for name, program in re.findall(r"^`([\w.]+)`[^\n`]*:\n\n```\w+\n(.*?)```", section, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(program)
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    if not commands:
        _say(f"{title}: no commands")
        return
    # `make conformance` may have downloaded Node.js.
    path = f"{ROOT / '.venv/bin'}:{ROOT / 'client/typescript/build/node/bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "WATTWISE": str(ROOT), "PATH": path}
    done = subprocess.run(
        ["sh", "-e"], input=commands, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode or "target reached" not in done.stdout:
        sys.exit(f"{title}: no decided trial (exit status {done.returncode}):\n{done.stdout}{done.stderr}")
    if (folder / "first.mjs").exists():
        check_types(folder, environment)
    _say(f"{title}: finished a trial")


def check_types(folder: Path, environment: Mapping[str, str]) -> None:
    """Fails unless TypeScript accepts the program and rejects one with a string for a number."""
    program = (folder / "first.mjs").read_text()
    (folder / "first.mts").write_text(program)
    (folder / "wrong.mts").write_text(program.replace("metric: 0.93", 'metric: "0.93"'))
    tsc = ROOT / "client/typescript/node_modules/.bin/tsc"
    command = ["node", str(tsc), "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022"]
    good, wrong = (
        subprocess.run([*command, name], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        for name in ("first.mts", "wrong.mts")
    )
    if good.returncode or "not assignable to type 'number'" not in wrong.stdout:
        sys.exit(f"the package's types are wrong:\n{good.stdout}{wrong.stdout}")


def check_names(page: str) -> None:
    """Fails if the checklist names an unknown scenario."""
    tables = (ROOT / "tests/scenarios").glob("*.yaml")
    known = {scenario["name"] for table in tables for scenario in yaml.safe_load(table.read_text())}
    rows = [line.split("|") for line in page.split("## Requirements")[1].splitlines() if line.startswith("|")]
    unknown = [name for row in rows for name in re.findall(r"\*([^*]+)\*", row[3]) if name not in known]
    if unknown:
        sys.exit(f"unknown scenarios: {unknown}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
