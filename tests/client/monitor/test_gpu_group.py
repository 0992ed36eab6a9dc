"""`gpu_group` on a stub of NVML."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor, Window, gpu_group
from wattwise.rules import GpuGroup

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu

FIRST = StubGpu(uuid="GPU-aaaa")
SECOND = StubGpu(uuid="GPU-bbbb")


@dataclass
class ZeusShaped:
    """A monitor with the signatures of Zeus's."""

    gpu_indices: list[int]

    def begin_window(self, key: str, sync_execution: bool = True) -> None:
        """Not called here."""

    def end_window(
        self,
        key: str,
        sync_execution: bool = True,  # noqa: ARG002 - Zeus's own signature
        cancel: bool = False,  # noqa: ARG002 - Zeus's own signature
    ) -> Window:
        """Not called here."""
        raise AssertionError(key)


def case_group(indices: list[int] | None = None) -> GpuGroup:
    """The GPU group of Wattwise's monitor."""
    return gpu_group(NvmlMonitor(indices))


def case_group_of_zeus(indices: list[int]) -> GpuGroup:
    """The GPU group of a monitor without `gpu_group`."""
    return gpu_group(ZeusShaped(indices))


def test_group(machine: Machine, run: Runner) -> None:
    """Max power is the highest limit that can be set on one GPU, in watts, times the number of GPUs."""
    machine.show(FIRST, replace(SECOND, highest_limit_mw=300_000))
    expected = GpuGroup(gpu_model="Stub V100", count=2, max_power_watts_per_gpu=300.0)
    assert run(case_group) == expected


def test_group_of_chosen_gpus(machine: Machine, run: Runner) -> None:
    """Only measured GPUs count."""
    machine.show(FIRST, replace(SECOND, name="Stub A100", highest_limit_mw=400_000))
    expected = GpuGroup(gpu_model="Stub A100", count=1, max_power_watts_per_gpu=400.0)
    assert run(case_group, [1]) == expected


def test_group_of_a_zeus_monitor(machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of a monitor with only gpu_indices are looked up among the visible ones."""
    machine.show(FIRST, replace(SECOND, name="Stub A100", highest_limit_mw=400_000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    expected = GpuGroup(gpu_model="Stub A100", count=1, max_power_watts_per_gpu=400.0)
    assert run(case_group_of_zeus, [0]) == expected


def test_group_of_a_zeus_monitor_without_gpus() -> None:
    """A monitor without GPUs has no GPU group; the error names the job's `gpu` and another monitor."""
    with pytest.raises(MonitorError, match=r"measures no GPU.*gpu=GpuGroup\(.*RaplMonitor"):
        gpu_group(ZeusShaped([]))


def test_group_of_a_zeus_monitor_whose_gpus_are_not_found(machine: Machine, run: Runner) -> None:
    """On a machine without these GPUs the error names the job's `gpu` first."""
    machine.show()
    with pytest.raises(MonitorError, match=r"ZeusShaped.* cannot be looked up: .*no NVIDIA GPU; set gpu=GpuGroup\("):
        run(case_group_of_zeus, [0])


def test_mixed_models(machine: Machine, run: Runner) -> None:
    """The error for GPUs of two models names both."""
    machine.show(FIRST, replace(SECOND, name="Stub A100"))
    with pytest.raises(MonitorError, match="Stub A100, Stub V100"):
        run(case_group)


def test_fixed_power_limit(machine: Machine, run: Runner) -> None:
    """A GPU whose limit cannot be set counts with its current limit."""
    machine.show(replace(FIRST, lowest_limit_mw=None))
    assert run(case_group).max_power_watts == 200.0


def test_no_power_limit(machine: Machine, run: Runner) -> None:
    """A GPU without a power limit is refused; the error names JobSpec's `gpu`."""
    machine.show(replace(FIRST, lowest_limit_mw=None, enforced_limit_mw=None))
    with pytest.raises(MonitorError, match=r"power limit; .*gpu=GpuGroup\("):
        run(case_group)
