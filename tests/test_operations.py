"""What docs/operations.md hands to an operator works, and leaves nothing out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SERVER = Path(__file__).parents[1] / "server"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Systemd finds no fault in the unit, once it names a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = (DOCS / "wattwise.service").read_text().replace("/opt/wattwise/bin/wattwise", sys.executable)
    (tmp_path / "wattwise.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "wattwise.service"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_options_that_are_spoken_of_exist() -> None:
    """Every option and variable in the guide and the unit is one of a command."""
    wattwise = str(Path(sys.executable).with_name("wattwise"))
    known = ""
    for command in ("serve", "backup", "restore", "token create", "jobs list"):
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


def test_every_event_of_the_log_is_told_of() -> None:
    """The guide's table of events has every event that the server's code can write."""
    code = "\n".join(path.read_text() for path in SERVER.rglob("*.py"))
    events = re.findall(r'\b(?:say|say_bug|_say_of)\((?:log|trial),(?: (?:level|logging\.[A-Z]+),)? "([^"]+)"', code)
    assert len(events) > 30
    guide = (DOCS / "operations.md").read_text()
    (table,) = re.findall(r"^\| event \| level \|\n(.*?)^$", guide, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", table)) >= set(events)
