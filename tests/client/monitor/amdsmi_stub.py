"""A stub of libamd_smi.so for the real package amdsmi."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.client.monitor.nvml_stub import compile_library

_SOURCE = Path(__file__).with_name("amdsmi_stub.c")


@dataclass(frozen=True)
class StubAmdGpu:
    """What one GPU reports, in the units of AMD SMI; None is not supported."""

    serial: str = "00000000000000aa"
    name: str = "Stub MI300X"
    energy_steps: int = 0
    step_uj: float | None = 15.3
    current_watts: int | None = 300
    average_watts: int | None = None
    limit_uw: int | None = 650_000_000
    highest_limit_uw: int | None = 750_000_000
    hip_id: int | None = None
    partition: str | None = None


def build_amd_library(folder: Path) -> None:
    """Compiles the library into the folder; skips the test without a C compiler or the package amdsmi."""
    package = find_spec("amdsmi")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package amdsmi is not installed")
    wrapper = Path(package.submodule_search_locations[0], "amdsmi_wrapper.py").read_text(encoding="utf-8")
    wanted = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    ours = set(re.findall(r"^int (\w+)\(", _SOURCE.read_text(encoding="utf-8"), re.MULTILINE))
    rest = folder / "rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 2; }}\n" for name in sorted(wanted - ours)), encoding="ascii")
    compile_library(folder / "libamd_smi.so", _SOURCE, rest)
