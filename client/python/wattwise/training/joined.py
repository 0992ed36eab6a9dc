"""Joins the trial that a driver (`wattwise run`) was given, in the command that it started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattwise import v1
from wattwise.errors import NoDriverError, ResumeError, WattwiseError, log
from wattwise.monitor import Monitor
from wattwise.monitor.named import named_monitor
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.spec import GpuConfig, JobSpec
from wattwise.training.launch import Given, Launch
from wattwise.training.resume import SavedTrial
from wattwise.training.session import Session

_NEEDED = ("SERVER", "JOB_SPEC", "REQUEST_ID", "TRIAL_NUMBER", "BATCH_SIZE")
POWER_LIMIT = "power_limit.json"
"""The file by which a client tells its driver the power limit that its trial trains at."""
JOINED = "joined"
"""The file by which a command says that it has a client, so that its driver need not judge it from outside."""


class JoinedLaunch(Launch):
    """A launch whose trial was asked for by the driver: the same request is given the same trial again.

    Args:
        timeout: seconds for which the server is looked for; None is as for any launch.
        credentials: the token and the certificates; None is what the `WATTWISE_*` variables say.

    Attributes:
        server: where the server is.
        spec: the job.
        monitor_name: the name of the driver's monitor; None if it told none.

    Raises:
        NoDriverError: if no driver started this process; says what is missing.
    """

    def __init__(self, timeout: float | None, credentials: Credentials | None) -> None:
        told = _told()
        self.server, self.spec, self.monitor_name = (
            told["SERVER"],
            spec_from_json(told["JOB_SPEC"]),
            told.get("MONITOR"),
        )
        super().__init__(self.server, self.spec, timeout, credentials)
        self.request_id = told["REQUEST_ID"]
        self._trial = v1.TrialId(
            job_id=self.spec.job_id or "",
            batch_size=_whole(told, "BATCH_SIZE"),
            trial_number=_whole(told, "TRIAL_NUMBER"),
        )
        self._log_dir = told.get("LOG_DIR")
        self._reason = told.get("REASON")

    def monitor(self) -> Monitor | None:
        """A monitor like the driver's; None for that which a trainer has by itself."""
        return None if self.monitor_name in (None, "nvml") else named_monitor(self.monitor_name)

    def resume(self, saved: SavedTrial) -> None:
        """Refuses, since the driver waits for the trial that it asked for, and for no other.

        Raises:
            ResumeError: always; says what to do instead.
        """
        raise ResumeError(
            f"wattwise run gives every launch a trial of its own, and the checkpoint is of trial {saved.trial_number}: "
            "load the model alone, without load_state_dict()"
        )

    def ask(self, monitor: Monitor) -> Given:
        """Asks for the trial once more, and for the job as it stands.

        Raises:
            NoDriverError: if the server gives another trial than the driver said.
            WattwiseError: as `BatchSizeOptimizer.get_batch_size` says.
        """
        # Asked before the job is registered, which would make one anew that was deleted meanwhile.
        timeout, search = self._timeouts
        with self._client(timeout, search) as client:
            given = client.get_next_batch_size(self._trial.job_id, request_id=self.request_id).trial.id
        if given != self._trial:
            raise NoDriverError(
                f"the server at {self.server} gives this process trial {given.trial_number} with batch size "
                f"{given.batch_size}, its variables say trial {self._trial.trial_number} with "
                f"{self._trial.batch_size}: are they of an earlier launch, or of another server?"
            )
        if self._log_dir:
            with suppress(OSError):
                (Path(self._log_dir) / JOINED).touch()
        return super().ask(monitor)

    def keep_power_limit(self, watts: float) -> None:
        """Notes which power limit the trial trains at where its driver looks for it."""
        if self._log_dir:
            with suppress(OSError):
                (Path(self._log_dir) / POWER_LIMIT).write_text(json.dumps({"power_limit_watts": watts}))

    def _new(self, client: Client, spec: JobSpec) -> Given:
        given = super()._new(client, spec)
        # The server says of a request that is repeated only that it is.
        given.answer.reason = self._reason or given.answer.reason
        return given

    def session(self, trial: v1.TrialId, lease_seconds: float, timeout: float) -> Session:
        """A line to the server for the trial, which its driver ends.

        Args:
            trial: the trial.
            lease_seconds: its lease; 0 never runs out.
            timeout: seconds that a report waits for its answer.
        """
        return JoinedSession(
            self.server,
            trial,
            lease_seconds=lease_seconds,
            timeout=timeout,
            credentials=self._credentials,
            request_id=self.request_id,
        )


class JoinedSession(Session):
    """The line of a trial that has a driver, which ends it when this process has ended well or badly.

    Only the exit status tells which, and no process knows its own. What an exception or a signal says, it says itself.
    """

    def _end(self) -> None:
        ending = self._exchange.ending
        if ending is None or ending.reason != v1.END_REASON_COMPLETED:
            super()._end()
            return
        try:
            self._flush(ending)
        except WattwiseError as error:
            log.warning("the last measurement of trial %d was not delivered: %s", self._trial.trial_number, error)


def spec_from_json(text: str) -> JobSpec:
    """The job that a driver tells its command of.

    Raises:
        NoDriverError: if it is none.
    """
    try:
        given: dict[str, Any] = json.loads(text)
        gpu = given.pop("gpu", None)
        return JobSpec(**given, gpu=None if gpu is None else GpuConfig(**gpu))
    except (ValueError, TypeError, AttributeError) as error:
        raise NoDriverError(f"WATTWISE_JOB_SPEC holds no job: {error}") from None


def _told() -> Mapping[str, str]:
    found = {k.removeprefix("WATTWISE_"): v for k, v in os.environ.items() if k.startswith("WATTWISE_") and v}
    missing = [f"WATTWISE_{name}" for name in _NEEDED if name not in found]
    if missing:
        raise NoDriverError(
            f"from_env() joins a trial that `wattwise run` started, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set: start this program with `wattwise run JOB.toml`, or "
            "construct BatchSizeOptimizer(server, job) to have a trial of its own"
        )
    return found


def _whole(told: Mapping[str, str], name: str) -> int:
    try:
        return int(told[name])
    except ValueError:
        raise NoDriverError(f"WATTWISE_{name} is {told[name]!r}, which is no whole number") from None
