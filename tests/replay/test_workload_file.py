"""Workload files: recorded runs of a user's own workload."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from wattwise.commands.main import main
from wattwise_replay import traces, workload_file
from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import PowerPoint, RecordedRun

from tests.client.test_files import SPECIAL

_RUNS = """bs,trial,accuracy,epoch,model
8,1,0.9,4,small
8,2,0.9,,small
8,1,0.8,2,small
16,1,0.9,6,small
16,1,0.9,1,large
"""
_POWER = """batch_size,power_limit,time_per_epoch,average_power,gpus
8,100,10,80,1
8,200,5,150,1
16,200,4,160,1
16,200,1,160,2
"""
_FILE = """
[workload]
name = "mnist"
runs = "runs.csv"
power = "power.csv"
filter = { model = "small", gpus = 1 }
target_metric = 0.9
default_batch_size = 8
max_epochs = 10

[columns]
run = "trial"
target_metric = "accuracy"
target_epoch = "epoch"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A workload file beside its CSV files; the columns of both have the same names."""
    (tmp_path / "runs.csv").write_text(_RUNS.replace("bs,", "batch_size,"))
    (tmp_path / "power.csv").write_text(_POWER)
    path = tmp_path / "mine.toml"
    path.write_text(_FILE)
    return path


def test_columns_are_mapped_and_lines_are_filtered(file: Path) -> None:
    """Each filter applies to the file with its column; an empty target epoch is a run that never reached the target."""
    read = workload_file.load(file)
    assert read.setting == "mnist/gpu"
    assert read.of(8).runs == (RecordedRun(4), RecordedRun(None))
    assert read.of(16).runs == (RecordedRun(6),)
    assert read.of(16).points == (PowerPoint(200.0, 4.0, 160.0),)
    assert (read.default_batch_size, read.max_epochs, read.max_power_watts) == (8, 10, 200.0)
    assert (read.target_metric, read.higher_is_better) == (0.9, True)


def test_optional_keys_are_used(file: Path) -> None:
    """The GPU's name, its highest limit and the direction of the metric."""
    options = 'gpu = "t4"\nmax_power_watts = 250\nhigher_is_better = false\n'
    file.write_text(_FILE.replace("max_epochs = 10\n", f"max_epochs = 10\n{options}"))
    read = workload_file.load(file)
    assert (read.gpu, read.max_power_watts, read.higher_is_better) == ("t4", 250.0, False)


def test_the_papers_traces_can_be_written_as_a_file(tmp_path: Path) -> None:
    """A file that names the columns and values of --traces gives the same workload."""
    (tmp_path / "summary_train.csv").write_text(
        "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n"
        "squad,bert_base_uncased,32,adamw,3e-6,1,84.0,3\n"
        "squad,bert_base_uncased,32,adamw,3e-6,2,83.0,3\n"
        "squad,bert_base_uncased,64,adamw,3e-6,1,84.0,4\n"
        "squad,other,32,adamw,3e-6,1,84.0,1\n"
    )
    (tmp_path / "summary_power_t4.csv").write_text(
        "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
        "squad,bert_base_uncased,32,adamw,70,100,60\n"
        "squad,bert_base_uncased,64,adamw,70,90,65\n"
        "squad,bert_base_uncased,32,sgd,300,1,65\n"
    )
    file = tmp_path / "squad.toml"
    file.write_text("""
        [workload]
        name = "squad"
        gpu = "t4"
        runs = "summary_train.csv"
        power = "summary_power_t4.csv"
        filter = { dataset = "squad", network = "bert_base_uncased", optimizer = "adamw" }
        target_metric = 84
        default_batch_size = 32
        max_epochs = 6
    """)
    assert workload_file.load(file) == traces.load(tmp_path, "squad", "t4")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[workload]", "[job]", r"job: is unknown; .*; workload: is missing; the file needs a table \[workload\]"),
        (
            "max_epochs",
            "epochs",
            "workload.epochs: is unknown; did you mean 'max_epochs'?; workload.max_epochs: is miss",
        ),
        ("target_metric = 0.9", "target_metric = nan", "workload.target_metric: is nan; use a finite number"),
        ("default_batch_size = 8", "default_batch_size = 0", "workload.default_batch_size: is 0; use 1 or more"),
        ("max_epochs = 10", "max_epochs = 2.5", "workload.max_epochs: is 2.5; use an integer"),
        (
            "max_epochs = 10",
            "max_epochs = 9\nmax_power_watts = 0",
            "workload.max_power_watts: is 0; use a finite number",
        ),
        ('name = "mnist"', "name = 3", "workload.name: is 3; use a string"),
        ('"runs.csv"', '"run.csv"', "workload.runs: .*run.csv is not a file; it is relative to the workload file"),
        ("gpus = 1", "gpus = true", "workload.filter.gpus: is True; use a string or a number"),
        ("gpus = 1", "gpus = 3", "no batch size of mnist/gpu has both .*; check its files and filter"),
        (
            "gpus = 1",
            "host = 3",
            "neither .*runs.csv nor .*power.csv has a column host to filter by; there are batch_size",
        ),
        ('run = "trial"', "run = 1", "columns.run: is 1; use the name of the column in your files"),
        ('run = "trial"', 'runs = "trial"', "columns.runs: is unknown; did you mean 'run'?"),
        (
            'run = "trial"',
            'run = "t"',
            r"runs.csv has no column t; change it, or map the column in \[columns\] of .*mine",
        ),
        (
            "default_batch_size = 8",
            "default_batch_size = 9",
            "no measurements of its default batch size 9; there are 8, 16",
        ),
        ("[workload]", "[workload", "is not TOML"),
    ],
)
def test_every_fault_names_its_key_and_what_to_do(file: Path, old: str, new: str, message: str) -> None:
    """The error begins with the file."""
    file.write_text(_FILE.replace(old, new))
    with pytest.raises(ReplayError, match=message.replace("?", r"\?")) as refused:
        workload_file.load(file)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_all_faults_are_named_at_once(file: Path) -> None:
    """Three faults, one error."""
    file.write_text(_FILE.replace("max_epochs = 10", "").replace("0.9", '"high"').replace('"runs.csv"', '"x.csv"'))
    with pytest.raises(ReplayError) as refused:
        workload_file.load(file)
    assert [fault.partition(":")[0] for fault in str(refused.value).removeprefix(f"{file}: ").split("; ")][:3] == [
        "workload.target_metric",
        "use a number",
        "workload.max_epochs",
    ]
    assert "workload.runs: " in str(refused.value)


