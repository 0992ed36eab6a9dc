"""`wattwise jobs`: control over a job, against the real server."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from wattwise import v1

from tests.client.commands.conftest import Ask, row
from tests.hostile.behaviours import refusing
from tests.hostile.server import Behaviour, HostileServer
from tests.jobs import Trainer, monitor_of, result
from tests.live_server import LiveServer
from tests.terminal import on_terminal


@pytest.fixture
def trainer(stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job of the default policy with batch sizes 8, 16, 32 and 64."""
    return Trainer(stub, policy="knowledge_gradient")


def test_reset_revives_an_exhausted_job(ask: Ask, trainer: Trainer) -> None:
    """After the smallest batch size ran out of memory, a reset makes the job launch again, with its history."""
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    with pytest.raises(grpc.RpcError) as exhausted:
        trainer.next()
    assert f"`wattwise jobs reset {trainer.job_id}`" in str(exhausted.value.details())
    assert ask("jobs", "reset", trainer.job_id, "--yes") == (
        f"Reset {trainer.job_id}: its search begins again, without its 2 earlier trials. "
        "The next launch gets batch size 16: the default is tried first.\n"
    )
    shown = ask("jobs", "show", trainer.job_id)
    assert row(shown, "reset")[1].partition(" UTC: ")[2].startswith("trials 1-2 do not count")
    assert row(ask("jobs", "trials", trainer.job_id), "2")[4] == "failed, before reset"
    assert trainer.next().id.trial_number == 3
    assert len(json.loads(ask("jobs", "trials", trainer.job_id, "--json"))) == 3


def test_reset_of_a_job_that_another_version_has_stored(tmp_path: Path, ask: Ask, refused: Ask) -> None:
    """A search in a format of another version is refused with what to do; a reset begins it again."""
    with LiveServer(tmp_path) as server:
        server.start()
        trainer = Trainer(server.trainer, policy="knowledge_gradient")
        trainer.run(10)
        server.stop()
        with closing(sqlite3.connect(server.database)) as database, database:
            database.execute("""UPDATE jobs SET notes = replace(notes, '"format":', '"format":9')""")
        server.start()
        to = ("--server", server.address)
        error = refused("jobs", "show", trainer.job_id, *to, status=1)
        assert "format 92; this version reads 2" in error
        assert "`wattwise jobs reset`" in error
        assert trainer.job_id in ask("jobs", "list", *to)
        assert "without its 1 earlier trial" in ask("jobs", "reset", trainer.job_id, "--yes", *to)
        assert row(ask("jobs", "show", trainer.job_id, *to), "job") == ["job", trainer.job_id]


def test_excluded_trial(ask: Ask, trainer: Trainer) -> None:
    """An excluded trial is marked and does not set the minimum cost, until it is included again."""
    trainer.run(1000)
    size = trainer.run(1).batch_size
    job_id = trainer.job_id
    answer = ask("jobs", "exclude-trial", job_id, "2")
    assert answer.startswith(f"Excluded trial 2 of {job_id}, with batch size {size}. ")
    shown = ask("jobs", "show", job_id)
    assert json.loads(ask("jobs", "show", job_id, "--json"))["job"]["min_cost"] == 1000
    assert row(shown, "excluded")[1].startswith("trial 2 does not count; ")
    assert row(ask("jobs", "trials", job_id), "2")[4] == "decided, excluded"
    assert ask("jobs", "include-trial", job_id, "2").startswith(f"Included trial 2 of {job_id}")
    assert json.loads(ask("jobs", "show", job_id, "--json"))["job"]["min_cost"] == 1


def test_banned_batch_size(ask: Ask, refused: Ask, trainer: Trainer) -> None:
    """A banned batch size is shown as such; the last one cannot be banned; lifting the ban brings it back."""
    job_id = trainer.job_id
    assert "The next launch gets batch size 16: the default is" in ask("jobs", "ban", job_id, "64")
    for size in ("8", "16"):
        ask("jobs", "ban", job_id, size)
    assert "32 is the last available batch size" in refused("jobs", "ban", job_id, "32", status=1)
    shown = ask("jobs", "show", job_id)
    assert "does not choose batch sizes 8, 16, 64; " in row(shown, "banned")[1]
    assert row(shown, "64", "state")[1] == "banned"
    assert f"`wattwise jobs unban {job_id} 64`" in shown
    answer = ask("jobs", "unban", job_id, "64")
    state = f"Batch size 64 of {job_id} is no longer banned; no trial of it counts yet."
    assert answer.startswith(f"{state} The next launch gets batch size 32: ")


