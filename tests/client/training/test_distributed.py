"""Two ranks, two processes, PyTorch's gloo between them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wattwise import Client, v1

from tests.live_server import LiveServer

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


def started(address: str, *options: str) -> list[subprocess.Popen[str]]:
    """Two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command, pipe = [sys.executable, "-m", "tests.client.training.rank", address], subprocess.PIPE
    return [
        subprocess.Popen([*command, rank, port, *options], stdout=pipe, stderr=pipe, text=True) for rank in ("0", "1")
    ]


def ended(ranks: list[subprocess.Popen[str]]) -> tuple[list[int], list[list[str]]]:
    """The exit status of each rank, and the lines that it printed."""
    said = [rank.communicate(timeout=100)[0].splitlines() for rank in ranks]
    return [rank.returncode for rank in ranks], said


def run_ranks(address: str, *options: str) -> list[list[str]]:
    """What each of two ranks prints before it ends well."""
    statuses, said = ended(started(address, *options))
    assert statuses == [0, 0], said
    return said


def the_trial(server: LiveServer) -> v1.Trial:
    """The only trial of the ranks."""
    with Client(server.address) as client:
        (trial,) = client.list_trials("ranks")
    return trial


def test_ranks_agree_on_batch_size_and_stop(server: LiveServer) -> None:
    """One rank asks, both train with its batch size and stop after the same epoch, and there is one trial."""
    for said in run_ranks(server.address):
        assert (said[0], said[-1]) == ("128", "stopped after epoch 4")
    trial = the_trial(server)
    assert (trial.converged, trial.last_epoch) == (True, 4)


def test_each_rank_has_its_part_of_every_batch(server: LiveServer) -> None:
    """Each rank's batches are half of the batch size, its samples half of the dataset, in another order every epoch."""
    first, second = ([line.split(maxsplit=3) for line in said[1:-1]] for said in run_ranks(server.address))
    assert {line[1] for line in first + second} == {"64"}
    assert {int(one[2]) + int(other[2]) for one, other in zip(first, second, strict=True)} == {sum(range(256))}
    assert len({line[3] for line in first}) == len(first)


def test_batch_size_that_the_ranks_do_not_divide(server: LiveServer) -> None:
    """A batch size that cannot be split evenly is refused on every rank, naming those that can."""
    for said in run_ranks(server.address, "--batch-sizes", "64", "96", "127"):
        assert said[1].startswith("TrainerSetupError: batch size 127 cannot be split evenly over 2 ranks")
        assert "64, 96 can, and near this one 126 and 128" in said[1]


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max"])
def test_metric_over_all_ranks(server: LiveServer, how: str) -> None:
    """The metric that counts is that of all ranks, as the trainer wants it: the same decision for both."""
    for said in run_ranks(server.address, "--reduce", how):
        assert said[-1] == "stopped after epoch 4"
    assert the_trial(server).last_metric == 1.0


@pytest.mark.parametrize("how", ["mean", "min"])
def test_one_diverged_rank_is_enough(server: LiveServer, how: str) -> None:
    """NaN on one rank makes the metric of all of them NaN, which never reaches a target."""
    for said in run_ranks(server.address, "--reduce", how, "--metric", "1", "nan"):
        assert said[-1].startswith("TrainFailError: training is over and the target was not reached: max epochs")


def test_faulty_metric_of_one_rank_is_an_error_on_both(server: LiveServer) -> None:
    """Where all metrics count, no rank waits for one that has none to give."""
    for said in run_ranks(server.address, "--reduce", "mean", "--metric", "1", "none"):
        assert said[-1].startswith("MetricTypeError: on_evaluate() got None")


def test_no_rank_hangs_when_there_is_no_server(server: LiveServer) -> None:
    """What keeps rank 0 from asking is told to every rank."""
    server.stop()
    for said in run_ranks(server.address):
        assert said[0].startswith("ServerUnavailableError: ")


@pytest.mark.parametrize(
    ("rank", "end", "status", "reason"),
    [
        # Rank 0, which goes down with the rank that failed, could not tell why: the trial must not look like a bug.
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
    """The trial ends for the reason that the rank had, or as an error if it could say none; the other rank ends too."""
    began = time.monotonic()
    statuses, said = ended(started(server.address, "--end", str(rank), end))
    assert statuses[rank] == status, said
    assert statuses[1 - rank] == 1, said
    trial = the_trial(server)
    assert (trial.status, trial.end_reason) == (v1.TRIAL_STATUS_FAILED, reason)
    assert time.monotonic() - began < 60


def test_ranks_go_on_from_a_checkpoint(server: LiveServer, tmp_path: Path) -> None:
    """Ranks that start again go on with the trial together, from the state that any of them has saved with PyTorch."""
    options = ("--checkpoint", str(tmp_path / "checkpoint.pt"))
    ended(started(server.address, "--end", "0", "preempted", *options))
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED
    for said in run_ranks(server.address, *options):
        assert [line.split()[0] for line in said[:-1]] == ["128", "2", "3", "4"], said
    trial = the_trial(server)
    assert (trial.converged, trial.last_epoch) == (True, 4)


def test_rank_that_hangs_fails_the_others_in_time(server: LiveServer) -> None:
    """A rank that never comes to the end of its epoch ends the trial after the timeout of the process group."""
    ranks = started(server.address, "--end", "1", "waits", "--reduce", "mean", "--timeout", "3")
    assert ranks[0].wait(timeout=60) == 1
    assert the_trial(server).end_reason == v1.END_REASON_ERROR
    ranks[1].kill()
    ended(ranks)


def test_ranks_that_are_preempted_together(server: LiveServer) -> None:
    """SIGTERM to all ranks, one of which waits for another within on_evaluate, is a preemption."""
    ranks = started(server.address, "--end", "1", "waits", "--reduce", "mean")
    for rank in ranks:
        assert rank.stdout is not None
        assert [rank.stdout.readline()[0] for _ in range(3)] == ["1", "1", "2"]
    for rank in ranks:
        rank.terminate()
    assert ended(ranks)[0] == [-signal.SIGTERM] * 2
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED
