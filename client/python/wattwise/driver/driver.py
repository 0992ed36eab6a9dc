"""Drives a run: launch after launch until every recurrence has its model."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.commands.humanize import enum_name
from wattwise.driver.launching import Launcher, Run
from wattwise.driver.preflight import refusals
from wattwise.driver.training import OUTPUT
from wattwise.errors import WattwiseError
from wattwise.rpc.client import Client

if TYPE_CHECKING:
    from wattwise.driver.history import Record

PATIENCE_SECONDS = 600.0
"""How long a server may be away that the driver needs in order to go on."""
_SEARCH_SECONDS, _FIRST_SECONDS, _ONCE_SECONDS = 10.0, 60.0, 10.0
_WAIT_SECONDS = 0.5
_FAILURES = (v1.END_REASON_MAX_EPOCHS, v1.END_REASON_COMPLETED, v1.END_REASON_ERROR, v1.END_REASON_OUT_OF_MEMORY)


class PreemptedTooOftenError(WattwiseError):
    """The tries of a recurrence are taken away one after the other, although nobody told the driver to stop."""


class DefaultFailedError(WattwiseError):
    """The default batch size does not do what it is known to do."""


def drive(run: Run) -> None:
    """Launches until every recurrence has its model.

    Raises:
        JobFileError: the server refuses the job.
        WattwiseError: what keeps the run from going on; says what to change.
        InterruptedRunError: a signal; the command has ended, and its trial.
    """
    credentials = run.credentials
    with (
        Client(run.server, timeout=_FIRST_SECONDS, search_timeout=_SEARCH_SECONDS, credentials=credentials) as first,
        refusals(),
    ):
        job = first.register_job(run.spec).job
    with (
        # With a search of the same length it warns once that it waits.
        Client(
            run.server, timeout=PATIENCE_SECONDS, search_timeout=PATIENCE_SECONDS, credentials=credentials
        ) as client,
        Client(run.server, timeout=_ONCE_SECONDS, retry=False, credentials=credentials) as once,
    ):
        _launch_all(run, Launcher(run, job.spec, client, once))


def _launch_all(run: Run, launcher: Launcher) -> None:
    settings = run.file.run
    # In a row, since this driver began: started again, it may have lost its machine in between.
    taken_away: Counter[int] = Counter()
    while not run.folder.is_done(settings.recurrences):
        claim = run.folder.claim(settings.recurrences, settings.max_tries)
        if claim is None:
            # Others have what is left; should one of them die, there is something to take over.
            run.board.wait()
            time.sleep(_WAIT_SECONDS)
            continue
        try:
            record = launcher.launch(claim)
        finally:
            claim.leave()
        _check_default(run, record)
        _check_preempted(run, record, taken_away)


def _check_preempted(run: Run, record: Record, taken_away: Counter[int]) -> None:
    """Refuses to launch for ever a command that is always terminated, or that exits as if it were.

    Raises:
        PreemptedTooOftenError: that is so.
    """
    if record.end_reason != enum_name(v1.EndReason.Name(v1.END_REASON_PREEMPTED), "END_REASON_"):
        del taken_away[record.recurrence]
        return
    # Without an exit code the command was an earlier driver's, and died with it.
    taken_away[record.recurrence] += record.exit_code is not None
    most = run.file.run.max_tries
    if taken_away[record.recurrence] < most:
        return
    output = run.folder.trial_folder(record.trial) / OUTPUT
    raise PreemptedTooOftenError(
        f"recurrence {record.recurrence} has been preempted in {most} tries in a row (max_tries = {most}), while "
        f"nobody told this driver to stop; the last command exited with status {record.exit_code}; see {output}. Mend "
        "the command if it exits with 129, 130 or 143 by itself, find out who terminates it, or raise max_tries"
    )


def _check_default(run: Run, record: Record) -> None:
    """Refuses to go on when the default batch size, which is known to work, does not.

    Raises:
        DefaultFailedError: that is so.
    """
    failures = {enum_name(v1.EndReason.Name(reason), "END_REASON_") for reason in _FAILURES}
    is_default = record.batch_size == run.file.job.default_batch_size
    if record.recurrence > 1 or record.reached or not is_default or record.end_reason not in failures:
        return
    output = run.folder.trial_folder(record.trial) / OUTPUT
    if record.exit_code and record.end_reason in ("error", "out of memory"):
        advice = f"its command exited with status {record.exit_code}; {output} says why: mend the command"
    elif record.end_reason == "completed":
        advice = (
            "its command ended well, but with nothing that decides the trial: it has to train until it is told to "
            "stop or for max_epochs, and without a client in it to write both metric and epochs to result.json; mend "
            "the command, and start this again"
        )
    else:
        mend = "lower target_metric, raise max_epochs or name another default_batch_size, under a new job_id"
        advice = f"see {output}; {mend}"
    raise DefaultFailedError(
        f"the default batch size {record.batch_size} did not reach the target in the first recurrence (trial "
        f"{record.trial} ended by {record.end_reason}): {advice}"
    )
