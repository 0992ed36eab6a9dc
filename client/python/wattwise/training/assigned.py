"""The trial that `wattwise run` has assigned to the command that it started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from wattwise import v1
from wattwise.drafts import resolved
from wattwise.errors import JobDiffersError, NoDriverError, TrainerSetupError, Violation
from wattwise.files import parse_json
from wattwise.monitor import Monitor
from wattwise.monitor.named import named_monitor
from wattwise.rules import GpuGroup
from wattwise.spec import JobSpec, check_job, flat_name, job_message, leaves, policy_name
from wattwise.training.client_file import ClientFile
from wattwise.variables import read_variable

_OWN = ("JOB_SPEC", "LAUNCH_ID", "TRIAL_NUMBER")
"""Variables that only `wattwise run` sets, without `WATTWISE_`."""
_REQUIRED = (*_OWN, "SERVER", "BATCH_SIZE")
_OPTIONAL = ("REASON", "LOG_DIR", "SERVER_NAME", "JOB_FILE_ID", "MONITOR")


def has_driver() -> bool:
    """Returns whether `wattwise run` has started this process."""
    return any(os.environ.get(f"WATTWISE_{name}") for name in _OWN)


@dataclass(frozen=True)
class AssignedTrial:
    """The trial that `wattwise run` has assigned to this process, as its variables describe it.

    The driver's launch id gets the same trial again, so that every process of a command joins it.

    Attributes:
        server: host and port of the server.
        job: the driver's job.
        id: the trial's id on the server.
        batch_size: its batch size.
        reason: why the server has chosen it. The server gives the reason only once, to the driver.
        folder: the trial's folder, where the driver looks for `client.json`; None if there is none.
        job_file_id: the id of the job in the job file, which the driver may have completed.
        monitor_name: what the driver measures with; None if that is the default monitor of any trainer.
    """

    server: str
    job: JobSpec
    id: v1.TrialId
    batch_size: int
    reason: str
    folder: Path | None
    job_file_id: str
    monitor_name: str | None

    @classmethod
    def from_env(cls) -> AssignedTrial:
        """Reads the variables.

        Raises:
            NoDriverError: if this process was not started by a driver; names what is missing.
        """
        variables = _driver_variables()
        job = spec_from_json(variables["JOB_SPEC"])
        trial_number = _integer(variables, "TRIAL_NUMBER")
        return cls(
            variables["SERVER"],
            job,
            v1.TrialId(job_id=job.job_id, launch_id=variables["LAUNCH_ID"], trial_number=trial_number),
            _integer(variables, "BATCH_SIZE"),
            variables.get("REASON", "the trial of its driver"),
            Path(variables["LOG_DIR"]) if "LOG_DIR" in variables else None,
            variables.get("JOB_FILE_ID", job.job_id),
            variables.get("MONITOR"),
        )

    @property
    def launch_id(self) -> str:
        """The driver's launch id."""
        return self.id.launch_id

    def check_same(self, job: JobSpec) -> None:
        """Compares a script's own job with the driver's. Fields that a script does not set have the server's defaults.

        Raises:
            InvalidArgumentError: if `job` is not a JobSpec.
            TrainerSetupError: if it has another id.
            JobDiffersError: if it has the same id and another configuration; names the fields.
        """
        check_job(job)
        if job.job_id not in (self.job.job_id, self.job_file_id):
            raise TrainerSetupError(
                f"`wattwise run` trains job {self.job_file_id!r}, but this script's job is {job.job_id!r}: use the "
                "same job_id in both, or start the script without `wattwise run`"
            )
        same = replace(job, job_id=self.job.job_id, gpu=self.job.gpu if job.gpu is None else job.gpu).with_eta()
        message = job_message(same)
        sent, registered = resolved(message), resolved(job_message(self.job))
        names = policy_name(registered), policy_name(sent)
        if not message.HasField("policy") or names[0] != names[1]:
            # A job keeps the policy that it was created with. Parameters of two policies are not compared.
            sent.policy.CopyFrom(registered.policy)
        ours, theirs = ({flat_name(path): value for path, value in leaves(spec)} for spec in (sent, registered))
        if message.HasField("policy"):
            theirs["policy"], ours["policy"] = names
        differing = {
            name: f"job file {_brief(theirs.get(name))}, script {_brief(ours.get(name))}"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        }
        if differing:
            raise JobDiffersError(
                f"job {job.job_id!r} differs in this script and in the job file of `wattwise run`: "
                f"{'; '.join(f'{name}: {values}' for name, values in differing.items())}. Make them equal, or "
                "let the script read the job file's with BatchSizeOptimizer.from_env()",
                violations=[Violation(f"job.{name}", values) for name, values in differing.items()],
            )

    def monitor(self) -> Monitor | None:
        """Returns a monitor like the driver's; None if that is the default monitor of any trainer.

        Raises:
            MonitorError: if it cannot be used in this process.
        """
        return None if self.monitor_name in (None, "nvml") else named_monitor(self.monitor_name)

    def check(self, found: v1.Trial) -> None:
        """Checks that the server's trial is this one.

        Raises:
            NoDriverError: if it is another one.
        """
        if (found.id.trial_number, found.batch_size) != (self.id.trial_number, self.batch_size):
            raise NoDriverError(
                f"the server at {self.server} returns trial {found.id.trial_number} with batch size "
                f"{found.batch_size}, but the variables name trial {self.id.trial_number} with {self.batch_size}: are "
                "they from an earlier launch, or for another server?"
            )

    def trial(self) -> v1.Trial:
        """Returns the trial without what the server knows of it."""
        trial = v1.Trial(id=self.id, batch_size=self.batch_size, status=v1.TRIAL_STATUS_RUNNING)
        trial.start_time.FromNanoseconds(time.time_ns())
        return trial

    def write(self, content: ClientFile) -> None:
        """Writes `client.json` for the driver."""
        if self.folder is not None:
            content.write(self.folder)


