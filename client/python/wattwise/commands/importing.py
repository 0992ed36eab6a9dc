"""`wattwise jobs import`: trials from before a job was registered."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattwise import v1
from wattwise.commands.actions import add_id, plain, print_json
from wattwise.commands.main import complain, say
from wattwise.commands.trials_file import OPTIONAL, FileTrial, TrialsFileError, read
from wattwise.errors import InvalidRequestError, WattwiseError
from wattwise.presentation.quantities import duration, energy_of, joules, moment
from wattwise.presentation.sentences import number_of
from wattwise.presentation.states import end_reason, warning_kind
from wattwise.rpc.client import Client
from wattwise.rules import MAX_MEASUREMENTS
from wattwise.spec import enum_value
from wattwise.streams import FAILED, MISUSED

_MOST_FAULTS = 100
FORMAT = f"""The file has a line of column names, then one for each epoch of a trial, or only one for its last epoch:

  trial,batch_size,epoch,time_seconds,energy_joules,metric
  2026-10-01,128,1,61.2,18100,0.91
  2026-10-01,128,2,122.9,36400,0.97
  2026-10-02,256,3,140.1,42000,0.98

time_seconds and energy_joules are sums since the start of the trial; an empty energy_joules means that no energy was
measured. Optional columns are {", ".join(OPTIONAL[:-1])} and
{OPTIONAL[-1]}. A trial is known by its name: importing a file again changes nothing.
A trial has at most {MAX_MEASUREMENTS:,} lines; if it has more, leave out some of its earlier epochs.
"""


def add_import(parser: argparse.ArgumentParser) -> None:
    """Declares the action."""
    parser.set_defaults(handler=_import)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = FORMAT
    add_id(parser)
    parser.add_argument("file", type=Path, metavar="FILE.csv", help="the trials, as described below")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the file, and let the server check its trials; import nothing"
    )


def launch_id(job_id: str, name: str) -> str:
    """Returns the id under which the server knows an imported trial: the same for every import of it."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(["wattwise jobs import", job_id, name])))


def _import(client: Client, args: argparse.Namespace) -> int:
    spec = client.get_job(args.job_id).job.spec
    try:
        file = read(args.file, spec)
    except TrialsFileError as error:
        for fault in error.violations[:_MOST_FAULTS]:
            complain(f"wattwise jobs import: {fault.field}: {fault.description}")
        if len(error.violations) > _MOST_FAULTS:
            complain(f"wattwise jobs import: and {len(error.violations) - _MOST_FAULTS} more faults")
        if not error.violations:
            complain(f"wattwise jobs import: {error}")
        return MISUSED
    if file.ignored:
        complain(f"wattwise jobs import: these columns are ignored: {', '.join(file.ignored)}")
    return _send(client, args, file.trials)


def _send(client: Client, args: argparse.Namespace, trials: Sequence[FileTrial]) -> int:
    """Imports the trials one after the other, or asks what each import would do; returns the exit status."""
    created, differing = 0, 0
    answers: list[dict[str, Any]] = []
    for trial in trials:
        try:
            answer = client.import_trial(_request(args, trial))
        except WattwiseError as error:
            if other := _other_batch_size(error):
                differing += 1
                _complain(args, trial, f"was imported before with another batch size: {other}. Rename it in the file")
                continue
            done = "nothing was imported" if args.dry_run else f"{number_of(created, 'trial')} created before it"
            raise WattwiseError(
                f"{args.file}:{trial.line}: trial {trial.name!r}: {error}; {done}. "
                "Import it again once the cause is fixed: no trial is imported twice"
            ) from error
        if args.dry_run and created:
            # Each trial was checked as if it were the next one, but only the first is.
            _remove_warnings_of_a_first_trial(answer.trial)
        created += answer.created
        answers.append({"name": trial.name, "created": answer.created, "trial": plain(answer.trial)})
        if not args.json:
            _print(args, trial, answer)
        for warning in answer.trial.warnings if answer.created else ():
            _complain(args, trial, f"{warning_kind(warning.reason)}: {warning.message}")
        if not answer.created and _differs(trial, answer.trial):
            differing += 1
            _complain(args, trial, _difference(args, answer.trial))
    known = len(trials) - created - differing
    conflicts = f", {differing} in conflict with known ones" if differing else ""
    if args.json:
        print_json(answers)
    elif args.dry_run:
        would = f"{number_of(created, 'trial')} would be created"
        _say(args.job_id, f"{would}, {known} known{conflicts}; nothing was imported")
        _say("not checked", "what follows from other trials of the file, such as their numbers in the job")
    else:
        _say(args.job_id, f"{number_of(created, 'trial')} created, {known} known before{conflicts}")
    return FAILED if differing else 0


