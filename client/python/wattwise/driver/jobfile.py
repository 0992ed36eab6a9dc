"""The job file: what recurs, how it is trained and how often."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wattwise.driver.faults import Table
from wattwise.driver.placeholders import faults_in, placeholders_in
from wattwise.errors import MonitorError, Violation, WattwiseError
from wattwise.integrations.learning_rate import OPTIMIZERS, scaled_learning_rate
from wattwise.monitor.named import checked_monitor
from wattwise.spec import GpuConfig, JobSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_JOB_KEYS = tuple(field.name for field in fields(JobSpec))
_GPU_KEYS = tuple(field.name for field in fields(GpuConfig))
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "Policy": "a text"}


class JobFileError(WattwiseError):
    """The job file cannot be used; `violations` has every fault of it."""


@dataclass(frozen=True)
class TrainSection:
    """How one trial is trained.

    Attributes:
        command: the program and its arguments, with placeholders.
        workdir: the folder that it runs in.
        optimizer: by whose rule the learning rate follows the batch size; None leaves learning rates to the command.
        default_learning_rate: the learning rate that goes with the default batch size.
    """

    command: tuple[str, ...]
    workdir: Path
    optimizer: str | None
    default_learning_rate: float


@dataclass(frozen=True)
class RunSection:
    """How often the job recurs, and with what.

    Attributes:
        recurrences: how many trained models are wanted.
        max_tries: how many trials in vain one recurrence may have.
        seed: of the first launch; every later one has one more.
        log_dir: the folder of all runs.
        observer_mode: whether power limits are profiled but not kept.
        profile_warmup_iters: unmeasured steps at each limit of that profile; None leaves it to the command, as below.
        profile_measure_iters: measured steps at each limit.
        step_watts: from one limit to the next, in watts.
        monitor: "nvml", "amdsmi", "rapl" or "estimate:WATTS"; None is the best one present.
        grace_seconds: how long a command may take to end once it is told to.
    """

    recurrences: int
    max_tries: int
    seed: int
    log_dir: Path
    observer_mode: bool
    profile_warmup_iters: int | None
    profile_measure_iters: int | None
    step_watts: float | None
    monitor: str | None
    grace_seconds: float


@dataclass(frozen=True)
class JobFile:
    """A job file without faults.

    Attributes:
        job: the job, whose `gpu` is None unless [job.gpu] says all of it.
        gpu: what [job.gpu] says; the rest is the monitor's to tell.
        train: how a trial is trained.
        run: how often, and with what.
    """

    job: JobSpec
    gpu: Mapping[str, Any]
    train: TrainSection
    run: RunSection

    @property
    def job_id(self) -> str:
        """The job's id, which a job file must give."""
        return self.job.job_id or ""

    def learning_rate(self, batch_size: int) -> float | None:
        """The learning rate that goes with a batch size; None where that is left to the command."""
        train = self.train
        if train.optimizer is None:
            return None
        rate = train.default_learning_rate
        default = self.job.default_batch_size
        return scaled_learning_rate(rate, batch_size=batch_size, default_batch_size=default, optimizer=train.optimizer)


def read(path: Path) -> JobFile:
    """Reads a job file. Relative folders in it are relative to its own.

    Raises:
        JobFileError: with every fault that can be told without the server.
    """
    faults: list[Violation] = []
    root = Table("", _parsed(path), faults)
    root.know(("job", "train", "run"), what="table")
    table = root.table("job")
    gpu = {} if table is None else _gpu(table)
    job = None if table is None else _job(table, gpu)
    train = _train(root.table("train"), path.parent)
    run = _run(root.table("run", required=False) or Table("run", {}, faults), path.parent)
    if faults:
        raise _error(path, faults)
    assert job is not None  # noqa: S101 - else there is a fault
    assert train is not None  # noqa: S101
    return JobFile(job, gpu, train, run)


