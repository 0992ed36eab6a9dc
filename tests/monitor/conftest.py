"""A machine with two GPUs, as far as NVML can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitor.nvml_stub import NvmlStub, StubGpu, build_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stub of NVIDIA's library."""
    folder = tmp_path_factory.mktemp("nvml")
    build_library(folder)
    return folder


@pytest.fixture
def stub(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    """Two GPUs with energy counters, none of which CUDA hides."""
    stub = NvmlStub(tmp_path / "gpus.tsv")
    stub.show(StubGpu(uuid="GPU-aaaa", energy_mj=7_000), StubGpu(uuid="GPU-bbbb", energy_mj=90_000))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("NVML_STUB", str(stub.file))
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    return stub