def test_readmitted_after_crashes(ask: Ask, trainer: Trainer) -> None:
    """A batch size that was set aside is readmitted at once, with the command that its state names."""
    for _ in range(3):
        trainer.end(trainer.next(), v1.END_REASON_ERROR)
    shown = ask("jobs", "show", trainer.job_id)
    assert row(shown, "16", "state")[1] == "set aside"
    (command,) = {part for line in shown.splitlines() for part in line.split("`") if "jobs readmit" in part}
    assert command == f"wattwise jobs readmit {trainer.job_id} 16"
    ask(*command.split()[1:])
    assert row(ask("jobs", "show", trainer.job_id), "16", "state")[1] == "available"


def test_pinned_batch_size(ask: Ask, trainer: Trainer) -> None:
    """Every launch gets a pinned batch size, as a requested trial, until it is unpinned without naming it."""
    job_id = trainer.job_id
    assert ask("jobs", "pin", job_id, "64").endswith("The next launch gets batch size 64: pinned; no cost bound.\n")
    assert [trainer.next().batch_size for _ in range(2)] == [64, 64]
    shown = ask("jobs", "show", job_id)
    assert row(shown, "pinned")[1].startswith("every launch gets batch size 64; ")
    assert row(shown, "used now")[1].startswith("Batch size 64 is used now")
    assert row(shown, "set by a person") == ["set by a person", "2 trials"]
    assert row(ask("jobs", "trials", job_id), "1")[3] == "requested"
    assert row(ask("jobs", "list"), job_id)[1] == "pinned to 64"
    assert ask("jobs", "unpin", job_id).startswith(f"Batch size 64 of {job_id} is no longer pinned; ")
    assert row(ask("jobs", "list"), job_id)[1] == "running"
    assert ask("jobs", "unpin", job_id).startswith(f"No batch size of {job_id} is pinned: ")


def test_paused_search(ask: Ask, trainer: Trainer) -> None:
    """While it is paused, launches get the best known batch size; the answer has the command that ends that."""
    job_id = trainer.job_id
    trial = trainer.next()
    trainer.report(trial, 50, metric=0.1)
    trainer.report(trial, 100, epoch=2)
    answer = ask("jobs", "pause", job_id)
    assert f"`wattwise jobs resume {job_id}`" in answer
    assert "gets batch size 16: the best known batch size; the search is paused; no cost bound. " in answer
    assert answer.endswith(" with batch size 16.\n")
    assert [trainer.run(100).batch_size for _ in range(3)] == [16, 16, 16]
    shown = ask("jobs", "show", job_id)
    assert row(shown, "paused")[1].startswith("launches get the best known batch size, and no other one is tried; ")
    assert row(shown, "used now")[1].startswith("Batch size 16 is used now")
    assert row(ask("jobs", "list"), job_id)[1] == "paused"
    assert ask("jobs", "resume", job_id).startswith(f"Resumed {job_id}. The next launch gets batch size ")
    assert trainer.next().batch_size != 16


def test_change_without_its_preview_is_no_error(ask: Ask, trainer: Trainer, grpc_server: LiveServer) -> None:
    """The job was changed, even if the server does not say what the next launch gets."""
    refusal = refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    with HostileServer(Behaviour("no preview", answers={"PreviewNext": refusal}), grpc_server.address) as server:
        answer = ask("jobs", "pause", trainer.job_id, "--server", server.address)
    assert answer.startswith(f"Paused {trainer.job_id}")
    assert answer.endswith("What the next launch gets is not known now.\n")


def test_baseline(ask: Ask, trainer: Trainer) -> None:
    """A requested baseline is shown until a launch gets the default batch size."""
    job_id = trainer.job_id
    trainer.run(100)
    answer = ask("jobs", "baseline", job_id)
    assert answer.startswith(
        f"Requested a baseline of {job_id}: batch size 16. The next launch gets batch size 16: the default; "
    )
    assert row(ask("jobs", "show", job_id), "baseline")[1] == "the next launch gets the default batch size, 16"
    assert trainer.next().batch_size == 16
    assert not any(line.startswith("baseline") for line in ask("jobs", "show", job_id).splitlines())
    ask("jobs", "pause", job_id)
    assert "waits until the search is resumed" in ask("jobs", "baseline", job_id)
    assert row(ask("jobs", "show", job_id), "baseline")[1].endswith(", but not until the search is resumed")
    assert "as a baseline" in ask("jobs", "resume", job_id)


