"""Lists of rows on a terminal and in a pipe, against the real server, with and without `rich`."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from wattwise import v1
from wattwise.commands.rows import TableOptions, arrange, print_table
from wattwise.commands.tables import JOB_COLUMNS, TRIAL_COLUMNS
from wattwise.presentation.terminal import Column, numbers, width_of
from wattwise.training.spool import Spool

from tests.client.commands.conftest import Ask, records, row
from tests.client.training.test_journal import record
from tests.forking import run
from tests.jobs import Trainer, monitor_of
from tests.terminal import on_terminal, wattwise
from tests.wheel_check import SERVER_ONLY

_JOBS = [
    *("job", "state", "used now", "available", "trials", "a model now", "monitor", "registered", "age", "stage"),
]
_TRIALS = [
    *("trial", "batch size", "result", "origin", "status", "ended by", "target", "epochs", "metric", "time", "energy"),
    *("cost", "monitor", "started", "age", "lease expires", "warnings"),
]


def headings(line: str) -> list[str]:
    """The names of the columns in a pipe."""
    return re.split(r" {2,}", line.strip())


def lines_of(*words: str, columns: int = 80, missing: tuple[str, ...] = ()) -> list[str]:
    """Returns the lines of a command that succeeds on a terminal, without spaces at their ends."""
    status, text = on_terminal(words, columns, missing=missing)
    assert status == 0, text
    return [line.rstrip() for line in text.splitlines()]


def piped(*words: str, missing: tuple[str, ...] = ()) -> list[str]:
    """The lines of a command that succeeds in a pipe, whatever $COLUMNS is."""
    command = wattwise(*words, missing=missing)
    done = subprocess.run(command, capture_output=True, text=True, check=False) if missing else run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def trainer(stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job whose trials ended in every way: reached, missed, out of memory, running; with two monitors."""
    trainer = Trainer(stub, policy="knowledge_gradient")
    trainer.report(trainer.next(), 5_000, metric=0.951234567, epoch=3, time=725, monitor=monitor_of("nvml"))
    trainer.report(trainer.next(), 50_000, metric=0.3, epoch=2, time=7_000, monitor=monitor_of("estimate"))
    trial = trainer.next()
    trainer.report(trial, 4_000, metric=0.5, epoch=1, time=60, monitor=monitor_of("nvml"))
    trainer.end(trial, v1.END_REASON_OUT_OF_MEMORY)
    trainer.report(trainer.next(), 1, metric=0.7, epoch=10, time=1, monitor=monitor_of("nvml"))
    trainer.next()
    return trainer


def test_trials_fit_80_columns(trainer: Trainer) -> None:
    """Number, batch size, result, epochs, metric, time, cost and age fit 80 columns, with estimates marked once."""
    lines = lines_of("jobs", "trials", trainer.job_id)
    assert max(map(width_of, lines)) <= 80
    assert lines[0].split() == ["batch"]
    assert lines[1].split() == ["trial", "size", "result", "epochs", "metric", "time", "cost", "age"]
    cells = [re.split(r" {2,}", line.strip()) for line in lines[2:7]]
    assert [row[:1] + row[2:-1] for row in cells] == [
        ["1", "reached", "3", "0.9512", "12 min 05 s", "5.00 kJ"],
        ["2", "missed: cost bound", "2", "0.3", "1 h 57 min", "~50.0 kJ"],
        ["3", "failed: out of memory", "1", "0.5", "1 min 00 s", "4.00 kJ"],
        ["4", "missed: max epochs", "10", "0.7", "1.0 s", "1.00 J"],
        ["5", "running"],
    ]
    assert all(re.fullmatch(r"\d+ (s|min|h|d)", row[-1]) for row in cells)
    assert [line[0] for line in lines[7:]].count("~") == 1


@pytest.mark.parametrize("limit", ["0", "-1", "x", "٣", "2147483648", "9223372036854775807", "9" * 5000])
def test_limits_that_are_no_number_of_rows(refused: Ask, limit: str) -> None:
    """A limit is an integer above 0 with an upper end; others are refused, whatever their length."""
    assert "--limit" in refused("jobs", "list", f"--limit={limit}", status=2)


