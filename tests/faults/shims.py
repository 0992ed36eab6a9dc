"""Builds libraries that are preloaded into a server to intercept its system calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def build_shim(name: str, folder: Path) -> Path:
    """Compiles `name`.c of this folder; skips the test if it cannot be compiled or preloaded."""
    if not sys.platform.startswith("linux"):
        pytest.skip("LD_PRELOAD is Linux's")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip(f"no C compiler (cc, gcc or clang) to build {name}.c with")
    library = folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
    subprocess.run([*command, "-o", library, Path(__file__).with_name(f"{name}.c"), "-ldl"], check=True)
    return library
