"""`wattwise jobs import`: a team's earlier trials from a CSV file, against the real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from wattwise import v1
from wattwise.commands.importing import FORMAT
from wattwise.commands.main import main
from wattwise.commands.trials_file import TrialsFileError, read

from tests.client.commands.conftest import Ask, row
from tests.jobs import Trainer, job_spec, monitor_of

HEADING = "trial,batch_size,epoch,time_seconds,energy_joules,metric"
REACHED = "ended by target reached"
SPEC = job_spec(higher_is_better=True)
HISTORY = f"""{HEADING},end_reason,limit_watts_per_gpu,start_time
a,16,1,10,100,0.5,,,2026-10-01 22:00
a,16,2,20,200,0.95,,250,
b,32,3,30,150,0.93,,,
c,64,,,,,out of memory,,
d,8,10,90,900,0.2,,,
e,8,2,18,180,0.3,error,,
"""


@pytest.fixture
def trainer(stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job of the default policy with batch sizes 8, 16, 32, 64, target 0.9 and at most 10 epochs."""
    return Trainer(stub, policy="knowledge_gradient")


def written(folder: Path, text: str) -> str:
    """The path of a file with this text."""
    path = folder / "trials.csv"
    path.write_text(text)
    return str(path)


def trials_of(ask: Ask, trainer: Trainer) -> list[Any]:
    """The job's trials, as JSON."""
    trials: list[Any] = json.loads(ask("jobs", "trials", trainer.job_id, "--json"))
    return trials


