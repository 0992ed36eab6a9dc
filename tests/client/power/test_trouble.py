"""What goes wrong around power limits: no training is disturbed by it, and the limits come back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from wattwise import (
    BatchSizeOptimizer,
    Client,
    CombinedMonitor,
    EstimateMonitor,
    PowerLimitOptimizer,
    v1,
)
from wattwise.monitor import Window
from wattwise.power.knowledge import Knowledge
from wattwise.training.launch import Launch

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu
from tests.client.power.training import (
    BEFORE,
    GPUS,
    VISITED,
    WALK_STEPS,
    WARMUP,
    Training,
    job_id_of,
    limits,
    log_lines,
    power_job,
    refuse_limits,
    sets,
    visited,
)
from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until

# What follows with a name in case_ runs in a process of its own.


def case_no_permission(machine: Machine, address: str) -> tuple[list[str], list[tuple[str, float]], list[bool]]:
    """A trial that may not set limits: what is said and set, and whether a second trial is kept from profiling."""
    lines = log_lines()
    refuse_limits(machine)
    training = Training(machine, address)
    for _ in range(3):
        training.steps(10)
        training.plo.on_epoch_end()
        training.bso.on_evaluate(0.1)
    with Client(address) as client:
        answer = client.get_power_limit(client.get_next_batch_size(job_id_of(machine)).trial.id)
    training.bso.close()
    return lines, sets(machine), [answer.profiled_by_another]


def case_lost_gpu(machine: Machine, address: str) -> tuple[list[str], float]:
    """A GPU that falls off the bus in the middle of the walk: what is said, and the limit of the other one."""
    lines = log_lines()
    training = Training(machine, address)
    training.steps(WARMUP + 2)
    training.plo.on_step_begin()
    machine.show(GPUS[0], StubGpu(uuid="lost"))
    training.plo.on_step_end()
    for _ in range(10):
        training.plo.on_step_begin()
        training.plo.on_step_end()
    return lines, limits(machine)[0]


class Foreign:
    """A monitor of another make, which fails in its own way when a walk's window ends."""

    gpu_indices = (0, 1)

    def begin_window(self, name: str) -> None:
        """Measures nothing."""

    def end_window(self, name: str) -> Window:
        """Ends a window."""
        if "power" in name:
            raise ValueError("no such thing")
        return Window(1.0, 1.0)


def case_foreign_monitor(machine: Machine, address: str) -> tuple[list[str], list[float]]:
    """A monitor that raises what is none of our errors: what is said, and the limits afterwards."""
    lines = log_lines()
    machine.show(*GPUS)
    bso = BatchSizeOptimizer(address, power_job(job_id_of(machine)), monitor=Foreign())
    bso.get_batch_size()
    plo = PowerLimitOptimizer(bso)
    for _ in range(60):
        plo.on_step_begin()
        plo.on_step_end()
    return lines, limits(machine)


def case_unreported(machine: Machine, folder: Path) -> list[str]:
    """The server stays away from the middle of the walk to the end of the process: what is said."""
    lines = log_lines()
    with LiveServer(folder) as server:
        training = Training(machine, server.start())
        training.step()
        server.kill()
        training.steps(WALK_STEPS)
        training.plo.close()
    return [line for line in lines if "profiled" in line]


def case_forked(machine: Machine, address: str) -> tuple[int, list[list[float]]]:
    """A forked worker closes what is its parent's: how it ended, and the limits before and after."""
    training = Training(machine, address)
    training.steps(6)
    seen = [limits(machine)]
    worker = os.fork()
    if not worker:
        training.plo.close()
        training.steps(1)
        os._exit(0)
    _, status = os.waitpid(worker, 0)
    return status, [*seen, limits(machine)]


def case_server_dies(machine: Machine, folder: Path, level: int) -> tuple[list[str], list[list[float]], list[float]]:
    """The server dies in mid-walk and comes back: what is said, limits after the walk, and what it knows at last."""
    lines = log_lines(level)
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        training.step()
        server.kill()
        training.steps(WALK_STEPS)
        seen = [limits(machine)]
        server.start()
        for _ in range(200):
            training.steps(1)
            training.plo.on_epoch_end()
            if known := training.known():
                break
        return lines, [*seen, limits(machine)], [limit.power_limit_watts for limit in known]


