"""The run's folder, its history and the summary."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from wattwise.driver.folder import ADVICE, RunFolder, TriesExhaustedError, folder_name
from wattwise.driver.history import History, HistoryError, HistoryRecord
from wattwise.driver.output import Board, summary
from wattwise.errors import WattwiseError
from wattwise.monitor import MonitorKinds

from tests.client.driver.running import PYTHON
from tests.faults.shims import build_shim
from tests.faults.test_power import Disk

ESTIMATE = "estimate, not measured: EstimateMonitor(100)"
_APPEND = """
import json, sys
from pathlib import Path
from wattwise.driver.history import History, HistoryRecord
for record in json.loads(sys.argv[2]):
    History(Path(sys.argv[1])).append(HistoryRecord(**record))
"""

RECORD = HistoryRecord(
    launch=0,
    recurrence=1,
    try_number=1,
    trial=1,
    batch_size=16,
    limit_watts_per_gpu=None,
    learning_rate=0.1,
    seed=5,
    epochs=3,
    time_seconds=2.0,
    energy_joules=200.0,
    cost=100.0,
    measured_by="command",
    monitor=MonitorKinds.of(["nvml"]),
    reached=True,
    end_reason="target reached",
    exit_code=0,
)


def test_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A record comes back as it was, and the file names the try `try`."""
    history = History(tmp_path / "history.jsonl")
    assert history.read() == []
    history.append(RECORD)
    history.append(replace(RECORD, launch=1, try_number=2))
    assert history.read() == [RECORD, replace(RECORD, launch=1, try_number=2)]
    assert [json.loads(line)["try"] for line in (tmp_path / "history.jsonl").read_text().splitlines()] == [1, 2]


def test_history_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """A line without computed usage is of a version that did not know it."""
    line = {"try" if name == "try_number" else name: value for name, value in asdict(RECORD).items()}
    known = {name: value for name, value in line.items() if not name.startswith("computed_")}
    (tmp_path / "history.jsonl").write_text(f"{json.dumps(known)}\n")
    assert History(tmp_path / "history.jsonl").read() == [RECORD]


def test_history_survives_a_power_cut(tmp_path: Path) -> None:
    """Appended records are durable, and so is the name of the file."""
    folder, kept = tmp_path / "run", tmp_path / "kept"
    folder.mkdir()
    disk = Disk(folder, kept)
    records = [RECORD, replace(RECORD, launch=1, recurrence=2)]
    shim = {"LD_PRELOAD": str(build_shim("power", tmp_path)), "POWER_FROM": str(folder), "POWER_TO": str(kept)}
    text = json.dumps([asdict(record) for record in records])
    command = [PYTHON, "-c", _APPEND, str(folder / "history.jsonl"), text]
    subprocess.run(command, env={**os.environ, **shim}, check=True)
    disk.lose_power()
    assert History(folder / "history.jsonl").read() == records


@pytest.mark.parametrize("line", [{"recurrence": 1}, [], asdict(RECORD) | {"try": 1, "monitor": "nvml"}])
def test_malformed_line_is_refused(tmp_path: Path, line: object) -> None:
    """A complete line that is malformed is named by its number."""
    (tmp_path / "history.jsonl").write_text(f"{json.dumps(line)}\n")
    with pytest.raises(HistoryError, match=r"line 1 of .*history\.jsonl"):
        History(tmp_path / "history.jsonl").read()


def test_one_launch_at_a_time_for_each(tmp_path: Path) -> None:
    """Two drivers get different recurrences; a dead driver's launch goes to the next, with the same launch id."""
    one, two = (RunFolder.open(tmp_path, "a-b", fresh=False) for _ in range(2))
    first, second = one.claim(2, 3), two.claim(2, 3)
    assert first is not None
    assert second is not None
    assert [(c.launch.number, c.launch.recurrence) for c in (first, second)] == [(0, 1), (1, 2)]
    assert one.claim(2, 3) is None
    first.release()
    again = two.claim(2, 3)
    assert again is not None
    assert again.launch == first.launch


