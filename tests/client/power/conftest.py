"""Fixtures: a stub of NVIDIA's library with two GPUs whose limits can be set, and processes that load it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.monitor.conftest import machine
from tests.client.monitor.nvml_stub import Runner, build_library, runner

__all__ = ["machine"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub of NVIDIA's library."""
    folder = tmp_path_factory.mktemp("nvml")
    build_library(folder)
    return folder


@pytest.fixture(scope="session")
def run(library: Path) -> Iterator[Runner]:
    """Runs a function in a new process in which pynvml loads the stub."""
    with runner(library) as started:
        yield started
