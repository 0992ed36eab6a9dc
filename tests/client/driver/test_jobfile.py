"""The job file: its values and defaults, and every fault at once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from wattwise import GpuGroup
from wattwise.driver.jobfile import JobFileError, read
from wattwise.errors import Violation

from tests.client.driver.running import HOUSE, Runs, ended, write_job
from tests.client.test_files import SPECIAL

MINIMAL = """
[job]
job_id_prefix = "a"
job_id = "a-nightly"
batch_sizes = [8, 16]
default_batch_size = 8
target_metric = 0.9
[train]
command = ["true"]
"""


def faults(folder: Path, text: str) -> dict[str, str]:
    """The faults of a job file by field."""
    path = folder / "job.toml"
    path.write_text(text)
    with pytest.raises(JobFileError) as refused:
        read(path)
    assert all(field in str(refused.value) for field, _ in refused.value.violations)
    return {fault.field: fault.description for fault in refused.value.violations}


def test_minimal_file(tmp_path: Path) -> None:
    """Everything but the job and the command has a default; folders are relative to the file."""
    path = tmp_path / "job.toml"
    path.write_text(MINIMAL)
    file = read(path)
    assert (file.job.batch_sizes, file.job.max_epochs, file.job.gpu) == ((8, 16), None, None)
    assert (file.train.workdir, file.run.log_dir) == (tmp_path, tmp_path / "runs")
    run = file.run
    assert (run.recurrences, run.max_tries, run.seed, run.monitor, run.observer_mode) == (20, 20, 123456, None, False)
    assert file.learning_rate(16) is None


def test_gpus_of_the_file(tmp_path: Path) -> None:
    """[job.gpu] replaces the GPUs that the monitor finds."""
    path = tmp_path / "job.toml"
    path.write_text(f'{MINIMAL}[job.gpu]\ngpu_model = "X"\ncount = 2\nmax_power_watts_per_gpu = 150\n')
    assert read(path).job.gpu == GpuGroup(gpu_model="X", count=2, max_power_watts_per_gpu=150.0)


def test_part_of_the_gpus(served: Runs) -> None:
    """The monitor provides what [job.gpu] leaves out."""
    job = write_job(served.folder, ["true"], run={"monitor": "estimate:70"})
    job.write_text(f"{job.read_text()}\n[job.gpu]\nmax_power_watts_per_gpu = 300\n")
    done = served.run(job, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '"gpu":{"gpu_model":"estimate (70 W)","count":1,"max_power_watts_per_gpu":300.0}' in done.stdout


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        ("sgd", 0.02),
        ("adam", 0.01 * 2**0.5),
        ("adamw", 0.01 * 2**0.5),
        ("AdamW", 0.01 * 2**0.5),
        ("adadelta", 0.01 * 2**0.5),
        ("adamw_torch_fused", 0.01 * 2**0.5),
    ],
)
def test_learning_rate_follows_the_batch_size(tmp_path: Path, optimizer: str, rate: float) -> None:
    """Linearly for SGD, with the square root for the others."""
    path = tmp_path / "job.toml"
    path.write_text(f'{MINIMAL}optimizer = "{optimizer}"\ndefault_learning_rate = 0.01\n')
    assert read(path).learning_rate(16) == pytest.approx(rate)


def test_every_fault_at_once(tmp_path: Path) -> None:
    """One error names every fault of every table, and for an unknown key the most similar known one."""
    found = faults(
        tmp_path,
        """
        [job]
        job_id_prefix = 3
        batch_size = [8]
        batch_sizes = [8, 2.5]
        default_batch_size = 0
        target_metric = "high"
        learn_reward_precision = 1
        [job.gpu]
        max_power_watts_per_gpu = inf
        count = 0
        gpu_model = ""
        gpu_modell = "x"
        [train]
        command = ["python", "{batchsize}", "{", "{learning_rate}"]
        workdir = "nowhere"
        optimiser = "sgd"
        [run]
        recurrences = 0
        max_tries = true
        seed = -1
        log_dir = 5
        observer_mode = "yes"
        monitor = "watts"
        recurrence = 5
        step_watts = -1.0
        grace_seconds = nan
        profile_warmup_iters = 1.5
        profile_measure_iters = 0
        [extra]
        """,
    )
    assert set(found) == {
        *("extra", "job.job_id_prefix", "job.batch_size", "job.batch_sizes", "job.default_batch_size", "job.job_id"),
        *("job.target_metric", "job.learn_reward_precision", "job.gpu.max_power_watts_per_gpu", "job.gpu.count"),
        *("job.gpu.gpu_model", "job.gpu.gpu_modell", "train.command", "train.workdir", "train.optimiser"),
        *("train.optimizer", "run.recurrences", "run.max_tries", "run.seed", "run.log_dir", "run.observer_mode"),
        *("run.monitor", "run.recurrence", "run.step_watts", "run.grace_seconds", "run.profile_warmup_iters"),
        "run.profile_measure_iters",
    }
    assert "did you mean 'batch_sizes'?" in found["job.batch_size"]
    assert "did you mean 'recurrences'?" in found["run.recurrence"]
    assert "did you mean 'gpu_model'?" in found["job.gpu.gpu_modell"]
    assert "[32, 64, 128]" in found["job.batch_sizes"]
    assert "estimate:150" in found["run.monitor"]
    assert "relative" in found["train.workdir"]


@pytest.mark.parametrize(
    ("word", "fact"),
    [
        ("{batchsize}", "did you mean {batch_size}?"),
        ("{epoch}", "{max_epochs}"),
        ("{}", "{log_dir}"),
        ("{", "single '{'"),
        ("a}", "single '}'"),
        ("{{seed}", "single '}'"),
    ],
)
def test_unknown_placeholder(tmp_path: Path, word: str, fact: str) -> None:
    """An unknown placeholder is named, with the known ones."""
    found = faults(tmp_path, MINIMAL.replace('"true"', f'"true", "{word}"'))
    assert fact in found["train.command"]


@pytest.mark.parametrize(
    ("text", "field", "fact"),
    [
        ("", "job", "[job]"),
        ("[job]", "job.batch_sizes", "missing"),
        (MINIMAL.replace("[8, 16]", "[]"), "job.batch_sizes", "[32, 64, 128]"),
        ("job = 1", "job", "[job]"),
        (MINIMAL.replace('["true"]', '"true"'), "train.command", "a list of strings"),
        (MINIMAL.replace('["true"]', "[1]"), "train.command", "a list of strings"),
        (MINIMAL + 'optimizer = "muon"\n', "train.optimizer", "sgd, "),
        (MINIMAL + 'optimizer = "sgd"\n', "train.default_learning_rate", "optimizer"),
        (MINIMAL + "default_learning_rate = 1\n", "train.optimizer", "default_learning_rate"),
        (MINIMAL.replace('"true"', '"{learning_rate}"'), "train.optimizer", "{learning_rate}"),
        (MINIMAL + "default_learning_rate = 0\n", "train.default_learning_rate", "above 0"),
    ],
)
def test_single_faults(tmp_path: Path, text: str, field: str, fact: str) -> None:
    """Each message names what to write."""
    assert fact in faults(tmp_path, text)[field]


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ("energy_price_per_kwh = 0.4", ["gpu_hour_price"]),
        ("gpu_hour_price = 2", ["energy_price_per_kwh"]),
        ("energy_price_per_kwh = 0\ngpu_hour_price = 0.0", ["energy_price_per_kwh"]),
        ("energy_price_per_kwh = -0.4\ngpu_hour_price = inf", ["energy_price_per_kwh", "gpu_hour_price"]),
        ('energy_price_per_kwh = "0.4"\ngpu_hour_price = 2', ["energy_price_per_kwh"]),
        ("energy_price_per_kwh = nan", ["energy_price_per_kwh"]),
        ("energy_price_per_kwh = 0.4\ngpu_hour_price = 2\neta_knob = 0.5", ["eta_knob"]),
        ("gpu_hour_price = 2\neta_knob = 0.5", ["eta_knob"]),
    ],
)
def test_prices_that_do_not_give_an_eta(tmp_path: Path, keys: str, fields: list[str]) -> None:
    """Each fault of the prices is named once, without a monitor and without a server."""
    path = tmp_path / "job.toml"
    path.write_text(MINIMAL.replace("[train]", f"{keys}\n[train]"))
    with pytest.raises(JobFileError) as refused:
        read(path)
    assert [fault.field for fault in refused.value.violations] == [f"job.{field}" for field in fields]


def test_prices(tmp_path: Path) -> None:
    """Prices are read as numbers; eta is computed when the GPUs are known."""
    path = tmp_path / "job.toml"
    path.write_text(MINIMAL.replace("[train]", "energy_price_per_kwh = 1\ngpu_hour_price = 0\n[train]"))
    job = read(path).job
    assert (job.energy_price_per_kwh, job.gpu_hour_price, job.eta_knob) == (1.0, 0.0, None)
    assert isinstance(job.energy_price_per_kwh, float)


@pytest.mark.parametrize(
    ("content", "message"), [(b"[job", "is not TOML"), (b"\xff", "not UTF-8"), (None, "cannot be read")]
)
def test_unreadable_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A missing file, malformed TOML and malformed UTF-8 have different messages."""
    path = tmp_path / "job.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(JobFileError, match=message):
        read(path)


