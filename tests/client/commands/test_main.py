"""The `wattwise` command: how it finds its subcommands and ends, and `wattwise jobs` against the real server."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from importlib import metadata
from typing import Any

import pytest
from google.protobuf.internal import encoder, wire_format
from wattwise import v1
from wattwise.commands.main import main
from wattwise.presentation.states import policy, stage

from tests.client.commands.conftest import Ask, records, row
from tests.forking import run
from tests.jobs import Trainer, job_spec, monitor_of, power_sample
from tests.terminal import on_terminal

AWAY = "127.0.0.1:1"


def shell(*words: str, missing: tuple[str, ...] = ()) -> list[str]:
    """The command line of a `wattwise` process in which some packages are not installed."""
    # A background process of a shell ignores Ctrl-C, and so would its children.
    heed = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    hide = f"sys.modules.update(dict.fromkeys({missing!r}))"
    return [sys.executable, "-c", f"{heed}; {hide}; from wattwise.commands.main import main; sys.exit(main())", *words]


def answer(*words: str, missing: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The result of such a process."""
    if not missing:
        return run(*words)
    return subprocess.run(shell(*words, missing=missing), capture_output=True, text=True, check=False, timeout=60)


def moment(text: str) -> datetime:
    """A time in a pipe."""
    assert text.endswith("Z")
    return datetime.fromisoformat(f"{text.removesuffix('Z')}+00:00")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("replay --syntetic 1", "--syntetic; did you mean '--synthetic'?"),
        ("jobs show --jsn", "--jsn; did you mean '--json'?"),
        ("jobs ban x --qqqq", "--qqqq"),
        ("web --adress 127.0.0.1:0", "--adress; did you mean '--address'?"),
        ("--verison", "--verison; did you mean '--version'?"),
    ],
)
def test_an_unknown_option_comes_before_missing_arguments(refused: Ask, words: str, named: str) -> None:
    """A misspelt option is often the one that is missing: it is named instead."""
    error = refused(*words.split(), status=2)
    assert f"unknown arguments: {named}\n" in error
    assert "required" not in error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("jobs --json", "arguments are required: ACTION"),
        ("jobs ban x", "arguments are required: BATCH_SIZE"),
        ("jobs ban -- --qqqq", "arguments are required: BATCH_SIZE"),
        ("job --server x", "unknown command 'job'; did you mean 'jobs'?"),
    ],
)
def test_missing_arguments(refused: Ask, words: str, named: str) -> None:
    """Without an unknown option what is missing or unknown is named; options of a subcommand are none."""
    assert named in refused(*words.split(), status=2)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version of the installed package."""
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"wattwise {metadata.version('wattwise')}\n")


def test_module() -> None:
    """`python -m wattwise` is the same command, where the script is not in the path."""
    done = subprocess.run([sys.executable, "-m", "wattwise", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"wattwise {metadata.version('wattwise')}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """--help has a line for each entry point."""
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    assert row(listed, "serve") == ["serve", "run the server"]
    assert row(listed, "jobs") == ["jobs", "list, show, watch, export, control and delete jobs"]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ((), "`wattwise COMMAND --help`"),
        (("jobs",), "wattwise jobs trials mnist-nightly --status running"),
        (("jobs", "show"), "`wattwise jobs list`"),
        (("jobs", "list"), "$WATTWISE_SERVER; default: localhost:50051"),
    ],
)
def test_help_of_every_level(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], fact: str) -> None:
    """Every level of --help explains its arguments."""
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert fact in " ".join(capsys.readouterr().out.split())


def test_no_command(refused: Ask) -> None:
    """Without a command, the help is printed as an error."""
    assert "usage: wattwise" in refused(status=2)


def test_unknown_command(refused: Ask) -> None:
    """The error for an unknown command names the most similar one."""
    assert "unknown command 'job'; did you mean 'jobs'?" in refused("job", "list", status=2)


@pytest.mark.parametrize("command", ["serve", "jobs list"])
def test_unknown_argument(refused: Ask, command: str) -> None:
    """The error for an unknown option names it, and the help that lists the known ones."""
    words = command.split()
    error = refused(*words, "--databse", "x", status=2)
    assert "--databse x" in error
    assert f"`wattwise {command} --help`" in error


def test_light_install_shows_what_is_missing() -> None:
    """If packages are missing, --help names the extra to install, and the other commands work."""
    listed = answer("--help", missing=("aiosqlite",))
    assert 'serve     needs: pip install "wattwise[server]"' in listed.stdout
    assert "list, show, watch, export, control and delete jobs" in listed.stdout


def test_light_install_refuses_what_is_missing() -> None:
    """A command whose packages are missing exits with status 2 and names the extra to install."""
    served = answer("serve", "--address", "127.0.0.1:0", missing=("aiosqlite",))
    assert served.returncode == 2
    assert served.stderr == 'wattwise serve needs: pip install "wattwise[server]" (aiosqlite is missing)\n'


def test_list(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A job's line in a pipe has its state, batch size, surviving ones, cost, when it began, and its stage."""
    trainer = Trainer(stub)
    trial = trainer.next()
    trainer.report(trial, 1_000, metric=0.1, time=100.0)
    trainer.report(trial, 12_345, epoch=2, time=200.0)
    _, *cells, registered, age, stage = row(ask("jobs", "list"), trainer.job_id)
    assert stage == "pruning, round 1 of 2"
    assert cells == ["idle", "16", "8, 16, 32, 64", "1", "12.3 kJ"]
    assert (registered[-4:], age[-1]) == (" UTC", "s")


