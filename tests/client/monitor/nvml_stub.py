"""A stub of libnvidia-ml.so.1 for the real pynvml."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pytest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = ParamSpec("P")
T = TypeVar("T")
_VARIABLES = (
    "AMDSMI_STUB",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "NVML_STUB",
    "ROCM_HOME",
    "ROCM_PATH",
    "ROCR_VISIBLE_DEVICES",
    "WATTWISE_SPOOL",
)


@dataclass(frozen=True)
class StubGpu:
    """What one GPU reports, in the units of NVML; None is not supported.

    An energy of "+" grows with time by the GPU's power, in steps of 20 ms.
    """

    uuid: str = "GPU-aaaa"
    name: str = "Stub V100"
    energy_mj: int | str | None = 0
    power_mw: int | None = 100_000
    lowest_limit_mw: int | None = 100_000
    highest_limit_mw: int | None = 250_000
    enforced_limit_mw: int | None = 200_000
    mig_mode: int | None = None


@dataclass(frozen=True)
class Machine:
    """A machine's GPUs, which the stub reads from a file."""

    file: Path

    def show(self, *gpus: DataclassInstance) -> None:
        """Replaces the machine's GPUs atomically."""
        lines = ("\t".join("-" if value is None else str(value) for value in astuple(gpu)) + "\n" for gpu in gpus)
        fresh = self.file.with_suffix(".new")
        # Drivers send bytes of any encoding.
        fresh.write_bytes("".join(lines).encode("ascii", "surrogateescape"))
        fresh.rename(self.file)

    def power_reads(self) -> int:
        """How often a GPU's power has been read."""
        reads = Path(f"{self.file}.reads")
        return reads.stat().st_size if reads.exists() else 0


class Runner:
    """Runs each function in a new process that loads the stub; forks of one process, which has imported everything."""

    def __init__(self, origin: ProcessPoolExecutor) -> None:
        self._origin = origin

    def __call__(self, case: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns or raises what `case` does there, with the variables of this process that the cases read."""
        variables = {name: os.environ.get(name) for name in _VARIABLES}
        return self._origin.submit(_run_in_fork, variables, case, args, kwargs).result()


@contextmanager
def runner(library: Path) -> Iterator[Runner]:
    """A Runner whose processes look for libraries in this folder first."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as origin:
        with pytest.MonkeyPatch.context() as patch:
            # The dynamic loader reads it only when a program starts.
            patch.setenv("LD_LIBRARY_PATH", str(library))
            origin.submit(os.getpid).result()
        yield Runner(origin)


def build_library(folder: Path) -> None:
    """Compiles the stub into the folder; skips the test without a C compiler."""
    compile_library(folder / "libnvidia-ml.so.1", Path(__file__).with_name("nvml_stub.c"))


def compile_library(library: Path, *sources: Path) -> None:
    """Compiles a shared library; skips the test without a C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip(f"no C compiler (cc, gcc or clang) to build a stub of {library.name} with")
    command = [compiler, "-shared", "-fPIC", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(library), *map(str, sources)], check=True)


def _run_in_fork(
    variables: Mapping[str, str | None], case: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> T:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as fork:
        return fork.submit(case, *args, **kwargs).result()