def _remove_warnings_of_a_first_trial(trial: v1.Trial) -> None:
    kept = [each for each in trial.warnings if each.reason != v1.WARNING_REASON_TARGET_REACHED_AT_ONCE]
    del trial.warnings[:]
    trial.warnings.extend(kept)


def _other_batch_size(error: WattwiseError) -> str:
    """Returns which other batch size a known trial has, if the server refuses this one for it."""
    if not isinstance(error, InvalidRequestError):
        return ""
    # The file has only batch sizes of the job.
    return next((fault.description for fault in error.violations if fault.field == "batch_size"), "")


def _print(args: argparse.Namespace, trial: FileTrial, answer: v1.ImportTrialResponse) -> None:
    known = answer.trial
    what = f"known as trial {known.id.trial_number}"
    if answer.created:
        what = "would be created" if args.dry_run else f"created as trial {known.id.trial_number}"
    usage = _usage(known.newest if known.HasField("newest") else None)
    start = f"started {moment(known.start_time)}" if known.HasField("start_time") else "start unknown"
    end = f"ended by {end_reason(known.end_reason)}"
    why = ", before the job's reset" if answer.created else ""
    excluded = f", excluded{why}" if known.excluded else ""
    _say(trial.name, f"{what}, batch size {known.batch_size}, {start}, {usage}, {end}{excluded}")


def _request(args: argparse.Namespace, trial: FileTrial) -> v1.ImportTrialRequest:
    request = v1.ImportTrialRequest(
        job_id=args.job_id,
        launch_id=launch_id(args.job_id, trial.name),
        batch_size=trial.batch_size,
        measurements=trial.measurements,
        end_reason=enum_value(v1.EndReason, trial.end_reason),
        validate_only=args.dry_run,
    )
    if trial.start_time is not None:
        request.start_time.FromDatetime(trial.start_time)
    if trial.monitor is not None:
        request.monitor.CopyFrom(trial.monitor.to_message())
    return request


def _differs(trial: FileTrial, known: v1.Trial) -> bool:
    """Returns whether a known trial has other measurements than the file, up to the epoch that decided it."""
    epochs = {measurement.epoch: measurement for measurement in trial.measurements}
    if not known.newest.epoch:
        return bool(epochs)
    sent, stored = epochs.get(known.newest.epoch), known.newest
    if sent is None or (_ended_undecided(known) and max(epochs) > known.newest.epoch):
        return True
    same_metric = sent.metric == stored.metric or (math.isnan(sent.metric) and math.isnan(stored.metric))
    same_sums = (sent.time_seconds, energy_of(sent)) == (stored.time_seconds, energy_of(stored))
    return not (same_sums and same_metric)


def _ended_undecided(known: v1.Trial) -> bool:
    """Returns whether a known trial ended with the last of its imported measurements, none of which decided it."""
    undecided = known.status in (v1.TRIAL_STATUS_FAILED, v1.TRIAL_STATUS_INTERRUPTED)
    return undecided or known.end_reason == v1.END_REASON_STOPPED_EARLY


def _difference(args: argparse.Namespace, known: v1.Trial) -> str:
    number = known.id.trial_number
    return (
        f"was imported before with other measurements, as trial {number}, which stays as it is. If this is another "
        "trial, rename it in the file; if its measurements were corrected, rename it too, and run "
        f"`wattwise jobs exclude-trial {shlex.quote(args.job_id)} {number}`"
    )


def _complain(args: argparse.Namespace, trial: FileTrial, text: str) -> None:
    complain(f"wattwise jobs import: {args.file}:{trial.line}: trial {trial.name!r}: {text}")


def _usage(last: v1.Measurement | None) -> str:
    if last is None:
        return "no epochs"
    energy = energy_of(last)
    used = "energy not measured" if energy is None else joules(energy)
    return f"{number_of(last.epoch, 'epoch')}, {duration(last.time_seconds)}, {used}, metric {last.metric:.6g}"


def _say(name: str, text: str) -> None:
    say(f"{name}: {text}")