def test_list_by_prefix(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """--prefix selects jobs, and --json prints one array, the newest activity first."""
    for job_id in ("mine-2", "mine-1", "other"):
        stub.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=job_id, job_id_prefix=job_id[:4])))
    jobs = json.loads(ask("jobs", "list", "--prefix", "mine", "--json"))
    assert [row["job"]["spec"]["job_id"] for row in jobs] == ["mine-1", "mine-2"]


def test_jobs_that_need_attention_come_first(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A stuck job comes before a job with newer trials, as on the page."""
    prefix = "attention"
    calm = Trainer(stub, job_id="attention-calm", job_id_prefix=prefix)
    stuck = Trainer(stub, job_id="attention-stuck", job_id_prefix=prefix, batch_sizes=[16], default_batch_size=16)
    stuck.end(stuck.next(), v1.END_REASON_OUT_OF_MEMORY)
    calm.report(calm.next(), 5.0, metric=0.1)
    listed = ask("jobs", "list", "--prefix", prefix, "--columns", "job,state", "--no-headers").splitlines()
    assert [line.split() for line in listed] == [[stuck.job_id, "stuck"], [calm.job_id, "running"]]


def test_list_of_many_pages(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Jobs on all pages are listed."""
    ids = [f"many-{number}" for number in range(120)]
    for job_id in ids:
        stub.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=job_id, job_id_prefix="many")))
    jobs = json.loads(ask("jobs", "list", "--prefix", "many", "--json"))
    assert [row["job"]["spec"]["job_id"] for row in jobs] == ids[::-1]


def test_empty_list(ask: Ask) -> None:
    """An empty list is printed as such, and as an empty array with --json."""
    assert ask("jobs", "list", "--prefix", "unknown-job") == "no jobs\n"
    assert json.loads(ask("jobs", "list", "--prefix", "unknown-job", "--json")) == []


