"""Fixtures: a machine with two GPUs on a stub of NVML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu, build_library, runner


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Runs a function in a new process in which pynvml finds the stub of NVML."""
    folder = tmp_path_factory.mktemp("nvml")
    build_library(folder)
    with runner(folder) as started:
        yield started


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Two visible GPUs with energy counters."""
    machine = Machine(tmp_path / "gpus.tsv")
    machine.show(StubGpu(uuid="GPU-aaaa", energy_mj=7_000), StubGpu(uuid="GPU-bbbb", energy_mj=90_000))
    monkeypatch.setenv("NVML_STUB", str(machine.file))
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    return machine
