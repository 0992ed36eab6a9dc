"""What a job's specification says of the GPUs, over a stub of NVIDIA's library."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor, Window, gpu_config
from wattwise.spec import GpuConfig

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu

FIRST = StubGpu(uuid="GPU-aaaa")
SECOND = StubGpu(uuid="GPU-bbbb")


@dataclass
class ZeusShaped:
    """Has what Zeus's monitor has, as far as GPUs are concerned."""

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


def case_config(indices: list[int] | None = None) -> GpuConfig:
    """What our own monitor says of the GPUs."""
    return gpu_config(NvmlMonitor(indices))


def case_config_of_zeus(indices: list[int]) -> GpuConfig:
    """What is found out of the GPUs of a monitor that does not tell."""
    return gpu_config(ZeusShaped(indices))


def test_config(machine: Machine, run: Runner) -> None:
    """Max power is the largest limit that one GPU may be set to, in watts, times the number of GPUs."""
    machine.show(FIRST, replace(SECOND, highest_limit_mw=300_000))
    expected = GpuConfig(max_power_watts=600.0, number_of_gpus=2, gpu_model="Stub V100")
    assert run(case_config) == expected


def test_config_of_chosen_gpus(machine: Machine, run: Runner) -> None:
    """GPUs that are not measured do not count."""
    machine.show(FIRST, replace(SECOND, name="Stub A100", highest_limit_mw=400_000))
    expected = GpuConfig(max_power_watts=400.0, number_of_gpus=1, gpu_model="Stub A100")
    assert run(case_config, [1]) == expected


def test_config_of_a_zeus_monitor(machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor that only has gpu_indices gets the configuration of those of the visible GPUs."""
    machine.show(FIRST, replace(SECOND, name="Stub A100", highest_limit_mw=400_000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    expected = GpuConfig(max_power_watts=400.0, number_of_gpus=1, gpu_model="Stub A100")
    assert run(case_config_of_zeus, [0]) == expected


def test_config_of_a_zeus_monitor_without_gpus() -> None:
    """A monitor of a CPU alone cannot be configured from, and the user is told what to pass."""
    with pytest.raises(MonitorError, match=r"measures no GPU.*RaplMonitor"):
        gpu_config(ZeusShaped([]))


def test_mixed_models(machine: Machine, run: Runner) -> None:
    """GPUs of two models are refused, with both names."""
    machine.show(FIRST, replace(SECOND, name="Stub A100"))
    with pytest.raises(MonitorError, match="Stub A100, Stub V100"):
        run(case_config)


def test_fixed_power_limit(machine: Machine, run: Runner) -> None:
    """A GPU whose limit cannot be set counts with the limit that it has."""
    machine.show(replace(FIRST, lowest_limit_mw=None))
    assert run(case_config).max_power_watts == 200.0


def test_no_power_limit(machine: Machine, run: Runner) -> None:
    """A GPU that tells no limit is refused, with what to give the job instead."""
    machine.show(replace(FIRST, lowest_limit_mw=None, enforced_limit_mw=None))
    with pytest.raises(MonitorError, match=r"power limit; .*gpu=GpuConfig\("):
        run(case_config)
