"""The example of `wattwise run`, in a short form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.examples
HOUSE = Path(__file__).parents[2]
FOLDER = HOUSE / "examples" / "recurring"


@pytest.mark.parametrize(
    ("name", "measured_by", "begins"),
    [
        ("job.toml", "command", r"Batch size 8: .*the default is tried first; learning rate 0\.001, seed 1\n"),
        ("without_client.toml", "driver", r"epoch 1: "),
    ],
    ids=["client", "without"],
)
def test_example_recurs(tmp_path: Path, name: str, measured_by: str, begins: str) -> None:
    """Two recurrences of the example train real models to their target, with their own server."""
    text = (FOLDER / name).read_text()
    short = text.replace("recurrences = 20", "recurrences = 2").replace("recurrences = 10", "recurrences = 2")
    job = tmp_path / "job.toml"
    job.write_text(short.replace("[train]\n", f'[train]\nworkdir = "{FOLDER}"\n'))
    wattwise = Path(sys.executable).with_name("wattwise")
    done = subprocess.run([wattwise, "run", job], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(fact in done.stdout for fact in ("2 recurrences", "2 trials", "estimate, not measured"))
    (output,) = tmp_path.glob("runs/*/trial-0001/output.log")
    assert re.match(begins, output.read_text())
    (history,) = tmp_path.glob("runs/*/history.jsonl")
    assert history.read_text().count(f'"measured_by": "{measured_by}"') == 2
