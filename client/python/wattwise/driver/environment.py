"""What a command is told: by the placeholders in its words and by environment variables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattwise.driver.jobfile import JobFile
from wattwise.driver.template import filled
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec

_FILES = ("token_file", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True)
class Told:
    """What one launch of a command is told.

    Attributes:
        words: the command with its placeholders filled in.
        variables: the `WATTWISE_*` variables, without those of credentials.
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Assignment:
    """One launch and its trial, as the command is to know them; texts, since a dry run knows no numbers for some."""

    spec: JobSpec
    target_metric: float
    max_epochs: int
    server: str
    monitor: str
    trial_number: str
    request_id: str
    reason: str
    batch_size: int
    seed: int
    recurrence: int
    try_number: int
    log_dir: Path


def told(file: JobFile, given: Assignment) -> Told:
    """The words and variables of a launch."""
    rate = file.learning_rate(given.batch_size)
    values = {
        "batch_size": str(given.batch_size),
        "learning_rate": "" if rate is None else f"{rate:.10g}",
        "seed": str(given.seed),
        "recurrence": str(given.recurrence),
        "try": str(given.try_number),
        "target_metric": repr(given.target_metric),
        "max_epochs": str(given.max_epochs),
        "log_dir": str(given.log_dir),
    }
    named = values | {"reason": given.reason}
    variables = {f"WATTWISE_{name.upper()}": value for name, value in named.items() if value}
    variables |= {
        "WATTWISE_SERVER": given.server,
        "WATTWISE_JOB_ID": given.spec.job_id or "",
        "WATTWISE_JOB_SPEC": spec_to_json(given.spec),
        "WATTWISE_TRIAL_NUMBER": given.trial_number,
        "WATTWISE_REQUEST_ID": given.request_id,
        "WATTWISE_MONITOR": given.monitor,
    }
    return Told(tuple(filled(word, values) for word in file.train.command), variables | _profiling(file))


def _profiling(file: JobFile) -> dict[str, str]:
    run = file.run
    lengths = {
        "WATTWISE_PROFILE_WARMUP_ITERS": run.profile_warmup_iters,
        "WATTWISE_PROFILE_MEASURE_ITERS": run.profile_measure_iters,
        "WATTWISE_PROFILE_STEP_WATTS": run.step_watts,
    }
    given = {name: str(value) for name, value in lengths.items() if value is not None}
    return {"WATTWISE_OBSERVER_MODE": "1" if run.observer_mode else "0", **given}


def environment_of(told: Told, credentials: Credentials) -> dict[str, str]:
    """The whole environment of a command: the driver's, with these instead of its own `WATTWISE_*` variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
    # Its output is a file, in which lines should turn up as they are printed.
    inherited.setdefault("PYTHONUNBUFFERED", "1")
    inherited["PATH"] = search_path()
    return inherited | _credential_variables(credentials) | dict(told.variables)


def search_path() -> str:
    """Where programs are looked for: if no environment of Python's is active, first in that which has the driver."""
    usual = os.environ.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"):
        return usual
    return os.pathsep.join((str(Path(sys.prefix) / "bin"), usual))


def _credential_variables(credentials: Credentials) -> dict[str, str]:
    found = {
        f"WATTWISE_{name.upper()}": str(Path(value).resolve())
        for name in _FILES
        if (value := getattr(credentials, name))
    }
    if credentials.token:
        found["WATTWISE_TOKEN"] = credentials.token
    if credentials.tls is not None:
        found["WATTWISE_TLS"] = "1" if credentials.tls else "0"
    if credentials.insecure:
        found["WATTWISE_INSECURE"] = "1"
    return found


def spec_to_json(spec: JobSpec) -> str:
    """The job as one line, for `spec_from_json`."""
    given: dict[str, Any] = {name: value for name, value in asdict(spec).items() if value is not None}
    return json.dumps(given, separators=(",", ":"))
