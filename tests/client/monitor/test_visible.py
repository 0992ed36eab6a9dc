"""CUDA_VISIBLE_DEVICES, and the numbers of GPUs."""

from __future__ import annotations

import logging

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor
from wattwise.monitor.visible import visible_devices

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu


@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2, 0", [2, 0]),
        ("1,7,0", [1]),
        ("0,-1,1", [0]),
        ("GPU-ab", [0]),
        ("GPU-cd2,1", [2, 1]),
        ("GPU-cd", []),
        ("GPU-ef,1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices(variable: str | None, devices: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES is read as by CUDA: the first entry without a GPU hides all that follow."""
    assert visible_devices(variable, ["GPU-ab", "GPU-cd1", "GPU-cd2"]) == devices


@pytest.mark.parametrize(
    ("variable", "message"), [("1,GPU-cd1", "GPU 1 twice"), ("MIG-ab", "MIG slice.*EstimateMonitor")]
)
def test_visible_devices_that_cannot_be_measured(variable: str, message: str) -> None:
    """A GPU that is listed twice and a MIG slice are refused."""
    with pytest.raises(MonitorError, match=message):
        visible_devices(variable, ["GPU-ab", "GPU-cd1"])


def case_warnings(indices: list[int]) -> list[str]:
    """The log messages while the monitor is created."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("wattwise").addHandler(handler)
    NvmlMonitor(indices)
    return messages


def test_warning_if_numbers_are_ambiguous(machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with different GPUs, a warning names the measured ones, unless CUDA_DEVICE_ORDER is set."""
    machine.show(StubGpu(uuid="GPU-aaaa"), StubGpu(uuid="GPU-bbbb", name="Stub A100"))
    (message,) = run(case_warnings, [1])
    assert "Stub A100 (GPU-bbbb)" in message
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert run(case_warnings, [1]) == []
