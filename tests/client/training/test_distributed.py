"""Two ranks, two processes, PyTorch's gloo between them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from wattwise import Client, v1
from wattwise.presentation.states import UNDECIDED
from wattwise.training.arrivals import Arrivals

from tests.live_server import LiveServer
from tests.ports import hold_port, port_of

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


def started(address: str, *options: str, ranks: int = 2) -> list[subprocess.Popen[str]]:
    """Starts the ranks."""
    command, pipe = [sys.executable, "-m", "tests.client.training.rank", address], subprocess.PIPE
    with hold_port() as held:
        # The ranks hold the port, too, until they end.
        given: dict[str, Any] = {"stdout": pipe, "stderr": pipe, "text": True, "pass_fds": [held.fileno()]}
        port, size = str(port_of(held)), f"--world-size={ranks}"
        return [
            subprocess.Popen([*command, str(rank), port, size, *options], stdin=pipe, **given) for rank in range(ranks)
        ]


def ended(ranks: list[subprocess.Popen[str]]) -> tuple[list[int], list[list[str]]]:
    """Waits for the ranks; returns their exit statuses and the lines that they printed."""
    lines = [rank.communicate(timeout=100)[0].splitlines() for rank in ranks]
    return [rank.returncode for rank in ranks], lines


def run_ranks(address: str, *options: str, ranks: int = 2) -> list[list[str]]:
    """Runs the ranks, which must succeed, and returns the lines that each printed."""
    statuses, lines = ended(started(address, *options, ranks=ranks))
    assert statuses == [0] * ranks, lines
    return lines


def the_trial(server: LiveServer) -> v1.Trial:
    """The only trial of the ranks."""
    with Client(server.address) as client:
        (trial,) = client.trials("ranks")
    return trial


def test_ranks_agree_on_batch_size_and_stop(server: LiveServer) -> None:
    """Both ranks train with the batch size of one trial and stop after the same epoch."""
    for lines in run_ranks(server.address):
        assert (lines[0], lines[-1]) == ("128", "stopped after epoch 4")
    trial = the_trial(server)
    assert (trial.converged, trial.newest.epoch) == (True, 4)


def test_each_rank_has_its_part_of_every_batch(server: LiveServer) -> None:
    """Each rank gets half of the batch size and half of the dataset, in a new order every epoch."""
    first, second = ([line.split(maxsplit=3) for line in lines[1:-1]] for lines in run_ranks(server.address))
    assert {line[1] for line in first + second} == {"64"}
    assert {int(one[2]) + int(other[2]) for one, other in zip(first, second, strict=True)} == {sum(range(256))}
    assert len({line[3] for line in first}) == len(first)


def test_batch_size_that_the_ranks_do_not_divide(server: LiveServer) -> None:
    """A batch size that cannot be split evenly is refused on every rank; the error names those that can."""
    for lines in run_ranks(server.address, "--batch-sizes", "64", "96", "127"):
        assert re.match(r"TrainerSetupError: .* 127 .* 2 ranks; .* 64, 96 can; .*: 126, 128\.", lines[1])


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max"])
def test_metric_over_all_ranks(server: LiveServer, how: str) -> None:
    """`reduce_metric` combines the metrics of all ranks, and both ranks get the same decision."""
    for lines in run_ranks(server.address, "--reduce", how):
        assert lines[-1] == "stopped after epoch 4"
    assert the_trial(server).newest.metric == 1.0


@pytest.mark.parametrize("how", ["mean", "min"])
def test_one_diverged_rank_is_enough(server: LiveServer, how: str) -> None:
    """NaN on one rank makes the combined metric NaN, which never reaches the target."""
    for lines in run_ranks(server.address, "--reduce", how, "--metric", "1", "nan"):
        assert lines[-1].startswith("TrainFailError: ")
    assert the_trial(server).end_reason == v1.END_REASON_MAX_EPOCHS


def test_faulty_metric_of_one_rank_is_an_error_on_both(server: LiveServer) -> None:
    """If all metrics count, an invalid metric on one rank is an error on both."""
    for lines in run_ranks(server.address, "--reduce", "mean", "--metric", "1", "none"):
        assert lines[-1].startswith("MetricTypeError: ")


def test_no_rank_hangs_when_there_is_no_server(server: LiveServer) -> None:
    """If rank 0 cannot reach the server, every rank raises the error."""
    server.stop()
    for lines in run_ranks(server.address):
        assert lines[0].startswith("ServerUnavailableError: ")


@pytest.mark.parametrize(
    ("rank", "end", "status", "reason"),
    [
        # Rank 0 dies with the rank that failed and does not know why: the trial must not end as an error.
        (1, "out-of-memory", 1, v1.END_REASON_OUT_OF_MEMORY),
        (0, "out-of-memory", 1, v1.END_REASON_OUT_OF_MEMORY),
        (1, "crash", 1, v1.END_REASON_ERROR),
        (0, "crash", 1, v1.END_REASON_ERROR),
        (1, "preempted", -signal.SIGTERM, v1.END_REASON_PREEMPTED),
        (0, "preempted", -signal.SIGTERM, v1.END_REASON_PREEMPTED),
        (1, "killed", -signal.SIGKILL, v1.END_REASON_ERROR),
        (0, "killed", -signal.SIGKILL, v1.END_REASON_ERROR),
    ],
)
def test_rank_that_dies_ends_the_trial_for_both(
    server: LiveServer, rank: int, end: str, status: int, reason: v1.EndReason.ValueType
) -> None:
    """The trial ends with the reason of the rank, or as an error if it gave none, and the other rank ends too."""
    began = time.monotonic()
    statuses, lines = ended(started(server.address, "--end", str(rank), end))
    assert statuses[rank] == status, lines
    assert statuses[1 - rank] == 1, lines
    trial = the_trial(server)
    assert (trial.status in UNDECIDED, trial.end_reason) == (True, reason)
    assert time.monotonic() - began < 60


def test_ranks_continue_from_a_checkpoint(server: LiveServer, tmp_path: Path) -> None:
    """Restarted ranks continue the trial together, from the state that any of them has saved with PyTorch."""
    options = ("--checkpoint", str(tmp_path / "checkpoint.pt"))
    ended(started(server.address, "--end", "0", "preempted", *options))
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED
    for lines in run_ranks(server.address, *options):
        assert [line.split()[0] for line in lines[:-1]] == ["128", "2", "3", "4"], lines
    trial = the_trial(server)
    assert (trial.converged, trial.newest.epoch) == (True, 4)


@pytest.mark.parametrize(("before", "end", "after"), [(2, "preempted", 1), (1, "killed", 2)])
def test_other_number_of_ranks_continues_from_a_checkpoint(
    server: LiveServer, tmp_path: Path, before: int, end: str, after: int
) -> None:
    """After an elastic restart with more or fewer ranks the trial continues; each has its share of the batch size."""
    options = ("--checkpoint", str(tmp_path / "checkpoint.pt"))
    ended(started(server.address, "--end", "0", end, *options, ranks=before))
    for lines in run_ranks(server.address, *options, ranks=after):
        assert [line.split()[:2] for line in lines[1:-1]] == [[str(epoch), str(128 // after)] for epoch in (2, 3, 4)]
    trial = the_trial(server)
    assert (trial.converged, trial.newest.epoch) == (True, 4)


def test_checkpoint_whose_batch_size_more_ranks_do_not_divide(server: LiveServer, tmp_path: Path) -> None:
    """More ranks that do not divide the batch size of the trial are refused, and the trial can still continue."""
    options = ("--checkpoint", str(tmp_path / "checkpoint.pt"), "--batch-sizes", "64", "127")
    ended(started(server.address, "--end", "0", "killed", *options, ranks=1))
    for lines in run_ranks(server.address, *options):
        assert re.match(r"TrainerSetupError: .* 127 .* 2 ranks; .* 64 can", lines[-1])


@pytest.mark.parametrize("call", ["get_batch_size", "on_train_begin", "on_evaluate"])
@pytest.mark.parametrize("rank", [0, 1])
def test_missing_rank_is_named_by_the_other(server: LiveServer, rank: int, call: str) -> None:
    """A rank that waits logs a warning with the rank and the call that is missing, and goes on once it is made."""
    ranks = started(server.address, "--late", str(rank), call)
    waiting = ranks[1 - rank].stderr
    assert waiting is not None
    assert any(f"waiting for ranks {rank};" in line and call in line for line in waiting)
    _let_go(ranks[rank])
    statuses, lines = ended(ranks)
    assert (statuses, [each[-1] for each in lines]) == ([0] * 2, ["stopped after epoch 4"] * 2)


def test_all_missing_ranks_are_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names every rank that has not made the call, also one that has made an earlier or another one."""
    monkeypatch.setattr("wattwise.training.arrivals.WARN_SECONDS", 0.0)
    store = pytest.importorskip("torch.distributed").HashStore()
    first, *others = (Arrivals(store, rank, 5) for rank in range(5))
    others[0].enter("on_train_begin")
    first.enter("on_train_begin")
    first.enter("on_evaluate")
    others[1].enter("on_train_begin")
    others[1].enter("on_evaluate")
    others[2].enter("on_train_begin")
    others[2].enter("attempts")
    first.wait()
    assert [record.args for record in caplog.records] == [("1, 3, 4", "on_evaluate")]


