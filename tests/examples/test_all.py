"""The checks of `make examples`."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.__main__ import FOLDER, SCRIPTS, main


@pytest.mark.examples
def test_successful_example(capfd: pytest.CaptureFixture[str]) -> None:
    """The smallest trainer succeeds in time, and prints its batch size and the reason."""
    assert main(("smallest.py",)) == 0
    output = capfd.readouterr().out
    assert "\nBatch size 128: " in output
    assert output.endswith("\nevery example reached its target\n")


@pytest.mark.parametrize(
    ("script", "options", "fault"),
    [
        ("print('trained')", (), "did not print its batch size and the reason"),
        ("print('Batch size 128:')", (), "did not print its batch size and the reason"),
        ("print('Batch size 128: the default', flush=True); raise SystemExit(3)", (), "exited with status 3"),
        ("import time; time.sleep(100)", ("--seconds", "0.5"), "did not end within 0.5 s"),
    ],
)
def test_failing_example(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, options: tuple[str, ...], fault: str
) -> None:
    """An example that prints no batch size, fails or takes too long is named, and the status is 1."""
    path = tmp_path / "example.py"
    path.write_text(script)
    assert main((str(path), *options)) == 1
    assert capfd.readouterr().out.endswith(f"\n{path} {fault}\n")


def test_every_script_is_run() -> None:
    """Every script in the folder is run."""
    assert {path.name for path in FOLDER.glob("*.py") if not path.name.startswith("__")} == set(SCRIPTS)