def _brief(value: object) -> str:
    """Returns a value of a field as a part of a sentence."""
    return "unset" if value is None else " ".join(f"{value!s:.100}".split())


def spec_to_json(job: JobSpec) -> str:
    """Returns the job as `WATTWISE_JOB_SPEC`, on one line, with the fields of the protos: `eta_knob`, no prices.

    Raises:
        InvalidJobSpecError: if the job has prices that are invalid, or no GPUs.
    """
    job = job.with_eta()
    # Read back, a field that is absent has its default.
    unset = {field.name: field.default for field in fields(job)}
    return json.dumps({k: v for k, v in asdict(job).items() if v is not unset[k]}, separators=(",", ":"))


def spec_from_json(text: str) -> JobSpec:
    """Returns the job of a `WATTWISE_JOB_SPEC`.

    Raises:
        NoDriverError: if the text is not a job.
    """
    try:
        values: dict[str, Any] = parse_json(text)
        gpu = values.pop("gpu", None)
        return JobSpec(**values, gpu=None if gpu is None else GpuGroup(**gpu))
    except (ValueError, TypeError, AttributeError) as error:
        raise NoDriverError(f"WATTWISE_JOB_SPEC is not a job: {error}") from None


def _driver_variables() -> Mapping[str, str]:
    found = {k.removeprefix("WATTWISE_"): v for k, v in os.environ.items() if k.startswith("WATTWISE_") and v}
    missing = [f"WATTWISE_{name}" for name in _REQUIRED if name not in found]
    if missing:
        names = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        if has_driver():
            raise NoDriverError(
                f"`wattwise run` has started this process, but {names}: pass all WATTWISE_* variables on to it; sudo, "
                "ssh, mpirun and containers drop them"
            )
        raise NoDriverError(
            f"from_env() joins a trial of `wattwise run`, but {names}: start this program with "
            "`wattwise run JOB.toml`, or use BatchSizeOptimizer(server, job) to get a trial from the server"
        )
    for name in (*_REQUIRED, *_OPTIONAL):
        read_variable(f"WATTWISE_{name}", NoDriverError)
    return found


def _integer(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise NoDriverError(f"WATTWISE_{name} is {variables[name]!r}, which is not an integer") from None