def test_ended_rank_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """A rank does not wait for the warning if another one has ended: the operation that follows fails."""
    store = pytest.importorskip("torch.distributed").HashStore()
    first, second = (Arrivals(store, rank, 2) for rank in range(2))
    second.end()
    first.enter("on_evaluate")
    first.wait()
    assert not caplog.records


def test_store_is_not_kept_alive() -> None:
    """The store of a group closes with the group: one that is left to the end of the process may abort it."""
    store = pytest.importorskip("torch.distributed").HashStore()
    arrivals = Arrivals(store, 0, 1)
    del store
    assert arrivals.store is None


def _let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_rank_that_hangs_fails_the_others_in_time(server: LiveServer) -> None:
    """If a rank never ends its epoch, the trial ends after the timeout of the process group."""
    ranks = started(server.address, "--end", "1", "waits", "--reduce", "mean", "--timeout", "3")
    assert ranks[0].wait(timeout=60) == 1
    assert the_trial(server).end_reason == v1.END_REASON_ERROR
    ranks[1].kill()
    ended(ranks)


def test_ranks_that_are_preempted_together(server: LiveServer) -> None:
    """SIGTERM to all ranks, one of which waits in on_evaluate, is a preemption."""
    ranks = started(server.address, "--end", "1", "waits", "--reduce", "mean")
    for rank in ranks:
        assert rank.stdout is not None
        assert [rank.stdout.readline()[0] for _ in range(3)] == ["1", "1", "2"]
    for rank in ranks:
        rank.terminate()
    assert ended(ranks)[0] == [-signal.SIGTERM] * 2
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED
