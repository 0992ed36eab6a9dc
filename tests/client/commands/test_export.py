"""`wattwise jobs export`, against the real server."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from wattwise import v1
from wattwise.commands.main import main

from tests.client.commands.conftest import Ask
from tests.jobs import Trainer, monitor_of

MEASURED = ("batch_size", "epoch", "metric", "time_seconds", "energy_joules", "start_time", "end_reason")
"""What an import takes over."""


@pytest.fixture
def trainer(stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job with a trial that reached the target, one that diverged, one that failed and one that runs."""
    trainer = Trainer(stub)
    trainer.run(1000.5, monitor=monitor_of("nvml"))
    trainer.report(trainer.next(), 10.0, metric=float("nan"), epoch=10, monitor=monitor_of("nvml"))
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    trainer.next()
    return trainer


def test_csv(ask: Ask, trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has a line for each trial, RFC 4180's line ends, and empty cells for what is unknown."""
    file = tmp_path / "trials.csv"
    assert main(["jobs", "export", trainer.job_id, "--output", str(file)]) == 0
    assert capsys.readouterr().out == ""
    text = file.read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert text.count("\r\n") == text.count("\n") == 5
    assert ask("jobs", "export", trainer.job_id) == text
    assert [row["status"] for row in rows] == ["decided", "decided", "failed", "running"]
    assert [row["end_reason"] for row in rows] == ["target_reached", "max_epochs", "out_of_memory", ""]
    assert [row["metric"] for row in rows] == ["0.95", "nan", "", ""]
    assert [row["cost_joules"] for row in rows] == ["1000.5", "10.0", "", ""]
    assert rows[0]["start_time"].endswith("Z")
    assert (rows[0]["monitor"], rows[0]["energy_quality"], rows[0]["excluded"]) == ("nvml", "measured", "false")
    assert [path.name for path in tmp_path.iterdir()] == ["trials.csv"]
    assert ask("jobs", "export", trainer.job_id, "--output", "-") == ask("jobs", "export", trainer.job_id)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_was_written_is_reported(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """With --output, stderr says how many trials the file has, and stdout is empty."""
    file = tmp_path / "trials"
    words = ("jobs", "export", trainer.job_id, "--output", str(file), "--format", form)
    for options, many in (
        ((), "4 trials"),
        (("--status", "failed"), "1 trial"),
        (("--end-reason", "lost"), "0 trials"),
    ):
        assert main([*words, *options]) == 0
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", f"wattwise jobs export: wrote {many} to {file}\n")
        assert len(file.read_text().splitlines()) == int(many.split()[0]) + (form == "csv")


def test_json_lines(ask: Ask, trainer: Trainer) -> None:
    """Each line is a JSON object with the names of the CSV; unknown is null."""
    documents = [json.loads(line) for line in ask("jobs", "export", trainer.job_id, "--json").splitlines()]
    heading = next(csv.reader([ask("jobs", "export", trainer.job_id).partition("\r\n")[0]]))
    assert [list(document) for document in documents] == [heading] * 4
    assert [document["metric"] for document in documents] == [0.95, "NaN", None, None]


def test_formulas_are_texts(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """A text that a spreadsheet would run as a formula has an apostrophe in front; a number has not."""
    trainer = Trainer(stub, job_id="=1+1", job_id_prefix="=", target_metric=-0.5, higher_is_better=False)
    trainer.report(trainer.next(), 10.0, metric=-1.0)
    (row,) = csv.DictReader(io.StringIO(ask("jobs", "export", trainer.job_id), newline=""))
    assert (row["job"], row["metric"]) == ("'=1+1", "-1.0")


def test_unknown_job_has_no_file(refused: Ask, tmp_path: Path) -> None:
    """Neither stdout nor the file gets a heading."""
    file = tmp_path / "trials.csv"
    outputs: tuple[tuple[str, ...], ...] = ((), ("--output", str(file)))
    for output in outputs:
        assert "no-such-job" in refused("jobs", "export", "no-such-job", *output, status=1)
    assert not file.exists()


def test_no_formula_behind_a_semicolon(
    ask: Ask, stub: v1.BatchSizeOptimizerStub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a spreadsheet separates cells at semicolons, no text of a trainer is a formula; numbers are imported."""
    job_id = "a;=1+1;\uff0d1"
    trainer = Trainer(stub, job_id=job_id, job_id_prefix="a", target_metric=-0.5, higher_is_better=False)
    labels = {"note": 'x;=HYPERLINK("http://evil.example");@SUM(1)'}
    request = v1.GetNextBatchSizeRequest(job_id=job_id, launch_id="=1;+1", labels=labels)
    trainer.report(stub.GetNextBatchSize(request).trial, 10.0, metric=-1.0)
    file = tmp_path / "trials.csv"
    assert main(["jobs", "export", job_id, "--output", str(file)]) == 0
    capsys.readouterr()
    cells = [cell for row in csv.reader(file.read_text().splitlines(), delimiter=";") for cell in row]
    assert not [cell for cell in cells if cell.startswith(tuple("=+-@\uff0d"))]
    other = Trainer(stub, target_metric=-0.5, higher_is_better=False)
    assert main(["jobs", "import", other.job_id, str(file)]) == 0
    # The columns that are ignored are named on stderr.
    capsys.readouterr()
    first, second = (
        json.loads(ask("jobs", "export", each, "--json", "--output", "-")) for each in (job_id, other.job_id)
    )
    assert [first[name] for name in MEASURED] == [second[name] for name in MEASURED]


def test_many_pages_and_jobs(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """All jobs of a prefix are exported, oldest first."""
    ids = [Trainer(stub, job_id=f"many-{number}", job_id_prefix="many") for number in range(3)]
    for trainer in ids:
        trainer.run(10.0)
    rows = csv.DictReader(io.StringIO(ask("jobs", "export", "--prefix", "many-"), newline=""))
    assert [row["job"] for row in rows] == ["many-0", "many-1", "many-2"]


def test_export_is_imported(stub: v1.BatchSizeOptimizerStub, trainer: Trainer, tmp_path: Path) -> None:
    """The deliveries of a job, as exported, are imported into another one, with their power limits and times."""
    trainer.run(50.0)
    file = tmp_path / "trials.csv"
    assert main(["jobs", "export", trainer.job_id, "--end-reason", "target-reached", "--output", str(file)]) == 0
    other = Trainer(stub)
    # The columns that are ignored are named on stderr.
    assert main(["jobs", "import", other.job_id, str(file)]) == 0
    assert other.next().id.trial_number == 3


def test_failed_export_leaves_the_file(refused: Ask, tmp_path: Path) -> None:
    """A file is replaced only by a complete export, and a folder that is not there is named."""
    file = tmp_path / "trials.csv"
    file.write_text("before")
    refused("jobs", "export", "unknown", "--output", str(file), status=1)
    assert (file.read_text(), list(tmp_path.iterdir())) == ("before", [file])
    assert str(tmp_path / "no") in refused("jobs", "export", "unknown", "--output", str(tmp_path / "no/x"), status=1)
    assert "--format csv" in refused("jobs", "export", "--json", "--format", "csv", status=2)
