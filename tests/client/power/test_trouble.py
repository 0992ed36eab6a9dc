"""Failures around power limits: training continues, and the limits are restored."""

from __future__ import annotations

import contextlib
import logging
import os
import re
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
from wattwise.power.calls import PowerLimitCalls

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

BACK = re.compile(r"the Wattwise server at \S+ is back")

# Functions named case_... run in their own process.


def case_no_permission(machine: Machine, address: str) -> tuple[list[str], list[tuple[str, float]], list[bool]]:
    """A trial without permission: its warnings, the limits it set, and whether a second trial cannot profile."""
    lines = log_lines()
    refuse_limits(machine)
    training = Training(machine, address)
    for _ in range(3):
        training.steps(10)
        training.plo.on_epoch_end()
        training.bso.on_evaluate(0.1)
    with Client(address) as client:
        answer = client.acquire_power_limit(client.get_next_batch_size(job_id_of(machine)).trial.id)
    training.bso.close()
    return lines, sets(machine), [answer.action == v1.POWER_ACTION_WAIT]


def case_lost_gpu(machine: Machine, address: str) -> tuple[list[str], float]:
    """A GPU that disappears during the walk: the warnings, and the limit of the other GPU."""
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
    """A monitor of another library, which raises its own exception at the end of a walk's window."""

    gpu_indices = (0, 1)

    def begin_window(self, name: str) -> None:
        """Does nothing."""

    def end_window(self, name: str) -> Window:
        """Raises in windows of a walk."""
        if "power" in name:
            raise ValueError("no such thing")
        return Window(1.0, 1.0)


def case_foreign_monitor(machine: Machine, address: str) -> tuple[list[str], list[float]]:
    """A monitor that raises another exception: the warnings, and the limits afterwards."""
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
    """The server is unavailable from the middle of the walk to the end of the process: the warnings."""
    lines = log_lines()
    with LiveServer(folder) as server:
        training = Training(machine, server.start())
        training.step()
        server.kill()
        training.steps(WALK_STEPS)
        training.plo.close()
    return [line for line in lines if "power profile" in line]


def case_forked(machine: Machine, address: str) -> tuple[int, list[list[float]]]:
    """A forked worker closes the parent's optimizer: its exit status, and the limits before and after."""
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
    """The server dies during the walk and comes back: log lines, limits, and the server's limits in the end."""
    lines, infos = log_lines(level), log_lines(logging.INFO)
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
        wait_until(lambda: _is_back(infos))
        # A copy: the session also warns of the server that is killed at the end.
        return list(lines), [*seen, limits(machine)], [limit.power_setting.limit_watts_per_gpu for limit in known]


def case_server_away(machine: Machine, folder: Path) -> tuple[list[list[float]], list[float], list[str]]:
    """The server is unavailable at the first step: the limits visited before and after it is back, and warnings."""
    lines, infos = log_lines(), log_lines(logging.INFO)
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        server.kill()
        training.steps(20)
        seen = [visited(machine)]
        server.start()
        wait_until(lambda: _asks_again(training))
        training.steps(WALK_STEPS)
        wait_until(lambda: _is_back(infos))
        # A copy: the session also warns of the server that is killed at the end.
        return [*seen, visited(machine)], limits(machine), list(lines)


def _is_back(lines: list[str]) -> bool:
    return any(BACK.fullmatch(line) for line in lines)


def _asks_again(training: Training) -> bool:
    training.plo.on_epoch_end()
    return training.plo.profiling


def case_target_without_server(machine: Machine, folder: Path, walking: bool) -> tuple[list[list[float]], bool]:
    """The target is reached while the server is unavailable: limits before and after, and whether training is over."""
    with LiveServer(folder) as server:
        training = Training(machine, server.start(), timeout=2.0)
        training.steps(5 if walking else WALK_STEPS)
        seen = [limits(machine)]
        server.kill()
        training.bso.on_evaluate(0.95)
        return [*seen, limits(machine)], training.bso.training_finished


def case_deleted(machine: Machine, address: str) -> tuple[list[str], list[float], list[float]]:
    """The job is deleted during the walk: warnings, limits after the walk, and limits after the epoch."""
    lines = log_lines()
    training = Training(machine, address)
    training.step()
    with Client(address) as client:
        client.delete_job(training.bso.trial.job_id)
    training.steps(WALK_STEPS)
    walked = limits(machine)
    wait_until(lambda: training.bso.training_finished)
    training.plo.on_epoch_end()
    return [line for line in lines if "power limits" in line], walked, limits(machine)


def case_signal_anywhere(machine: Machine, address: str) -> tuple[int, list[list[float]], list[v1.PowerLimit]]:
    """A survived SIGTERM at many lines of the code: their number, the limits left behind, and the server's limits."""
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
    """Raises SIGTERM after this many lines of the power-limit code; yields a list that then has the line."""
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