def _faults(file: Path) -> list[str]:
    """The faults of a refused workload: file, line and text of each."""
    with pytest.raises(ReplayError) as refused:
        workload_file.load(file)
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith(f"{file}: ")
    found = text.removeprefix(f"{file}: ").replace(f"{file.parent}/", "")
    # A fault may contain a semicolon, before what to do.
    return re.split(r"; (?=line |and \d|power\.csv)", found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "runs.csv, line 1, is not UTF-8 text; save it as UTF-8"),
        (b"", "runs.csv is empty; its columns are batch_size, trial, accuracy, epoch"),
        (b"\n", "runs.csv is empty; "),
        (b"batch_size,trial,epoch\n", "runs.csv has no column accuracy; change it, or map the column in [columns]"),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_named(file: Path, content: bytes, message: str) -> None:
    """The columns have the names that they have in the file."""
    (file.parent / "runs.csv").write_bytes(content)
    (found,) = _faults(file)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("8,3,0.9,soon,small", "epoch is 'soon', not a whole number above 0"),
        ("8,3,0.9,10.5,small", "epoch is '10.5', not a whole number above 0"),
        ("8,3,0.8,0,small", "epoch is '0', not a whole number above 0"),
        ("many,3,0.9,2,small", "batch_size is 'many', not a whole number above 0"),
        ("8.5,3,0.9,2,small", "batch_size is '8.5', not a whole number above 0"),
        ("8,3,,2,small", "accuracy is '', not a number"),
        ("8,3,inf,,small", "accuracy is 'inf', not a number"),
        ("8,3,0.9", "has 3 fields, and the header has 5"),
        ("8|3|0.9|2|small", "has 1 field, and the header has 5, which are separated by ','"),
        ("8,3,0,9,2,small", "has 6 fields, and the header has 5"),
        (
            "8,2,0.90,4,small",
            "batch size 8, run 2 and target 0.9 are in line 3 already; keep one, or select lines with a filter",
        ),
    ],
)
def test_a_faulty_run_is_named_with_its_line(file: Path, line: str, message: str) -> None:
    """The columns have the names that they have in the file."""
    path = file.parent / "runs.csv"
    path.write_text(path.read_text() + line + "\n")
    assert _faults(file) == [f"runs.csv, line 7: {message}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("8,300,5,-1,1", "watts is '-1', not a number above 0"),
        ("8,300,nan,150,1", "time_per_epoch is 'nan', not a number above 0"),
        ("8,300,5", "has 3 fields, and the header has 5"),
        ("8,300,5,375.1,1", "watts is 375.1, more than 25% above its power_limit, 300; both are in watts"),
        ("8,200.0,6,140,1", "batch size 8 at 200 W is in line 3 already; keep one, or select lines with a filter"),
        ("8,301,5,150,1", "power_limit is 301, above max_power_watts, which is 300"),
    ],
)
def test_a_faulty_line_of_power_is_named(file: Path, line: str, message: str) -> None:
    """The highest limit of the workload is 300 W."""
    path = file.parent / "power.csv"
    path.write_text(path.read_text().replace("average_power", "watts") + line + "\n")
    file.write_text(_FILE.replace("max_epochs", "max_power_watts = 300\nmax_epochs") + 'average_power = "watts"\n')
    assert _faults(file) == [f"power.csv, line 6: {message}"]


def test_measured_power_may_exceed_its_limit_by_a_quarter(file: Path) -> None:
    """Real GPUs exceed low limits: 125 W at a limit of 100 W."""
    path = file.parent / "power.csv"
    path.write_text(path.read_text().replace("8,100,10,80", "8,100,10,125"))
    assert workload_file.load(file).of(8).points[0].average_watts == 125


