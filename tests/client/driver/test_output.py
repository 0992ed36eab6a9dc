"""What a run prints of a failed command's output."""

from __future__ import annotations

from pathlib import Path

from wattwise.driver.outcome import OUTPUT, last_lines

from tests.client.driver.running import Runs, result, shell, write_job


def quoted(folder: Path, output: bytes) -> list[str]:
    """The lines that are quoted of this output."""
    (folder / OUTPUT).write_bytes(output)
    return last_lines(folder)


def test_last_lines_are_bounded(tmp_path: Path) -> None:
    """Ten lines are quoted, blank ones do not count, and long ones are shortened to 500 characters."""
    lines = [f"line {number}" for number in range(30)]
    assert quoted(tmp_path, "\n\n".join(lines).encode()) == lines[-10:]
    (long,) = quoted(tmp_path, b"x" * 1_000_000)
    assert len(long) == 500
    assert quoted(tmp_path, b"") == []


def test_control_characters_are_harmless(tmp_path: Path) -> None:
    """Colours are dropped, other control characters are escaped, and of a progress bar the last state remains."""
    assert quoted(tmp_path, b"\x1b[31mred\x1b[0m\x1b]0;title\x07 text\n") == ["red text"]
    assert quoted(tmp_path, "a\bb\x1bc\u202e\x00\n".encode()) == ["a\\x08b\\x1bc\\u202e\\x00"]
    assert quoted(tmp_path, b" 10%\r 50%\r100%\r\n") == ["100%"]
    assert quoted(tmp_path, b"\xff\xfe\n") == ["\ufffd\ufffd"]


def test_failed_command_is_quoted(served: Runs) -> None:
    """The log has the last lines of a failed command, and the error that ends the run has the last one."""
    steps = ("for i in $(seq 30); do echo line $i; done", "echo no module named torch >&2", "exit 3")
    done = served.run(write_job(served.folder, shell(*steps)))
    assert done.returncode == 1
    marked = [line.removeprefix("  | ") for line in done.stdout.splitlines() if line.startswith("  | ")]
    assert marked == [*(f"line {number}" for number in range(22, 31)), "no module named torch"]
    assert 'status 3 after "no module named torch"' in done.stderr


def test_command_that_succeeds_is_not_quoted(served: Runs) -> None:
    """The output of a command whose trial is decided is not quoted."""
    done = served.run(write_job(served.folder, shell("echo fine", result()), run={"recurrences": 1}))
    assert done.returncode == 0
    assert "fine" not in done.stdout
