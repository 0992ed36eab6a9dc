"""A job that recurs: each trial is a process of its own, launched until one reaches the target."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from wattwise import Client, v1

from examples.digits.processes import child
from examples.digits.train import TARGET_MISSED

MAX_TRIES = 20


@dataclass(frozen=True)
class Launch:
    """One trial that is over, with the recurrence that it belongs to and the server's reason for it.

    A trial can reach its target and be beyond its cost bound at once: that model is good, and ends its recurrence.
    """

    recurrence: int
    trial: v1.Trial
    job: v1.Job
    reason: str
    target_reached: bool


@dataclass(frozen=True)
class RecurringJob:
    """A job and how it is launched."""

    client: Client
    server: str
    job_id: str
    arguments: tuple[str, ...] = ()

    def recur(self, recurrence: int, seed: int) -> Iterator[Launch]:
        """Launches trials until one reaches the target; yields each as it ends.

        Raises:
            RuntimeError: a trainer crashed, or no trial reached the target; says what the trainer said last.
        """
        for attempt in range(MAX_TRIES):
            done = self._launch(seed * MAX_TRIES + attempt)
            if done.returncode not in (0, TARGET_MISSED):
                last = "\n".join(done.stderr.splitlines()[-15:])
                raise RuntimeError(f"the trainer exited with status {done.returncode}:\n{last}")
            launch = self._newest(recurrence, done.stdout.strip(), target_reached=done.returncode == 0)
            yield launch
            if launch.target_reached:
                return
        raise RuntimeError(f"{MAX_TRIES} trials in a row missed the target; ask for less, or for other batch sizes")

    def _launch(self, seed: int) -> subprocess.CompletedProcess[str]:
        arguments = ("--server", self.server, "--job-id", self.job_id, "--seed", str(seed), *self.arguments)
        # The server is on this machine: when it does not answer soon, it has died.
        arguments += ("--timeout", "15")
        with child("examples.digits.train", *arguments, log=subprocess.PIPE) as trainer:
            said, errors = trainer.communicate()
        return subprocess.CompletedProcess(trainer.args, trainer.returncode, said, errors)

    def _newest(self, recurrence: int, reason: str, *, target_reached: bool) -> Launch:
        job = self.client.get_job(self.job_id)
        trial = v1.TrialId(job_id=self.job_id, trial_number=job.num_trials)
        return Launch(recurrence, self.client.get_trial(trial).trial, job, reason, target_reached)
