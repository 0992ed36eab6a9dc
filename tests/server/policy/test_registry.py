"""How the server finds its policies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wattwise_server
from wattwise import v1
from wattwise_server.policy.registry import POLICIES

_FOUND = "from wattwise_server.policy.registry import POLICIES; print(*POLICIES)"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A copy of the server's package, to put policies into."""
    copy = tmp_path / "wattwise_server"
    shutil.copytree(Path(wattwise_server.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def ask(server: Path) -> subprocess.CompletedProcess[str]:
    """Imports the registry of a copy, and prints what it has found."""
    return subprocess.run(
        [sys.executable, "-c", _FOUND],
        env={**os.environ, "PYTHONPATH": str(server.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_file_is_a_policy(server: Path) -> None:
    """A new file with a `POLICY` is found under the file's name, beside those that there are."""
    (server / "policy" / "mine.py").write_text("from wattwise_server.policy.gts import Gts\n\nPOLICY = Gts()\n")
    found = ask(server)
    assert (found.stderr, set(found.stdout.split())) == ("", {*POLICIES, "MINE"})


def test_file_without_a_policy_is_none(server: Path) -> None:
    """What has no `POLICY` only helps those that have."""
    (server / "policy" / "helping.py").write_text("FACTOR = 2\n")
    assert set(ask(server).stdout.split()) == set(POLICIES)


def test_file_that_fails_is_named(server: Path) -> None:
    """A policy that cannot be imported is said with its file and what is wrong with it."""
    (server / "policy" / "mine.py").write_text("POLICY = Mine()\n")
    said = ask(server).stderr
    assert "the policy in policy/mine.py cannot be loaded: NameError: name 'Mine' is not defined" in said


def test_every_policy_of_the_wire_is_there() -> None:
    """Each value of the enum but the unspecified has a file."""
    named = {name.removeprefix("POLICY_") for name, value in v1.Policy.items() if value != v1.POLICY_UNSPECIFIED}
    assert named == set(POLICIES)
