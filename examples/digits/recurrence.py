"""A recurring job: each trial is a process; a recurrence launches trials until one reaches the target."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wattwise import Client
from wattwise.rpc import v1

from examples.digits.job import TARGET_MISSED
from examples.digits.processes import child

MAX_TRIES = 20


@dataclass(frozen=True)
class DemoLaunch:
    """An ended trial, with its recurrence and the server's reason for its batch size.

    An epoch may both reach the target and exceed the cost bound: the model is good, and ends the recurrence.
    """

    recurrence: int
    trial: v1.Trial
    job: v1.Job
    reason: str
    target_reached: bool


@dataclass(frozen=True)
class RecurringJob:
    """A job and the arguments of its trainer."""

    client: Client
    server: str
    job_id: str
    arguments: tuple[str, ...] = ()

    def recur(
        self, recurrence: int, seed: int, halfway: Callable[[], None] | None = None, *, baseline: bool = False
    ) -> Iterator[DemoLaunch]:
        """Launches trials until one reaches the target; yields each as it ends.

        Args:
            recurrence: the number of this recurrence.
            seed: the seed of its trials.
            halfway: called while the first of them runs.
            baseline: whether the server is asked to give the default batch size to each of them.

        Raises:
            RuntimeError: a trainer crashed, or no trial reached the target; has the trainer's last output.
        """
        for attempt in range(MAX_TRIES):
            if baseline:
                # A request is for one launch; after a miss the search would choose the next one.
                self.client.request_baseline(self.job_id)
            done = self._launch(seed * MAX_TRIES + attempt, None if attempt else halfway)
            if done.returncode not in (0, TARGET_MISSED):
                last = "\n".join(done.stderr.splitlines()[-15:])
                raise RuntimeError(f"the trainer exited with status {done.returncode}:\n{last}")
            launch = self._newest(recurrence, done.stdout.strip(), target_reached=done.returncode == 0)
            yield launch
            if launch.target_reached:
                return
        raise RuntimeError(
            f"{MAX_TRIES} trials in a row missed the target; choose an easier target or other batch sizes"
        )

    def _launch(self, seed: int, halfway: Callable[[], None] | None) -> subprocess.CompletedProcess[str]:
        arguments = ("--server", self.server, "--job-id", self.job_id, "--seed", str(seed), *self.arguments)
        # The servers run on this machine: if none answers soon, they have died.
        arguments += ("--timeout", "15")
        with child("examples.digits.train", *arguments, log=subprocess.PIPE) as trainer:
            reason = ""
            if halfway is not None and trainer.stdout is not None:
                # All that a trainer prints, before its first epoch.
                reason = trainer.stdout.readline()
                halfway()
            output, errors = trainer.communicate()
        return subprocess.CompletedProcess(trainer.args, trainer.returncode, reason + output, errors)

    def _newest(self, recurrence: int, reason: str, *, target_reached: bool) -> DemoLaunch:
        job = self.client.get_job(self.job_id).job
        trial = v1.TrialId(job_id=self.job_id, trial_number=job.num_trials)
        return DemoLaunch(recurrence, self.client.get_trial(trial).trial, job, reason, target_reached)
