"""What is looked at before anything is launched: the program, the monitor, and what a server says of the job."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise.driver.environment import search_path
from wattwise.driver.jobfile import JobFile, JobFileError
from wattwise.driver.monitor_advice import for_job_file
from wattwise.driver.own_server import OwnServer
from wattwise.errors import InvalidJobSpecError, JobDiffersError, MonitorError, Violation
from wattwise.monitor import gpu_config
from wattwise.monitor.named import named_monitor
from wattwise.rpc.client import Client

if TYPE_CHECKING:
    from wattwise.monitor.window import WindowMonitor
    from wattwise.spec import GpuConfig, JobSpec


def opened(file: JobFile) -> tuple[WindowMonitor, GpuConfig]:
    """The monitor, and the GPUs: what the file says of them, and the rest as the monitor knows it.

    Raises:
        JobFileError: if one of them or the program is not there; names all that are not.
    """
    faults = list(_program_faults(file))
    try:
        monitor = named_monitor(file.run.monitor)
    except MonitorError as error:
        faults.append(Violation("run.monitor", for_job_file(str(error))))
    else:
        try:
            gpu = replace(gpu_config(monitor), **file.gpu) if file.job.gpu is None else file.job.gpu
        except MonitorError as error:
            faults.append(Violation("job.gpu", for_job_file(str(error))))
    if faults:
        raise JobFileError("the job file names what is not there", violations=faults)
    return monitor, gpu


def _program_faults(file: JobFile) -> Iterator[Violation]:
    program, workdir = file.train.command[0], file.train.workdir
    where = program if "/" not in program else str(workdir / program)
    if "{" in program or shutil.which(where, path=search_path()) is not None:
        return
    if "/" in program and Path(where).exists():
        yield Violation("train.command", f"{where} is no program that may be executed: try chmod +x")
    else:
        yield Violation("train.command", f"no program {program!r} is found (PATH, or relative to {workdir})")


@contextmanager
def refusals() -> Iterator[None]:
    """Makes a fault of the job file of what the server has against its job.

    Raises:
        JobFileError: the server refuses the job.
    """
    try:
        yield
    except InvalidJobSpecError as error:
        named = [Violation(f"job.{fault.field.removeprefix('job.')}", fault.description) for fault in error.violations]
        raise JobFileError(str(error), violations=named) from error
    except JobDiffersError as error:
        raise JobFileError(str(error)) from error


def try_to_register(job: JobSpec) -> None:
    """Has a server of its own, which knows nothing and is gone afterwards, look at a job.

    Raises:
        OwnServerError: there can be none here.
        JobFileError: it refuses the job.
    """
    with (
        tempfile.TemporaryDirectory(prefix="wattwise-") as folder,
        OwnServer(Path(folder)) as address,
        Client(address) as client,
        refusals(),
    ):
        client.register_job(job)
