"""Joins the trial of `wattwise run` in the command that it started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from wattwise import v1
from wattwise.drafts import resolved
from wattwise.errors import (
    JobDiffersError,
    NoDriverError,
    OperationOrderError,
    ResumeError,
    TrainerSetupError,
    Violation,
    log,
)
from wattwise.files import parse_json
from wattwise.monitor import Monitor, monitor_kinds
from wattwise.monitor.named import named_monitor
from wattwise.rpc.answers import check_dispatched
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.spec import GpuGroup, JobSpec, check_job, flat_name, leaves, policy_name
from wattwise.training.client_file import ClientFile
from wattwise.training.delivery import find_launch
from wattwise.training.launch import DRIVER_VARIABLES, NO_TRIAL, Endpoint, has_driver, with_gpu
from wattwise.training.resume import SavedTrial, has_ended
from wattwise.training.session import Session
from wattwise.training.trial import StartedTrial, TrialInfo
from wattwise.variables import read_variable

_REQUIRED = (*DRIVER_VARIABLES, "SERVER", "BATCH_SIZE")
_OPTIONAL = ("LOG_DIR", "SERVER_NAME", "JOB_FILE_ID", "MONITOR")


class DriverLaunch:
    """Joins the trial that the driver was assigned: the driver's launch id gets the same trial again.

    The arguments are those of `BatchSizeOptimizer`.

    Attributes:
        server: host and port of the server.
        job: the driver's job.

    Raises:
        NoDriverError: if this process was not started by a driver; names what is missing.
        InvalidArgumentError: if `timeout` is not a number of seconds.
    """

    # The driver starts another process for another trial.
    repeatable = False
    unconnected_ranks = 0

    def __init__(self, timeout: float | None, credentials: Credentials | None) -> None:
        variables = _driver_variables()
        self.server = variables["SERVER"]
        self.job = spec_from_json(variables["JOB_SPEC"])
        self._endpoint = Endpoint.of(self.server, timeout, credentials)
        self._trial = v1.TrialId(
            job_id=self.job.job_id,
            launch_id=variables["LAUNCH_ID"],
            trial_number=_integer(variables, "TRIAL_NUMBER"),
        )
        self._batch_size = _integer(variables, "BATCH_SIZE")
        self._folder = Path(variables["LOG_DIR"]) if "LOG_DIR" in variables else None
        # The server gives it only once, to the driver.
        self._reason = variables.get("REASON", "the trial of its driver")
        self._job_file_id = variables.get("JOB_FILE_ID", self.job.job_id)
        self._monitor_name = variables.get("MONITOR")
        self._sent = v1.JobSpec()
        self._away = False

    @classmethod
    def of_script(
        cls, server: str, job: JobSpec, timeout: float | None, credentials: Credentials | None
    ) -> DriverLaunch:
        """The launch for a script that names its own server and job, of which the driver's server takes the place.

        Credentials for another server than the driver's are not used.

        Raises:
            InvalidArgumentError: if `job` is not a JobSpec, or `timeout` is not a number of seconds.
            TrainerSetupError: if the driver trains a job with another id.
            JobDiffersError: if the driver's job has another configuration.
            NoDriverError: if variables of the driver are missing or wrong.
        """
        check_job(job)
        launch = cls(timeout, credentials if server == os.environ.get("WATTWISE_SERVER") else None)
        launch._check_same(job)
        if server != launch.server:
            log.info("`wattwise run` has started this process: its server is %s, not %s", launch.server, server)
        return launch

    @property
    def job_key(self) -> tuple[str, str]:
        """The server's address and the job's id."""
        return self.server, self._trial.job_id

    @property
    def launch_id(self) -> str:
        """The driver's launch id."""
        return self._trial.launch_id

    def _check_same(self, job: JobSpec) -> None:
        """Compares a script's own job with the driver's. Fields that a script does not set have the server's defaults.

        Raises:
            TrainerSetupError: if it has another id.
            JobDiffersError: if it has the same id and another configuration; names the fields.
        """
        if job.job_id not in (self.job.job_id, self._job_file_id):
            raise TrainerSetupError(
                f"`wattwise run` trains job {self._job_file_id!r}, but this script's job is {job.job_id!r}: use the "
                "same job_id in both, or start the script without `wattwise run`"
            )
        same = replace(job, job_id=self.job.job_id, gpu=self.job.gpu if job.gpu is None else job.gpu).with_eta()
        message = same.to_proto()
        sent, registered = resolved(message), resolved(self.job.to_proto())
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
        """A monitor like the driver's; None if that is the default monitor of any trainer.

        Raises:
            MonitorError: if it cannot be used in this process.
        """
        return None if self._monitor_name in (None, "nvml") else named_monitor(self._monitor_name)

    def resume(self, state: Mapping[str, object]) -> None:
        """Always raises: the driver waits for the trial that it was assigned, and for no other."""
        number = SavedTrial.from_state(state).trial_number
        raise ResumeError(
            f"wattwise run gives every launch a new trial, but the checkpoint belongs to trial {number}: "
            "start the training without the checkpoint"
        )

    def repeat(self, before: TrialInfo) -> None:
        """Always raises: a process that the driver has started trains one trial."""
        del before
        raise OperationOrderError("`wattwise run` starts the next try in a new process")

    def start(self, monitor: Monitor, fallback: int | None = None) -> StartedTrial:
        """Returns the driver's trial. Its batch size is known, so no fallback is needed.

        A server that does not know it has lost its database, or has an older one: the trial is delivered at its end.

        Raises:
            NoDriverError: if the server returns another trial than the variables name.
            TrialDeletedError: if the trial was deleted with its job.
            WattwiseError: as documented at `BatchSizeOptimizer.get_batch_size`.
        """
        del fallback
        kind, spec = str(monitor_kinds(monitor)), with_gpu(self.job, monitor)
        self._sent = spec.to_proto()
        with self._endpoint.start_client(self.launch_id, warns=False) as client:
            try:
                # Before register_job, which would create a deleted job again.
                trial = self._ask(client)
                if trial is None:
                    # The session's first heartbeat finds the same, and warns of the loss.
                    self._away = True
                    return self._start_locally(kind)
                job = client.register_job(spec).job
                check_dispatched(trial, job.spec)
            except NO_TRIAL as error:
                log.warning("%s. Training starts nevertheless, and is reported when the server is back", error)
                self._away = True
                return self._start_locally(kind)
        self._write(ClientFile(joined=True))
        return StartedTrial(TrialInfo(trial, job, self._reason, kind))

    def _ask(self, client: Client) -> v1.Trial | None:
        """The driver's trial, which lives on if it was lost; None if the server does not know it.

        Raises:
            TrialDeletedError: if it was deleted with its job.
        """
        known = find_launch(client, self._trial)
        if known is None:
            return None
        self._check(known)
        if has_ended(known):
            return known
        # To resume never dispatches another trial.
        return client.get_next_batch_size(self._trial.job_id, launch_id=self.launch_id, resume=True).trial

    def _check(self, found: v1.Trial) -> None:
        number = self._trial.trial_number
        if (found.id.trial_number, found.batch_size) != (number, self._batch_size):
            raise NoDriverError(
                f"the server at {self.server} returns trial {found.id.trial_number} with batch size "
                f"{found.batch_size}, but the variables name trial {number} with {self._batch_size}: are they from an "
                "earlier launch, or for another server?"
            )

    def _start_locally(self, kind: str) -> StartedTrial:
        """Trains the driver's trial without the server: everything that training needs is in the variables."""
        self._write(ClientFile(joined=True))
        trial = v1.Trial(id=self._trial, batch_size=self._batch_size, status=v1.TRIAL_STATUS_RUNNING)
        trial.start_time.FromNanoseconds(time.time_ns())
        job = v1.Job(spec=resolved(self._sent))
        return StartedTrial(TrialInfo(trial, job, self._reason, kind))

    def session(self, info: TrialInfo, timeout: float) -> Session:
        """The session that reports the trial. The driver sees the exit status and ends an undecided trial."""
        return self._endpoint.session(info, self._sent, timeout, ends_completed=False, away=self._away)

    def client(self, info: TrialInfo, timeout: float, search_timeout: float | None = None) -> Client:
        """A client for single calls on behalf of the trial."""
        return self._endpoint.client(info.id.launch_id, timeout, search_timeout)

    def record_power_limit(self, watts: float) -> None:
        """Records the power limit for the driver's history."""
        self._write(ClientFile(joined=True, limit_watts_per_gpu=watts))

    def _write(self, content: ClientFile) -> None:
        if self._folder is not None:
            content.write(self._folder)


def _brief(value: object) -> str:
    """A value of a field as a part of a sentence."""
    return "unset" if value is None else " ".join(f"{value!s:.100}".split())


def spec_to_json(job: JobSpec) -> str:
    """The job as `WATTWISE_JOB_SPEC`, on one line. It has the fields of the protos: `eta_knob` instead of prices.

    Raises:
        InvalidJobSpecError: if the job has prices that are invalid, or no GPUs.
    """
    job = job.with_eta()
    # Read back, a field that is absent has its default.
    unset = {field.name: field.default for field in fields(job)}
    return json.dumps({k: v for k, v in asdict(job).items() if v is not unset[k]}, separators=(",", ":"))


def spec_from_json(text: str) -> JobSpec:
    """The job of a `WATTWISE_JOB_SPEC`.

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