def case_server_away(machine: Machine, folder: Path) -> tuple[list[list[float]], list[float], list[str]]:
    """The server is away at the first step and comes back: what was visited before, and after, and what is said."""
    lines = log_lines()
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        server.kill()
        training.steps(20)
        seen = [visited(machine)]
        server.start()
        wait_until(lambda: _asks_again(training))
        training.steps(WALK_STEPS)
        return [*seen, visited(machine)], limits(machine), lines


def _asks_again(training: Training) -> bool:
    training.plo.on_epoch_end()
    return training.plo.profiling


def case_target_without_server(machine: Machine, folder: Path, walking: bool) -> tuple[list[list[float]], bool]:
    """The target is reached while the server is away: limits before and after, and whether training is over."""
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        training.steps(5 if walking else WALK_STEPS)
        seen = [limits(machine)]
        server.kill()
        training.bso.on_evaluate(0.95)
        return [*seen, limits(machine)], training.bso.training_finished


def case_deleted(machine: Machine, address: str) -> tuple[list[str], list[float], list[float]]:
    """The job is deleted in mid-walk: what is said, the limits after the walk, and those after the epoch."""
    lines = log_lines()
    training = Training(machine, address)
    training.step()
    with Client(address) as client:
        client.delete_job(training.bso.trial.id.job_id)
    training.steps(WALK_STEPS)
    walked = limits(machine)
    wait_until(lambda: training.bso.training_finished)
    training.plo.on_epoch_end()
    return [line for line in lines if "power limits" in line], walked, limits(machine)


def case_signal_anywhere(machine: Machine, address: str) -> tuple[int, list[list[float]], list[v1.PowerLimit]]:
    """SIGTERM, which the process survives, at a line after another: how often, limits that were left, and reports."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    left, known, fired = [], [], 0
    for line in range(3, 560, 37):
        training = Training(machine, address, job_id=f"{job_id_of(machine)}-{line}")
        with raised_at(line) as raised:
            training.steps(WARMUP + 10)
        training.steps(WALK_STEPS)
        training.plo.on_epoch_end()
        fired += len(raised)
        left.append(limits(machine))
        known += training.known()
    return fired, left, known


@contextlib.contextmanager
def raised_at(line: int) -> Iterator[list[int]]:
    """Raises SIGTERM when so many lines of what sets power limits have run; notes that in what is yielded."""
    count = 0
    raised: list[int] = []

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        nonlocal count
        file = frame.f_code.co_filename
        if "wattwise/power" not in file and "power_limits" not in file:
            return None
        count += event == "line"
        if count >= line and not raised:
            raised.append(line)
            signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        yield raised
    finally:
        sys.settrace(None)


def test_no_permission_is_said_once(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """One warning names what setting limits takes; nothing is set, and nobody is kept from profiling."""
    (line,), done, kept = run(case_no_permission, machine, grpc_addr)
    assert "no permission to set the power limit of Stub V100 (GPU-aaaa)" in line
    assert "takes root (or CAP_SYS_ADMIN)" in line
    assert "training goes on at the present power limit" in line
    assert (done, kept) == ([], [False])


def test_lost_gpu_ends_the_walk(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A monitor that fails in mid-walk does not disturb the training; the GPUs that are left get their limit back."""
    (why, left), limit = run(case_lost_gpu, machine, grpc_addr)
    assert "training goes on" in why
    assert "nvidia-smi -i GPU-bbbb -pl 200" in left
    assert limit == 200.0