def test_baseline_of_a_banned_default(ask: Ask, refused: Ask, trainer: Trainer) -> None:
    """A default that may not be chosen is refused as a baseline, with the command that lifts its ban."""
    ask("jobs", "ban", trainer.job_id, "16")
    error = refused("jobs", "baseline", trainer.job_id, status=1)
    assert f"`wattwise jobs unban {trainer.job_id} 16`" in error
    assert "job_id:" not in error


def test_scheduled_baselines(ask: Ask, trainer: Trainer) -> None:
    """One launch in so many is a baseline from now on: the answer does not read as so many launches from now."""
    job_id = trainer.job_id
    schedule = f"one launch in 3 of {job_id} is a baseline"
    answer = ask("jobs", "baseline", job_id, "--every", "3")
    assert answer.startswith(f"From now on, {schedule}, with its default batch size 16. ")
    assert ask("jobs", "baseline", job_id, "--every", "3").startswith(f"Already {schedule}: nothing has changed.")
    ended = f"{job_id} has no scheduled baselines"
    assert ask("jobs", "baseline", job_id, "--every", "0").startswith(f"{ended} any more.")
    assert ask("jobs", "baseline", job_id, "--every", "0").startswith(f"{ended}: nothing has changed.")


@pytest.mark.parametrize("every", ["-1", "1", "0.5", "many", "2147483648", "9" * 5000])
def test_wrong_schedule(refused: Ask, every: str) -> None:
    """The schedules that there are have one description: 2 or more, or 0."""
    error = refused("jobs", "baseline", "x", "--every", every, status=2)
    assert "use 2 or more, or 0 for no more baselines" in error
    assert "is not a number" not in error


def test_waiting_baseline_is_named(ask: Ask, trainer: Trainer) -> None:
    """While a batch size is pinned or paused, one line says what launches get, and the others that they wait."""
    job_id = trainer.job_id
    ask("jobs", "baseline", job_id)
    ask("jobs", "pause", job_id)
    assert "A baseline with batch size 16 waits until 64 is unpinned." in ask("jobs", "pin", job_id, "64")
    shown = ask("jobs", "show", job_id)
    assert row(shown, "used now")[1].startswith("Batch size 64 is used now")
    assert row(shown, "paused")[1].startswith("once nothing is pinned, ")
    assert row(shown, "baseline")[1].endswith(", but not until 64 is unpinned")
    assert row(shown, "stopped early")[1].endswith("; trials of a pinned batch size are not")
    assert "A baseline with batch size 16 waits until the search is resumed." in ask("jobs", "unpin", job_id)


def test_withdrawn_baseline(ask: Ask, trainer: Trainer) -> None:
    """Banning the default batch size withdraws a baseline, and so does a reset; the answer says so."""
    job_id = trainer.job_id
    for words in (("ban", job_id, "16"), ("reset", job_id, "--yes")):
        ask("jobs", "unban", job_id, "16")
        ask("jobs", "baseline", job_id)
        assert "is withdrawn" in ask("jobs", *words)
        assert not any(line.startswith("baseline") for line in ask("jobs", "show", job_id).splitlines())
        assert "is withdrawn" not in ask("jobs", "ban", job_id, "32")


def test_pin_says_what_it_ends(ask: Ask, trainer: Trainer) -> None:
    """Pinning a batch size does not end its ban, but that another one is pinned."""
    ask("jobs", "ban", trainer.job_id, "64")
    answer = ask("jobs", "pin", trainer.job_id, "64")
    assert f"Batch size 64 of {trainer.job_id} is pinned: every launch gets it until " in answer
    assert f"banned until `wattwise jobs unban {trainer.job_id} 64`" in answer
    assert row(ask("jobs", "show", trainer.job_id), "64", "state")[1] == "pinned, banned"
    answer = ask("jobs", "pin", trainer.job_id, "32")
    assert "Batch size 64 is no longer pinned." in answer
    assert "banned" not in answer


def test_readmitting_says_what_launches_get(ask: Ask, trainer: Trainer) -> None:
    """A job that was stuck is told what it launches, not that it must be reset."""
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    assert row(ask("jobs", "list", "--prefix", trainer.job_id), trainer.job_id)[1] == "stuck"
    answer = ask("jobs", "readmit", trainer.job_id, "8")
    assert "The next launch gets batch size 8: " in answer