def test_history_is_imported(ask: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """Rows per epoch and rows per trial become imported trials, which the next launch has learned from."""
    answer = ask("jobs", "import", trainer.job_id, written(tmp_path, HISTORY)).splitlines()
    assert (
        answer[0] == "a: created as trial 1, batch size 16, started 2026-10-01 22:00:00 UTC, 2 epochs, 20.0 s, 200 J, "
        "metric 0.95, ended by target reached"
    )
    assert answer[-1] == f"{trainer.job_id}: 5 trials created, 0 known before"
    trials = trials_of(ask, trainer)
    assert {trial["origin"] for trial in trials} == {"TRIAL_ORIGIN_IMPORTED"}
    ends = ["TARGET_REACHED", "TARGET_REACHED", "OUT_OF_MEMORY", "MAX_EPOCHS", "ERROR"]
    assert [trial["end_reason"] for trial in trials] == [f"END_REASON_{end}" for end in ends]
    assert [trial.get("newest", {}).get("epoch", 0) for trial in trials] == [2, 3, 0, 10, 2]
    assert (trials[0]["start_time"], trials[0]["newest"]["power_setting"]["limit_watts_per_gpu"]) == (
        "2026-10-01T22:00:00Z",
        250.0,
    )
    shown = ask("jobs", "show", trainer.job_id)
    assert row(shown, "cost")[1].startswith("A model costs 150 J now")
    assert row(shown, "imported") == ["imported", "5 trials"]
    spent = " ".join(ask("jobs", "savings", trainer.job_id).split())
    assert "spent 0.00 J for no delivery" in spent
    assert "trials included; without 1.43 kJ of imported trials from before the registration" in spent
    assert trainer.next().batch_size in (16, 32)


def test_importing_twice_changes_nothing(ask: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """Every trial is known the second time, also with further trials in the file."""
    file = written(tmp_path, HISTORY)
    ask("jobs", "import", trainer.job_id, file)
    before = trials_of(ask, trainer)
    answers = json.loads(ask("jobs", "import", trainer.job_id, file, "--json"))
    assert [answer["created"] for answer in answers] == [False] * 5
    assert trials_of(ask, trainer) == before
    answer = ask("jobs", "import", trainer.job_id, written(tmp_path, f"{HISTORY}f,16,1,12,90,0.92,,,\n"))
    assert answer.endswith(f"{trainer.job_id}: 1 trial created, 5 known before\n")


def test_same_names_in_another_job(ask: Ask, trainer: Trainer, stub: v1.BatchSizeOptimizerStub, tmp_path: Path) -> None:
    """A name identifies a trial within its job only."""
    other = Trainer(stub)
    for job_id in (trainer.job_id, other.job_id):
        answer = ask("jobs", "import", job_id, written(tmp_path, HISTORY))
        assert answer.endswith("5 trials created, 0 known before\n")


def test_an_export_keeps_what_measured_the_energy(
    ask: Ask, trainer: Trainer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A job that imports another job's export shows the monitors of its trials as the other job does."""
    partly = v1.Monitor(kinds=["nvml", "rapl"], quality=v1.ENERGY_QUALITY_PARTLY_ESTIMATED)
    combined = v1.Monitor(kinds=["nvml", "estimate"], quality=v1.ENERGY_QUALITY_ESTIMATED)
    for monitor in (partly, combined, monitor_of("estimate"), None, monitor_of("nvml")):
        trainer.run(100.0, monitor=monitor)
    other, file = Trainer(trainer.stub, policy="knowledge_gradient"), tmp_path / "trials.csv"
    assert main(["jobs", "export", trainer.job_id, "--output", str(file)]) == 0
    assert main(["jobs", "import", other.job_id, str(file)]) == 0
    capsys.readouterr()
    had, has = (
        [(trial.get("monitor"), trial.get("other_monitors"), trial["newest"]["energy_joules"]) for trial in trials]
        for trials in (trials_of(ask, trainer), trials_of(ask, other))
    )
    assert has == had
    shown = [row(ask("jobs", "show", job.job_id), "monitor") for job in (trainer, other)]
    assert shown[0] == shown[1]
    assert "partly estimated" in " ".join(shown[0])


def test_other_trial_of_a_known_name(
    ask: Ask, trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial with other measurements than the known one of its name is reported, and neither is changed."""
    ask("jobs", "import", trainer.job_id, written(tmp_path, f"{HEADING}\na,16,2,10,100,0.95\n"))
    file = written(tmp_path, f"{HEADING}\na,16,2,10,120,0.95\nb,16,2,10,130,0.95\n")
    assert main(["jobs", "import", trainer.job_id, file]) == 1
    printed = capsys.readouterr()
    assert f"{file}:2: trial 'a'" in printed.err
    assert f"`wattwise jobs exclude-trial {trainer.job_id} 1`" in printed.err
    assert printed.out.endswith("1 trial created, 0 known before, 1 in conflict with known ones\n")
    assert [trial["newest"]["energy_joules"] for trial in trials_of(ask, trainer)] == [100, 130]


@pytest.mark.parametrize("reason", ["completed", "stopped early", "error"])
def test_known_trial_that_has_gained_epochs(
    ask: Ask, trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    """A trial that no measurement has decided is in conflict if its file has further epochs, which nothing takes."""
    lines = f"{HEADING},end_reason\na,16,1,10,100,0.5,{reason}\n"
    ask("jobs", "import", trainer.job_id, written(tmp_path, lines))
    file = written(tmp_path, f"{lines}a,16,2,20,200,0.6,{reason}\n")
    assert main(["jobs", "import", trainer.job_id, file]) == 1
    printed = capsys.readouterr()
    assert f"{file}:2: trial 'a'" in printed.err
    assert printed.out.endswith("0 trials created, 0 known before, 1 in conflict with known ones\n")
    assert [trial["newest"]["epoch"] for trial in trials_of(ask, trainer)] == [1]


@pytest.mark.parametrize("reason", ["preempted", "lost"])
def test_interrupted_trial_gains_epochs(ask: Ask, trainer: Trainer, tmp_path: Path, reason: str) -> None:
    """A known trial that was interrupted takes the further epochs of its file."""
    lines = f"{HEADING},end_reason\na,16,1,10,100,0.5,{reason}\n"
    ask("jobs", "import", trainer.job_id, written(tmp_path, lines))
    answer = ask("jobs", "import", trainer.job_id, written(tmp_path, f"{lines}a,16,2,20,200,0.6,{reason}\n"))
    assert answer.endswith("0 trials created, 1 known before\n")
    assert [trial["newest"]["epoch"] for trial in trials_of(ask, trainer)] == [2]


def test_other_batch_size_of_a_known_name(
    ask: Ask, trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial with another batch size than the known one of its name is reported, and the others are imported."""
    ask("jobs", "import", trainer.job_id, written(tmp_path, f"{HEADING}\na,16,2,10,100,0.95\n"))
    file = written(tmp_path, f"{HEADING}\na,32,2,10,100,0.95\nb,16,2,10,130,0.95\n")
    assert main(["jobs", "import", trainer.job_id, file]) == 1
    assert f"{file}:2: trial 'a'" in capsys.readouterr().err
    assert [trial["batch_size"] for trial in trials_of(ask, trainer)] == [16, 16]


def test_warnings_of_imported_trials(
    trainer: Trainer, ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What looks wrong about a trial is printed with its line, and shown with the job."""
    file = written(tmp_path, f"{HEADING}\na,16,1,10,0,0.5\n")
    assert main(["jobs", "import", trainer.job_id, file]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"wattwise jobs import: {file}:2: trial 'a': no energy: ")
    assert row(ask("jobs", "show", trainer.job_id), "warning")[1].startswith("trial 1, no energy: ")


def test_dry_run(ask: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """A dry run prints what would be imported, which trials are known already, and imports nothing."""
    file = written(tmp_path, HISTORY)
    ask("jobs", "import", trainer.job_id, written(tmp_path, f"{HEADING}\nb,32,3,30,150,0.93\n"))
    answer = ask("jobs", "import", trainer.job_id, written(tmp_path, HISTORY), "--dry-run").splitlines()
    start = "started 2026-10-01 22:00:00 UTC"
    assert answer[0] == f"a: would be created, batch size 16, {start}, 2 epochs, 20.0 s, 200 J, metric 0.95, {REACHED}"
    assert (
        answer[1]
        == f"b: known as trial 1, batch size 32, start unknown, 3 epochs, 30.0 s, 150 J, metric 0.93, {REACHED}"
    )
    assert answer[2] == "c: would be created, batch size 64, start unknown, no epochs, ended by out of memory"
    assert answer[3].endswith("10 epochs, 1 min 30 s, 900 J, metric 0.2, ended by max epochs")
    assert f"{trainer.job_id}: 4 trials would be created, 1 known; nothing was imported" in answer
    answers = json.loads(ask("jobs", "import", trainer.job_id, file, "--dry-run", "--json"))
    assert [each["created"] for each in answers] == [True, False, True, True, True]
    assert [trial["batch_size"] for trial in trials_of(ask, trainer)] == [32]


def test_dry_run_foresees_conflicts_and_warnings(
    ask: Ask, trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A known trial with other numbers or another batch size, and what looks wrong, are named before the import."""
    ask("jobs", "import", trainer.job_id, written(tmp_path, f"{HEADING}\na,16,2,10,100,0.95\nb,16,2,10,100,0.95\n"))
    before = trials_of(ask, trainer)
    lines = ["a,16,2,10,120,0.95", "b,32,2,10,100,0.95", "c,16,2,10,0,0.95", "d,16,2,1,1000,0.95"]
    file = written(tmp_path, "\n".join([HEADING, *lines]))
    assert main(["jobs", "import", trainer.job_id, file, "--dry-run"]) == 1
    found = [line.split(": ")[1:4] for line in capsys.readouterr().err.splitlines()]
    assert [(line[0], line[1]) for line in found] == [
        (f"{file}:{number}", f"trial '{name}'") for number, name in enumerate("abcd", 2)
    ]
    assert [line[2] for line in found[2:]] == ["no energy", "power out of range"]
    assert trials_of(ask, trainer) == before


def test_dry_run_of_one_epoch_trials(trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the first trial of a job can be doubtful because it reached the target at once."""
    file = written(tmp_path, f"{HEADING}\na,16,1,10,100,0.95\nb,16,1,10,100,0.95\n")
    assert main(["jobs", "import", trainer.job_id, file, "--dry-run"]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{file}:2: trial 'a': target reached at once: " in warning


def test_unknown_start_is_shown_as_such(ask: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """No start time is made up for a trial of a file without one."""
    answer = ask("jobs", "import", trainer.job_id, written(tmp_path, f"{HEADING}\na,16,2,10,100,0.95\n"))
    assert "start unknown" in answer
    (trial,) = trials_of(ask, trainer)
    assert "start_time" not in trial
    assert "unknown" in row(ask("jobs", "trials", trainer.job_id), "1")


def test_trial_from_before_a_reset_is_excluded(ask: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """Its start is compared with the time of the reset; it counts once it is included."""
    ask("jobs", "reset", trainer.job_id, "--yes")
    file = written(tmp_path, f"{HEADING},start_time\na,16,2,10,100,0.95,2026-01-01\n")
    assert "excluded, before the job's reset" in ask("jobs", "import", trainer.job_id, file)
    assert row(ask("jobs", "show", trainer.job_id), "excluded")[1].startswith("trial 1 does not count; ")
    assert "min_cost" not in json.loads(ask("jobs", "show", trainer.job_id, "--json"))["job"]
    ask("jobs", "include-trial", trainer.job_id, "1")
    assert json.loads(ask("jobs", "show", trainer.job_id, "--json"))["job"]["min_cost"] == 100


def test_faults_are_reported_before_anything_is_sent(ask: Ask, refused: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """Every fault is one line on stderr with file, line and column, and no trial is imported."""
    file = written(tmp_path, f"{HEADING}\na,16,1,10,100,0.95\nb,12,1,0,x,0.95\n")
    lines = refused("jobs", "import", trainer.job_id, file, status=2).splitlines()
    assert [line.split(": ")[1:3] for line in lines] == [
        [f"{file}:3", "batch_size"],
        [f"{file}:3", "time_seconds"],
        [f"{file}:3", "energy_joules"],
    ]
    assert trials_of(ask, trainer) == []


def test_unknown_job(refused: Ask, tmp_path: Path) -> None:
    """The job must be registered first."""
    assert "'unknown-job'" in refused("jobs", "import", "unknown-job", written(tmp_path, HISTORY), status=1)


def faults(folder: Path, text: str | bytes) -> list[str]:
    """The faults of a file, each as its line and column."""
    path = folder / "trials.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TrialsFileError) as refused:
        read(path, SPEC)
    assert all(fault.description for fault in refused.value.violations)
    return [fault.field.removeprefix(f"{path}:") for fault in refused.value.violations]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["a,16,1,10,100,"], ["2: metric"]),
        (["a,16,1,10,100,high"], ["2: metric"]),
        (["a,16,1,10,100,inf"], ["2: metric"]),
        (["a,16,0,10,100,0.5"], ["2: epoch"]),
        (["a,16,1.5,10,100,0.5"], ["2: epoch"]),
        (["a,16,1,1_0,100,0.5"], ["2: time_seconds"]),
        (["a,16,1,nan,-1,0.5"], ["2: time_seconds", "2: energy_joules"]),
        ([",16,1,10,100,0.5"], ["2: trial"]),
        ([f"{'a' * 201},16,1,10,100,0.5"], ["2: trial"]),
        (["a,16,1,10,100,0.5", "a,32,2,20,200,0.5"], ["3: batch_size"]),
        (["a,16,1,10,100,0.5", "b,16,1,10,100,0.5", "a,16,1,20,200,0.5"], ["4: epoch"]),
        (["a,16,2,10,100,0.5", "a,16,1,20,90,0.5"], ["2: time_seconds"]),
        (["a,16,1,10,100,0.5", "a,16,2,10,90,0.5"], ["3: energy_joules"]),
        (["a,16,,,,"], ["2: epoch"]),
        (["a,16,1,10,100,0.5,oops"], ["2: column 7"]),
        (['a,16,1,10,100,"0.5'], ["2"]),
        ([], ["1"]),
    ],
)
def test_faults(tmp_path: Path, lines: list[str], found: list[str]) -> None:
    """Every fault has its line and column; a fault between two lines has the later epoch's."""
    assert faults(tmp_path, "\n".join([HEADING, *lines])) == found


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("end_reason", "cost_bound"),
        ("end_reason", "target_reached"),
        ("end_reason", "max_epochs"),
        ("limit_watts_per_gpu", "0"),
        ("start_time", "10/01/2026"),
        ("monitor", "nvml++rapl"),
        ("monitor", "nvml (guessed)"),
        ("monitor", "+".join(map(str, range(9)))),
        ("monitor,energy_quality", "nvml,good"),
        ("monitor,energy_quality", ",estimated"),
    ],
)
def test_faults_of_optional_columns(tmp_path: Path, column: str, text: str) -> None:
    """An optional value that is invalid, or that the measurements contradict, is named."""
    named = "energy_quality" if text == "nvml,good" else column.partition(",")[0]
    assert faults(tmp_path, f"{HEADING},{column}\na,16,1,10,100,0.5,{text}\n") == [f"2: {named}"]


@pytest.mark.parametrize(
    ("heading", "found"),
    [
        (HEADING.replace("metric", "accuracy"), ["1: metric"]),
        (HEADING.replace("batch_size", "batchsize"), ["1: batch_size"]),
        (f"{HEADING},metric", ["1: metric"]),
        (f"{HEADING},end_reasons", ["1: end_reasons"]),
        ("name,size", [f"1: {name}" for name in HEADING.split(",")]),
        ("", ["1"]),
        (HEADING.replace(",", "|"), ["1"]),
    ],
)
def test_faults_of_the_heading(tmp_path: Path, heading: str, found: list[str]) -> None:
    """A column that is missing, occurs twice or is nearly an optional one is named."""
    assert faults(tmp_path, f"{heading}\na,16,1,10,100,0.5,\n" if heading else "") == found


def test_epochs_after_the_last_one_of_the_job(ask: Ask, trainer: Trainer, tmp_path: Path) -> None:
    """A trial that trained longer than the job's launches do ends where they end; its later epochs do not count."""
    lines = ["a,16,4,40,400,0.5", "a,16,9,90,900,0.5", "a,16,12,120,1200,0.6", "a,16,14,140,1400,0.95"]
    file = written(tmp_path, "\n".join([HEADING, *lines]))
    assert "12 epochs" in ask("jobs", "import", trainer.job_id, file)
    assert "0 trials created, 1 known" in ask("jobs", "import", trainer.job_id, file)
    (trial,) = trials_of(ask, trainer)
    assert (trial["newest"]["epoch"], trial["end_reason"]) == (12, "END_REASON_MAX_EPOCHS")


def test_target_that_only_a_later_epoch_reaches(tmp_path: Path) -> None:
    """The trial ended by max_epochs, whatever its later epochs reached."""
    lines = ["a,16,10,100,1000,0.5,{0}", "a,16,11,110,1100,0.95,{0}"]
    text = "\n".join([f"{HEADING},end_reason", *lines])
    assert faults(tmp_path, text.format("target_reached")) == ["2: end_reason"]
    path = written(tmp_path, text.format("max_epochs"))
    (trial,) = read(Path(path), SPEC).trials
    assert [each.epoch for each in trial.measurements] == [10, 11]


def test_too_many_epochs(tmp_path: Path) -> None:
    """A trial with more lines than a server takes is refused before anything is sent."""
    path = tmp_path / "trials.csv"
    rows = (f"a,16,{epoch},{epoch},{epoch},0.5" for epoch in range(1, 5_002))
    path.write_text("\n".join([HEADING, *rows]))
    with pytest.raises(TrialsFileError) as refused:
        read(path, job_spec(max_epochs=20_000))
    (fault,) = refused.value.violations
    assert fault.field == f"{path}:2: epoch"
    assert "5001" in fault.description
    assert "5000" in fault.description


def test_other_separators(tmp_path: Path) -> None:
    """A heading that is a single column gets one fault, which names the separators that are read."""
    path = written(tmp_path, HISTORY.replace(",", "|"))
    with pytest.raises(TrialsFileError, match="separate the columns with commas, semicolons or tabs") as refused:
        read(Path(path), SPEC)
    assert len(refused.value.violations) == 1


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """What a shell's <(…) passes is refused with what to do: nothing can be moved away."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(TrialsFileError, match="is a named pipe; write its content to a regular file") as refused:
        read(pipe, SPEC)
    assert "move" not in str(refused.value)


def test_unreadable_files(tmp_path: Path) -> None:
    """A file that does not exist or is not UTF-8 is refused by name."""
    for path in (tmp_path / "missing.csv", tmp_path / "utf16.csv"):
        if path.stem == "utf16":
            path.write_bytes(HISTORY.encode("utf-16"))
        with pytest.raises(TrialsFileError, match=path.name):
            read(path, SPEC)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_files_of_spreadsheets(tmp_path: Path, delimiter: str) -> None:
    """Delimiters, line ends, byte order mark, capitals, empty lines and further columns of spreadsheets are read."""
    lines = ["Trial,Batch size,Epoch,Time seconds,Energy joules,Metric,Notes", "", '"a b",16,1.0,10,100,0.5,"x\ny"']
    lines += [",,,,,,", "c,32,1,5,50,NaN,"]
    text = "\r\n".join(lines).replace(",", delimiter)
    path = tmp_path / "trials.csv"
    path.write_bytes(text.encode("utf-8-sig"))
    file = read(path, SPEC)
    assert [(trial.name, trial.batch_size, trial.line) for trial in file.trials] == [("a b", 16, 3), ("c", 32, 6)]
    assert file.trials[1].measurements[0].metric != file.trials[1].measurements[0].metric
    assert file.ignored == ["Notes"]


def test_rows_in_any_order(tmp_path: Path) -> None:
    """Trials keep the order of their first rows; the epochs of a trial are sorted, wherever they are."""
    text = "\n".join([HEADING, "b,16,2,20,200,0.6", "a,32,1,5,50,0.5", "b,16,1,10,100,0.5"])
    path = tmp_path / "trials.csv"
    path.write_text(text)
    trials = read(path, SPEC).trials
    assert [(trial.name, [each.epoch for each in trial.measurements]) for trial in trials] == [
        ("b", [1, 2]),
        ("a", [1]),
    ]


@pytest.mark.parametrize("text", [Path(__file__).parents[3].joinpath("docs", "control.md").read_text(), FORMAT])
def test_examples(tmp_path: Path, text: str) -> None:
    """The examples of the documentation and of --help are valid files."""
    starts = ("    trial,", "    2026-", "  trial,", "  2026-")
    lines = [line.strip() for line in text.splitlines() if line.startswith(starts)]
    path = tmp_path / "trials.csv"
    path.write_text("\n".join(lines))
    trials = read(path, job_spec(batch_sizes=[128, 256, 1024], higher_is_better=True)).trials
    assert len(trials) >= 2
