"""Monitors by their names in job files."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise.errors import MonitorError, Remedy
from wattwise.monitor.named import checked_monitor, name_of, named_monitor

from tests.client.monitor.amdsmi_stub import StubAmdGpu, build_amd_library
from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu, runner
from tests.client.monitor.test_amdsmi import VARIABLES


def case_best(_machine: Machine) -> tuple[str, str]:
    """The default monitor of a machine with GPUs."""
    monitor = named_monitor(None)
    return monitor.kind, name_of(monitor)


def case_amd(_machine: Machine) -> tuple[str, str]:
    """The name of the default monitor of a machine with AMD GPUs, and the kind of the monitor of that name."""
    name = name_of(named_monitor(None))
    return name, named_monitor(name).kind


def case_named(_machine: Machine) -> str:
    """The GPU monitor by its name."""
    return name_of(named_monitor("nvml"))


def test_gpus_come_first(run: Runner, machine: Machine) -> None:
    """GPUs are measured by default, and by name."""
    assert run(case_best, machine) == ("nvml", "nvml")
    assert run(case_named, machine) == "nvml"


def test_amd_gpus_come_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVIDIA GPUs, AMD GPUs are measured by default, and by name."""
    build_amd_library(tmp_path)
    (tmp_path / "libnvidia-ml.so.1").touch()  # an invalid library: hides the NVIDIA GPUs of this machine
    amd = Machine(tmp_path / "amd.tsv")
    amd.show(StubAmdGpu())
    monkeypatch.setenv("AMDSMI_STUB", str(amd.file))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with runner(tmp_path) as run:
        name, kind = run(case_amd, amd)
    assert (name, kind.partition("-")[0]) == ("amdsmi", "amdsmi")


def test_name_of_an_estimate() -> None:
    """The name of an estimate opens the same estimate."""
    assert name_of(named_monitor("estimate:62.5")) == "estimate:62.5"


@pytest.mark.parametrize(
    "name", ["", "nvidia", "estimate", "estimate:", "estimate:x", "estimate:0", "estimate:inf", "estimate:-1"]
)
def test_unknown_name(name: str) -> None:
    """The error for an unknown name has the known ones."""
    with pytest.raises(MonitorError) as refusal:
        checked_monitor(name)
    assert all(known in str(refusal.value) for known in ('"nvml"', '"amdsmi"', '"rapl"', '"estimate:150"'))
    with pytest.raises(MonitorError):
        named_monitor(name)


def case_none(_machine: Machine) -> tuple[str, tuple[Remedy, ...]]:
    """The default monitor's kind, or the remedies of its error."""
    try:
        return named_monitor(None).kind, ()
    except MonitorError as error:
        return "none", error.remedies


def test_without_gpus(run: Runner, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the processor is measured; if that fails too, the error's remedy is an estimate."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(case_none, machine) in [("rapl", ()), ("none", (Remedy.ESTIMATE,))]


def case_of_run(_machine: Machine) -> tuple[str, tuple[Remedy, ...]]:
    """The first remedy of the error of the default monitor, if there is one."""
    with pytest.raises(MonitorError) as refusal:
        named_monitor(None)
    return refusal.value.problem, refusal.value.remedies


@pytest.mark.parametrize("broken", [StubGpu(uuid="lost"), StubGpu(energy_mj=None, power_mw=None), StubGpu(mig_mode=1)])
def test_gpus_that_do_not_work(run: Runner, machine: Machine, broken: StubGpu) -> None:
    """If a GPU is present but cannot be measured, no other device is measured in its place."""
    machine.show(StubGpu(), broken)
    problem, remedies = run(case_of_run, machine)
    assert "GPU" in problem
    assert Remedy.SELECT_GPUS in remedies