@pytest.mark.parametrize("kind", SPECIAL)
def test_job_file_that_is_none(tmp_path: Path, kind: str) -> None:
    """A pipe, a device or a folder is refused by its name."""
    SPECIAL[kind](tmp_path / "job.toml")
    with pytest.raises(JobFileError, match=r"job\.toml"):
        read(tmp_path / "job.toml")


@pytest.mark.parametrize(
    "value", [f"1{'0' * 400}", f"1{'0' * 5000}", f"0x{'f' * 5000}", "[" * 100_000, f"[1, 2{'0' * 30}]"]
)
def test_value_that_is_none(tmp_path: Path, value: str) -> None:
    """An integer of more than 64 bits, of however many digits, and nested arrays are refused by the file's name."""
    (tmp_path / "job.toml").write_text(MINIMAL.replace("[train]", f"max_epochs = {value}\n[train]"))
    with pytest.raises(JobFileError, match=r"job\.toml") as refused:
        read(tmp_path / "job.toml")
    assert len(str(refused.value)) < 1000
    assert "sys." not in str(refused.value)


def test_tables_that_are_nested_too_deeply(tmp_path: Path) -> None:
    """A name of thousands of tables, which the parser of TOML accepts, is refused."""
    (tmp_path / "job.toml").write_text(f"[{'.'.join('a' * 3000)}]\n")
    with pytest.raises(JobFileError, match="nested too deeply"):
        read(tmp_path / "job.toml")


