"""Monitors by name, as a job file has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise.errors import MonitorError, Remedy
from wattwise.monitor.named import checked_monitor, name_of, named_monitor

from tests.client.monitor.amdsmi_stub import StubAmdGpu, build_amd_library
from tests.client.monitor.nvml_stub import Machine, Runner, runner
from tests.client.monitor.test_amdsmi import VARIABLES


def case_best(_machine: Machine) -> tuple[str, str]:
    """The best monitor of a machine that has GPUs."""
    monitor = named_monitor(None)
    return monitor.kind, name_of(monitor)


def case_amd(_machine: Machine) -> tuple[str, str]:
    """The best monitor of a machine whose GPUs are AMD's, and that which is opened elsewhere under its name."""
    name = name_of(named_monitor(None))
    return name, named_monitor(name).kind


def case_named(_machine: Machine) -> str:
    """The GPUs' monitor by its name."""
    return name_of(named_monitor("nvml"))


def test_gpus_come_first(run: Runner, machine: Machine) -> None:
    """Where there are GPUs, they are measured, by name or unasked."""
    assert run(case_best, machine) == ("nvml", "nvml")
    assert run(case_named, machine) == "nvml"


def test_gpus_of_amd_come_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are none of NVIDIA's, AMD's GPUs are measured, unasked or by name."""
    build_amd_library(tmp_path)
    (tmp_path / "libnvidia-ml.so.1").touch()  # not a library: here are no GPUs of NVIDIA's, whatever this machine has
    amd = Machine(tmp_path / "amd.tsv")
    amd.show(StubAmdGpu())
    monkeypatch.setenv("AMDSMI_STUB", str(amd.file))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with runner(tmp_path) as run:
        name, kind = run(case_amd, amd)
    assert (name, kind.partition("-")[0]) == ("amdsmi", "amdsmi")


def test_estimate_comes_back() -> None:
    """A monitor is opened again, elsewhere, under the name that it tells."""
    assert name_of(named_monitor("estimate:62.5")) == "estimate:62.5"


@pytest.mark.parametrize(
    "name", ["", "nvidia", "estimate", "estimate:", "estimate:x", "estimate:0", "estimate:inf", "estimate:-1"]
)
def test_no_monitor(name: str) -> None:
    """What is none is refused, with what there is."""
    with pytest.raises(MonitorError) as refusal:
        checked_monitor(name)
    assert all(known in str(refusal.value) for known in ('"nvml"', '"amdsmi"', '"rapl"', '"estimate:150"'))
    with pytest.raises(MonitorError):
        named_monitor(name)


def case_none(_machine: Machine) -> tuple[str, tuple[Remedy, ...]]:
    """A machine whose GPUs are hidden and that has no processor monitor either, as far as a container shows."""
    try:
        return named_monitor(None).kind, ()
    except MonitorError as error:
        return "none", error.remedies


def test_nothing_to_measure_with(run: Runner, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the processor is measured, and without that too it is an error that names the estimate."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(case_none, machine) in [("rapl", ()), ("none", (Remedy.ESTIMATE,))]
