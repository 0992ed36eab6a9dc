"""What docs/operations.md hands to an operator works."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


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


def test_unit_leaves_the_metrics_of_the_process() -> None:
    """Nothing hides /proc/stat from the server, without which prometheus-client has no process_… metric."""
    settings = [line for line in (DOCS / "wattwise.service").read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in settings if line.startswith("ProcSubset=pid")]


def test_options_that_are_spoken_of_exist() -> None:
    """Every option and variable in the guide and the unit is one of a command."""
    wattwise = Path(sys.executable).with_name("wattwise")
    known = ""
    for command in ("serve", "backup", "restore"):
        known += subprocess.run([wattwise, command, "--help"], capture_output=True, text=True, check=True).stdout
    unit = (DOCS / "wattwise.service").read_text()
    for variable in re.findall(r"WATTWISE_[A-Z_]+", unit):
        assert variable in known
    guide = (DOCS / "operations.md").read_text()
    for section in ("Backups and restores", "Retention and limits"):
        text = guide.split(f"## {section}\n")[1].split("\n## ")[0]
        for option in re.findall(r"--[a-z][a-z-]+", text):
            assert option in known, option
