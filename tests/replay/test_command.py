"""`wattwise replay` as its user runs it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from wattwise.commands.main import main
from wattwise_replay.compare import AT_BEST_LIMIT, DEFAULT, GRID, POLICIES, compare
from wattwise_replay.engines import Fixed
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import Ledger, play
from wattwise_replay.plot import draw
from wattwise_replay.synthetic import synthetic
from wattwise_replay.tables import print_comparison
from wattwise_replay.workload import job_spec
from wattwise_replay.world import World

from tests.live_server import LiveServer
from tests.replay.worlds import workload

_SHORT = ("--synthetic", "1", "--seeds", "1", "--recurrences", "1")
# A replay that starts fails at this address.
_UNREACHABLE = (*_SHORT, "--server", "127.0.0.1:1")
_QUICK = ("replay", "--synthetic", "1", "--seeds", "2", "--recurrences", "12")
_RECURRENCES = 60


class ReplayOptions(NamedTuple):
    """The options of a replay, with their defaults."""

    beta: float = 2.0
    window: int = 0
    overlap: float = 0.0
    drift_at: int | None = None
    eta: float = 0.5

    def played(self) -> Ledger:
        """One seed of gts with them, played without the command."""
        made = synthetic(1)
        world = World(made if self.drift_at is None else made.drifting(self.drift_at), self.eta)
        job = job_spec(
            world.workload, "replay-1", policy="gts", eta=self.eta, beta=self.beta, seed=0, window=self.window
        )
        return play(InProcess(job), world, 0, _RECURRENCES, self.overlap)


def test_it_prints_every_contender(capsys: pytest.CaptureFixture[str]) -> None:
    """Both tables have a row for each contender; the heading has the best batch size."""
    assert main(_QUICK) == 0
    printed = capsys.readouterr().out
    assert "synthetic-1/simulated: 12 recurrences, 2 seeds; default batch size 1024, best in hindsight" in printed
    for name in ("default at maximum power", "grid search", "pruning_gts", "gts", "best in hindsight"):
        assert printed.count(f"| {name}") == 2


def test_the_docs_explain_every_row_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of policies and units aside."""
    assert main((*_QUICK, "--policy", "gts")) == 0
    page = (Path(__file__).parents[2] / "docs/replay.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    header = next(cells for cells in lines if cells and cells[0] == "all recurrences")
    rows = {cells[0] for cells in lines if len(cells) == len(header)} - {"all recurrences", "gts"}
    names = {name for name in rows if not name.startswith("-")} | {name.split(",")[0] for name in header[1:]}
    assert names
    explained = re.findall(r"^\| ([^|]+) \|", page.partition("## The tables")[2].partition("\n## ")[0], re.MULTILINE)
    assert names <= {name for cell in explained for name in cell.split(", ")}


def test_first_recurrences_have_their_own_table(capsys: pytest.CaptureFixture[str]) -> None:
    """With more than 40 recurrences, the first 40 have a second table, with ratios to the default and the best."""
    assert main(("replay", "--synthetic", "1", "--seeds", "1", "--recurrences", "41", "--policy", "gts")) == 0
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [cells[0] for cells in lines if "energy ÷ default" in cells] == ["all recurrences", "first 40 recurrences"]
    assert [cells[-2:] for cells in lines if cells and cells[0] == "best in hindsight"][:2] == [["1", "0"]] * 2
    whole, first = (float(cells[2]) for cells in lines if cells and cells[0] == "default at maximum power" and cells[2])
    assert first == pytest.approx(40 / 41 * whole, rel=0.05)


def test_json_holds_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    """With -, JSON is the whole output: sums, regret, and each trial of each seed."""
    assert main((*_QUICK, "--policy", "gts", "--json", "-")) == 0
    (setting,) = json.loads(capsys.readouterr().out)
    mine = setting["contenders"]["gts"]
    assert "pruning_gts" not in setting["contenders"]
    assert len(mine["choices"]) == 2
    assert {choice["recurrence"] for choice in mine["choices"][0]} == set(range(1, 13))
    spent = sum(choice["cost_joules"] for seed in mine["choices"] for choice in seed) / 2
    assert mine["cost_joules"]["all"]["mean"] == pytest.approx(spent)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ((), ReplayOptions()),
        (("--beta", "1.1"), ReplayOptions(beta=1.1)),
        (("--window", "2"), ReplayOptions(window=2)),
        (("--overlap", "0.5"), ReplayOptions(overlap=0.5)),
        (("--drift-at", "20"), ReplayOptions(drift_at=20)),
        (("--eta", "0.1"), ReplayOptions(eta=0.1)),
    ],
    ids=["none", "beta", "window", "overlap", "drift-at", "eta"],
)
def test_every_option_reaches_the_replay(
    words: tuple[str, ...], settings: ReplayOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option alone gives the same trials as a replay in process with that setting."""
    usual = ("replay", "--synthetic", "1", "--seeds", "1", "--policy", "gts", "--json", "-")
    assert main((*usual, "--recurrences", str(_RECURRENCES), *words)) == 0
    (setting,) = json.loads(capsys.readouterr().out)
    contender, ledger = setting["contenders"]["gts"], settings.played()
    choices = [
        (choice["recurrence"] - 1, choice["try"] - 1, choice["batch_size"], choice["limit_watts_per_gpu"])
        for choice in contender["choices"][0]
    ]
    assert choices == [(one.recurrence, one.attempt, one.batch_size, one.limit_watts_per_gpu) for one in ledger.trials]
    assert [choice["cost_joules"] for choice in contender["choices"][0]] == [trial.cost for trial in ledger.trials]
    assert (setting["eta"], setting["drift_at"]) == (settings.eta, settings.drift_at)
    assert (ledger.trials == ReplayOptions().played().trials) == (settings == ReplayOptions())
    for key, sums in (
        ("cost_joules", ledger.costs),
        ("energy_joules", ledger.joules),
        ("time_seconds", ledger.seconds),
    ):
        assert contender[key]["all"]["mean"] == pytest.approx(sums.sum())
        assert contender[key]["first_40"]["mean"] == pytest.approx(sums[:40].sum())


def test_a_named_world_has_its_own_horizon_and_drift(capsys: pytest.CaptureFixture[str]) -> None:
    """The name chooses recurrences and drift; options replace both, and crashes are in the JSON."""
    usual = ("replay", "--seeds", "1", "--policy", "gts", "--json", "-", "--synthetic")
    assert main((*usual, "drift")) == 0
    (setting,) = json.loads(capsys.readouterr().out)
    assert (setting["recurrences"], setting["drift_at"], len(setting["best_batch_sizes"])) == (120, 60, 2)
    assert main((*usual, "drift", "--recurrences", "12", "--drift-at", "6")) == 0
    (setting,) = json.loads(capsys.readouterr().out)
    assert (setting["recurrences"], setting["drift_at"]) == (12, 6)
    assert main((*usual, "memory-limit", "--recurrences", "12")) == 0
    (setting,) = json.loads(capsys.readouterr().out)
    mine = setting["contenders"]["gts"]
    assert {choice["failure"] for choice in mine["choices"][0]} == {None, "OUT_OF_MEMORY"}
    assert mine["undelivered"] == [0]


def test_a_plot_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The SVG has a line for each contender, except the one that regret is relative to, and a legend."""
    picture = tmp_path / "regret.svg"
    assert main((*_QUICK, "--plot", str(picture))) == 0
    capsys.readouterr()
    elements = list(ET.parse(picture).iter())  # noqa: S314 - our own picture
    texts = ["".join(each.itertext()).strip() for each in elements if each.tag.endswith("}text")]
    contenders = [DEFAULT, AT_BEST_LIMIT, GRID, *POLICIES]
    assert [text for text in texts if text in {*contenders, "best in hindsight"}] == contenders
    lines = [style for each in elements if "stroke-width: 1.6" in (style := each.get("style", ""))]
    # One in the panel and one in the legend, in a colour that no other has.
    assert sorted(Counter(lines).values()) == [2] * len(contenders)


def test_checking_files_leaves_them_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay that fails has created no file and changed no existing one."""
    old, new = tmp_path / "old.json", tmp_path / "new.svg"
    old.write_text("kept")
    assert main(("replay", *_UNREACHABLE, "--json", str(old), "--plot", str(new))) == 1
    printed = capsys.readouterr().err
    assert "127.0.0.1:1" in printed
    assert printed.count("\n") == 1
    assert (old.read_text(), new.exists()) == ("kept", False)


@pytest.mark.thorough
def test_a_server_gives_the_same_table(grpc_server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """With --server every number is the same as in process."""
    quick = ("replay", "--synthetic", "3", "--seeds", "1", "--recurrences", "10")
    assert main(quick) == 0
    here = capsys.readouterr().out
    assert main((*quick, "--server", grpc_server.address)) == 0
    assert capsys.readouterr().out == here


@pytest.mark.thorough
def test_without_a_batch_size_the_default_is_trained(
    grpc_server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only 1024 converges: pruning gives up, the others go on; a note has its launches, also with --server."""
    words = ("replay", "--synthetic", "one-converges", "--seeds", "2", "--recurrences", "2")
    assert main(words) == 0
    here = capsys.readouterr().out
    assert (
        "- pruning_gts: no batch size was left for 76 launches in 2 of 2 seeds; they trained the default, 256, "
        "without early stopping\n- pruning_gts: 4 of 4 recurrences ended without a model\n" in here
    )
    assert "- gts: no" not in here
    # Of those with a model; the others spend megajoules.
    assert "| regret, kJ a recurrence |" in here
    assert main((*words, "--json", "-")) == 0
    (setting,) = json.loads(capsys.readouterr().out)
    found = {name: each["fallbacks"] for name, each in setting["contenders"].items() if any(each["fallbacks"])}
    assert found == {"pruning_gts": [38, 38]}
    choices = setting["contenders"]["pruning_gts"]["choices"][0]
    assert {choice["batch_size"] for choice in choices[-38:]} == {256}
    assert main((*words, "--server", grpc_server.address)) == 0
    assert capsys.readouterr().out == here


def test_a_contender_without_a_model_has_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """The default runs out of memory at once and costs nothing: a dash, also in what is compared with it."""
    words = ("replay", "--synthetic", "default-out-of-memory", "--seeds", "2", "--recurrences", "41")
    assert main(words) == 0
    printed = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("|")]
    default, alike, *others = lines[2:9]
    assert default == ["default at maximum power", *"--------"]
    assert alike[1:] == default[1:]
    assert [cells[4:7] for cells in others] == [["-", "-", "-"]] * 5
    assert all(float(cells[7].split()[0]) >= 1 for cells in others)
    assert "nan" not in printed
    assert "inf" not in printed
    assert "\n- default at maximum power: 82 of 82 recurrences ended without a model\n" in printed
    assert main((*words, "--json", "-")) == 0
    (setting,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert setting["contenders"]["gts"]["cost_ratio_to_default"] == {"mean": None, "half_width_95": None}
    assert setting["contenders"][DEFAULT]["cost_ratio_to_best"]["mean"] is None


@pytest.mark.parametrize(("target_epoch", "unit"), [(4, "J"), (40, "kJ"), (40_000, "MJ")])
def test_units_follow_the_costs(
    target_epoch: int, unit: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One recurrence, in which 8 costs twice 16: 100 J an epoch."""
    made = workload(target_epoch, target_epoch // 2, max_epochs=target_epoch)
    found = compare(World(made, 1.0), lambda *_: Fixed(made, 16), (), seeds=1, recurrences=1)
    print_comparison(found)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    header = next(cells for cells in lines if cells and cells[0] == "all recurrences")
    columns = [f"total cost, {unit}", f"energy, {unit}", f"regret, {unit} a recurrence"]
    assert [header[place] for place in (1, 2, -1)] == columns
    alike = next(cells for cells in lines if cells and cells[0] == AT_BEST_LIMIT)
    assert (float(alike[1]), float(alike[-1])) == ((400.0, 200.0) if unit == "J" else (4.0, 2.0))
    draw([found], tmp_path / "regret.svg")
    assert f"cumulative regret, {unit}" in (tmp_path / "regret.svg").read_text()


def test_numbers_of_one_are_singular(capsys: pytest.CaptureFixture[str]) -> None:
    """One recurrence, one seed."""
    assert main(("replay", *_SHORT)) == 0
    assert "synthetic-1/simulated: 1 recurrence, 1 seed; " in capsys.readouterr().out


def test_another_default_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU without measurements of the paper's default batch size: the note has both."""
    power = folder / "summary_power_t4.csv"
    power.write_text(power.read_text().replace(",32,", ",64,"))
    words = ("--traces", str(folder), "--workload", "squad", "--gpu", "t4", "--policy", "gts")
    assert main(("replay", *words, "--recurrences", "1", "--seeds", "1")) == 0
    assert "\n- the default batch size 32 was not measured; 64 replaces it\n" in capsys.readouterr().out


def test_a_plot_without_matplotlib_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package is installed from a checkout."""
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    for option in ("--plot", "--belief"):
        assert main(("replay", "--synthetic", "1", option, "picture.svg")) == 1
        expected = "plots need matplotlib; run `make setup`, or `pip install '.[replay]'`, in a checkout"
        assert capsys.readouterr().err == f"wattwise replay: {expected}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--traces", "nowhere", "--all"), "no traces in nowhere"),
        (("--synthetic", "valley"), "no synthetic workload is named 'valley'"),
        (("--traces", "nowhere"), "no traces in nowhere"),
        (("--synthetic", "1", "--seeds", "1", "--eta", "3"), "eta_knob"),
        (("--synthetic", "1", "--gpu", "v100"), "cannot be combined with --synthetic"),
        (("--traces", "nowhere", "--all", "--workload", "squad"), "cannot be combined with --all"),
        ((*_UNREACHABLE, "--plot", "regret.xyz"), "cannot write regret.xyz"),
        ((*_UNREACHABLE, "--plot", "regret"), "cannot write regret: use an extension such as .svg"),
        ((*_UNREACHABLE, "--plot", "no/such/regret.svg"), "cannot write no/such/regret.svg: No such file"),
        ((*_UNREACHABLE, "--json", "no/such/file"), "cannot write no/such/file: No such file"),
        ((*_UNREACHABLE, "--json", "/"), "cannot write /: Is a directory"),
        ((*_UNREACHABLE, "--drift-at", "1"), "has 1 recurrence, so --drift-at 1 has no effect"),
        (("--synthetic", "1", "--drift-at", "112"), "112 recurrences"),
        (("--synthetic", "1", "--belief", "no/such/belief.svg"), "cannot write no/such/belief.svg: No such file"),
        (("--synthetic", "1", "--belief", "belief.xyz"), "use an extension such as .svg"),
        (("--synthetic", "1", "--belief", "b.svg", "--plot", "p.svg"), "cannot be combined with --plot"),
        (("--synthetic", "1", "--belief", "b.svg", "--json", "-"), "cannot be combined with --json"),
        (("--synthetic", "1", "--belief", "b.svg", "--seeds", "1"), "cannot be combined with --seeds"),
        (("--synthetic", "1", "--belief", "b.svg", "--server", "127.0.0.1:1"), "cannot be combined with --server"),
        (("--traces", "nowhere", "--belief", "b.svg", "--all"), "cannot be combined with --all"),
        (
            ("--synthetic", "1", "--belief", "b.svg", "--policy", "gts", "--policy", "pruning_gts"),
            "cannot be combined with several --policy",
        ),
        (
            ("--workload-file", "a.toml", "--workload-file", "b.toml", "--belief", "b.svg"),
            "cannot be combined with several --workload-file",
        ),
    ],
)
def test_invalid_replay_is_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 and one line that says what to change."""
    assert main(("replay", *words)) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_traces_without_a_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a choice is refused with the workloads and GPUs."""
    (tmp_path / "summary_power_x1.csv").touch()
    assert main(("replay", "--traces", str(tmp_path))) == 1
    assert "--workload (cifar100" in (error := capsys.readouterr().err)
    assert "--gpu (x1)" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "0"), "use 1 or more"),
        (("--overlap", "1"), "from 0 to below 1"),
        (("--policy", "best"), "invalid choice: 'best'"),
        (("--seeds", "few"), "invalid whole number value: 'few'"),
    ],
)
def test_invalid_options_are_named(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Invalid options exit with status 2, as in every command."""
    with pytest.raises(SystemExit) as left:
        main(("replay", "--synthetic", "1", *words))
    assert left.value.code == 2
    assert message in capsys.readouterr().err
