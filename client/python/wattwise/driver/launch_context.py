"""What a command receives at a launch: its arguments with placeholders replaced, and environment variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattwise.driver.jobfile import JobFile
from wattwise.driver.placeholders import substitute
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec
from wattwise.training.assigned import spec_to_json
from wattwise.training.spool import Spool

_CREDENTIAL_FILES = ("token_file", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True)
class CommandLine:
    """The command of one launch.

    Attributes:
        words: the command with its placeholders replaced.
        variables: the `WATTWISE_*` variables, without those of credentials.
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class LaunchContext:
    """One launch and its trial, as its command sees them; strings where a dry run has no number."""

    spec: JobSpec
    target_metric: str
    max_epochs: str
    server: str
    monitor: str
    trial_number: str
    launch_id: str
    reason: str
    batch_size: int
    seed: int
    recurrence: int
    try_number: int
    log_dir: Path
    server_name: str = ""


def command_line(file: JobFile, context: LaunchContext) -> CommandLine:
    """Returns the command of a launch."""
    rate = file.learning_rate(context.batch_size)
    values = {
        "batch_size": str(context.batch_size),
        "learning_rate": "" if rate is None else f"{rate:.10g}",
        "seed": str(context.seed),
        "recurrence": str(context.recurrence),
        "try": str(context.try_number),
        "target_metric": context.target_metric,
        "max_epochs": context.max_epochs,
        "log_dir": str(context.log_dir),
    }
    run = file.run
    variables = {
        **{name.upper(): value for name, value in values.items()},
        "REASON": context.reason,
        "SERVER": context.server,
        "SERVER_NAME": context.server_name,
        "JOB_ID": context.spec.job_id,
        # A fresh run has another id, under which a script does not know its job.
        "JOB_FILE_ID": "" if file.job_id == context.spec.job_id else file.job_id,
        "JOB_SPEC": spec_to_json(context.spec),
        "TRIAL_NUMBER": context.trial_number,
        "LAUNCH_ID": context.launch_id,
        "MONITOR": context.monitor,
        "OBSERVER_MODE": "1" if run.observer_mode else "0",
        "PROFILE_WARMUP_ITERS": run.profile_warmup_iters,
        "PROFILE_MEASURE_ITERS": run.profile_measure_iters,
        "PROFILE_STEP_WATTS": run.step_watts,
    }
    return CommandLine(
        substitute(file.train.command, values),
        {f"WATTWISE_{name}": str(value) for name, value in variables.items() if value not in ("", None)},
    )


def environment_of(command: CommandLine, credentials: Credentials) -> dict[str, str]:
    """Returns the environment of a command: the driver's, with these `WATTWISE_*` variables in place of its own.

    Driver and command have the same spool.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
    # The output goes to a file; its lines should appear there as soon as they are printed.
    inherited.setdefault("PYTHONUNBUFFERED", "1")
    inherited["PATH"] = search_path()
    if os.environ.get("WATTWISE_SPOOL"):
        # The command runs in another folder.
        inherited["WATTWISE_SPOOL"] = str(Spool.from_env().folder or "off")
    return inherited | _credential_variables(credentials) | dict(command.variables)


def search_path() -> str:
    """Returns where programs are looked up: `PATH`, after the driver's environment if no environment is active."""
    path = os.environ.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"):
        return path
    return os.pathsep.join((str(Path(sys.prefix) / "bin"), path))


def _credential_variables(credentials: Credentials) -> dict[str, str]:
    variables = {
        f"WATTWISE_{name.upper()}": str(Path(value).resolve())
        for name in _CREDENTIAL_FILES
        if (value := getattr(credentials, name))
    }
    if credentials.token:
        variables["WATTWISE_TOKEN"] = credentials.token
    if credentials.tls is not None:
        variables["WATTWISE_TLS"] = "1" if credentials.tls else "0"
    if credentials.insecure:
        variables["WATTWISE_INSECURE"] = "1"
    return variables
