"""Trainings of tests, in this process and as `python -m tests.client.training.script ADDRESS JOB END`."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattwise import BatchSizeOptimizer, Client, EndReason, GpuGroup, JobSpec, v1
from wattwise.monitor import Window
from wattwise.rpc.calls import TrialOrId, new_id
from wattwise.spec import job_message
from wattwise.training.journal import TrialRecord
from wattwise.training.start import Start, StartedTrial
from wattwise.training.trial import TrialInfo

from tests.live_server import LiveServer

GPU = GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100.0)
JOB_ID = "test-outside"
"""The job of a training process."""

JOULES = 10.0
"""Energy of every window, and its cost, since eta is 1."""

_PLAUSIBLE_SECONDS = 3.0
"""A window that lasts longer by the clock cannot have lasted a second by a monitor."""

_ids = itertools.count()


class StepMonitor:
    """Stands in for a GPU's energy counter: every window lasts a second and uses 10 J.

    A window in which a server starts takes longer on a slow machine. It has its real length then, or it would
    contradict the clock.
    """

    gpu_indices = (0,)

    def __init__(self) -> None:
        self.open: dict[str, float] = {}

    def begin_window(self, name: str) -> None:
        """Opens a window."""
        assert name not in self.open, f"{name} is open already"
        self.open[name] = time.monotonic()

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        seconds = time.monotonic() - self.open.pop(name)
        return Window(time=1.0 if seconds < _PLAUSIBLE_SECONDS else seconds, total_energy=JOULES)


def job_spec(**given: Any) -> JobSpec:
    """A job of the paper's policy with a new id, batch sizes 8, 16, 32 and default 16."""
    usual: dict[str, Any] = {
        "job_id_prefix": "test",
        "job_id": f"test-{next(_ids)}",
        "batch_sizes": [8, 16, 32],
        "default_batch_size": 16,
        "eta_knob": 1.0,
        "target_metric": 0.9,
        "max_epochs": 10,
        "policy": "pruning_gts",
        "gpu": GPU,
    }
    return JobSpec(**(usual | given))


def begun(address: str, **given: Any) -> BatchSizeOptimizer:
    """A training that is ready for its first epoch."""
    bso = BatchSizeOptimizer(address, job_spec(**given), monitor=StepMonitor())
    bso.get_batch_size()
    bso.on_train_begin()
    return bso


def started(trial: v1.Trial) -> StartedTrial:
    """Returns a trial that the server has given."""
    return StartedTrial(Start.NEW, TrialInfo(trial, v1.Job(), "a test", "nvml"), v1.JobSpec())


def record_of(address: str, trial: v1.Trial, **given: Any) -> TrialRecord:
    """The record of a trial that starts now."""
    spec = job_message(job_spec(**{"job_id": trial.id.job_id, **given}))
    return TrialRecord(address, spec, new_id(), trial.id.trial_number, trial.batch_size, time.time())


def reason_of(value: v1.EndReason.ValueType) -> EndReason:
    """The reason as trainers write it."""
    return EndReason(v1.EndReason.Name(value).removeprefix("END_REASON_"))


def epochs(client: Client, trial: TrialOrId) -> list[int]:
    """The epochs that a trial has reported."""
    return [measurement.epoch for measurement in client.measurements(trial)]


def launch(server: LiveServer, end: str) -> subprocess.Popen[str]:
    """Starts a training process."""
    command = [sys.executable, "-m", "tests.client.training.script", server.address, JOB_ID, end]
    pipe, root = subprocess.PIPE, Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that a training process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def send_line(process: subprocess.Popen[str]) -> None:
    """Lets a training process continue that waits for a line."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Waits for a training process; returns its exit status, and its standard error without what a launch prints."""
    _, errors = process.communicate(timeout=60)
    return process.returncode, without_announcements(errors)


def without_announcements(errors: str) -> str:
    """Standard error without the lines about the batch size and the end of the trial that every launch prints."""
    return "".join(line for line in errors.splitlines(keepends=True) if not _ANNOUNCEMENT.match(line))


_ANNOUNCEMENT = re.compile("wattwise: trial [0-9]+ of job '[^']*'( has batch size|:| ended after epoch)")


def the_trial(server: LiveServer) -> v1.Trial:
    """The only trial of the training process."""
    with Client(server.address) as client:
        (trial,) = client.trials(JOB_ID)
    return trial


