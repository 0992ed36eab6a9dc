"""Coverage-guided fuzzing, if atheris is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 30 if os.environ.get("SOAK") == "short" else 900


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
def test_guided(tmp_path: Path) -> None:
    """No request that atheris generates causes more than a refusal."""
    pytest.importorskip("atheris", reason="needs atheris, which `make soak` could not install")
    command = [sys.executable, "-m", "tests.server.fuzz.guided", str(tmp_path), f"-max_total_time={SECONDS}"]
    root = Path(__file__).parents[3]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert "Done " in finished.stderr
