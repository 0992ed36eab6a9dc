"""One launch of a run: its trial is requested, trained, reported unless its client did so, ended and recorded."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wattwise import v1
from wattwise.driver.evaluations import EvaluationReader
from wattwise.driver.execution import CommandExecution
from wattwise.driver.files import read_object, write_json, writing
from wattwise.driver.history import BY_COMMAND, BY_DRIVER, HistoryRecord
from wattwise.driver.interruption import InterruptedRunError
from wattwise.driver.launch_context import LaunchContext, command_line, environment_of
from wattwise.driver.outcome import (
    OUTPUT,
    RESULT,
    LaunchOutcome,
    MeasuredEpoch,
    ResultError,
    ended_by_itself,
    has_client,
    ignored_in,
    power_limit_in,
    read_result,
    saved_epochs,
    saved_outcome,
)
from wattwise.errors import JobNotFoundError, TrialDeletedError, TrialNotFoundError, WattwiseError
from wattwise.files import FileError
from wattwise.monitor import MonitorKinds, monitor_kinds
from wattwise.monitor.named import name_of
from wattwise.presentation.quantities import energy_of
from wattwise.presentation.states import end_reason
from wattwise.rpc.labels import launch_labels
from wattwise.spec import cost, job_message, max_power_watts
from wattwise.training.delivery import REFUSALS, deliver_record, is_refusal, opened
from wattwise.training.journal import TrialRecord
from wattwise.training.own_decision import own_decision
from wattwise.training.resume import ended_by_trainer, has_ended, joules_or_none
from wattwise.training.spool import Spool

if TYPE_CHECKING:
    from wattwise.driver.folder import Claim, LaunchRecord, RunFolder
    from wattwise.driver.interruption import Interruption
    from wattwise.driver.jobfile import JobFile
    from wattwise.driver.output import Board
    from wattwise.monitor.window import WindowMonitor
    from wattwise.rpc.client import Client
    from wattwise.rpc.credentials import Credentials
    from wattwise.spec import JobSpec

PATIENCE_SECONDS = 600.0
"""How long the driver waits for a server that is away."""
_END_SECONDS = 5.0
"""How long an interrupted driver tries to end its trial."""
_LAUNCH = "launch.json"


class NoResultError(WattwiseError):
    """A command has succeeded and left no metric; its trial does not count."""


@dataclass(frozen=True)
class RecurringRun:
    """What all launches of a driver have in common.

    Attributes:
        file: the job file.
        folder: the run's folder.
        spec: the job under this run's job id, with its GPUs.
        server: the server's address.
        server_name: its name in the spool: the address, or the database of the run's own server.
        credentials: for the server.
        monitor: the driver's monitor.
        board: shows the progress.
        interruption: the signals that end the driver.
    """

    file: JobFile
    folder: RunFolder
    spec: JobSpec
    server: str
    server_name: str
    credentials: Credentials
    monitor: WindowMonitor
    board: Board
    interruption: Interruption

    def seed_of(self, launch: LaunchRecord) -> int:
        """Returns the seed of a launch; no two launches of a run have the same."""
        return self.file.run.seed + launch.number


@dataclass(frozen=True)
class Launcher:
    """Takes launches from their claim to their record.

    Attributes:
        run: what the launches have in common.
        job: the job with every default filled in.
        client: waits for a server that is away.
        once: does not retry calls, because their values would be outdated.
    """

    run: RecurringRun
    job: v1.JobSpec
    client: Client
    once: Client

    def launch(self, claim: Claim) -> HistoryRecord:
        """Completes a launch, from wherever an earlier driver left it.

        Raises:
            NoResultError: the command has left no metric; the launch has ended.
            TrialDeletedError: the job was deleted; the launch is forgotten, and the next one registers the job again.
            WattwiseError: the server refuses it, or is away for too long; the launch can be taken over.
            InterruptedRunError: a signal; the command and its trial have been ended.
        """
        try:
            return self._launch(claim)
        except TrialDeletedError:
            self.run.folder.remove(claim)
            raise

    def _launch(self, claim: Claim) -> HistoryRecord:
        launch_id = claim.launch.launch_id
        answer = self.client.get_next_batch_size(
            self.job.job_id, launch_id=launch_id, labels=launch_labels(), spec=self.job
        )
        trial = answer.trial
        folder = self._folder_of(claim, trial.id)
        output = self._output_of(trial.id, folder)
        outcome: LaunchOutcome | None = None
        try:
            if folder.exists() or self._has_ended(trial):
                outcome = self._saved_outcome(trial.id, folder, output)
            else:
                outcome, interrupted = self._train(claim, trial, folder, trial.reason, output)
                if interrupted is not None:
                    raise interrupted
                outcome.save(folder)
        except InterruptedRunError:
            # If this fails too, the next driver of this folder finds the launch and ends its trial.
            with suppress(WattwiseError):
                reason = self._report_interrupted(trial.id, outcome, folder, output)
                trial = self.client.end_trial(trial.id, reason, timeout=_END_SECONDS)
                self._record(claim, trial, outcome, folder)
            raise
        # Without an outcome, an earlier driver died during the training.
        reason = v1.END_REASON_PREEMPTED if outcome is None else outcome.end_reason
        self._deliver_spooled(claim, reason)
        fault = None
        try:
            if outcome is not None:
                fault = self._report_if_unreported(trial.id, outcome, folder, output)
            elif (died := saved_epochs(folder)) is not None and not has_client(folder):
                self._report_epochs(trial.id, died)
            trial = self.client.end_trial(trial.id, v1.END_REASON_PREEMPTED if fault else reason)
        except (JobNotFoundError, TrialNotFoundError):
            # The server's database was lost or restored, unless a person deleted the job.
            record, fault = self._record_of(claim, trial, outcome, folder, output)
            found = deliver_record(self.client, record, PATIENCE_SECONDS)
            if found is None:
                raise
            trial = found
            # The client may have delivered it before.
            fault = None if trial.newest.epoch else fault
        ended = self._record(claim, trial, outcome, folder)
        if fault:
            if outcome is not None and not ended_by_trainer(trial):
                self.run.board.quote(folder, outcome.exit_code)
            raise NoResultError(
                f"trial {trial.id.trial_number} has no result, although its command exited with status 0: {fault}. The "
                f"trial does not count against batch size {trial.batch_size}. Fix the command or the job file, and "
                "run this again"
            )
        return ended

    def _has_ended(self, trial: v1.Trial) -> bool:
        """Returns whether a trial has ended for good, such as one whose driver was killed right after ending it."""
        # If the status is newer than this client, the decision says whether to go on.
        return has_ended(trial) and (
            trial.status in v1.TrialStatus.values() or self.client.heartbeat(trial.id).stop_train
        )

    def _saved_outcome(self, trial: v1.TrialId, folder: Path, output: EvaluationReader | None) -> LaunchOutcome | None:
        """Returns the outcome of a command whose driver has died, with the epochs that the driver did not read.

        They have the time and the energy of the whole command.
        """
        outcome = saved_outcome(folder, max_power_watts(self.job))
        if outcome is None or output is None:
            return outcome
        epochs = list(outcome.epochs)
        total = outcome.time_seconds, outcome.energy_joules
        for epoch in output.read(lambda: total, to_end=True):
            if epochs and own_decision(self.job, epochs[-1].result(trial, outcome.monitor)).stop_train:
                break
            if not epochs or epoch.epoch > epochs[-1].epoch:
                epochs.append(epoch)
        return replace(outcome, epochs=tuple(epochs))

    def _output_of(self, trial: v1.TrialId, folder: Path) -> EvaluationReader | None:
        """Reads the metrics in a command's output, if the job file says how."""
        train, say = self.run.file.train, self.run.board.say
        if train.metric_pattern is None:
            return None
        return EvaluationReader(
            folder / OUTPUT,
            train.metric_pattern,
            train.epoch_pattern,
            lambda text: say(f"trial {trial.trial_number}: {text}"),
        )

    def _deliver_spooled(self, claim: Claim, reason: v1.EndReason.ValueType) -> None:
        """Delivers what a client in the command could not; `reason` is how a client was ended that did not say so."""
        path = Spool.from_env().path_of(self.run.server_name, self.job.job_id, claim.launch.launch_id)
        journal = None if path is None else opened(path)
        if journal is None:
            return
        keeps = True
        try:
            if not journal.record.results and reason == v1.END_REASON_STOPPED_EARLY:
                reason = v1.END_REASON_PREEMPTED
            journal.end(reason)
            deliver_record(self.client, journal.record, PATIENCE_SECONDS)
            keeps = False
        except REFUSALS as error:
            journal.refuse(str(error))
            self.run.board.say(f"the server refused the spooled trial in {path}: {error}")
        finally:
            journal.release() if keeps else journal.delete()

    def _record_of(
        self,
        claim: Claim,
        trial: v1.Trial,
        outcome: LaunchOutcome | None,
        folder: Path,
        output: EvaluationReader | None,
    ) -> tuple[TrialRecord, str | None]:
        """Returns the trial as a server that does not know it takes it, and why it has no result, if so."""
        start = trial.start_time.ToNanoseconds() / 1e9
        record = TrialRecord(
            self.run.server_name,
            job_message(self.run.spec),
            claim.launch.launch_id,
            trial.id.trial_number,
            trial.batch_size,
            start,
        )
        record.end_reason = v1.END_REASON_PREEMPTED
        if outcome is None:
            return record, None
        results, fault = _results(trial.id, outcome, folder, output)
        for result in results:
            record.add(result, start + result.measurement.time_seconds)
        record.end_reason = v1.END_REASON_PREEMPTED if fault else outcome.end_reason
        return record, fault

    def _folder_of(self, claim: Claim, trial: v1.TrialId) -> Path:
        """Returns the folder that the launch uses, or a free one: a job that was deleted counts from 1 again."""
        path = first = self.run.folder.trial_folder(trial.trial_number)
        number = 1
        while os.path.lexists(path):
            # Whoever has replaced it, the folder is not that of this launch.
            with suppress(FileError, OSError):
                launch = read_object(path / _LAUNCH, within=path)
                if launch is not None and launch.get("launch_id") == claim.launch.launch_id:
                    break
            number += 1
            path = first.with_name(f"{first.name}-{number}")
        return path

    def _train(
        self, claim: Claim, trial: v1.Trial, folder: Path, reason: str, output: EvaluationReader | None
    ) -> tuple[LaunchOutcome, InterruptedRunError | None]:
        run, launch = self.run, claim.launch
        command = command_line(
            run.file,
            LaunchContext(
                spec=run.spec,
                target_metric=repr(self.job.target.value),
                max_epochs=str(self.job.max_epochs),
                server=run.server,
                server_name=run.server_name,
                monitor=name_of(run.monitor),
                trial_number=str(trial.id.trial_number),
                launch_id=launch.launch_id,
                reason=reason,
                batch_size=trial.batch_size,
                seed=run.seed_of(launch),
                recurrence=launch.recurrence,
                try_number=launch.try_number,
                log_dir=folder,
            ),
        )
        temporary = folder.with_name(f"{folder.name}.new")
        with writing(temporary):
            # Of a driver that was killed, unless a command has left a file or a link there.
            if temporary.is_dir() and not temporary.is_symlink():
                shutil.rmtree(temporary)
            else:
                temporary.unlink(missing_ok=True)
            temporary.mkdir()
        document = {"launch_id": launch.launch_id, "command": command.words, "variables": dict(command.variables)}
        write_json(temporary / _LAUNCH, document)
        with writing(folder):
            temporary.rename(folder)
        run.board.begin(launch, trial, reason, folder / OUTPUT)
        execution = CommandExecution(
            trial=trial,
            spec=self.job,
            command=command.words,
            environment=environment_of(command, run.credentials),
            workdir=run.file.train.workdir,
            folder=folder,
            grace_seconds=run.file.run.grace_seconds,
            lock=claim.lock,
            # Until a trial of this run is known to have had no client, this one's client may be about to join, and
            # its cost counts from then on. With metrics in the output, the server checks the cost after every epoch.
            checks_cost=output is None
            and any(record.reached and record.measured_by == BY_DRIVER for record in run.folder.history.read()),
            output=output,
        )
        return execution.run(self.once, run.monitor, run.interruption, run.board.refresh)

    def _report_interrupted(
        self, trial: v1.TrialId, outcome: LaunchOutcome | None, folder: Path, output: EvaluationReader | None
    ) -> v1.EndReason.ValueType:
        """Reports what a command without a client has left when its driver is interrupted; returns the end reason."""
        if outcome is None or has_client(folder):
            return v1.END_REASON_PREEMPTED
        fault = self._report_if_unreported(trial, outcome, folder, output, _END_SECONDS)
        is_complete = outcome.exit_code == 0 and ended_by_itself(folder) and not fault
        return outcome.end_reason if is_complete else v1.END_REASON_PREEMPTED

    def _report_if_unreported(
        self,
        trial: v1.TrialId,
        outcome: LaunchOutcome,
        folder: Path,
        output: EvaluationReader | None,
        timeout: float | None = None,
    ) -> str | None:
        """Reports what a command without a client has left; returns why it has left no result, if it should have."""
        if outcome.exit_code != 0 and not outcome.epochs:
            return None
        decision = self.client.heartbeat(trial, timeout=timeout)
        # A client that reports nothing may have joined only for the batch size.
        if decision.stop_train or (decision.last_epoch and (has_client(folder) or not outcome.epochs)):
            return None
        if outcome.epochs:
            self._report_epochs(trial, outcome, timeout)
            return None
        results, fault = _results(trial, outcome, folder, output)
        for result in results:
            self._report(result, timeout)
        return fault

    def _report_epochs(self, trial: v1.TrialId, outcome: LaunchOutcome, timeout: float | None = None) -> None:
        """Reports the epochs in the output of a command that the server does not have yet."""
        if not outcome.epochs:
            return
        known = self.client.lookup_trial(trial.job_id, trial.launch_id, timeout=timeout).newest.epoch
        for epoch in outcome.epochs:
            if epoch.epoch > known and self._report(epoch.result(trial, outcome.monitor), timeout):
                return

    def _report(self, result: v1.TrainingResult, timeout: float | None = None) -> bool:
        """Reports a measurement; returns whether it ends the trial."""
        try:
            return self.client.report_result(result, timeout=timeout).stop_train
        except WattwiseError as error:
            if not is_refusal(error):
                raise
            self.run.board.say(f"trial {result.trial.trial_number}: {error}")
            return False

    def _monitor_of(self, trial: v1.Trial, outcome: LaunchOutcome | None) -> MonitorKinds:
        """Returns what a trial's energy comes from; the driver's monitor if nothing was reported."""
        if trial.monitor.kinds:
            return MonitorKinds.of_message(trial.monitor)
        return outcome.monitor if outcome else monitor_kinds(self.run.monitor)

    def _record(self, claim: Claim, trial: v1.Trial, outcome: LaunchOutcome | None, folder: Path) -> HistoryRecord:
        launch, batch_size = claim.launch, trial.batch_size
        usage = _usage(self.job, trial, outcome)
        record = HistoryRecord(
            launch=launch.number,
            recurrence=launch.recurrence,
            try_number=launch.try_number,
            trial=trial.id.trial_number,
            batch_size=batch_size,
            limit_watts_per_gpu=power_limit_in(folder),
            learning_rate=self.run.file.learning_rate(batch_size),
            seed=self.run.seed_of(launch),
            epochs=trial.newest.epoch,
            time_seconds=usage.time_seconds,
            energy_joules=usage.energy_joules,
            cost=usage.cost,
            measured_by=usage.measured_by,
            monitor=self._monitor_of(trial, outcome),
            reached=trial.target_reached,
            end_reason=end_reason(trial.end_reason),
            exit_code=None if outcome is None else outcome.exit_code,
        )
        if trial.newest.HasField("computed"):
            used = trial.newest.computed
            record = replace(
                record,
                computed_time_seconds=used.time_seconds,
                computed_energy_joules=energy_of(used),
                computed_limit_watts_per_gpu=used.power_setting.limit_watts_per_gpu,
            )
        self.run.folder.record(claim, record)
        self.run.board.end(record)
        for fault in ignored_in(folder) if trial.newest.epoch else ():
            self.run.board.say(f"trial {trial.id.trial_number}: {fault}")
        for warning in trial.warnings:
            self.run.board.say(f"trial {trial.id.trial_number}: {warning.message}")
        if outcome is not None and ended_by_trainer(trial):
            # The output may show the cause.
            self.run.board.quote(folder, outcome.exit_code)
        return record


