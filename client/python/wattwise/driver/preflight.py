"""Checks before the first launch: the program, the monitor, and the job on a server; and the dry run."""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise.driver.folder import folder_name
from wattwise.driver.jobfile import JobFile, JobFileError
from wattwise.driver.launch_context import LaunchContext, command_line, search_path
from wattwise.driver.own_server import OwnServer, OwnServerError
from wattwise.driver.placeholders import PLACEHOLDERS, substitute
from wattwise.errors import InvalidJobSpecError, JobDiffersError, MonitorError, Remedy, Violation
from wattwise.monitor import gpu_group
from wattwise.monitor.named import named_monitor
from wattwise.rpc.client import Client

if TYPE_CHECKING:
    from wattwise import v1
    from wattwise.monitor.window import WindowMonitor
    from wattwise.rules import GpuGroup
    from wattwise.spec import JobSpec

_LONGEST_ARGUMENT = 32 * mmap.PAGESIZE - 1
"""Linux's limit in bytes; the page size is 4096 on most machines."""

REMEDIES = {
    Remedy.OTHER_MONITOR: 'write monitor = "rapl" under [run] for training on the processor, '
    'or monitor = "estimate:150" with the power of the training in watts',
    Remedy.ESTIMATE: 'write monitor = "estimate:150" under [run], with the power of the training in watts',
    Remedy.GPU_GROUP: "write gpu_model, count and max_power_watts_per_gpu under [job.gpu]",
    Remedy.SELECT_GPUS: "select other GPUs with CUDA_VISIBLE_DEVICES",
}
"""The remedies of a `MonitorError`, for the author of a job file."""


def monitor_fault(error: MonitorError) -> str:
    """Returns the message of a monitor's error, for the author of a job file."""
    remedies = ", or ".join(REMEDIES[remedy] for remedy in error.remedies)
    return f"{error.problem}; {remedies}" if remedies else error.problem


def open_monitor(file: JobFile) -> tuple[WindowMonitor, GpuGroup]:
    """Opens the monitor; returns it with the GPUs, which [job.gpu] overrides.

    Raises:
        JobFileError: the program, the monitor or the GPUs are not found; names all that are not.
    """
    faults = list(_program_faults(file))
    try:
        monitor = named_monitor(file.run.monitor)
    except MonitorError as error:
        faults.append(Violation("run.monitor", monitor_fault(error)))
    else:
        try:
            gpu = replace(gpu_group(monitor), **file.gpu) if file.job.gpu is None else file.job.gpu
        except MonitorError as error:
            faults.append(Violation("job.gpu", monitor_fault(error)))
    if faults:
        raise JobFileError("the program, the monitor or the GPUs of the job file are not found", violations=faults)
    return monitor, gpu


def _program_faults(file: JobFile) -> Iterator[Violation]:
    numbers = dict.fromkeys(PLACEHOLDERS, "0")
    words: Sequence[str] = ()
    try:
        words = substitute(file.train.command, {**numbers, "log_dir": str(file.run.log_dir / folder_name(file.job_id))})
    except ValueError as error:
        yield Violation("train.command", str(error))
    for word in words:
        if (size := len(os.fsencode(word))) > _LONGEST_ARGUMENT:
            text = f"{word!r:.80} has {size:,} bytes; an argument has {_LONGEST_ARGUMENT:,} at most: put it into a file"
            yield Violation("train.command", text)
    program, workdir = file.train.command[0], file.train.workdir
    path = program if "/" not in program else str(workdir / program)
    if "{" in program or shutil.which(path, path=search_path()) is not None:
        return
    if "/" in program and Path(path).exists():
        yield Violation("train.command", f"{path} is not an executable file; try chmod +x")
    else:
        yield Violation("train.command", f"program {program!r} is not found (in PATH, or relative to {workdir})")


@contextmanager
def job_faults() -> Iterator[None]:
    """Turns a server's refusal of the job into faults of the job file.

    Raises:
        JobFileError: the server refuses the job.
    """
    try:
        yield
    except InvalidJobSpecError as error:
        faults = [Violation(f"job.{fault.field.removeprefix('job.')}", fault.description) for fault in error.violations]
        raise JobFileError(str(error), violations=faults) from error
    except JobDiffersError as error:
        raise JobFileError(str(error)) from error


def dry_run(file: JobFile, job: JobSpec, server: str | None, monitor: str) -> None:
    """Has a temporary server check the job, then prints the command for each batch size, the default first.

    Raises:
        JobFileError: the server refuses the job.
    """
    try:
        resolved = _try_to_register(job)
        target_metric, max_epochs, note = repr(resolved.target.value), str(resolved.max_epochs), ""
    except OwnServerError as error:
        target_metric = repr(job.target_metric)
        max_epochs = "EPOCHS" if job.max_epochs is None else str(job.max_epochs)
        note = f"; the job was not checked by a server: {error}"
    for size in sorted(job.batch_sizes, key=lambda size: (size != job.default_batch_size, size)):
        context = LaunchContext(
            spec=job,
            target_metric=target_metric,
            max_epochs=max_epochs,
            server=server or "127.0.0.1:PORT",
            monitor=monitor,
            trial_number="N",
            launch_id="ID",
            reason="",
            batch_size=size,
            seed=file.run.seed,
            recurrence=1,
            try_number=1,
            log_dir=file.run.log_dir / folder_name(file.job_id) / "trial-N",
        )
        command = command_line(file, context)
        program, *arguments = command.words
        print(f"# batch size {size}")  # noqa: T201 - the command's answer
        for name, value in sorted(command.variables.items()):
            print(f"{name}={_shell_word(value)} \\")  # noqa: T201 - the command's answer
        # As it is found at run time, where the driver's own environment comes before PATH.
        found = program if "/" in program else shutil.which(program, path=search_path()) or program
        print(" ".join(map(_shell_word, (found, *arguments))))  # noqa: T201 - the command's answer
    words = [
        "N",
        "ID",
        *(["PORT"] if server is None else []),
        *(["EPOCHS"] if max_epochs == "EPOCHS" else []),
    ]
    if job.has_prices:
        print(f"# {job.eta_source()}", file=sys.stderr)  # noqa: T201 - the command's answer
    print(  # noqa: T201 - the command's answer
        f"# in {file.train.workdir}; {', '.join(words[:-1])} and {words[-1]} are known at run time; each later try has "
        f"the next seed{note}",
        file=sys.stderr,
    )


def _shell_word(word: str) -> str:
    """Returns a word for a shell that a terminal shows as it is; one that it would not show in the form of Bash."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'{}'".format(word.encode("unicode_escape").decode().replace("'", "\\'"))


def _try_to_register(job: JobSpec) -> v1.JobSpec:
    """Registers a job on a temporary server; returns it with every default filled in."""
    with (
        tempfile.TemporaryDirectory(prefix="wattwise-") as folder,
        OwnServer(Path(folder)) as address,
        Client(address) as client,
        job_faults(),
    ):
        return client.register_job(job).job.spec