def test_trials_of_a_batch_size_are_in_one_column_each(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Reached, missed, undecided or running: a preempted trial ended undecided."""
    trainer = Trainer(stub, batch_sizes=[16], policy="gts")
    for reason in (v1.END_REASON_PREEMPTED, v1.END_REASON_COMPLETED, v1.END_REASON_ERROR):
        trainer.end(trainer.next(), reason)
    trainer.run(100)
    trainer.run(100, converges=False)
    trainer.next()
    shown = ask("jobs", "show", trainer.job_id)
    assert row(shown, "batch size") == [
        "batch size",
        "state",
        "reached",
        "missed",
        "undecided",
        "running",
        "expected cost per model",
    ]
    assert row(shown, "16", "undecided")[2:6] == ["1", "1", "3", "1"]


def test_show_while_pruning(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A job without trials shows its target and no cost."""
    trainer = Trainer(stub)
    shown = ask("jobs", "show", trainer.job_id)
    assert row(shown, "job") == ["job", trainer.job_id]
    assert row(shown, "stage") == ["stage", "pruning, round 1 of 2"]
    assert row(shown, "cost") == ["cost", "No launch yet: the first one begins the search."]
    assert row(shown, "target") == ["target", "metric at least 0.9 within 10 epochs"]
    assert row(shown, "GPUs") == ["GPUs", "1 x Test GPU, 100 W in total"]


def test_stage_of_a_policy_without_stages(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A job without pruning shows its policy, but no stage and no role of a trial."""
    trainer = Trainer(stub, policy=None)
    trial = trainer.next()
    trainer.report(trial, 500, metric=0.1, time=10.0)
    trainer.report(trial, 1000, epoch=2, time=20.0)
    listed, shown = ask("jobs", "list"), ask("jobs", "show", trainer.job_id)
    trials = ask("jobs", "trials", trainer.job_id)
    assert row(listed, trainer.job_id)[1:4] == ["idle", "16", "8, 16, 32, 64"]
    assert row(shown, "policy") == ["policy", "knowledge_gradient"]
    assert row(shown, "stopped early") == ["stopped early", "above 2 times the least expected cost"]
    assert not any(line.startswith("stage") for line in shown.splitlines())
    assert row(trials, "1")[:5] == ["1", "16", "reached", "search", "decided"]
    assert not any(word in text for word in ("bandit", "mab") for text in (listed, shown, trials))


def test_stuck_job_without_stages(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A job without pruning is stuck if no batch size fits into memory; no batch size is used then, or is next."""
    trainer = Trainer(stub, batch_sizes=[16], policy=None)
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    assert row(ask("jobs", "list"), trainer.job_id)[1:3] == ["stuck", "none"]
    for action in ("list", "savings"):
        (listed,) = records(ask("jobs", action, "--prefix", trainer.job_id, "--format", "tsv"))
        assert listed["used_now"] == ""
    shown = ask("jobs", "show", trainer.job_id)
    assert f"`wattwise jobs reset {trainer.job_id}`" in row(shown, "advice")[1]
    assert all("  " in line for line in shown.split("\n\n")[0].splitlines())
    assert "next launch" not in shown


def test_job_that_only_misses_its_target(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Once every batch size has missed the target, the job shows what to change."""
    trainer = Trainer(stub, batch_sizes=[8, 16], policy=None)
    trainer.run(10, converges=False)
    assert not any(line.startswith("advice") for line in ask("jobs", "show", trainer.job_id).splitlines())
    trainer.run(10, converges=False)
    assert "an easier target" in row(ask("jobs", "show", trainer.job_id), "advice")[1]
    assert row(ask("jobs", "list"), trainer.job_id)[1] == "failing"


def test_policy_of_a_newer_server() -> None:
    """A policy that this client does not know is unknown, and has no stage."""
    job = v1.Job(spec=v1.JobSpec(), available_batch_sizes=[8])
    # A field of this number with an empty message.
    job.spec.policy.MergeFromString(encoder.TagBytes(99, wire_format.WIRETYPE_LENGTH_DELIMITED) + b"\0")
    assert (policy(job.spec), stage(job)) == ("unknown", "-")


def test_show_arms(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Costs of 1 and 3 kJ have mean 2 kJ, standard deviation 1 kJ, and 1/√2 kJ for the mean."""
    trainer = Trainer(stub, batch_sizes=[16], num_pruning_rounds=0, beta_knob=5.0)
    trainer.run(1000)
    trainer.run(3000)
    shown = ask("jobs", "show", trainer.job_id, "--wide")
    assert row(shown, "policy") == ["policy", "pruning_gts (num_pruning_rounds 0, seed 1)"]
    assert row(shown, "stage") == ["stage", "bandit"]
    assert row(shown, "stopped early") == ["stopped early", "above 5 times the cost of the cheapest trial"]
    assert row(shown, "16", "observations")[-4:] == ["2", "2.00 kJ", "707 J", "1.00 kJ"]


def test_estimates_are_marked_wherever_joules_are_shown(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Estimated costs and energies are marked in every table, and the monitor has its own column and field."""
    trainer = Trainer(stub, batch_sizes=[16], num_pruning_rounds=0, beta_knob=5.0)
    trainer.run(1000, monitor=monitor_of("estimate"))
    trainer.run(3000, monitor=monitor_of("estimate"))
    listed = ask("jobs", "list", "--prefix", trainer.job_id)
    assert row(listed, trainer.job_id)[5:7] == ["~2.00 kJ", "estimate"]
    assert listed.splitlines()[-1] == "~ marks estimates, wholly or in part."
    shown = ask("jobs", "show", trainer.job_id, "--wide")
    assert row(shown, "monitor") == ["monitor", "estimate"]
    (heading,) = (line for line in shown.splitlines() if "observations" in line)
    assert re.split(" {2,}", heading.strip())[6:] == [
        *("expected cost per model", "observations", "expected cost of a delivery"),
        *("std dev of that", "std dev of a trial"),
    ]
    assert row(shown, "16", "observations")[-4:] == ["2", "~2.00 kJ", "~707 J", "~1.00 kJ"]
    trials = ask("jobs", "trials", trainer.job_id)
    assert row(trials, "2")[10:13] == ["~3.00 kJ", "~3.00 kJ", "estimate"]
    assert trials.splitlines()[-1] == "~ marks estimates, wholly or in part."
    assert json.loads(ask("jobs", "show", trainer.job_id, "--json"))["job"]["monitor"] == {
        "kinds": ["estimate"],
        "quality": "ENERGY_QUALITY_ESTIMATED",
    }
    documents = json.loads(ask("jobs", "trials", trainer.job_id, "--json"))
    assert [trial["monitor"]["kinds"] for trial in documents] == [["estimate"], ["estimate"]]


def test_measurements_are_not_marked(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Measured joules are not marked."""
    trainer = Trainer(stub)
    trainer.run(1000, monitor=monitor_of("nvml", "rapl"))
    assert row(ask("jobs", "list", "--prefix", trainer.job_id), trainer.job_id)[5:7] == ["1.00 kJ", "nvml+rapl"]
    assert row(ask("jobs", "trials", trainer.job_id), "1")[10:13] == ["1.00 kJ", "1.00 kJ", "nvml+rapl"]


def test_mixed_monitors_are_named(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A job with two kinds of monitor names both; each trial is marked by its own."""
    trainer = Trainer(stub)
    trainer.run(1000, monitor=monitor_of("estimate"))
    trainer.run(1000, monitor=monitor_of("nvml"))
    listed = ask("jobs", "list", "--prefix", trainer.job_id)
    assert row(listed, trainer.job_id)[5:7] == ["~1.00 kJ", "nvml, estimate before"]
    assert listed.splitlines()[-1] == "~ marks estimates, wholly or in part."
    shown = ask("jobs", "show", trainer.job_id)
    assert row(shown, "monitor") == ["monitor", "nvml, estimate before: these costs cannot be compared"]
    trials = ask("jobs", "trials", trainer.job_id)
    assert [row(trials, number)[10] for number in ("1", "2")] == ["~1.00 kJ", "1.00 kJ"]
    assert json.loads(ask("jobs", "show", trainer.job_id, "--json"))["job"]["other_monitors"][0]["kinds"] == [
        "estimate"
    ]


def test_show_an_arm_without_observations(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """An arm without observations has unknown costs."""
    trainer = Trainer(stub, num_pruning_rounds=0)
    shown = ask("jobs", "show", trainer.job_id, "--wide")
    assert row(shown, "8", "observations")[-4:] == ["0", "unknown", "unknown", "unknown"]


def test_show_batch_sizes(stub: v1.BatchSizeOptimizerStub) -> None:
    """Every batch size has its state and its trials in a table of 80 columns; those that are out have a reason."""
    sizes = [16, 32, 64, 128, 256]
    trainer = Trainer(stub, batch_sizes=sizes, default_batch_size=64, num_pruning_rounds=1)
    trainer.run(100_000)
    trainer.run(120_000, converges=False)
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    trainer.report(trainer.next(), 110_000)
    trainer.next()
    status, text = on_terminal(("jobs", "show", trainer.job_id))
    shown = text.splitlines()
    table = next(number for number, line in enumerate(shown) if line.endswith("model") and "kJ" not in line)
    assert (status, max(map(len, shown))) == (0, 80)
    assert [line.split() for line in shown[table + 1 : table + 6]] == [
        ["16", "pruned", "0", "0", "0", "0", "unknown"],
        ["32", "pruned", "0", "1", "0", "0", "unknown"],
        ["64", "available", "2", "0", "0", "1", "105", "kJ", "±", "3.54", "kJ"],
        ["128", "out", "of", "memory", "0", "0", "1", "0", "unknown"],
        ["256", "out", "of", "memory", "0", "0", "0", "0", "unknown"],
    ]
    assert shown[table + 6] == "± is one standard deviation of what is known of the expected cost."
    reasons = [line for line in shown[table + 7 :] if not line.startswith(" ")]
    assert [line.split(":")[0] for line in reasons] == ["16", "32", "128", "256"]


def test_show_power_limits(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """The cheapest power limit of a batch size is shown once it is known, with the cost of a step."""
    trainer = Trainer(stub)
    trial = trainer.next()
    assert "power limit" not in ask("jobs", "show", trainer.job_id, "--wide")
    samples = [power_sample(225, energy=90, time=2), power_sample(250, energy=100)]
    stub.ReportPowerProfile(v1.ReportPowerProfileRequest(trial=trial.id, samples=samples))
    assert "power limit" not in ask("jobs", "show", trainer.job_id)
    shown = ask("jobs", "show", trainer.job_id, "--wide")
    assert row(shown, "16", "power limit")[-4:] == ["225 W per GPU", "9.00 J", "0.2 s", "9.00 J"]


def test_show_as_json(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """--json has the API's field names, including fields that are zero."""
    trainer = Trainer(stub)
    known = json.loads(ask("jobs", "show", trainer.job_id, "--json"))
    job: dict[str, Any] = known["job"]
    stage = job["policy_state"]["pruning_gts"]["stage"]
    assert (stage, job["num_trials"]) == ("PRUNING_GTS_STAGE_PRUNING", 0)
    assert "min_cost" not in job
    assert [state["num_running"] for state in known["details"]["batch_size_states"]] == [0, 0, 0, 0]


def test_names_are_text(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Job ids that look like markup are printed unchanged, and long ones are not truncated."""
    name = "[red]:smile:" + "x" * 180
    stub.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=name, job_id_prefix="[red]")))
    assert row(ask("jobs", "list", "--prefix", "[red]"), name)[0] == name


def test_job_ids_are_shown_escaped(
    ask: Ask, stub: v1.BatchSizeOptimizerStub, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job id cannot reverse or hide what a terminal shows, in tables, sentences and errors."""
    name, escaped = "mine-\u202ejob\u200b", "mine-\\u202ejob\\u200b"
    trainer = Trainer(stub, job_id=name, job_id_prefix="mine")
    trainer.next()
    for words in (("list", "--prefix", "mine"), ("show", name), ("pause", name), ("baseline", name)):
        shown = ask("jobs", *words)
        assert escaped in shown
        assert all(line.isprintable() for line in shown.splitlines())
    assert json.loads(ask("jobs", "show", name, "--json"))["job"]["spec"]["job_id"] == name
    heading, *cells = ask("jobs", "list", "--prefix", "mine").splitlines()
    assert {line.index("paused") for line in cells if escaped in line} == {heading.index("state")}
    assert escaped in ask("jobs", "delete", name, "--yes")
    assert main(["jobs", "show", name]) == 1
    error = capsys.readouterr().err.rstrip("\n")
    assert escaped in error
    assert error.isprintable()


def test_trials(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A trial's line has its end and its usage; a running one has a lease, and no numbers before a report."""
    trainer = Trainer(stub)
    trial = trainer.next()
    trainer.report(trial, 5_000, metric=0.95, epoch=3, time=725)
    trainer.next()
    shown = ask("jobs", "trials", trainer.job_id)
    *cells, _, _ = row(shown, "1")
    assert cells == [
        *("1", "16", "reached", "search, exploration", "decided", "target reached", "reached"),
        *("3", "0.95", "12 min 05 s", "5.00 kJ", "5.00 kJ"),
    ]
    assert row(shown, "2")[:5] == ["2", "8", "running", "search, exploration", "running"]
    first, running = records(ask("jobs", "trials", trainer.job_id, "--format", "tsv"))
    assert abs(datetime.now(timezone.utc) - moment(first["started"])) < timedelta(minutes=5)
    # When it was dispatched, and when its lease runs out.
    began, ends = moment(running["started"]), moment(running["lease_expires"])
    assert timedelta(seconds=299) <= ends - began <= timedelta(seconds=301)
    assert [running[name] for name in ("epochs", "metric", "time_seconds", "energy_joules", "cost_joules")] == [""] * 5


def test_trials_and_their_target(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A trial has reached its target, within or over budget, missed it, or not yet; a crashed one shows nothing."""
    trainer = Trainer(stub, trial_lease_seconds=0, higher_is_better=False, target_metric=0.5)
    trainer.report(trainer.next(), 10, metric=0.4)
    trainer.report(trainer.next(), 100, metric=0.4)
    trainer.report(trainer.next(), 10, metric=0.6, epoch=10)
    crashed = trainer.next()
    trainer.report(crashed, 5, metric=0.6)
    trainer.end(crashed, v1.END_REASON_ERROR)
    trainer.report(trainer.next(), 5, metric=0.6)
    shown = ask("jobs", "trials", trainer.job_id)
    assert [row(shown, str(number))[5:7] for number in (1, 2, 3)] == [
        ["target reached", "reached"],
        ["cost bound", "reached, over budget"],
        ["max epochs", "missed"],
    ]
    assert row(shown, "4")[4:7] == ["failed", "error", "1"]
    assert row(shown, "5")[4:6] == ["running", "not yet"]
    assert "never" in row(shown, "5")


def test_stuck_job(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A job whose batch sizes all failed is stuck, and shows what to change."""
    trainer = Trainer(stub, batch_sizes=[16])
    trainer.run(10, converges=False)
    assert row(ask("jobs", "list"), trainer.job_id)[1:3] == ["stuck", "none"]
    advice = row(ask("jobs", "show", trainer.job_id), "advice")[1]
    assert "under a new job_id" in advice
    assert "an easier target" in advice


def test_trials_by_status_and_batch_size(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """--status and --batch-size select trials."""
    trainer = Trainer(stub)
    trainer.run(100)
    trainer.end(trainer.next(), v1.END_REASON_ERROR)
    trainer.next()

    def numbers(*words: str) -> list[int]:
        trials = json.loads(ask("jobs", "trials", trainer.job_id, "--json", *words))
        return [trial["id"]["trial_number"] for trial in trials]

    assert numbers() == [1, 2, 3]
    assert numbers("--status", "failed") == [2]
    assert numbers("--batch-size", "8") == [2, 3]
    assert numbers("--batch-size", "8", "--status", "running") == [3]
    assert numbers("--batch-size", "64") == []


def test_nan_metric(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A NaN metric is shown, and the output of --json is valid."""
    trainer = Trainer(stub)
    trainer.report(trainer.next(), 10, metric=math.nan)
    assert "NaN" in row(ask("jobs", "trials", trainer.job_id), "1")
    (trial,) = json.loads(ask("jobs", "trials", trainer.job_id, "--json"))
    assert trial["newest"]["metric"] == "NaN"


@pytest.mark.parametrize("words", [("--batch-size", "0"), ("--batch-size", "x"), ("--status", "lost")])
def test_wrong_usage(refused: Ask, words: tuple[str, str]) -> None:
    """An invalid argument is refused by name, without a call."""
    assert f"argument {words[0]}" in refused("jobs", "trials", "x", *words, status=2)


@pytest.mark.parametrize("action", ["show", "trials"])
def test_unknown_job(refused: Ask, action: str) -> None:
    """A refusal of the server is one line on stderr."""
    error = refused("jobs", action, "unknown-job", status=1)
    assert error.startswith("wattwise jobs: ")
    assert "unknown-job" in error
    assert error.count("\n") == 1


def test_nearest_job(refused: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """The error for a job id that does not exist names the nearest one, and none that is far."""
    for job_id in ("nearest-mnist-nightly", "nearest-bert-weekly"):
        Trainer(stub, job_id=job_id, job_id_prefix="nearest")
    assert "did you mean 'nearest-mnist-nightly'?" in refused("jobs", "show", "nearest-minst-nightly", status=1)
    assert "did you mean 'nearest-bert-weekly'?" in refused("jobs", "pause", "BERT-weekl", status=1)
    assert "did you mean" not in refused("jobs", "savings", "qqqqqqqq", status=1)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("jbos",), "'jobs'"),
        (("jobs", "lst"), "'list'"),
        (("jobs", "trails", "x"), "'trials'"),
        (("jobs", "list", "--formt", "tsv"), "'--format'"),
        (("jobs", "reset", "x", "--yess"), "'--yes'"),
        (("jobs", "trials", "x", "--status", "runing"), "'running'"),
        (("jobs", "events", "--kind", "trial-faild"), "'trial-failed'"),
        (("spool", "lisst"), "'list'"),
        (("serve", "--adress", "x"), "'--address'"),
        (("web", "exprt"), "'export'"),
        (("jobs", "list", "--sort", "amodelnow"), "'a-model-now'"),
    ],
)
def test_nearest_word(refused: Ask, words: tuple[str, ...], meant: str) -> None:
    """A misspelt command, action, option, choice or column is answered with the one that was meant, in a few lines."""
    error = refused(*words, status=2)
    assert f"did you mean {meant}?" in error
    assert len(error.splitlines()) <= 3


def test_short_usage(refused: Ask) -> None:
    """The error for wrong options has a usage of one line, the fault, and the command that explains the options."""
    usage, fault, explained = refused("jobs", "export", "--format", "xml", status=2).splitlines()
    assert usage == "usage: wattwise jobs export [OPTIONS] [ID]"
    assert fault.startswith("wattwise jobs export: argument --format: ")
    assert "`wattwise jobs export --help`" in explained
    assert refused("jobs", "show", status=2).splitlines()[1] == (
        "wattwise jobs show: the following arguments are required: ID"
    )


def test_server_away(refused: Ask) -> None:
    """A server that is away is one line on stderr with its address; --server overrides the environment."""
    error = refused("jobs", "list", "--server", AWAY, status=1)
    assert f"server at {AWAY}" in error
    assert error.count("\n") == 1


def test_delete(ask: Ask, refused: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """--yes deletes without confirmation, and the number of stopped trials is printed."""
    trainer = Trainer(stub)
    trainer.next()
    assert ask("jobs", "delete", trainer.job_id, "--yes") == f"Deleted {trainer.job_id}; running trials stopped: 1.\n"
    assert trainer.job_id in refused("jobs", "show", trainer.job_id, status=1)


def test_delete_as_json(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """With --json the deleted job and the number of stopped trials are printed."""
    trainer = Trainer(stub)
    trainer.next()
    answered = json.loads(ask("jobs", "delete", trainer.job_id, "--yes", "--json"))
    assert answered["job"]["spec"]["job_id"] == trainer.job_id
    assert answered["num_stopped_trials"] == 1


@pytest.mark.parametrize("action", ["delete", "reset"])
def test_without_a_terminal_nothing_is_asked(stub: v1.BatchSizeOptimizerStub, action: str) -> None:
    """Without a terminal, nothing is deleted or reset unless --yes is used."""
    trainer = Trainer(stub)
    trainer.run(10)
    finished = answer("jobs", action, trainer.job_id)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert f"add --yes to {action} {trainer.job_id}" in finished.stderr
    assert trainer.next().id.trial_number == 2


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: the user's end, and the program's."""
    ends = pty.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def asking(action: str, job_id: str, program_end: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An action that is waiting for confirmation on the terminal, and its question."""
    words = shell("jobs", action, job_id)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=program_end, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            asked = ""
            while not asked.endswith("[y/N] "):
                asked += process.stderr.read(1) or pytest.fail(f"it ended after {asked!r}")
            yield process, asked
        finally:
            process.kill()


@pytest.mark.parametrize(("typed", "remains"), [(b"\n", True), (b"n\n", True), (b"y\n", False)])
def test_delete_asks(
    terminal: tuple[int, int], stub: v1.BatchSizeOptimizerStub, refused: Ask, typed: bytes, remains: bool
) -> None:
    """On a terminal, only "y" or "yes" deletes."""
    person, program_end = terminal
    trainer = Trainer(stub)
    with asking("delete", trainer.job_id, program_end) as (process, asked):
        os.write(person, typed)
        out, err = process.communicate(timeout=60)
    assert asked == f"Delete {trainer.job_id}, which has no trials? [y/N] "
    assert process.returncode == 0
    if remains:
        assert (out, err) == ("", "Nothing was changed.\n")
        assert trainer.next().id.trial_number == 1
    else:
        assert out.startswith(f"Deleted {trainer.job_id}")
        assert trainer.job_id in refused("jobs", "show", trainer.job_id, status=1)


@pytest.mark.parametrize(("typed", "remains"), [(b"\n", True), (b"yes\n", False)])
def test_reset_asks(
    ask: Ask, terminal: tuple[int, int], stub: v1.BatchSizeOptimizerStub, typed: bytes, remains: bool
) -> None:
    """On a terminal the question says what is lost, and how a new job would keep what was learned."""
    person, program_end = terminal
    trainer = Trainer(stub)
    trainer.run(10)
    with asking("reset", trainer.job_id, program_end) as (process, asked):
        os.write(person, typed)
        out, err = process.communicate(timeout=60)
    assert "1 trial " in asked
    assert f"names {trainer.job_id} in prior_job_ids" in asked
    assert (process.returncode, err) == (0, "Nothing was changed.\n" if remains else "")
    assert out.startswith("" if remains else f"Reset {trainer.job_id}: ")
    assert json.loads(ask("jobs", "show", trainer.job_id, "--json"))["job"].get("reset_after") == (
        None if remains else 1
    )


def test_interrupted(terminal: tuple[int, int], stub: v1.BatchSizeOptimizerStub) -> None:
    """Ctrl-C ends the command with status 130 and without a traceback, and nothing is deleted."""
    trainer = Trainer(stub)
    with asking("delete", trainer.job_id, terminal[1]) as (process, _):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert trainer.next().id.trial_number == 1


def test_reader_gone(stub: v1.BatchSizeOptimizerStub) -> None:
    """If the reader of a pipe is gone, the command ends with status 141 and without output."""
    Trainer(stub)
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(shell("jobs", "list"), stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(writer)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")