def test_lines_that_the_filter_leaves_out_are_not_checked(file: Path) -> None:
    """Only their number of fields is: the filter needs the fields."""
    path = file.parent / "runs.csv"
    path.write_text(path.read_text() + "8,3,none,soon,large\n")
    assert len(workload_file.load(file).of(8).runs) == 2


@pytest.mark.parametrize(
    ("target", "message"),
    [("0.97", "no line has the target 0.97; there are 0.8, 0.9"), ("-1", "no line has the target -1; there are")],
)
def test_a_target_that_no_line_has_is_refused(file: Path, target: str, message: str) -> None:
    """The targets of the lines are named."""
    file.write_text(_FILE.replace("target_metric = 0.9", f"target_metric = {target}"))
    (found,) = _faults(file)
    assert found.startswith(f"runs.csv: {message}")


def test_a_target_may_be_below_0(file: Path) -> None:
    """A loss, for instance."""
    path = file.parent / "runs.csv"
    path.write_text(path.read_text().replace(",0.9,", ",-0.9,"))
    file.write_text(_FILE.replace("target_metric = 0.9", "target_metric = -0.9\nhigher_is_better = false"))
    assert workload_file.load(file).of(8).runs == (RecordedRun(4), RecordedRun(None))


def test_a_header_with_another_separator_has_a_hint(file: Path) -> None:
    """A header that is a single column is said to be one, with the separators that are read."""
    path = file.parent / "runs.csv"
    path.write_text(path.read_text().replace(",", "|"))
    (fault,) = _faults(file)
    assert "its first line is a single column; separate the columns with commas, semicolons or tabs" in fault


def test_the_faults_of_both_files_are_named_at_once(file: Path) -> None:
    """Of seven faults in one file five are shown."""
    runs, power = file.parent / "runs.csv", file.parent / "power.csv"
    runs.write_text(runs.read_text() + "8,3,0.9,soon,small\n" * 7)
    power.write_text(power.read_text() + "8,300\n")
    found = _faults(file)
    assert found[:2] == [f"{at}: epoch is 'soon', not a whole number above 0" for at in ("runs.csv, line 7", "line 8")]
    assert found[4:] == [
        "line 11: epoch is 'soon', not a whole number above 0",
        "and 2 more",
        "power.csv, line 6: has 2 fields, and the header has 5",
    ]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The error is the operating system's."""
    with pytest.raises(ReplayError, match=r"none\.toml cannot be read: No such file"):
        workload_file.load(tmp_path / "none.toml")


def test_the_command_replays_several_files(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--workload-file may be repeated; the results are in the order of the files."""
    other = file.parent / "other.toml"
    other.write_text(_FILE.replace('"mnist"', '"other"'))
    words = ("--workload-file", str(file), "--workload-file", str(other))
    assert main(("replay", *words, "--seeds", "1", "--recurrences", "8", "--json", "-")) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["workload"] for each in found] == ["mnist", "other"]
    assert main(("replay", *words, "--gpu", "t4")) == 1
    assert "--gpu selects among the traces and cannot be combined with --workload-file" in capsys.readouterr().err


def test_the_example_of_the_docs_is_a_workload_file(tmp_path: Path) -> None:
    """The file and the lines of both CSV files in docs/replay.md."""
    page = (Path(__file__).parents[2] / "docs/replay.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    tables = re.findall(r"(?:^    batch_size,.*\n)(?:^    \d.*\n)+", page, re.MULTILINE)
    for name, table in zip(("runs.csv", "power.csv"), tables, strict=True):
        (tmp_path / name).write_text("\n".join(line.strip() for line in table.splitlines()))
    read = workload_file.load(tmp_path / "mine.toml")
    assert read.of(128).runs == (RecordedRun(11), RecordedRun(12))
    assert read.of(256).runs == (RecordedRun(13), RecordedRun(None))
    assert (read.of(256).points[0].average_watts, read.max_power_watts) == (180, 250)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace(",", ", "),
        lambda text: f"\ufeff{text}",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";").replace("\n", ";;\n"),
        lambda text: f"\n{text}\n,,,,\n",
        lambda text: "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in text.splitlines()),
    ],
    ids=["semicolons", "tabs", "spaces", "byte order mark", "Windows", "empty columns", "empty lines", "quotes"],
)
def test_files_of_spreadsheets(file: Path, change: Callable[[str], str]) -> None:
    """Whatever a spreadsheet writes is read, as by `wattwise jobs import`."""
    expected = workload_file.load(file)
    for name in ("runs.csv", "power.csv"):
        path = file.parent / name
        path.write_bytes(change(path.read_text()).encode())
    assert workload_file.load(file) == expected


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["runs.csv", "mine.toml"])
def test_a_file_that_is_none_is_named(file: Path, name: str, kind: str) -> None:
    """A pipe or a device is refused by its name."""
    path = file.parent / name
    path.unlink()
    SPECIAL[kind](path)
    with pytest.raises(ReplayError, match=name):
        workload_file.load(file)