def test_tries_are_counted(tmp_path: Path) -> None:
    """A preempted trial counts as a try, but not towards max_tries."""
    folder = RunFolder.open(tmp_path, "a-b", fresh=False)
    for number, reason in enumerate(("preempted", "error", "max epochs")):
        claim = folder.claim(1, 2)
        assert claim is not None
        assert claim.launch.try_number == number + 1
        folder.record(claim, replace(RECORD, launch=claim.launch.number, reached=False, end_reason=reason))
    with pytest.raises(TriesExhaustedError, match=r"max_tries = 2.*error \(1\), max epochs \(1\)"):
        folder.claim(1, 2)


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("error", "fix the command"),
        ("completed", "fix the command"),
        ("cost bound", ADVICE),
        ("out of memory", "smaller batch_sizes"),
    ],
)
def test_advice_after_failed_tries(tmp_path: Path, reason: str, step: str) -> None:
    """The error names what helps against the end reasons that there were, and nothing else."""
    folder = RunFolder.open(tmp_path, "a-b", fresh=False)
    claim = folder.claim(1, 1)
    assert claim is not None
    folder.record(claim, replace(RECORD, launch=claim.launch.number, reached=False, end_reason=reason))
    with pytest.raises(TriesExhaustedError) as caught:
        folder.claim(1, 1)
    steps = ("fix the command", ADVICE, "smaller batch_sizes")
    assert [each for each in steps if each in str(caught.value)] == [step]


def test_fresh_run_is_beside_the_old_one(tmp_path: Path) -> None:
    """Every fresh run has the next number; without --fresh the newest continues; other jobs' folders are not used."""
    other = RunFolder.open(tmp_path, "a-b-2", fresh=False)
    names = [RunFolder.open(tmp_path, "a-b", fresh=fresh).job_id for fresh in (False, True, False, True, False)]
    assert names == ["a-b", "a-b-3", "a-b-3", "a-b-4", "a-b-4"]
    assert RunFolder.open(tmp_path, "a-b-2", fresh=False).path == other.path


def test_unusable_log_dir(tmp_path: Path) -> None:
    """A log_dir that cannot be created is an error that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(WattwiseError, match=r"log_dir .*file .*: File exists"):
        RunFolder.open(tmp_path / "file", "a-b", fresh=False)


@pytest.mark.parametrize(
    ("job_id", "name"), [("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a b-ü", "a b-%C3%BC"), ("a%", "a%25")]
)
def test_folder_names(job_id: str, name: str) -> None:
    """Characters that a folder name cannot have are percent-encoded."""
    assert folder_name(job_id) == name


def test_summary_has_the_usage_and_the_claim() -> None:
    """All trials are summed, failed ones too, and the claim about savings is passed on; estimates are marked."""
    records = [
        RECORD,
        replace(RECORD, recurrence=2, batch_size=32, reached=False, cost=30.0, energy_joules=60.0, time_seconds=0.5),
        replace(RECORD, recurrence=2, batch_size=8, cost=50.0, energy_joules=100.0, time_seconds=1.0),
        replace(RECORD, recurrence=3, batch_size=16, cost=200.0, energy_joules=400.0, time_seconds=4.0),
    ]
    lines = list(summary([replace(record, monitor=MonitorKinds.of(["estimate"])) for record in records], "X", ESTIMATE))
    assert lines[0] == "3 recurrences reached the target, in 4 trials:"
    assert [re.split(r" {2,}", line.strip()) for line in lines[1:3]] == [
        ["energy", "time", "cost"],
        ["all trials", "~760 J", "7.5 s", "~380 J"],
    ]
    assert lines[3:] == [
        "~ marks estimates, wholly or in part.",
        "Compared with the default batch size: X",
        "Energy monitor: estimate, not measured: EstimateMonitor(100)",
    ]
    assert max(map(len, lines)) <= 80


def test_summary_of_several_monitors() -> None:
    """Sums with some estimated trials are marked, whatever the driver's monitor is; measured sums are not."""
    estimated = replace(RECORD, launch=1, recurrence=2, monitor=MonitorKinds.of(["estimate"]))
    assert "~ marks estimates, wholly or in part." in summary([RECORD, estimated], "X", "the monitor nvml")
    assert not any("estimates" in line for line in summary([RECORD], "X", ESTIMATE))


def test_summary_with_unknown_trials() -> None:
    """Trials of unknown cost, such as those of a killed driver, are counted beside the sums."""
    lost = replace(RECORD, reached=False, time_seconds=None, energy_joules=None, cost=None, measured_by=None)
    lines = list(summary([lost, RECORD], "X", "nvml"))
    assert lines[2].split() == ["all", "trials", "200", "J", "2.0", "s", "100", "J"]
    assert "Not included: 1 trial of unknown time and energy." in lines
    assert "Not included: 2 trials of unknown time and energy." in summary([lost, lost], "X", "nvml")


def test_run_without_energy(capsys: pytest.CaptureFixture[str]) -> None:
    """The energy of a run is unknown if none was measured, and a cost at the cheapest limit is marked without it."""
    unmeasured = replace(RECORD, energy_joules=None, computed_time_seconds=1.0)
    lines = list(summary([unmeasured], "X", "nvml"))
    assert lines[2].split() == ["all", "trials", "unknown", "2.0", "s", "100", "J"]
    Board("a-b", 1).end(unmeasured)
    assert "energy unknown, cost 100 J (computed)" in capsys.readouterr().out