@pytest.mark.parametrize("inner", ["", "/runs"])
def test_folder_of_runs_that_is_none(tmp_path: Path, inner: str) -> None:
    """A folder that cannot be created, because something else has its name, is a fault."""
    (tmp_path / "job.toml").write_text(f'{MINIMAL}[run]\nlog_dir = "/dev/null{inner}"\n')
    with pytest.raises(JobFileError, match="log_dir: /dev/null is not a folder"):
        read(tmp_path / "job.toml")


def test_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows begin a file with a byte order mark."""
    (tmp_path / "job.toml").write_text(MINIMAL, encoding="utf-8-sig")
    assert read(tmp_path / "job.toml").job_id == "a-nightly"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("run.log_dir", MINIMAL + '[run]\nlog_dir = "runs\\r"\n'),
        ("train.workdir", MINIMAL.replace("[train]", '[train]\nworkdir = "\\u0000"')),
        ("train.command", MINIMAL.replace('["true"]', '["true", "a\\u0000"]')),
    ],
)
def test_control_character_in_a_path(tmp_path: Path, key: str, text: str) -> None:
    """A path with a carriage return would be another folder; no argument has a NUL."""
    assert set(faults(tmp_path, text)) == {key}


def test_control_character_in_the_folder_of_the_file(tmp_path: Path) -> None:
    """Commands would get the folder of the runs in a variable."""
    (tmp_path / "a\r").mkdir()
    assert set(faults(tmp_path / "a\r", MINIMAL)) == {"run.log_dir"}


def test_any_number_of_recurrences(served: Runs) -> None:
    """What is left to do is known without a list of it."""
    done = served.run(write_job(served.folder, ["false"], run={"recurrences": 2**62}))
    assert (done.returncode, "status 1" in done.stderr) == (1, True)


def test_faults_are_lines(runs: Runs) -> None:
    """The command prints a line for every fault, exits with 2 and has started nothing."""
    done = runs.run(write_job(runs.folder, ["true", "{x}"], run={"monitors": "nvml"}))
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.split(": ")[2] for line in lines] == ["train.command", "run.monitors"]
    assert not (runs.folder / "runs").exists()


def test_dry_run(runs: Runs) -> None:
    """--dry-run prints a shell command for each batch size, the default first, and starts nothing."""
    job = write_job(
        runs.folder,
        ["echo", "{batch_size}", "{learning_rate}", "{seed}", "a b"],
        train={"optimizer": "sgd", "default_learning_rate": 0.1},
    )
    done = runs.run(job, "--dry-run")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    echo = shutil.which("echo")
    assert [line for line in lines if line.startswith(f"{echo} ")] == [
        f"{echo} 16 0.1 100 'a b'",
        f"{echo} 8 0.05 100 'a b'",
        f"{echo} 32 0.2 100 'a b'",
    ]
    assert (lines.count("WATTWISE_RECURRENCE=1 \\"), lines.count("WATTWISE_TRY=1 \\")) == (3, 3)
    assert "next seed" in done.stderr
    assert "WATTWISE_BATCH_SIZE=32 \\" in lines
    assert "WATTWISE_LEARNING_RATE=0.05 \\" in lines
    assert f"WATTWISE_LOG_DIR={runs.path() / 'trial-N'} \\" in lines
    assert not (runs.folder / "runs").exists()


def test_dry_run_shows_the_interpreter(served: Runs) -> None:
    """The program is the one that a run would start: the Python of the driver's own environment, not another one."""
    done = served.run(write_job(served.folder, ["python", "{batch_size}"]), "--dry-run")
    assert f"{Path(sys.prefix) / 'bin' / 'python'} 16" in done.stdout.splitlines()


