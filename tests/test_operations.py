"""docs/operations.md, the units and the table of events match the program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live_server import LiveServer

DOCS = Path(__file__).parents[1] / "docs"
SERVER = Path(__file__).parents[1] / "server"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Systemd accepts the units, if they name a program that exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    units = [tmp_path / name for name in ("wattwise.service", "wattwise-backup.service", "wattwise-backup.timer")]
    for unit in units:
        unit.write_text((DOCS / unit.name).read_text().replace("/opt/wattwise/bin/wattwise", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nightly_backup_makes_one_and_drops_the_old(server: LiveServer, tmp_path: Path) -> None:
    """The commands of the backup unit make a backup and delete those older than 30 days."""
    unit = (DOCS / "wattwise-backup.service").read_text()
    folder = tmp_path / "backups"
    folder.mkdir()
    for name, days in (("wattwise-old.db", 32), ("wattwise-young.db", 28), ("by-hand.db", 90)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - days * 86_400,) * 2)
    environment = {**os.environ, "WATTWISE_DATABASE": f"sqlite:///{server.database}"}
    for command in re.findall(r"^ExecStart(?:Post)?=(.+)$", unit, re.MULTILINE):
        # As systemd reads it: words, of which none is a pattern; doubled signs are single ones.
        typed = command.replace("$$", "$").replace("%%", "%").replace("/var/backups/wattwise", str(folder))
        typed = typed.replace("/opt/wattwise/bin/wattwise", str(Path(sys.executable).with_name("wattwise")))
        subprocess.run(shlex.split(typed), check=True, env=environment, timeout=60)
    left = {path.name for path in folder.iterdir()}
    (made,) = left - {"wattwise-young.db", "by-hand.db"}
    assert re.fullmatch(r"wattwise-[\d-]{17}\.db", made)
    assert len(left) == 3


def test_unit_leaves_the_metrics_of_the_process() -> None:
    """Nothing hides /proc/stat from the server, without which prometheus-client has no process_… metric."""
    settings = [line for line in (DOCS / "wattwise.service").read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in settings if line.startswith("ProcSubset=pid")]


def test_documented_options_exist() -> None:
    """Every option and variable in the guide and the unit is one of a command."""
    wattwise = str(Path(sys.executable).with_name("wattwise"))
    known = ""
    for command in ("serve", "backup", "restore", "token create", "jobs list", "health"):
        help_of = [wattwise, *command.split(), "--help"]
        known += subprocess.run(help_of, capture_output=True, text=True, check=True).stdout
    unit = (DOCS / "wattwise.service").read_text()
    for variable in re.findall(r"WATTWISE_[A-Z_]+", unit):
        assert variable in known
    guide = (DOCS / "operations.md").read_text()
    for variable in re.findall(r"WATTWISE_[A-Z_]+[A-Z]", guide):
        assert variable in known or variable == "WATTWISE_SERVER", variable
    commands = re.findall(r"wattwise (?:serve|backup|restore|token|jobs)[^\n`]*", guide.replace("\\\n", ""))
    for text in (*commands, *re.findall(r"`(--[^`]+)`", guide)):
        for option in re.findall(r"--[a-z][a-z-]+", text):
            assert option in known, text


def test_every_log_event_is_documented() -> None:
    """The guide's table of events contains every event in the server's code."""
    code = "\n".join(path.read_text() for path in SERVER.rglob("*.py"))
    call = r"\b(?:log_event|log_exception|_log_trial)"
    events = re.findall(call + r'\((?:log|trial),\s*(?:(?:level|logging\.[A-Z]+),\s*)?"([^"]+)"', code)
    assert events
    guide = (DOCS / "operations.md").read_text()
    (table,) = re.findall(r"^\| event \| level \|\n(.*?)^$", guide, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", table)) >= set(events)
