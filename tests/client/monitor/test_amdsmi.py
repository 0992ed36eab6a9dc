"""AmdSmiMonitor with the real package amdsmi on a stub of AMD's library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import AmdSmiMonitor, Window, gpu_group
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS
from wattwise.rules import GpuGroup

from tests.client.monitor.amdsmi_stub import StubAmdGpu, build_amd_library
from tests.client.monitor.nvml_stub import Machine, Runner, runner
from tests.client.monitor.test_gpu_group import ZeusShaped

FIRST = StubAmdGpu(serial="00000000000000aa", energy_steps=1_000)
SECOND = StubAmdGpu(serial="00000000000000bb", energy_steps=9_000)
VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCM_HOME", "ROCM_PATH")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Runs a function in a new process in which amdsmi finds the stub of AMD's library."""
    folder = tmp_path_factory.mktemp("amdsmi")
    build_amd_library(folder)
    (folder / "libnvidia-ml.so.1").touch()  # an invalid library: hides the NVIDIA GPUs of this machine
    with runner(folder) as started:
        yield started


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Two visible GPUs with energy counters."""
    machine = Machine(tmp_path / "gpus.tsv")
    machine.show(FIRST, SECOND)
    monkeypatch.setenv("AMDSMI_STUB", str(machine.file))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return machine


def used(gpu: StubAmdGpu, steps: int) -> StubAmdGpu:
    """The GPU after `steps` more steps of 15.3 µJ."""
    return replace(gpu, energy_steps=gpu.energy_steps + steps)


def case_energy(machine: Machine, indices: list[int] | None = None) -> tuple[list[int], float]:
    """A window in which the first GPU uses 15.3 J and the second 76.5 J."""
    monitor = AmdSmiMonitor(indices)
    monitor.begin_window("epoch")
    time.sleep(COUNTER_SECONDS)
    machine.show(used(FIRST, 1_000_000), used(SECOND, 5_000_000))
    return monitor.gpu_indices, monitor.end_window("epoch").total_energy


def case_window(indices: list[int] | None = None) -> Window:
    """A window in which nothing changes."""
    monitor = AmdSmiMonitor(indices)
    monitor.begin_window("epoch")
    time.sleep(COUNTER_SECONDS)
    return monitor.end_window("epoch")


def case_group() -> GpuGroup:
    """The GPU group of AMD GPUs."""
    return gpu_group(AmdSmiMonitor())


def case_group_of_zeus() -> GpuGroup:
    """The GPU group of a monitor without `gpu_group`."""
    return gpu_group(ZeusShaped([1]))


def case_kind() -> tuple[str, str]:
    """The monitor's kind and repr."""
    return AmdSmiMonitor.kind, repr(AmdSmiMonitor())


def case_lost(machine: Machine) -> None:
    """A GPU that is lost within a window."""
    monitor = AmdSmiMonitor()
    monitor.begin_window("epoch")
    machine.show(FIRST, StubAmdGpu(serial="lost"))
    monitor.end_window("epoch")


def test_counters_are_summed_in_joules(machine: Machine, run: Runner) -> None:
    """A window's energy is the growth of all GPUs' counters, each step 15.3 millionths of a joule."""
    indices, joules = run(case_energy, machine)
    assert indices == [0, 1]
    assert joules == pytest.approx(91.8)


