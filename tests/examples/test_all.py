"""What `make examples` accepts of an example, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.__main__ import FOLDER, SCRIPTS, main


def test_example_that_does_what_it_should(capfd: pytest.CaptureFixture[str]) -> None:
    """The smallest trainer ends well, in time, and says what was chosen and why."""
    assert main(("smallest.py",)) == 0
    said = capfd.readouterr().out
    assert "\nBatch size 128: " in said
    assert said.endswith("\nevery example reached its target\n")


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("print('trained')", (), "did not say which batch size was chosen, and why"),
        ("print('Batch size 128:')", (), "did not say which batch size was chosen, and why"),
        ("print('Batch size 128: the default', flush=True); raise SystemExit(3)", (), "exited with status 3"),
        ("import time; time.sleep(100)", ("--seconds", "0.5"), "was not over after 0.5 s"),
    ],
)
def test_example_that_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, options: tuple[str, ...], said: str
) -> None:
    """An example that is silent, fails or takes too long makes the whole fail, by name."""
    path = tmp_path / "example.py"
    path.write_text(script)
    assert main((str(path), *options)) == 1
    assert capfd.readouterr().out.endswith(f"\n{path} {said}\n")


def test_every_script_is_run() -> None:
    """Each script of the folder is among those that are run."""
    assert {path.name for path in FOLDER.glob("*.py") if not path.name.startswith("__")} == set(SCRIPTS)