def test_largest_limit(ask: Ask, trainer: Trainer) -> None:
    """The largest limit leaves nothing out."""
    listing = ("jobs", "trials", trainer.job_id, "--no-headers", "--columns", "trial")
    assert ask(*listing, "--limit", "0002147483647").split() == ["1", "2", "3", "4", "5"]


def test_marked_trials(ask: Ask, trainer: Trainer) -> None:
    """An excluded trial and those before a reset are marked in the result."""
    ask("jobs", "exclude-trial", trainer.job_id, "1")
    assert "reached, excluded" in lines_of("jobs", "trials", trainer.job_id)[2]
    ask("jobs", "reset", trainer.job_id, "--yes")
    lines = lines_of("jobs", "trials", trainer.job_id, "--status", "failed")
    assert "failed: out of memory, before reset" in lines[2]
    assert max(map(width_of, lines)) <= 80


@pytest.mark.parametrize("columns", [32, 40, 60, 80, 100, 120, 160])
def test_every_width(trainer: Trainer, columns: int) -> None:
    """No line of a list is wider than the terminal, and every id is whole."""
    jobs = lines_of("jobs", "list", "--prefix", "test", columns=columns)
    trials = lines_of("jobs", "trials", trainer.job_id, columns=columns)
    assert max(map(width_of, (*jobs, *trials))) <= columns
    assert trainer.job_id in [line.split()[0] for line in jobs]
    assert "1" in [line.split()[0] for line in trials]


@pytest.mark.parametrize("missing", [(), ("rich",)])
def test_long_ids_are_whole(ask: Ask, stub: v1.BatchSizeOptimizerStub, missing: tuple[str, ...]) -> None:
    """All of an id is shown, folded by `rich` and else on one line; states are aligned beside wide characters."""
    ids = ["wide-" + "x" * 74, "wide-日本語の仕事", "wide-e\u0301", "wide-a"]
    for job_id in ids:
        Trainer(stub, job_id=job_id, job_id_prefix="wide").next()
    lines = lines_of("jobs", "list", "--prefix", "wide", missing=missing)
    if missing:
        assert any(line.startswith(ids[0]) for line in lines)
    else:
        assert max(map(width_of, lines)) <= 80
        assert ids[0] in "".join(line.split()[0] for line in lines[1:] if line)
    rows = [line for line in lines if "running" in line]
    places = {width_of(line[: line.index("running")]) for line in rows}
    assert len(rows) == 4
    assert len(places) == 1
    (whole,) = (line for line in ask("jobs", "list", "--prefix", "wide").splitlines() if ids[0] in line)
    assert "running" in whole


@pytest.mark.parametrize("missing", [(), ("rich",)])
def test_ids_are_text(stub: v1.BatchSizeOptimizerStub, missing: tuple[str, ...]) -> None:
    """Markup, a smiley's name and a link in an id are shown as they are."""
    job_id = "a[bold]b[/bold]:smile:[link=https://wattwise.example]c"
    Trainer(stub, job_id=job_id, job_id_prefix=job_id).next()
    words = ("jobs", "list", "--prefix", job_id, "--columns", "job")
    assert lines_of(*words, missing=missing)[1] == job_id
    assert job_id in "\n".join(lines_of(*words[:4], columns=200, missing=missing))


