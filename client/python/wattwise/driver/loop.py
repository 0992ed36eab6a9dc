"""Launch after launch, until every recurrence has reached the target."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.driver.folder import ADVICE
from wattwise.driver.launching import PATIENCE_SECONDS, Launcher, RecurringRun
from wattwise.driver.outcome import OUTPUT, described, last_lines
from wattwise.driver.preflight import job_faults
from wattwise.errors import WattwiseError, log
from wattwise.presentation.states import end_reason
from wattwise.rpc.client import Client
from wattwise.training.delivery import LAUNCH_SECONDS, deliver_files
from wattwise.training.spool import Spool

if TYPE_CHECKING:
    from wattwise.driver.history import HistoryRecord

_SEARCH_SECONDS, _FIRST_SECONDS, _ONCE_SECONDS = 10.0, 60.0, 10.0
_WAIT_SECONDS = 0.5
_COMPLETED, _STOPPED_EARLY = map(end_reason, (v1.END_REASON_COMPLETED, v1.END_REASON_STOPPED_EARLY))
_PREEMPTED = end_reason(v1.END_REASON_PREEMPTED)
_OUT_OF_MEMORY = end_reason(v1.END_REASON_OUT_OF_MEMORY)
_FAILED = {
    end_reason(reason)
    for reason in (
        v1.END_REASON_MAX_EPOCHS,
        v1.END_REASON_STOPPED_EARLY,
        v1.END_REASON_COMPLETED,
        v1.END_REASON_ERROR,
        v1.END_REASON_OUT_OF_MEMORY,
    )
}


class RepeatedPreemptionError(WattwiseError):
    """Too many tries of a recurrence in a row were preempted, although the driver got no signal."""


class DefaultFailedError(WattwiseError):
    """The default batch size missed the target in the first recurrence."""


def drive(run: RecurringRun) -> None:
    """Launches until every recurrence has reached the target.

    Raises:
        JobFileError: the server refuses the job.
        WattwiseError: the run cannot continue; the message says what to change.
        InterruptedRunError: a signal; the command and its trial have been ended.
    """
    credentials = run.credentials
    with (
        Client(run.server, timeout=_FIRST_SECONDS, search_timeout=_SEARCH_SECONDS, credentials=credentials) as first,
        job_faults(),
    ):
        job = first.register_job(run.spec).job
        _deliver_spooled(run, first)
    with (
        # With a search timeout of the same length it warns once when it starts to wait.
        Client(
            run.server, timeout=PATIENCE_SECONDS, search_timeout=PATIENCE_SECONDS, credentials=credentials
        ) as client,
        Client(run.server, timeout=_ONCE_SECONDS, retry=False, credentials=credentials) as once,
    ):
        try:
            _launch_all(run, Launcher(run, job.spec, client, once))
        finally:
            _deliver_spooled(run, once)


def _deliver_spooled(run: RecurringRun, client: Client) -> None:
    """Delivers trials of commands that were killed, or that asked the server for trials of their own."""
    paths = Spool.from_env().paths(run.server_name, run.spec.job_id)
    failure = deliver_files(client, paths, LAUNCH_SECONDS, server=run.server_name).failure
    if failure is not None:
        log.info("spooled trials of job %r are not delivered yet: %s", run.spec.job_id, failure)


def _launch_all(run: RecurringRun, launcher: Launcher) -> None:
    settings = run.file.run
    # Preemptions in a row by recurrence, since this driver started.
    preemptions: Counter[int] = Counter()
    while not run.folder.is_done(settings.recurrences):
        claim = run.folder.claim(settings.recurrences, settings.max_tries)
        if claim is None:
            # Other drivers have what is left; if one of them dies, its launch can be taken over.
            run.board.wait()
            time.sleep(_WAIT_SECONDS)
            continue
        try:
            record = launcher.launch(claim)
        finally:
            claim.release()
        _check_default(run, record)
        _check_preemptions(run, record, preemptions)


def _check_preemptions(run: RecurringRun, record: HistoryRecord, preemptions: Counter[int]) -> None:
    """Ends the run of a command that is always terminated, or always exits as if it were.

    Raises:
        RepeatedPreemptionError: after `max_tries` preemptions in a row.
    """
    if record.end_reason != _PREEMPTED:
        del preemptions[record.recurrence]
        return
    # Without an exit code the command died with an earlier driver.
    preemptions[record.recurrence] += record.exit_code is not None
    max_tries = run.file.run.max_tries
    if preemptions[record.recurrence] < max_tries:
        return
    raise RepeatedPreemptionError(
        f"recurrence {record.recurrence} was preempted in {max_tries} tries in a row (max_tries = {max_tries}), but "
        f"this driver got no signal; the last command exited with {_output(run, record)}. Fix the command "
        "if it exits with status 129, 130 or 143 itself, find out what terminates it, or raise max_tries"
    )


def _check_default(run: RecurringRun, record: HistoryRecord) -> None:
    """Ends the run if the default batch size, which is known to work, fails in the first recurrence.

    Raises:
        DefaultFailedError: if it failed.
    """
    is_default = record.batch_size == run.file.job.default_batch_size
    if record.recurrence > 1 or record.reached or not is_default or record.end_reason not in _FAILED:
        return
    if record.end_reason == _OUT_OF_MEMORY:
        advice = (
            f"see {run.folder.trial_folder(record.trial) / OUTPUT}. Run this again to go on with smaller batch sizes, "
            "if there are any; otherwise free memory, or register the job under a new job_id with smaller batch_sizes "
            "and a smaller default_batch_size"
        )
    elif record.exit_code and record.end_reason == "error":
        advice = f"its command exited with {_output(run, record)}, and fix the command"
    elif record.end_reason in (_COMPLETED, _STOPPED_EARLY):
        advice = (
            "its command exited with status 0 before the trial was decided. A command with a client must train until "
            "the client stops it or for max_epochs; one without a client must print its metric as often, or write its "
            "metric and epochs to result.json. Fix the command and run this again"
        )
    else:
        advice = (
            f"see {run.folder.trial_folder(record.trial) / OUTPUT}, and {ADVICE}, or with another default_batch_size"
        )
    raise DefaultFailedError(
        f"the default batch size {record.batch_size} did not reach the target in the first recurrence (trial "
        f"{record.trial}, end reason: {record.end_reason}): {advice}"
    )


def _output(run: RecurringRun, record: HistoryRecord) -> str:
    """Returns a command's exit status, the last line of its output, and the file with the others."""
    folder = run.folder.trial_folder(record.trial)
    last = f' after "{lines[-1]}"' if (lines := last_lines(folder)) else ""
    return f"status {described(record.exit_code or 0)}{last}; see {folder / OUTPUT}"
