"""The job file: the job, how a trial is trained, and how often the job recurs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wattwise.driver.evaluations import fault_in
from wattwise.driver.placeholders import faults_in, placeholders_in
from wattwise.driver.toml_table import NOT_NEGATIVE, POSITIVE, Table, at_least, parsed
from wattwise.errors import InvalidArgumentError, MonitorError, Violation, WattwiseError
from wattwise.files import FileError, resolved
from wattwise.integrations.learning_rate import OPTIMIZERS, scaled_learning_rate, scaling_rule
from wattwise.monitor.named import checked_monitor
from wattwise.prices import PRICES, price_faults
from wattwise.rules import GpuGroup
from wattwise.spec import JobSpec
from wattwise.variables import control_fault


class JobFileError(WattwiseError):
    """The job file is invalid; `violations` has every fault."""


@dataclass(frozen=True)
class TrainSection:
    """How one trial is trained.

    Attributes:
        command: the program and its arguments, with placeholders.
        workdir: the folder that it runs in.
        optimizer: the rule by which the learning rate follows the batch size; None passes no learning rate.
        default_learning_rate: the learning rate of the default batch size.
        metric_pattern: the regular expression of the metrics in the output; None reads none.
        epoch_pattern: the regular expression of the epochs in the output; None counts the metrics.
    """

    command: tuple[str, ...]
    workdir: Path = Path()
    optimizer: str | None = None
    default_learning_rate: float | None = None
    metric_pattern: str | None = None
    epoch_pattern: str | None = None


@dataclass(frozen=True)
class RunSection:
    """How often the job recurs, and with what.

    Attributes:
        recurrences: the number of trained models.
        max_tries: failed trials that one recurrence may have.
        seed: of the first launch; each later launch has the next seed.
        log_dir: the folder of all runs.
        observer_mode: whether power limits are profiled but not kept.
        profile_warmup_iters: steps before the measurement at each power limit; None leaves it to the command.
        profile_measure_iters: measured steps at each power limit; None leaves it to the command.
        step_watts: the difference between power limits, in watts; None leaves it to the command.
        monitor: "nvml", "amdsmi", "rapl" or "estimate:WATTS"; None is the best one present.
        grace_seconds: time from SIGTERM to SIGKILL.
    """

    recurrences: int = 20
    max_tries: int = 20
    seed: int = 123456
    log_dir: Path = Path("runs")
    observer_mode: bool = False
    profile_warmup_iters: int | None = None
    profile_measure_iters: int | None = None
    step_watts: float | None = None
    monitor: str | None = None
    grace_seconds: float = 15.0


@dataclass(frozen=True)
class JobFile:
    """A job file without faults.

    Attributes:
        job: the job; its `gpu` is None unless [job.gpu] is complete.
        gpu: the keys of [job.gpu]; the monitor provides the others.
        train: how a trial is trained.
        run: how often the job recurs, and with what.
    """

    job: JobSpec
    gpu: Mapping[str, Any]
    train: TrainSection
    run: RunSection

    @property
    def job_id(self) -> str:
        """The job id."""
        return self.job.job_id

    def learning_rate(self, batch_size: int) -> float | None:
        """Returns the learning rate that goes with a batch size; None without an optimizer."""
        train = self.train
        if train.optimizer is None or train.default_learning_rate is None:
            return None
        return scaled_learning_rate(
            train.default_learning_rate,
            batch_size=batch_size,
            default_batch_size=self.job.default_batch_size,
            optimizer=train.optimizer,
        )


def read(path: Path) -> JobFile:
    """Reads a job file. Relative folders in it are relative to the file's own folder.

    Raises:
        JobFileError: with every fault that can be found without a server.
    """
    faults: list[Violation] = []
    root = Table("", parsed(path, JobFileError), faults)
    root.check_keys(("job", "train", "run"))
    job, train, run = root.table("job"), root.table("train"), root.table("run", required=False)
    gpu = job.table("gpu", required=False).read(
        GpuGroup, partly=True, count=at_least(1), max_power_watts_per_gpu=POSITIVE
    )
    job_values, train_values, run_values = _job(job), _train(train, path.parent), _run(run, path.parent)
    if faults:
        text = "; ".join(f"{fault.field}: {fault.description}" for fault in faults)
        raise JobFileError(f"{path}: {text}", violations=faults)
    spec = JobSpec(**job_values, gpu=GpuGroup(**gpu) if len(gpu) == len(fields(GpuGroup)) else None)
    return JobFile(spec, gpu, TrainSection(**train_values), RunSection(**run_values))


def _job(table: Table) -> dict[str, Any]:
    if table.is_present and "job_id" not in table.values:
        table.fault("job_id", 'is missing; it identifies the run, such as job_id = "mnist-nightly"')
    values = table.read(
        JobSpec,
        default_batch_size=at_least(1),
        energy_price_per_kwh=NOT_NEGATIVE,
        gpu_hour_price=NOT_NEGATIVE,
    )
    prices = table.values.keys() & PRICES
    if prices and prices <= values.keys():
        energy, hour = map(values.get, PRICES)
        for key, fault in price_faults(energy, hour, table.values.get("eta_knob")):
            table.fault(key, fault)
    return values


def _train(table: Table, folder: Path) -> dict[str, Any]:
    values = table.read(TrainSection, default_learning_rate=POSITIVE)
    command = values.get("command", ())
    for word in command:
        if "\0" in word:
            table.fault("command", f"{word!r:.80} has a NUL, which no argument can have; remove it")
        for fault in faults_in(word):
            table.fault("command", fault)
    optimizer = values.get("optimizer")
    if optimizer is not None:
        try:
            scaling_rule(optimizer)
        except InvalidArgumentError:
            table.fault("optimizer", f"is {optimizer!r}; use one of {', '.join(OPTIMIZERS)}")
    pair = [key for key in ("optimizer", "default_learning_rate") if key in table.values]
    if len(pair) == 1:
        missing = "default_learning_rate" if pair == ["optimizer"] else "optimizer"
        table.fault(missing, f"is missing; {pair[0]} requires it")
    elif not pair and any("learning_rate" in placeholders_in(word) for word in command):
        table.fault("optimizer", "is missing; {learning_rate} requires optimizer and default_learning_rate")
    for key, group in (("metric_pattern", "metric"), ("epoch_pattern", "epoch")):
        if key in values and (unusable := fault_in(values[key], group)) is not None:
            table.fault(key, unusable)
    if "epoch_pattern" in table.values and "metric_pattern" not in table.values:
        table.fault("metric_pattern", "is missing; epoch_pattern requires it")
    values["workdir"] = _resolved(table, "workdir", folder / values.get("workdir", TrainSection.workdir))
    if values["workdir"] is not None and not values["workdir"].is_dir():
        table.fault("workdir", f"{values['workdir']} is not a folder; it is relative to the job file")
    return values


def _resolved(table: Table, key: str, path: Path) -> Path | None:
    """Returns a path of the job file; None if it cannot be used, which is a fault."""
    try:
        return resolved(path)
    except FileError as error:
        table.fault(key, str(error))
        return None


def _blocking(folder: Path) -> Path | None:
    """Returns what exists in the place of a folder or of one that it is in; None if the folder can be created."""
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    return None if existing.is_dir() else existing


def _run(table: Table, folder: Path) -> dict[str, Any]:
    values = table.read(
        RunSection,
        recurrences=at_least(1),
        max_tries=at_least(1),
        seed=at_least(0),
        profile_warmup_iters=at_least(0),
        profile_measure_iters=at_least(1),
        step_watts=POSITIVE,
        grace_seconds=POSITIVE,
    )
    try:
        if "monitor" in values:
            checked_monitor(values["monitor"])
    except MonitorError as error:
        table.fault("monitor", str(error))
    values["log_dir"] = _resolved(table, "log_dir", folder / values.get("log_dir", RunSection.log_dir))
    # In the job file's own folder, perhaps: commands get it in a variable.
    if values["log_dir"] is not None and (fault := control_fault(str(values["log_dir"]))):
        table.fault("log_dir", f"{values['log_dir']} {fault}")
    if values["log_dir"] is not None and (blocking := _blocking(values["log_dir"])) is not None:
        table.fault("log_dir", f"{blocking} is not a folder; name another one")
    return values