def test_monitor_of_another_make(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Whatever a monitor raises in mid-walk, the training goes on and the limits are put back."""
    (line,), now = run(case_foreign_monitor, machine, grpc_addr)
    assert "ValueError: no such thing; training goes on" in line
    assert now == BEFORE


def test_profile_that_nobody_heard_of(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """A profile that is lost with the process is said to be."""
    (line,) = run(case_unreported, machine, tmp_path)
    assert "the next trial profiles anew" in line


def test_forked_worker_leaves_the_limits_alone(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """The limits are those of the process that set them."""
    assert run(case_forked, machine, grpc_addr) == (0, [[225.0, 225.0]] * 2)


def test_profile_waits_for_the_server(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """A server that dies in mid-walk is warned of once; the own winner is set, and reported when the server is back."""
    (line,), now, known = run(case_server_dies, machine, tmp_path, logging.WARNING)
    assert "cannot reach" in line
    assert (now, known) == ([[175.0, 175.0]] * 2, [175.0])


def test_what_becomes_of_the_profile_is_logged(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """What an outage means for the profile is in the log, whoever warned of the outage."""
    lines, _, _ = run(case_server_dies, machine, tmp_path, logging.INFO)
    (line,) = (line for line in lines if "as for power limits" in line)
    assert "asked again after the epoch" in line


def test_server_away_at_the_first_step(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """Without an answer nothing is set, as one warning says; the walk begins once the server has said that it may."""
    (before, after), now, said = run(case_server_away, machine, tmp_path)
    assert (before, len(said)) == ([200.0], 1)
    assert after == [200.0, *VISITED, 175.0]
    assert now == [175.0, 175.0]


@pytest.mark.parametrize(("walking", "now"), [(True, 225.0), (False, 175.0)])
def test_trial_that_ends_without_a_server_gives_the_gpus_back(
    machine: Machine, run: Runner, tmp_path: Path, walking: bool, now: float
) -> None:
    """A training that is over while the server is away keeps no limit until the process ends."""
    assert run(case_target_without_server, machine, tmp_path, walking) == ([[now, now], BEFORE], True)


def test_refused_profile_is_dropped(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A profile that the server refuses is warned of once; the own winner is set while the training lasts."""
    said, walked, at_last = run(case_deleted, machine, grpc_addr)
    assert len(said) == 1
    assert "is dropped" in said[0]
    assert (walked, at_last) == ([175.0, 175.0], BEFORE)


def test_silent_server_is_not_waited_for_again_and_again() -> None:
    """After a call that timed out the next ones return at once, without trying, for many times as long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        launch = Launch(f"127.0.0.1:{silent.getsockname()[1]}", job_spec(), None, None)
        knowledge = Knowledge(launch, v1.TrialId(job_id="j", batch_size=8, trial_number=1), timeout=0.5)
        assert knowledge.ask() is None
        silent.accept()[0].close()
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
        assert knowledge.ask() is None
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_sigterm_at_any_line(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Wherever a SIGTERM that the process survives finds the walk: limits are put back, and the walk is no more."""
    fired, left, known = run(case_signal_anywhere, machine, grpc_addr)
    assert fired == len(left) > 10
    assert left == [BEFORE] * len(left)
    assert known == []


@pytest.mark.parametrize("monitor", [EstimateMonitor(watts=50), StepMonitor()])
def test_without_gpus_it_does_nothing(
    grpc_addr: str, monitor: EstimateMonitor | StepMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    """A monitor of no GPU, and one whose GPUs have no driver, are said once, and training goes on."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor) as bso, PowerLimitOptimizer(bso) as plo:
        bso.get_batch_size()
        bso.on_train_begin()
        for _ in range(3):
            plo.on_step_begin()
            plo.on_step_end()
            plo.on_epoch_end()
        bso.on_evaluate(0.1)
        assert plo.power_limit_watts is None
    (record,) = (record for record in caplog.records if "power limit" in record.getMessage())
    assert "training goes on at the present power limit" in record.getMessage()


class AmdMonitor(StepMonitor):
    """In place of a monitor of AMD's GPUs."""

    kind = "amdsmi"


@pytest.mark.parametrize(
    "monitor",
    [
        AmdMonitor(),
        CombinedMonitor(AmdMonitor(), EstimateMonitor(watts=50)),
        CombinedMonitor(EstimateMonitor(watts=50), AmdMonitor()),
    ],
    ids=["alone", "first", "last"],
)
def test_other_makers_gpus_keep_their_limits(
    grpc_addr: str, monitor: AmdMonitor | CombinedMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    """Where AMD's GPUs are measured, NVIDIA's of the same numbers are left alone, and why is said once."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor) as bso, PowerLimitOptimizer(bso) as plo:
        bso.get_batch_size()
        bso.on_train_begin()
        plo.on_step_begin()
    assert "power limits are set on NVIDIA GPUs alone" in caplog.text