def _print(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _crash(_: BatchSizeOptimizer) -> None:
    raise RuntimeError("a bug in the training")


def _run_out_of_memory(_: BatchSizeOptimizer) -> None:
    raise ValueError("training failed") from RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _run_out_of_memory_in_torch(_: BatchSizeOptimizer) -> None:
    import torch  # noqa: PLC0415 - only some tests need it

    torch.empty(2**60)


def _raise_in_torch(_: BatchSizeOptimizer) -> None:
    import torch  # noqa: PLC0415 - only some tests need it

    raise torch.cuda.OutOfMemoryError


def _handle_out_of_memory(_: BatchSizeOptimizer) -> None:
    with contextlib.suppress(MemoryError):
        raise MemoryError


def _crash_after_out_of_memory(bso: BatchSizeOptimizer) -> None:
    _handle_out_of_memory(bso)
    _crash(bso)


def _raise_memory_error(_: BatchSizeOptimizer) -> None:
    raise MemoryError


def _interrupt(_: BatchSizeOptimizer) -> None:
    raise KeyboardInterrupt


def _wait(_: BatchSizeOptimizer) -> None:
    # Not signal.pause(), which would miss a signal that arrives just before it.
    while True:
        time.sleep(0.05)


def _hang_up(bso: BatchSizeOptimizer) -> None:
    # The signal arrives before the call returns.
    os.kill(os.getpid(), signal.SIGHUP)
    bso.on_evaluate(0.95)


def _wait_in_a_report(bso: BatchSizeOptimizer) -> None:
    # The server does not answer: SIGTERM finds the main thread inside on_evaluate.
    sys.stdin.readline()
    bso.on_evaluate(0.2)


def _leave_a_loop(bso: BatchSizeOptimizer) -> None:
    for _ in bso.epochs():
        bso.on_evaluate(0.2)
        break


def _wait_in_the_second_attempt(bso: BatchSizeOptimizer) -> None:
    for attempt in bso.attempts():
        if attempt.number == 2:
            _print("in attempt 2")
            _wait(bso)


def _within_a_loop(action: Callable[[BatchSizeOptimizer], None]) -> Callable[[BatchSizeOptimizer], None]:
    def loop(bso: BatchSizeOptimizer) -> None:
        for _ in bso.epochs():
            _print("in the loop")
            action(bso)

    return loop


def _return(_: BatchSizeOptimizer) -> None:
    return


def _leave_the_block(bso: BatchSizeOptimizer) -> None:
    with bso:
        raise MemoryError


def _exit(_: BatchSizeOptimizer) -> None:
    sys.exit(3)


def _exit_in_the_block(bso: BatchSizeOptimizer) -> None:
    with bso:
        sys.exit(3)


def _fork(in_child: Callable[[BatchSizeOptimizer], None]) -> Callable[[BatchSizeOptimizer], None]:
    """Forks as data loaders do, prints the child's exit code, and reports another epoch after a line."""

    def fork(bso: BatchSizeOptimizer) -> None:
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(bso,))
        child.start()
        _print(child.pid)
        child.join()
        _print(child.exitcode)
        sys.stdin.readline()
        bso.on_evaluate(0.2)
        _print(bso.decision and bso.decision.cost)
        _wait(bso)

    return fork


def _fork_often(bso: BatchSizeOptimizer) -> None:
    """Forks a set of workers per epoch, as data loaders without persistent workers do, and reports while they run."""
    for _ in range(20):
        workers = [multiprocessing.get_context("fork").Process(target=_return, args=(bso,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        bso.on_evaluate(0.2)
        for worker in workers:
            worker.join(20)
        _print([worker.exitcode for worker in workers])


ENDS: dict[str, Callable[[BatchSizeOptimizer], None]] = {
    "crash": _crash,
    "out-of-memory": _run_out_of_memory,
    "torch-out-of-memory": _run_out_of_memory_in_torch,
    "torch-error": _raise_in_torch,
    "handled": _handle_out_of_memory,
    "handled-crash": _crash_after_out_of_memory,
    "memory-error": _raise_memory_error,
    "interrupt": _interrupt,
    "wait": _wait,
    "wait-in-report": _wait_in_a_report,
    "own-handler": _wait,
    "ignored-hangup": _hang_up,
    "attempts-wait": _wait_in_the_second_attempt,
    "loop-crash": _within_a_loop(_crash),
    "loop-out-of-memory": _within_a_loop(_run_out_of_memory),
    "loop-wait": _within_a_loop(_wait),
    "loop-break": _leave_a_loop,
    "return": _return,
    "leave-block": _leave_the_block,
    "exit": _exit,
    "exit-in-block": _exit_in_the_block,
    "forked-wait": _fork(_wait),
    "forked-exit": _fork(_return),
    "forked-crash": _fork(_crash),
    "forks-often": _fork_often,
}


def main(address: str, job_id: str, end: str) -> None:
    """Trains one epoch and ends."""
    if end == "own-handler":
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(7))
    if end == "ignored-hangup":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    bso = begun(address, job_id=job_id, max_epochs=100)
    bso.on_evaluate(0.1)
    _print("one epoch done")
    ENDS[end](bso)


if __name__ == "__main__":
    main(*sys.argv[1:])