def test_trials_with_warnings_are_marked(ask: Ask, trainer: Trainer) -> None:
    """A trial's warnings are named in its row."""
    trainer.report(trainer.next(), 10.0, metric=95.0)
    trainer.report(trainer.next(), 10.0, metric=0.5)
    shown = ask("jobs", "trials", trainer.job_id)
    assert "metric out of range" in row(shown, "1")
    assert "metric out of range" not in row(shown, "2")


@pytest.mark.parametrize("policy", ["pruning_gts", "gts", "knowledge-gradient"])
def test_policy(ask: Ask, trainer: Trainer, policy: str) -> None:
    """A policy is set by its short name."""
    name = policy.replace("-", "_")
    answer = ask("jobs", "set-policy", trainer.job_id, policy)
    assert answer.startswith(f"{trainer.job_id} has the policy {name}")
    assert row(ask("jobs", "show", trainer.job_id), "policy") == ["policy", name]


def test_parameters_of_a_policy(ask: Ask, refused: Ask, trainer: Trainer) -> None:
    """Those that are not the defaults are shown; one that is invalid is refused before anything changes."""
    answer = ask("jobs", "set-policy", trainer.job_id, "gts", "--window-size", "50")
    assert answer.startswith(f"{trainer.job_id} has the policy gts (window_size 50).")
    assert row(ask("jobs", "show", trainer.job_id), "policy") == ["policy", "gts (window_size 50)"]
    for size in ("-1", "x", str(2**31)):
        error = refused("jobs", "set-policy", trainer.job_id, "gts", f"--window-size={size}", status=2)
        assert f"'{size}' is invalid" in error
    assert row(ask("jobs", "show", trainer.job_id), "policy") == ["policy", "gts (window_size 50)"]


def test_ban_of_a_pinned_batch_size(ask: Ask, trainer: Trainer) -> None:
    """The answer says that the ban waits for the end of the pin."""
    ask("jobs", "pin", trainer.job_id, "64")
    answer = ask("jobs", "ban", trainer.job_id, "64")
    assert answer.startswith(f"Batch size 64 of {trainer.job_id} is banned, which takes effect once it is unpinned; ")


def test_exclusion_of_a_trial_from_before_a_reset(ask: Ask, trainer: Trainer) -> None:
    """A trial that does not count is not said to be excluded now."""
    trainer.run(10)
    ask("jobs", "reset", trainer.job_id, "--yes")
    answer = ask("jobs", "exclude-trial", trainer.job_id, "1")
    assert answer.startswith(
        f"Trial 1 of {trainer.job_id} does not count, because the search was reset after trial 1: "
    )


@pytest.mark.parametrize("spelling", ["pruning_gts", "Pruning_Gts", "Pruning-GTS"])
def test_policy_as_the_protos_spell_it(ask: Ask, trainer: Trainer, spelling: str) -> None:
    """The name in the protos is accepted too, in any case."""
    answer = ask("jobs", "set-policy", trainer.job_id, spelling)
    assert answer.startswith(f"{trainer.job_id} has the policy pruning_gts.")


@pytest.mark.parametrize(
    "words",
    [
        ("exclude-trial", "1"),
        ("include-trial", "1"),
        ("ban", "8"),
        ("unban", "64"),
        ("readmit", "64"),
        ("pin", "8"),
        ("unpin",),
        ("pause",),
        ("resume",),
        ("baseline",),
        ("set-policy", "gts"),
    ],
)
def test_change_without_effect(ask: Ask, trainer: Trainer, words: tuple[str, ...]) -> None:
    """What is already so is answered as such."""
    trainer.run(100)
    action, *rest = words
    before = {"include-trial": "exclude-trial", "unban": "ban", "unpin": "pin", "resume": "pause"}.get(action)
    if before:
        ask("jobs", before, trainer.job_id, *(rest or ["8"][: before == "pin"]))
    first = ask("jobs", action, trainer.job_id, *rest)
    assert ("nothing has changed" in first) is (action == "readmit")
    assert "nothing has changed" in ask("jobs", action, trainer.job_id, *rest)


def test_readmitted_after_memory_ran_out(ask: Ask, trainer: Trainer) -> None:
    """The answer names the batch sizes that come back with the readmitted one."""
    job_id = trainer.job_id
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    assert row(ask("jobs", "show", job_id), "available")[1].startswith("8 ")
    answer = ask("jobs", "readmit", job_id, "32")
    assert answer.startswith(
        f"Batch size 32 of {job_id} may be chosen again; no trial of it counts yet. So may 16, 64: "
    )
    assert row(ask("jobs", "show", job_id), "available")[1].startswith("8, 16, 32, 64 ")


