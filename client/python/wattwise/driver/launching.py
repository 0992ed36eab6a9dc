"""One launch of a run: its trial is asked for, trained, reported if nobody else does, ended and written down."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wattwise import v1
from wattwise.commands.humanize import enum_name
from wattwise.driver.durable import read_json, write_json
from wattwise.driver.environment import Assignment, environment_of, told
from wattwise.driver.history import BY_COMMAND, BY_DRIVER, Record
from wattwise.driver.interruption import InterruptedRunError
from wattwise.driver.outcome import RESULT, Outcome, ResultError, power_limit_in, read_result, saved_outcome
from wattwise.driver.training import OUTPUT, Training
from wattwise.errors import InvalidResultError, WattwiseError
from wattwise.monitor.named import name_of
from wattwise.training.joined import JOINED
from wattwise.training.rules import cost, reaches_target

if TYPE_CHECKING:
    from wattwise.driver.board import Board
    from wattwise.driver.folder import Claim, Launch, RunFolder
    from wattwise.driver.interruption import Interruption
    from wattwise.driver.jobfile import JobFile
    from wattwise.monitor.window import WindowMonitor
    from wattwise.rpc.client import Client
    from wattwise.rpc.credentials import Credentials
    from wattwise.spec import JobSpec

_HASTE_SECONDS = 5.0
_LAUNCH = "launch.json"


@dataclass(frozen=True)
class Run:
    """What all launches of a driver have in common.

    Attributes:
        file: the job file.
        folder: the run's folder.
        spec: the job under the id of this run, with its GPUs.
        server: where the server is.
        credentials: for it.
        monitor: the monitor.
        board: where it is shown what happens.
        interruption: by which signals end the driver.
    """

    file: JobFile
    folder: RunFolder
    spec: JobSpec
    server: str
    credentials: Credentials
    monitor: WindowMonitor
    board: Board
    interruption: Interruption

    def seed_of(self, launch: Launch) -> int:
        """The seed that a launch trains with; no two of a run have the same."""
        return self.file.run.seed + launch.number


@dataclass(frozen=True)
class Launcher:
    """Sees launches through.

    Attributes:
        run: what they have in common.
        job: the job as the server resolved it.
        client: for calls that wait for a server that is away.
        once: for calls in time: what fails is tried again with fresh numbers, or not at all.
    """

    run: Run
    job: v1.JobSpec
    client: Client
    once: Client

    def launch(self, claim: Claim) -> Record:
        """Sees a launch through, or what is left of it, and writes down what became of it.

        Raises:
            WattwiseError: the server refuses it, or is away for too long; the launch can be taken over.
            InterruptedRunError: a signal; the command has ended, and its trial.
        """
        launch = claim.launch
        answer = self.client.get_next_batch_size(self.job.job_id, request_id=launch.request_id)
        trial = answer.trial
        folder = self._folder_of(claim, trial.id)
        outcome: Outcome | None = None
        try:
            if folder.exists() or _is_over(trial):
                outcome = saved_outcome(folder)
            else:
                outcome, stop = self._train(claim, trial, folder, answer.reason)
                if stop is not None:
                    raise stop
                outcome.save(folder)
        except InterruptedRunError:
            # Where even that fails, the next driver of this folder finds the launch and ends its trial.
            with suppress(WattwiseError):
                ended = self.client.end_trial(trial.id, v1.END_REASON_PREEMPTED, timeout=_HASTE_SECONDS)
                self._settle(claim, ended, outcome, folder)
            raise
        ended = self._concluded(trial.id, outcome, folder)
        return self._settle(claim, ended, outcome, folder)

    def _folder_of(self, claim: Claim, trial: v1.TrialId) -> Path:
        """The folder that the launch began to use, or one that is free: a job deleted meanwhile counts from 1 again."""
        path = usual = self.run.folder.trial_folder(trial.trial_number)
        number = 1
        while path.exists():
            begun = read_json(path / _LAUNCH)
            if begun is not None and begun.get("request_id") == claim.launch.request_id:
                break
            number += 1
            path = usual.with_name(f"{usual.name}-{number}")
        return path

    def _train(self, claim: Claim, trial: v1.Trial, folder: Path, reason: str) -> _Ended:
        launch = claim.launch
        assignment = Assignment(
            spec=self.run.spec,
            target_metric=self.job.target_metric,
            max_epochs=self.job.max_epochs,
            server=self.run.server,
            monitor=name_of(self.run.monitor),
            trial_number=str(trial.id.trial_number),
            request_id=launch.request_id,
            reason=reason,
            batch_size=trial.id.batch_size,
            seed=self.run.seed_of(launch),
            recurrence=launch.recurrence,
            try_number=launch.try_number,
            log_dir=folder,
        )
        told_this = told(self.run.file, assignment)
        begun = folder.with_name(f"{folder.name}.new")
        begun.mkdir(exist_ok=True)
        about = {"request_id": launch.request_id, "command": told_this.words, "variables": dict(told_this.variables)}
        write_json(begun / _LAUNCH, about)
        begun.rename(folder)
        self.run.board.begin(launch, trial, reason, folder / OUTPUT)
        training = Training(
            trial=trial.id,
            spec=self.job,
            command=told_this.words,
            environment=environment_of(told_this, self.run.credentials),
            workdir=self.run.file.train.workdir,
            folder=folder,
            grace_seconds=self.run.file.run.grace_seconds,
            lock=claim.lock,
            # Of a command that is not known to have no client, the time until its client joins is nobody's cost.
            is_priced=any(
                record.reached and record.measured_by == BY_DRIVER for record in self.run.folder.history.read()
            ),
        )
        return training.run(self.once, self.run.monitor, self.run.interruption, self.run.board.look)

    def _concluded(self, trial: v1.TrialId, outcome: Outcome | None, folder: Path) -> v1.Trial:
        """Ends the trial; of a command without a client, reports its result first."""
        if outcome is None:
            # Begun by a driver that died: nobody knows how it would have ended.
            return self.client.end_trial(trial, v1.END_REASON_PREEMPTED)
        # A client that reports nothing may have joined for the batch size alone.
        if outcome.exit_code == 0 and ((folder / RESULT).exists() or not (folder / JOINED).exists()):
            now = self.client.heartbeat(trial)
            if not now.stop_train and now.cost == 0:
                self._report(trial, outcome, folder)
        return self.client.end_trial(trial, outcome.end_reason)

    def _report(self, trial: v1.TrialId, outcome: Outcome, folder: Path) -> None:
        """Reports what the command left as its result, if it left one."""
        try:
            found = read_result(folder)
            measured = v1.TrainingResult(
                trial=trial,
                time_seconds=outcome.time_seconds,
                energy_joules=outcome.energy_joules,
                metric=found.metric,
                current_epoch=found.epochs,
                monitor=outcome.monitor,
            )
            self.client.report_result(measured)
        except (ResultError, InvalidResultError) as error:
            self.run.board.say(f"trial {trial.trial_number}: {error}")

    def _settle(self, claim: Claim, ended: v1.Trial, outcome: Outcome | None, folder: Path) -> Record:
        launch, batch_size, spent = claim.launch, ended.id.batch_size, _spent(self.job, ended, outcome)
        record = Record(
            launch=launch.number,
            recurrence=launch.recurrence,
            try_number=launch.try_number,
            trial=ended.id.trial_number,
            batch_size=batch_size,
            power_limit_watts=power_limit_in(folder),
            learning_rate=self.run.file.learning_rate(batch_size),
            seed=self.run.seed_of(launch),
            epochs=ended.last_epoch,
            time_seconds=spent.time_seconds,
            energy_joules=spent.energy_joules,
            cost=spent.cost,
            measured_by=spent.measured_by,
            monitor=ended.monitor or (outcome.monitor if outcome else "") or self.run.monitor.kind,
            reached=_reached(self.job, ended),
            end_reason=enum_name(v1.EndReason.Name(ended.end_reason), "END_REASON_"),
            exit_code=None if outcome is None else outcome.exit_code,
        )
        self.run.folder.settle(claim, record)
        self.run.board.end(record)
        return record


_Ended: TypeAlias = "tuple[Outcome, InterruptedRunError | None]"


class _Spent(NamedTuple):
    """What a trial took, as far as it is known, and who measured it."""

    time_seconds: float | None = None
    energy_joules: float | None = None
    cost: float | None = None
    measured_by: str | None = None


def _spent(spec: v1.JobSpec, ended: v1.Trial, outcome: Outcome | None) -> _Spent:
    if not ended.HasField("cost"):
        if outcome is None:
            return _Spent()
        seconds, joules = outcome.time_seconds, outcome.energy_joules
        return _Spent(seconds, joules, cost(spec, seconds, joules), BY_DRIVER)
    from_outside = outcome is not None and (outcome.too_dear or outcome.time_seconds == ended.time_seconds)
    measured_by = BY_DRIVER if from_outside else BY_COMMAND
    return _Spent(ended.time_seconds, ended.energy_joules, ended.cost, measured_by)


def _is_over(trial: v1.Trial) -> bool:
    """Whether a trial has ended for good, such as one whose driver was killed as soon as it had said so."""
    return trial.status != v1.TRIAL_STATUS_DISPATCHED and trial.end_reason != v1.END_REASON_LOST


def _reached(spec: v1.JobSpec, trial: v1.Trial) -> bool:
    """Whether the model is good, at whatever cost."""
    decided = trial.status == v1.TRIAL_STATUS_SUCCEEDED and trial.HasField("last_metric")
    return decided and reaches_target(spec, trial.last_metric)