def test_no_permission(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """One warning names the required permission; no limit is set, and other trials can profile."""
    lines, done, kept = run(case_no_permission, machine, grpc_addr)
    (line,) = (line for line in lines if "power limit" in line)
    assert "no permission to set the power limit of Stub V100 (GPU-aaaa)" in line
    assert "CAP_SYS_ADMIN" in line
    assert "training continues" in line
    assert (done, kept) == ([], [False])


def test_lost_gpu_ends_the_walk(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """If a GPU disappears during the walk, training continues and the other GPUs get their limit back."""
    (why, left), limit = run(case_lost_gpu, machine, grpc_addr)
    assert "training continues" in why
    assert "nvidia-smi -i GPU-bbbb -pl 200" in left
    assert limit == 200.0


def test_foreign_exception_of_a_monitor(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Whatever a monitor raises during the walk, training continues and the limits are restored."""
    (line,), now = run(case_foreign_monitor, machine, grpc_addr)
    assert "ValueError: no such thing; training continues" in line
    assert now == BEFORE


def test_unreported_profile(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """A profile that is lost with the process is warned of."""
    (line,) = run(case_unreported, machine, tmp_path)
    assert "not reported" in line


def test_forked_worker_does_not_change_limits(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """Only the process that set the limits restores them."""
    assert run(case_forked, machine, grpc_addr) == (0, [[225.0, 225.0]] * 2)


def test_profile_waits_for_the_server(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """If the server dies during the walk, one warning is logged; the best limit is set, and reported later."""
    lines, now, known = run(case_server_dies, machine, tmp_path, logging.WARNING)
    assert ["cannot reach" in line for line in lines] == [True], lines
    assert (now, known) == ([[175.0, 175.0]] * 2, [175.0])


@pytest.mark.thorough
def test_outage_during_a_profile_is_logged(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """The consequence for the profile is logged, even if the session has warned of the outage; so is its end, once."""
    lines, _, _ = run(case_server_dies, machine, tmp_path, logging.INFO)
    (line,) = (line for line in lines if "call about power limits" in line)
    assert "repeated" in line
    assert sum(bool(BACK.fullmatch(line)) for line in lines) == 1


def test_server_unavailable_at_the_first_step(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """Without an answer no limit is set, with one warning; the walk begins when the server is back."""
    (before, after), now, warnings = run(case_server_away, machine, tmp_path)
    assert (before, len(warnings)) == ([200.0], 1)
    assert after == [200.0, *VISITED, 175.0]
    assert now == [175.0, 175.0]


@pytest.mark.parametrize(("walking", "now"), [(True, 225.0), (False, 175.0)])
def test_trial_that_ends_without_a_server_restores_the_limits(
    machine: Machine, run: Runner, tmp_path: Path, walking: bool, now: float
) -> None:
    """If training ends while the server is unavailable, the limits are restored before the process ends."""
    assert run(case_target_without_server, machine, tmp_path, walking) == ([[now, now], BEFORE], True)


def test_rejected_profile_is_dropped(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A profile that the server rejects is dropped with one warning; the best limit is set until training ends."""
    warnings, walked, at_last = run(case_deleted, machine, grpc_addr)
    assert len(warnings) == 1
    assert "dropped" in warnings[0]
    assert (walked, at_last) == ([175.0, 175.0], BEFORE)


def test_no_calls_for_a_while_after_a_timeout() -> None:
    """After a call that timed out, further calls return at once for many times as long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        trial = v1.TrialId(job_id="j", launch_id="l", trial_number=1)
        calls = PowerLimitCalls(lambda: Client(address, timeout=0.5, search_timeout=0.0), trial)
        assert calls.acquire() is None
        silent.accept()[0].close()
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
        assert calls.acquire() is None
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.thorough
def test_sigterm_at_any_line(machine: Machine, grpc_addr: str, run: Runner) -> None:
    """A survived SIGTERM at any line of the walk restores the limits and ends the walk."""
    fired, left, known = run(case_signal_anywhere, machine, grpc_addr)
    assert fired == len(left) > 10
    assert left == [BEFORE] * len(left)
    assert known == []


@pytest.mark.parametrize("monitor", [EstimateMonitor(watts=50), StepMonitor()])
def test_without_gpus(grpc_addr: str, monitor: EstimateMonitor | StepMonitor, caplog: pytest.LogCaptureFixture) -> None:
    """With a monitor without GPUs, or without the NVIDIA driver, one warning is logged and training continues."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor) as bso, PowerLimitOptimizer(bso) as plo:
        bso.get_batch_size()
        bso.on_train_begin()
        for _ in range(3):
            plo.on_step_begin()
            plo.on_step_end()
            plo.on_epoch_end()
        bso.on_evaluate(0.1)
        assert plo.limit_watts_per_gpu is None
    (record,) = (record for record in caplog.records if "power limit" in record.getMessage())
    assert "training continues" in record.getMessage()


class AmdMonitor(StepMonitor):
    """Stands for a monitor of AMD GPUs."""

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
def test_amd_gpus_keep_their_limits(
    grpc_addr: str, monitor: AmdMonitor | CombinedMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    """If AMD GPUs are measured, NVIDIA GPUs with the same indices keep their limits, and a warning says why."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor) as bso, PowerLimitOptimizer(bso) as plo:
        bso.get_batch_size()
        bso.on_train_begin()
        plo.on_step_begin()
    assert "only be set on NVIDIA GPUs" in caplog.text
