"""The monitors of a machine: in the default monitor's error, and by `python -m wattwise.monitor`."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import default_monitor
from wattwise.monitor.__main__ import main
from wattwise.monitor.present import alternatives

from tests.client.monitor.amdsmi_stub import StubAmdGpu, build_amd_library
from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu, build_library, runner
from tests.client.monitor.test_rapl import make_zone

COUNTING = StubGpu(energy_mj="+", power_mw=250_000)


def case_main(*arguments: str) -> tuple[int, str]:
    """The command's exit status and output."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        status = main(arguments)
    return status, printed.getvalue()


def line_of(printed: str, call: str) -> str:
    """The line of one monitor."""
    return next(line for line in printed.splitlines() if line.startswith(f"{call} "))


def watts_of(printed: str, call: str) -> float:
    """The watts in the line of one monitor."""
    found = re.search(r" ([\d.]+) W ", line_of(printed, call))
    assert found, printed
    return float(found[1])


def test_monitors_are_shown_with_their_watts(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """Each monitor has a line with its mean power; GPUs with counters are also measured by their power."""
    machine.show(COUNTING)
    make_zone(tmp_path, "intel-rapl:0", "package-0")
    status, printed = run(case_main, "--seconds", "1", "--powercap", str(tmp_path))
    assert status == 0
    # The counter's steps of 20 ms are 2% of the second.
    assert watts_of(printed, "NvmlMonitor()") == pytest.approx(250, rel=0.03)
    assert watts_of(printed, "NvmlMonitor(use_counter=False)") == pytest.approx(250, rel=1e-3)
    assert watts_of(printed, "RaplMonitor()") == 0
    assert "not available: the package amdsmi" in line_of(printed, "AmdSmiMonitor()")


def test_gpus_without_counters(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """GPUs without a counter have one line."""
    machine.show(replace(COUNTING, energy_mj=None))
    _, printed = run(case_main, "--seconds", "0.1", "--powercap", str(tmp_path))
    assert watts_of(printed, "NvmlMonitor()") == pytest.approx(250, rel=1e-3)
    assert "use_counter" not in printed


def test_no_monitor_works(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """If no monitor works, each line has the reason, and the status is 1."""
    machine.file.unlink()
    status, printed = run(case_main, "--seconds", "0.1", "--powercap", str(tmp_path))
    assert status == 1
    for call, reason in (("NvmlMonitor()", "Driver Not Loaded"), ("RaplMonitor()", "no RAPL package zone")):
        assert reason in line_of(printed, call)
    assert "EstimateMonitor(watts=...)" in printed.splitlines()[-1]


def test_the_command(machine: Machine, tmp_path: Path) -> None:
    """`python -m wattwise.monitor` prints the same and exits with its status."""
    machine.show(replace(COUNTING, energy_mj=None))
    build_library(tmp_path)
    command = [sys.executable, "-m", "wattwise.monitor", "--seconds", "0.1", "--powercap", str(tmp_path)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert watts_of(done.stdout, "NvmlMonitor()") == pytest.approx(250, rel=1e-3)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_wrong_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid length is refused."""
    with pytest.raises(SystemExit):
        main([f"--seconds={seconds}"])
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.usefixtures("machine")
def test_amd_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD GPUs have a line, too, and are an alternative for a trainer without NVIDIA GPUs."""
    build_library(tmp_path)
    build_amd_library(tmp_path)
    amd = Machine(tmp_path / "amd.tsv")
    amd.show(StubAmdGpu())
    monkeypatch.setenv("AMDSMI_STUB", str(amd.file))
    with runner(tmp_path) as run:
        _, printed = run(case_main, "--seconds", "0.1", "--powercap", str(tmp_path))
        assert watts_of(printed, "AmdSmiMonitor(use_counter=False)") == pytest.approx(300, rel=1e-3)
        assert run(alternatives, tmp_path) == "On this machine AmdSmiMonitor() can measure."


@pytest.mark.usefixtures("machine")
def test_alternatives(tmp_path: Path, run: Runner) -> None:
    """The working monitors are named; if none works, the reasons and the estimate."""
    only = run(alternatives, tmp_path)
    assert re.match(
        r"On this machine only EstimateMonitor\(watts=...\) works \(.*RaplMonitor\(\): no RAPL package", only
    )
    make_zone(tmp_path, "intel-rapl:0", "package-0")
    assert run(alternatives, tmp_path) == "On this machine RaplMonitor() can measure."


def test_the_default_monitor_names_them(machine: Machine, run: Runner) -> None:
    """Without an NVIDIA GPU, the error of the default monitor names what works on this machine."""
    machine.show()
    with pytest.raises(MonitorError, match=r"has no NVIDIA GPU; .* On this machine .*Monitor\("):
        run(default_monitor)