def test_unknown_policy(refused: Ask) -> None:
    """An unknown policy is refused with the known ones, without a call."""
    assert "gts" in refused("jobs", "set-policy", "x", "greedy", status=2)


@pytest.mark.parametrize(
    "words",
    [
        ("reset", "--yes"),
        ("exclude-trial", "1"),
        ("include-trial", "1"),
        ("ban", "8"),
        ("unban", "8"),
        ("readmit", "8"),
        ("pin", "8"),
        ("unpin",),
        ("pause",),
        ("resume",),
        ("baseline",),
        ("set-policy", "gts"),
    ],
)
def test_json_and_unknown_jobs(ask: Ask, refused: Ask, trainer: Trainer, words: tuple[str, ...]) -> None:
    """With --json every action prints the server's answer, with the job; an unknown job is one line on stderr."""
    trainer.run(10)
    action, *rest = words
    answer = json.loads(ask("jobs", action, trainer.job_id, *rest, "--json"))
    assert answer["job"]["spec"]["job_id"] == trainer.job_id
    error = refused("jobs", action, "unknown-job", *rest, status=1)
    assert "unknown-job" in error
    assert error.count("\n") == 1


def test_wrong_numbers(refused: Ask, trainer: Trainer) -> None:
    """A trial or a batch size that the job does not have is refused by name."""
    assert "trial 7: it has none yet" in refused("jobs", "exclude-trial", trainer.job_id, "7", status=1)
    trainer.run(10)
    assert "it has one trial, 1" in refused("jobs", "exclude-trial", trainer.job_id, "7", status=1)
    trainer.run(10)
    for words in (("exclude-trial",), ("include-trial",), ("trial",)):
        error = refused("jobs", *words, trainer.job_id, "99", status=1)
        assert "its trials are 1 to 2" in error
        assert f"`wattwise jobs trials {trainer.job_id}`" in error
    assert "8, 16, 32, 64" in refused("jobs", "pin", trainer.job_id, "12", status=1)
    for wrong in ("0", "-1", "2147483648", "9" * 5000):
        for action, name in (("ban", "BATCH_SIZE"), ("exclude-trial", "N")):
            error = refused("jobs", action, trainer.job_id, wrong, status=2)
            assert f"argument {name}: {wrong!r} is invalid; use an integer from 1 to 2147483647" in error


def test_shown_job_fits_a_terminal(trainer: Trainer) -> None:
    """On a terminal of 80 columns texts are wrapped below their beginning; no line is wider, or ends with spaces."""
    trainer.run(100, monitor=monitor_of("nvml", "estimate"))
    trainer.report(trainer.next(), 10, metric=95.0)
    for _ in range(3):
        trainer.end(trainer.next(), v1.END_REASON_ERROR)
    status, text = on_terminal(("jobs", "show", trainer.job_id))
    assert status == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    place = next(place for place, line in enumerate(lines) if line.startswith("warning"))
    assert lines[place + 1].startswith(" " * (len("stopped early") + 2))
    assert lines[place + 1].strip()


def test_lines_have_no_padding(ask: Ask, trainer: Trainer) -> None:
    """A row is as long as its text, and one line for readers of a pipe."""
    trainer.report(trainer.next(), 10, metric=95.0)
    lines = [line for action in ("show", "trials") for line in ask("jobs", action, trainer.job_id).splitlines()]
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) > 150


def test_warnings_are_shown(ask: Ask, trainer: Trainer) -> None:
    """What looks wrong about a job's trials is shown with the trial, and not with the field of the API."""
    trainer.report(trainer.next(), 10, metric=95.0)
    shown = ask("jobs", "show", trainer.job_id)
    warnings = [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.startswith("warning")]
    assert any(warning.startswith("trial 1, metric out of range: ") for warning in warnings)
    assert "result." not in shown


def test_computed_costs_are_marked(ask: Ask, trainer: Trainer) -> None:
    """In observer mode the cost is marked as computed, beside what was measured."""
    trial = trainer.next()
    measured = result(trial, 100, metric=0.5)
    measured.measurement.computed.CopyFrom(
        v1.ComputedUsage(time_seconds=1.5, energy_joules=80, power_setting=v1.PowerSetting(limit_watts_per_gpu=50))
    )
    trainer.stub.ReportResult(v1.ReportResultRequest(result=measured))
    shown = ask("jobs", "trials", trainer.job_id)
    assert row(shown, "1")[9:11] == ["100 J", "*80.0 J"]
    assert any(line.startswith("* marks costs computed for the cheapest power limit") for line in shown.splitlines())