def _results(
    trial: v1.TrialId, outcome: LaunchOutcome, folder: Path, output: EvaluationReader | None
) -> tuple[list[v1.TrainingResult], str | None]:
    """Returns the measurements of a command without a client, or why there are none although it has succeeded."""
    if outcome.epochs or outcome.exit_code != 0:
        return [epoch.result(trial, outcome.monitor) for epoch in outcome.epochs], None
    try:
        metric, epochs = read_result(folder)
    except ResultError as error:
        if output is not None and not os.path.lexists(folder / RESULT):
            return [], output.fault
        if has_client(folder) and not os.path.lexists(folder / RESULT):
            return [], "no epoch of its client has arrived; it must call on_evaluate(metric) after every epoch"
        return [], str(error)
    total = MeasuredEpoch(epochs, metric, outcome.time_seconds, outcome.energy_joules)
    return [total.result(trial, outcome.monitor)], None


class _Usage(NamedTuple):
    """What a trial used, as far as it is known, and who measured it."""

    time_seconds: float | None = None
    energy_joules: float | None = None
    cost: float | None = None
    measured_by: str | None = None


def _usage(spec: v1.JobSpec, trial: v1.Trial, outcome: LaunchOutcome | None) -> _Usage:
    if trial.HasField("cost"):
        newest = trial.newest
        by_driver = outcome is not None and (
            outcome.over_cost_bound
            or newest.time_seconds in (outcome.time_seconds, *(epoch.time_seconds for epoch in outcome.epochs))
        )
        return _Usage(newest.time_seconds, energy_of(newest), trial.cost, BY_DRIVER if by_driver else BY_COMMAND)
    if outcome is None:
        return _Usage()
    seconds, joules = outcome.time_seconds, outcome.energy_joules
    return _Usage(seconds, joules_or_none(joules), cost(spec, seconds, joules), BY_DRIVER)