@pytest.mark.parametrize(
    "variables",
    [
        {"ROCR_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "GPU-00000000000000BB"},
        {"HIP_VISIBLE_DEVICES": "1,0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"},
        {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
        {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"},
    ],
)
def test_indices_count_visible_gpus(
    machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """Index 0 is the first GPU that all of ROCm's variables show, by number or by UUID."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(case_energy, machine, [0])[1] == pytest.approx(76.5)


def test_gpus_are_numbered_as_hip_numbers_them(machine: Machine, run: Runner) -> None:
    """If AMD SMI reports HIP's numbers, they are used instead of its own order."""
    machine.show(replace(FIRST, hip_id=1, current_watts=100), replace(SECOND, hip_id=0, current_watts=200))
    window = run(case_window, [0])
    assert window.total_energy == pytest.approx(200 * window.time)


@pytest.mark.usefixtures("machine")
def test_wrong_indices(run: Runner) -> None:
    """The error for indices without a GPU names the visible GPUs."""
    with pytest.raises(MonitorError, match=r"visible GPUs are \[0, 1\]"):
        run(AmdSmiMonitor, [2])


@pytest.mark.parametrize(
    ("gpu", "watts"),
    [
        (replace(FIRST, step_uj=None), 300),
        (replace(FIRST, step_uj=None, current_watts=None, average_watts=250), 250),
        (replace(FIRST, step_uj=None, current_watts=0, average_watts=250), 250),
    ],
)
def test_power_is_integrated_without_a_counter(machine: Machine, run: Runner, gpu: StubAmdGpu, watts: int) -> None:
    """The energy of a GPU without a counter is its power times the window's length: current power, else average."""
    machine.show(gpu)
    window = run(case_window)
    assert window.total_energy == pytest.approx(watts * window.time)


def test_gpu_without_energy_and_power(machine: Machine, run: Runner) -> None:
    """A GPU that reports neither energy nor power is refused; the error names an alternative."""
    machine.show(replace(FIRST, step_uj=None, current_watts=None))
    with pytest.raises(
        MonitorError, match=r"Stub MI300X \(GPU-00000000000000aa\) does not report its power; .*Estimate"
    ):
        run(AmdSmiMonitor)


@pytest.mark.parametrize(
    ("gpu", "watts"),
    [(FIRST, 1500), (replace(FIRST, highest_limit_uw=None), 1300), (replace(FIRST, highest_limit_uw=750), 1500)],
)
def test_group(machine: Machine, run: Runner, gpu: StubAmdGpu, watts: float) -> None:
    """The max power is the highest limit, or the current one, whether reported in microwatts or watts."""
    machine.show(gpu, replace(gpu, serial="bb"))
    assert run(case_group) == GpuGroup(gpu_model="Stub MI300X", count=2, max_power_watts_per_gpu=watts / 2)


def test_group_of_a_zeus_monitor(machine: Machine, run: Runner) -> None:
    """The GPUs of a monitor with only gpu_indices are looked up among AMD GPUs if there are no others."""
    machine.show(FIRST, replace(SECOND, name="Stub MI210", highest_limit_uw=300_000_000))
    assert run(case_group_of_zeus) == GpuGroup(gpu_model="Stub MI210", count=1, max_power_watts_per_gpu=300.0)


def test_no_power_limit(machine: Machine, run: Runner) -> None:
    """A GPU without a power limit is refused; the error names JobSpec's `gpu`."""
    machine.show(replace(FIRST, limit_uw=None))
    with pytest.raises(MonitorError, match=r"power limit above 0 W; .*gpu=GpuGroup\("):
        run(case_group)


@pytest.mark.usefixtures("machine")
def test_kind(run: Runner) -> None:
    """The monitor's repr names its GPUs."""
    gpus = "Stub MI300X (GPU-00000000000000aa), Stub MI300X (GPU-00000000000000bb)"
    assert run(case_kind) == ("amdsmi", f"AmdSmiMonitor({gpus})")


def test_partitioned(machine: Machine, run: Runner) -> None:
    """A partitioned GPU is refused by name; one in SPX mode is measured."""
    machine.show(replace(FIRST, partition="CPX"), replace(SECOND, partition="SPX"))
    with pytest.raises(MonitorError, match=r"GPU-00000000000000aa\) is partitioned.*SPX"):
        run(AmdSmiMonitor)
    assert run(case_window, [1]).total_energy > 0


def test_lost_gpu(machine: Machine, run: Runner) -> None:
    """If a GPU is lost within a window, the error names it and the cause."""
    with pytest.raises(MonitorError, match=r"Stub MI300X.*bb.* cannot be read: AMDSMI_STATUS_API_FAILED"):
        run(case_lost, machine)


def test_lost_gpu_of_others(machine: Machine, run: Runner) -> None:
    """The error of a broken GPU is raised only if this GPU is selected."""
    machine.show(FIRST, SECOND, StubAmdGpu(serial="lost"))
    assert run(case_energy, machine, [0, 1])[1] == pytest.approx(91.8)
    machine.show(FIRST, SECOND, StubAmdGpu(serial="lost"))
    with pytest.raises(MonitorError, match="AMD GPU 2 cannot be read"):
        run(AmdSmiMonitor)


@pytest.mark.usefixtures("machine")
def test_hidden_gpus(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every GPU is hidden, the error names the variable and an alternative."""
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    with pytest.raises(MonitorError, match=r"no AMD GPU that ROCR_VISIBLE_DEVICES='' shows; .*EstimateMonitor"):
        run(AmdSmiMonitor)


def test_no_driver(machine: Machine, run: Runner) -> None:
    """Without the AMD driver, the error names an alternative."""
    machine.file.unlink()
    with pytest.raises(MonitorError, match=r"the AMD driver cannot be reached \(AMDSMI_STATUS_DRIVER_NOT.*Estimate"):
        run(AmdSmiMonitor)


@pytest.mark.usefixtures("machine")
def test_no_library(tmp_path: Path) -> None:
    """Without AMD's library, the error names it, and nothing is printed to stdout."""
    (tmp_path / "libamd_smi.so").touch()  # an invalid library, found before the machine's own
    program = "from wattwise import AmdSmiMonitor; AmdSmiMonitor()"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"Error: .*libamd_smi.so.*EstimateMonitor", done.stderr)


@pytest.mark.usefixtures("machine")
def test_no_package(run: Runner) -> None:
    """Without amdsmi, the error names its source and an alternative."""
    with pytest.raises(MonitorError, match=r"amdsmi is not installed.*/opt/rocm/share/amd_smi.*EstimateMonitor"):
        run(case_without_amdsmi)


def case_without_amdsmi() -> None:
    """Creates the monitor without amdsmi."""
    sys.modules["amdsmi"] = None  # type: ignore[assignment]  # makes the import fail
    AmdSmiMonitor()