def test_a_pipe_has_the_words_of_a_terminal(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets what a terminal with room for everything shows: every column, the same texts, the same notes."""
    monkeypatch.setenv("COLUMNS", "40")
    for words, names in (
        (("jobs", "list", "--prefix", trainer.job_id), _JOBS),
        (("jobs", "trials", trainer.job_id), _TRIALS),
    ):
        columns = ("--columns", ",".join(name.replace(" ", "-") for name in names if name != "age"))
        assert headings(piped(*words)[0]) == names
        assert piped(*words, *columns) == lines_of(*words, *columns, columns=400)
    assert {column.name for column in JOB_COLUMNS} == set(_JOBS)
    assert {column.name for column in TRIAL_COLUMNS} == set(_TRIALS)


def test_tsv(ask: Ask, trainer: Trainer) -> None:
    """For scripts: names with units, exact values in joules, seconds and ISO 8601, and neither marks nor notes."""
    first, second, *_, running = records(ask("jobs", "trials", trainer.job_id, "--format", "tsv"))
    assert list(first) == [column.field for column in TRIAL_COLUMNS]
    numbers_of = ("trial", "batch_size", "metric", "time_seconds", "energy_joules", "cost_joules")
    assert [first[name] for name in numbers_of] == ["1", "16", "0.951234567", "725.0", "5000.0", "5000.0"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["started"])
    assert float(first["age_seconds"]) < 600
    assert (second["cost_joules"], second["monitor"], second["warnings"]) == ("50000.0", "estimate", "monitors differ")
    assert (running["result"], running["cost_joules"]) == ("running", "")
    (job,) = records(ask("jobs", "list", "--prefix", trainer.job_id, "--format", "tsv"))
    assert (job["job"], job["state"], job["used_now"]) == (trainer.job_id, "warning", "16")
    assert float(job["a_model_now_joules"]) == 9001.0


def test_tsv_on_a_terminal(trainer: Trainer) -> None:
    """The format is the same on a terminal, whatever its width."""
    words = ("jobs", "trials", trainer.job_id, "--format", "tsv", "--columns", "trial,result,cost_joules,started")
    assert lines_of(*words, columns=30) == piped(*words)


def test_tsv_and_the_other_options(ask: Ask, trainer: Trainer) -> None:
    """Columns, order, limit and --no-headers are those of tables; an empty table has its names alone."""
    words = ("jobs", "trials", trainer.job_id, "--format", "tsv", "--columns", "trial,cost", "--sort", "cost")
    assert ask(*words, "--limit", "2") == "trial\tcost_joules\n4\t1.0\n3\t4000.0\n"
    assert ask(*words, "--limit", "1", "--no-headers") == "4\t1.0\n"
    assert ask("jobs", "list", "--prefix", "unknown", "--format", "tsv", "--columns", "job") == "job\n"


def test_every_table_has_a_format_for_scripts(ask: Ask, trainer: Trainer) -> None:
    """Every action that prints a table takes the same options."""
    spooled = Spool.from_env().journal(record("waiting", "there:1", "test-spooled"))
    spooled.release()
    for words, name in (
        (("jobs", "list"), "job"),
        (("jobs", "trials", trainer.job_id), "trial"),
        (("jobs", "trial", trainer.job_id, "1"), "epoch"),
        (("jobs", "savings"), "job"),
        (("jobs", "events"), "time"),
        (("spool", "list"), "server"),
    ):
        found = records(ask(*words, "--format", "tsv"))
        assert found
        assert next(iter(found[0])) == name
        assert json.loads(ask(*words, "--format", "json")) == json.loads(ask(*words, "--json"))


def test_tsv_cells_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A value cannot add a cell or a line."""
    print_table([Column[str]("text", str), numbers("n", len)], ["a\tb\nc"], TableOptions(tsv=True))
    assert capsys.readouterr().out == "text\tn\na\\tb\\nc\t5\n"


@pytest.mark.thorough
def test_without_rich(trainer: Trainer) -> None:
    """A trainer's machine, which has neither `rich` nor another package of the server, prints the same words."""
    for words in (
        ("jobs", "list", "--prefix", trainer.job_id, "--columns", "job,state,a-model-now"),
        ("jobs", "trials", trainer.job_id, "--columns", "trial,result,cost"),
        ("spool", "list"),
    ):
        assert lines_of(*words, missing=SERVER_ONLY) == lines_of(*words)
        assert piped(*words, missing=SERVER_ONLY) == piped(*words)
    assert max(map(width_of, lines_of("jobs", "trials", trainer.job_id, missing=SERVER_ONLY))) <= 80


def test_wide(trainer: Trainer) -> None:
    """--wide shows all columns on a narrow terminal, each row on one line."""
    lines = lines_of("jobs", "trials", trainer.job_id, "--wide")
    assert "lease expires" in lines[0]
    assert "monitors differ" in " ".join(lines)
    assert max(map(width_of, lines)) > 80
    assert [line.split()[0] for line in lines[1:6]] == ["1", "2", "3", "4", "5"]


def test_columns(ask: Ask, trainer: Trainer) -> None:
    """--columns chooses the columns and their order; a name may be typed with hyphens or spaces, in any case."""
    for typed in ("cost,batch-size,trial", "Cost, Batch Size ,trial", "cost,batch_size,TRIAL"):
        heading, first, *_ = ask("jobs", "trials", trainer.job_id, "--columns", typed).splitlines()
        assert headings(heading) == ["cost", "batch size", "trial"]
        assert headings(first) == ["5.00 kJ", "16", "1"]
    assert lines_of("jobs", "trials", trainer.job_id, "--columns", "result,trial", columns=20)[1].split() == [
        "reached",
        "1",
    ]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("list", "--columns", "job,costs"), ("--columns", "'costs'", "trials, a-model-now")),
        (("list", "--columns", ""), ("--columns", "''", "job, state")),
        (("list", "--columns", "job,state,job"), ("--columns", "'job'", "twice")),
        (("list", "--sort", "costs"), ("--sort", "'costs'", "trials, a-model-now")),
        (("trials", "x", "--sort", "expected-cost"), ("--sort", "'expected-cost'", "trial, batch-size, result")),
        (("list", "--limit", "0"), ("--limit", "'0'")),
        (("list", "--limit", "few"), ("--limit", "'few'")),
        (("list", "--wide", "--columns", "job"), ("--columns", "--wide")),
        (("show", "x", "--json", "--wide"), ("--wide", "--json")),
        (("show", "x", "--sort", "job"), ("--sort",)),
        (("list", "--json", "--wide"), ("--wide", "--json")),
        (("trials", "x", "--json", "--columns", "trial"), ("--columns", "--json")),
        (("list", "--json", "--no-headers"), ("--no-headers", "--json")),
        (("list", "--format", "json", "--wide"), ("--wide", "--json")),
        (("list", "--json", "--format", "tsv"), ("--format tsv", "--json")),
        (("list", "--format", "tsv", "--wide"), ("--wide", "--format tsv")),
        (("savings", "x", "--format", "tsv"), ("--format tsv",)),
        (("list", "--format", "tvs"), ("'tsv'",)),
    ],
)
def test_wrong_options(refused: Ask, words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    """What cannot be shown is refused by name, without a call, and unknown columns with the known ones."""
    error = refused("jobs", *words, "--server", "127.0.0.1:1", status=2)
    assert all(fact in error for fact in facts)


def test_sort_by_every_column(ask: Ask, trainer: Trainer) -> None:
    """Each column sorts its own values, numbers as numbers, and --reverse reverses them."""
    options = ("jobs", "trials", trainer.job_id, "--no-headers", "--columns", "trial", "--sort")

    def order(*words: str) -> list[int]:
        return [int(line) for line in ask(*options, *words).splitlines()]

    assert order("cost") == [4, 3, 1, 2, 5]
    assert order("cost", "--reverse") == [2, 1, 3, 4, 5]
    assert order("epochs") == [3, 2, 1, 4, 5]
    assert order("metric") == [2, 3, 4, 1, 5]
    assert order("result")[0] == 3
    assert order("age") == [5, 4, 3, 2, 1]
    assert order("started", "--reverse") == [5, 4, 3, 2, 1]
    for column in TRIAL_COLUMNS:
        assert sorted(order(column.option)) == [1, 2, 3, 4, 5]


def test_sort_jobs_by_every_column(ask: Ask, trainer: Trainer, stub: v1.BatchSizeOptimizerStub) -> None:
    """Jobs are sorted by each column too; those without a value come last in either direction."""
    Trainer(stub)
    for column in JOB_COLUMNS:
        assert trainer.job_id in ask("jobs", "list", "--sort", column.option)
    for words in ((), ("--reverse",)):
        lines = ask("jobs", "list", "--sort", "a-model-now", "--columns", "job,a-model-now", "--no-headers", *words)
        filled = [line.endswith("J") for line in lines.splitlines()]
        assert filled == sorted(filled, reverse=True)
        assert False in filled


def test_limit(ask: Ask, trainer: Trainer) -> None:
    """--limit takes the first rows of the order, in JSON too, and a terminal says that there are more."""
    words = ("jobs", "trials", trainer.job_id, "--limit", "2")
    assert [line.split()[0] for line in ask(*words).splitlines()][:3] == ["trial", "1", "2"]
    assert [line.split()[0] for line in ask(*words, "--no-headers").splitlines()] == ["1", "2"]
    numbered = [trial["id"]["trial_number"] for trial in json.loads(ask(*words, "--json", "--sort", "cost"))]
    assert numbered == [4, 3]
    assert [line.split()[0] for line in ask(*words, "--reverse", "--no-headers").splitlines()] == ["5", "4"]
    whole, part = (lines_of(*words[:3], "--limit", limit) for limit in ("5", "4"))
    assert [any("there are more" in line for line in lines) for lines in (whole, part)] == [False, True]


def test_limit_reads_no_more() -> None:
    """Without another order, one row beyond the limit is taken."""
    rows = iter(range(10))
    found, more = arrange([numbers("n", lambda n: n)], rows, TableOptions(limit=3))
    assert (found, more, next(rows)) == ([0, 1, 2], True, 4)


def test_no_headers(ask: Ask, trainer: Trainer) -> None:
    """--no-headers leaves rows alone: nothing at all if there are none."""
    words = ("jobs", "list", "--no-headers", "--columns", "job", "--prefix")
    assert ask(*words, trainer.job_id) == f"{trainer.job_id}\n"
    assert ask(*words, "unknown-job") == ""


def test_estimates_are_noted_once(stub: v1.BatchSizeOptimizerStub) -> None:
    """A terminal explains the marks of cells once, below the table."""
    trainer = Trainer(stub)
    trainer.run(1000, monitor=monitor_of("estimate"))
    for action in ("trials", "list"):
        words = [trainer.job_id] if action == "trials" else ["--prefix", trainer.job_id]
        text = "\n".join(lines_of("jobs", action, *words))
        assert (" ~1.00 kJ" in text, text.count("~ marks estimates")) == (True, 1)


def test_warnings_are_noted(trainer: Trainer) -> None:
    """Where the column of warnings does not fit, they stand below the table; in it, if it does."""
    narrow, wide = (lines_of("jobs", "trials", trainer.job_id, *words) for words in ((), ("--wide",)))
    assert [line for line in narrow if "monitors differ" in line] == ["Warning: monitors differ, trials 2-4."]
    assert not any(line.startswith("Warning") for line in wide)


def test_spool_on_a_terminal() -> None:
    """Its list fits 80 columns; the reason of a refusal stands below it."""
    refused = Spool.from_env().journal(record("refused", "there:1", "test-" + "b" * 60))
    refused.refuse("the reason")
    refused.release()
    lines = lines_of("spool", "list")
    end = next(place for place, line in enumerate(lines) if line.startswith("refused"))
    assert max(map(width_of, lines[:end])) <= 80
    assert "".join(re.findall("b{5,}", "\n".join(lines[:end]))) == "b" * 60
    assert "the reason" in " ".join(lines[end:])
    assert headings(piped("spool", "list")[1])[-2] == "the reason"


def test_cells_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell cannot break its line or move the cursor."""
    print_table([Column[str]("text", str)], ["a\nb", "\x1b[2J"])
    assert capsys.readouterr().out.splitlines() == ["text", "a\\nb", "\\x1b[2J"]


def test_no_color(trainer: Trainer) -> None:
    """Names of columns are bold on a terminal that can do so, without NO_COLOR; nothing else has a control sequence."""
    words = ("jobs", "trials", trainer.job_id)
    for environment in ({"TERM": "dumb", "NO_COLOR": ""}, {"TERM": "xterm-256color", "NO_COLOR": "1"}):
        status, text = on_terminal(words, environment=environment)
        assert (status, "\x1b" in text) == (0, False)
    assert row(text, "1")[2] == "reached"
    _, bold = on_terminal(words, environment={"TERM": "xterm-256color", "NO_COLOR": ""})
    assert set(re.findall(r"\x1b\[[0-9;]*m", bold)) == {"\x1b[1m", "\x1b[0m"}
    assert re.sub(r"\x1b\[[0-9;]*m", "", bold).split() == text.split()
    assert not any("\x1b" in line for line in bold.splitlines()[2:])
    assert "\x1b" not in "\n".join(piped(*words))