def test_help_describes_the_dry_run(runs: Runs) -> None:
    """The help says that a dry run prints only first tries."""
    text = " ".join(ended(runs.start(Path("--help"))).stdout.split())
    assert "first try of the first recurrence" in text


def test_violations_are_public(tmp_path: Path) -> None:
    """The faults are values of the error."""
    path = tmp_path / "job.toml"
    path.write_text(MINIMAL + "workdirs = 1\n")
    with pytest.raises(JobFileError) as refused:
        read(path)
    assert refused.value.violations == (Violation("train.workdirs", "is unknown; did you mean 'workdir'?"),)


@pytest.mark.parametrize("name", ["job.toml", "without_client.toml"])
def test_examples_have_no_fault(name: str) -> None:
    """The example's job files have no fault."""
    assert read(HOUSE / "examples" / "recurring" / name).job.default_batch_size == 8


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("metric_pattern = 'acc: [0-9.]+'", "metric_pattern"),
        ("metric_pattern = 'acc: ('", "metric_pattern"),
        ("metric_pattern = 3", "metric_pattern"),
        ("metric_pattern = 'acc: (.*)'\nepoch_pattern = '(a)(b)'", "epoch_pattern"),
        ("epoch_pattern = '(.)'", "metric_pattern"),
    ],
)
def test_invalid_patterns(tmp_path: Path, lines: str, key: str) -> None:
    """A pattern that finds no number is a fault of its key."""
    assert list(faults(tmp_path, f"{MINIMAL}{lines}\n")) == [f"train.{key}"]


def test_backslashes_in_double_quotes(tmp_path: Path) -> None:
    """The error of TOML says how to write a pattern."""
    path = tmp_path / "job.toml"
    path.write_text(MINIMAL + r'metric_pattern = "acc: (\S+)"')
    with pytest.raises(JobFileError, match=r"is not TOML.*single quotes"):
        read(path)


@pytest.mark.parametrize("name", ["x" * 300, "loop"])
def test_path_that_cannot_be_one(tmp_path: Path, name: str) -> None:
    """A loop of links and a name that is too long are faults of their keys."""
    (tmp_path / "loop").symlink_to("loop")
    text = MINIMAL.replace("[train]", f'[train]\nworkdir = "{name}"') + f'[run]\nlog_dir = "{name}"\n'
    assert set(faults(tmp_path, text)) == {"train.workdir", "run.log_dir"}
