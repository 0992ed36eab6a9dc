"""What a driver that takes a launch over knows of a command whose driver has died."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wattwise.driver.outcome import ENDED, RUNNING, LaunchOutcome, saved_outcome
from wattwise.monitor import EnergyQuality, MonitorKinds

NVML = MonitorKinds(("nvml",))


def ended(folder: Path, exit_code: int, time_seconds: float) -> None:
    """The file of a supervisor."""
    (folder / ENDED).write_text(json.dumps({"exit_code": exit_code, "time_seconds": time_seconds}))


@pytest.mark.parametrize(
    ("measured_seconds", "measured_joules", "seconds", "joules"),
    [(10.0, 500.0, 12.0, 600.0), (0.0, 0.0, 2.0, 600.0), (10.0, 0.0, 12.0, 0.0)],
)
def test_unmeasured_rest_is_estimated(
    tmp_path: Path, measured_seconds: float, measured_joules: float, seconds: float, joules: float
) -> None:
    """The rest has the mean power of the part that was measured, or the maximum power of 300 W."""
    LaunchOutcome(RUNNING, measured_seconds, measured_joules, monitor=NVML).save(tmp_path)
    ended(tmp_path, 3, seconds)
    assert saved_outcome(tmp_path, 300.0) == LaunchOutcome(
        3, seconds, joules, monitor=MonitorKinds(("nvml",), EnergyQuality.PARTLY_ESTIMATED)
    )


def test_measured_part_counts_whole(tmp_path: Path) -> None:
    """The driver's clock started before the supervisor's: what was measured is not cut."""
    LaunchOutcome(RUNNING, 2.1, 210.0, monitor=NVML).save(tmp_path)
    ended(tmp_path, 0, 2.0)
    assert saved_outcome(tmp_path, 300.0) == LaunchOutcome(0, 2.1, 210.0, monitor=NVML)


def test_complete_outcome_counts(tmp_path: Path) -> None:
    """What the driver has saved after the end of its command is taken as it is."""
    LaunchOutcome(RUNNING, 1.0, 100.0, monitor=NVML).save(tmp_path)
    ended(tmp_path, 0, 2.0)
    complete = LaunchOutcome(0, 2.01, 190.0, over_cost_bound=True, monitor=NVML)
    complete.save(tmp_path)
    assert saved_outcome(tmp_path, 300.0) == complete


def test_command_that_died_with_its_driver_has_no_outcome(tmp_path: Path) -> None:
    """Its training was cut short."""
    LaunchOutcome(RUNNING, 1.0, 100.0, monitor=NVML).save(tmp_path)
    assert saved_outcome(tmp_path, 300.0) is None