def _error(path: Path, faults: list[Violation]) -> JobFileError:
    lines = "; ".join(f"{fault.field}: {fault.description}" for fault in faults)
    return JobFileError(f"{path}: {lines}", violations=faults)


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        parsed: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JobFileError(f"{path} cannot be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise JobFileError(f"{path} is not TOML: {error}") from error
    return parsed


def _job(table: Table, gpu: Mapping[str, Any]) -> JobSpec:
    table.know(_JOB_KEYS)
    if not table.has("job_id"):
        table.fault("job_id", 'is missing: it names the run, as in job_id = "mnist-nightly"')
    given: dict[str, Any] = {
        "batch_sizes": table.wholes("batch_sizes"),
        "gpu": GpuConfig(**gpu) if len(gpu) == len(_GPU_KEYS) else None,
    }
    given |= {
        "job_id_prefix": table.text("job_id_prefix"),
        "default_batch_size": table.whole("default_batch_size", least=1),
    }
    for field in fields(JobSpec):
        if field.name not in given:
            given[field.name] = table.value(field.name, _KINDS.get(str(field.type).partition(" ")[0]))
    return JobSpec(**given)


def _gpu(job: Table) -> Mapping[str, Any]:
    table = job.table("gpu", required=False)
    if table is None:
        return {}
    table.know(_GPU_KEYS)
    values: Mapping[str, Callable[[], Any]] = {
        "max_power_watts": lambda: table.number("max_power_watts"),
        "number_of_gpus": lambda: table.whole("number_of_gpus", least=1),
        "gpu_model": lambda: table.text("gpu_model"),
    }
    return {key: value() for key, value in values.items() if table.has(key)}


def _train(table: Table | None, folder: Path) -> TrainSection | None:
    if table is None:
        return None
    table.know(("command", "workdir", "optimizer", "default_learning_rate"))
    command = table.words("command")
    for word in command:
        for fault in faults_in(word):
            table.fault("command", fault)
    optimizer = table.value("optimizer", "a text")
    if optimizer is not None and str(optimizer).lower() not in OPTIMIZERS:
        table.fault("optimizer", f"is {optimizer!r}; give one of {', '.join(OPTIMIZERS)}")
    rate = table.number("default_learning_rate", 1.0)
    _check_rates(table, command)
    workdir = (folder / table.text("workdir", ".")).resolve()
    if not workdir.is_dir():
        table.fault("workdir", f"{workdir} is no folder; it is relative to the job file")
    return TrainSection(command, workdir, optimizer, rate)


def _check_rates(table: Table, command: tuple[str, ...]) -> None:
    pair = [key for key in ("optimizer", "default_learning_rate") if table.has(key)]
    wanted = any("learning_rate" in placeholders_in(word) for word in command)
    if len(pair) == 1 or (wanted and not pair):
        missing = "default_learning_rate" if "optimizer" in pair else "optimizer"
        why = "the command has {learning_rate}" if not pair else f"{pair[0]} is given"
        both = "optimizer and default_learning_rate" if not pair else missing
        table.fault(missing, f"is missing although {why}: give {both}")


def _run(table: Table, folder: Path) -> RunSection:
    table.know(tuple(field.name for field in fields(RunSection)))
    monitor = table.value("monitor", "a text")
    if monitor is not None:
        try:
            checked_monitor(monitor)
        except MonitorError as error:
            table.fault("monitor", str(error))
    return RunSection(
        recurrences=table.whole("recurrences", 20, least=1),
        max_tries=table.whole("max_tries", 20, least=1),
        seed=table.whole("seed", 123456, least=0),
        log_dir=(folder / table.text("log_dir", "runs")).resolve(),
        observer_mode=table.switch("observer_mode", default=False),
        profile_warmup_iters=table.whole("profile_warmup_iters", least=0)
        if table.has("profile_warmup_iters")
        else None,
        profile_measure_iters=table.whole("profile_measure_iters", least=1)
        if table.has("profile_measure_iters")
        else None,
        step_watts=table.number("step_watts") if table.has("step_watts") else None,
        monitor=monitor,
        grace_seconds=table.number("grace_seconds", 15.0),
    )
