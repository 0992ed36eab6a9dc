"""End reasons of trials whose process goes away."""

from __future__ import annotations

import builtins
import errno
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from wattwise import Client, EndReason, v1
from wattwise.errors import TrainFailError
from wattwise.training.exits import end_reason
from wattwise.training.optimizer import running_trial

from tests.client.conftest import Start
from tests.client.training.script import (
    JOB_ID,
    begun,
    ended,
    epochs,
    read_line,
    send_line,
    the_trial,
    without_announcements,
)
from tests.live_server import LiveServer


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("crash", 1, v1.END_REASON_ERROR),
        ("out-of-memory", 1, v1.END_REASON_OUT_OF_MEMORY),
        ("memory-error", 1, v1.END_REASON_OUT_OF_MEMORY),
        ("leave-block", 1, v1.END_REASON_OUT_OF_MEMORY),
        ("handled", 0, v1.END_REASON_STOPPED_EARLY),
        ("handled-crash", 1, v1.END_REASON_ERROR),
        ("interrupt", -signal.SIGINT, v1.END_REASON_PREEMPTED),
        ("return", 0, v1.END_REASON_STOPPED_EARLY),
    ],
)
def test_process_ends_by_itself(
    server: LiveServer, start: Start, end: str, status: int, reason: v1.EndReason.ValueType
) -> None:
    """A process that ends without a decision gives its trial the end reason, and keeps its exit status."""
    exit_status, errors = ended(start(end))
    assert exit_status == status, errors
    assert ("Traceback" in errors) == (status != 0)
    trial = the_trial(server)
    others = {
        v1.END_REASON_STOPPED_EARLY: v1.TRIAL_STATUS_DECIDED,
        v1.END_REASON_PREEMPTED: v1.TRIAL_STATUS_INTERRUPTED,
    }
    assert trial.status == others.get(reason, v1.TRIAL_STATUS_FAILED)
    assert trial.end_reason == reason


@pytest.mark.parametrize(
    ("end", "reason"), [("exit", v1.END_REASON_STOPPED_EARLY), ("exit-in-block", v1.END_REASON_ERROR)]
)
def test_exit_status_is_visible_only_to_a_block(
    server: LiveServer, start: Start, end: str, reason: v1.EndReason.ValueType
) -> None:
    """`sys.exit(3)` is an error if it leaves a `with bso:` block; elsewhere it looks like the end of the script."""
    status, errors = ended(start(end))
    assert status == 3
    assert ("training stops after epoch" in errors) == (end == "exit")
    assert the_trial(server).end_reason == reason


_SHORT = """
import sys
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec
spec = JobSpec(job_id_prefix="test", job_id=sys.argv[2], batch_sizes=[8], default_batch_size=8, target_metric=0.9)
BatchSizeOptimizer(sys.argv[1], spec, monitor=EstimateMonitor(watts=65)).get_batch_size()
"""


def test_process_that_ends_before_its_stream_is_open(server: LiveServer) -> None:
    """A process that ends right after get_batch_size ends its trial, with a warning that nothing was reported."""
    command = [sys.executable, "-c", _SHORT, server.address, JOB_ID]
    errors = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (line,) = without_announcements(errors).splitlines()
    assert line.startswith(f"wattwise: trial 1 of job '{JOB_ID}' ")
    assert "on_evaluate(metric)" in line
    assert the_trial(server).end_reason == v1.END_REASON_COMPLETED


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: make test-torch")
@pytest.mark.parametrize("end", ["torch-out-of-memory", "torch-error"])
def test_pytorch_runs_out_of_memory(server: LiveServer, start: Start, end: str) -> None:
    """A failed allocation in PyTorch, and its exception for GPUs, are out of memory."""
    assert ended(start(end))[0] == 1
    assert the_trial(server).end_reason == v1.END_REASON_OUT_OF_MEMORY


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_process_was_preempted(server: LiveServer, start: Start, number: signal.Signals) -> None:
    """A signal ends the trial as preempted, with a line, and the process dies of that signal."""
    process = start("wait")
    process.send_signal(number)
    *_, line = process.communicate(timeout=60)[1].splitlines()
    assert line == f"wattwise: trial 1 of job '{JOB_ID}' ended after epoch 1 of 100: preempted"
    assert process.returncode == -number
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED


def test_ignored_hangup_stays_ignored(server: LiveServer, start: Start) -> None:
    """Where SIGHUP is ignored, as under `nohup`, it does not end the trial, which trains on to its target."""
    assert ended(start("ignored-hangup")) == (0, "")
    trial = the_trial(server)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 2)


def test_previous_handler_of_sigterm_is_called_afterwards(server: LiveServer, start: Start) -> None:
    """A handler that was installed before runs after the trial has ended."""
    process = start("own-handler")
    process.terminate()
    assert ended(process) == (7, "")
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED


def test_sigterm_without_a_server_ends_the_process_in_time(server: LiveServer, start: Start) -> None:
    """A process whose server is away dies of SIGTERM within seconds."""
    process = start("wait")
    server.kill()
    before = time.monotonic()
    process.terminate()
    assert ended(process)[0] == -signal.SIGTERM
    assert time.monotonic() - before < 8


def test_sigterm_within_a_report(server: LiveServer, start: Start) -> None:
    """SIGTERM that interrupts a report to a hung server ends the process, and the trial if the server wakes in time."""
    process = start("wait-in-report")
    os.kill(server.process.pid, signal.SIGSTOP)
    send_line(process)
    # It makes no difference whether the signal arrives before, during or after the report.
    process.terminate()
    os.kill(server.process.pid, signal.SIGCONT)
    assert ended(process) == (-signal.SIGTERM, "")
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED


def _check_training_continues(server: LiveServer, process: subprocess.Popen[str], expected_errors: str = "") -> None:
    """The training reports another epoch over the connection from before the fork, and ends."""
    assert the_trial(server).status == v1.TRIAL_STATUS_RUNNING
    send_line(process)
    assert read_line(process) == "20.0"
    process.terminate()
    status, errors = ended(process)
    assert status == -signal.SIGTERM
    assert re.fullmatch(expected_errors, errors, re.DOTALL), errors
    assert the_trial(server).end_reason == v1.END_REASON_PREEMPTED


def test_sigterm_within_the_end_of_a_trial(server: LiveServer) -> None:
    """A signal that interrupts the end of a trial takes effect after the actions for that end."""
    done: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: done.append("handled"))
    try:
        bso = begun(server.address)
        for action in (lambda: done.append("restored"), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            running_trial(bso).end_actions.add(action)
        bso.close(EndReason.OUT_OF_MEMORY)
        assert done == ["restored", "handled"]
        with Client(server.address) as client:
            assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_OUT_OF_MEMORY
    finally:
        signal.signal(signal.SIGTERM, before)


def test_training_that_outlives_sigterm(server: LiveServer) -> None:
    """If the trainer has a handler that returns, the trial stays preempted, and a checkpoint can continue it."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        bso = begun(server.address)
        bso.on_evaluate(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(TrainFailError):
            bso.on_evaluate(0.2)
        assert bso.decision is not None
        assert bso.decision.end_reason is EndReason.PREEMPTED
        assert running_trial(bso).resumable
        bso.close()
        with Client(server.address) as client:
            assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_PREEMPTED
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_child_does_not_end_the_trial(server: LiveServer, start: Start, number: signal.Signals) -> None:
    """A forked worker dies of a signal as usual, and the training continues."""
    process = start("forked-wait")
    os.kill(int(read_line(process)), number)
    assert read_line(process) == str(-number)
    _check_training_continues(server, process)


def test_child_that_exits_does_not_end_the_trial(server: LiveServer, start: Start) -> None:
    """A forked worker that exits does not affect its parent's connection."""
    process = start("forked-exit")
    read_line(process)
    assert read_line(process) == "0"
    _check_training_continues(server, process)


def test_child_that_crashes_does_not_end_the_trial(server: LiveServer, start: Start) -> None:
    """An exception in a forked worker does not end the trial."""
    process = start("forked-crash")
    read_line(process)
    assert read_line(process) == "1"
    _check_training_continues(server, process, expected_errors=".*Traceback.*a bug in the training\n")


@pytest.mark.parametrize("support", [None, "0", "1"])
def test_one_fork_with_any_fork_support_of_grpc(
    server: LiveServer, start: Start, monkeypatch: pytest.MonkeyPatch, support: str | None
) -> None:
    """A worker can be forked while the stream is open, with gRPC's fork support at its default, off or on."""
    if support is None:
        monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    else:
        monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", support)
    process = start("forked-exit")
    read_line(process)
    assert read_line(process) == "0"
    _check_training_continues(server, process)


@pytest.mark.parametrize("support", [None, pytest.param("0", marks=pytest.mark.thorough)])
def test_many_forks(server: LiveServer, start: Start, monkeypatch: pytest.MonkeyPatch, support: str | None) -> None:
    """Eighty workers forked while the stream carries reports all exit with 0, and no report is lost."""
    if support is None:
        monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    else:
        monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", support)
    process = start("forks-often")
    assert [read_line(process) for _ in range(20)] == ["[0, 0, 0, 0]"] * 20
    status, errors = ended(process)
    # Of the parent alone, which does not finish the training.
    assert (status, errors.count("\n"), errors.count("training stops after epoch 21")) == (0, 1, 1)
    with Client(server.address) as client:
        assert epochs(client, the_trial(server).id) == list(range(1, 22))


class OutOfMemoryError(RuntimeError):
    """Has the name of PyTorch's exception."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, EndReason.COMPLETED),
        (OutOfMemoryError("no room"), EndReason.OUT_OF_MEMORY),
        (RuntimeError("the disk is full"), EndReason.ERROR),
        # A refusal by a gRPC server is not about the memory of this process.
        (RuntimeError("StatusCode.RESOURCE_EXHAUSTED: message larger than max"), EndReason.ERROR),
    ],
)
def test_reason_of_an_exception(error: BaseException | None, reason: EndReason) -> None:
    """Out of memory is recognised by the exception's type or by its message."""
    assert end_reason(error) == reason


@pytest.mark.parametrize(
    "message",
    [
        # CUDA, its libraries, and what uses them.
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB",
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "CUDA driver error: out of memory",
        "cuda runtime error (2) : out of memory at THCStorage.cu:58",
        "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "Last error:\nFailed to CUDA calloc async 608 bytes",
        "[CUresult.CUDA_ERROR_OUT_OF_MEMORY] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        "cudaErrorMemoryAllocation: out of memory",
        "Allocation on device 0 would exceed allowed memory. (out of memory)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "Unable to find a valid cuDNN algorithm to run convolution",
        # ROCm.
        "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB",
        "HIP error: out of memory",
        "hipErrorOutOfMemory",
        "HIPBLAS_STATUS_ALLOC_FAILED",
        "miopenStatusAllocFailed",
        "MIOpen Error: handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
        "failed to allocate 890.06M (933298432 bytes) from device: HIP_ERROR_OutOfMemory",
        # XPU, NPU, HPU, others of PyTorch, MPS.
        "XPU out of memory. Tried to allocate 2.00 GiB",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
        "zeMemAllocDevice: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 60.97 GiB total capacity)",
        "NPU function error: call aclnnMatmul failed, error code is 207001\nFailed to apply for memory.",
        "Memory_Allocation_Failure(EL0004): Failed to allocate memory.",
        "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::939524096 (896)MB",
        "synStatus 4 [Out of Device memory (OOM)]",
        "MLU out of memory. Tried to allocate 1.00 GiB",
        "MPS backend out of memory (MPS allocated: 17.61 GB, other allocations: 336.00 KB)",
        "Invalid buffer size: 19.07 GB",
        "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        # XLA, JAX, TensorFlow.
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3743729664 bytes.",
        "Resource exhausted: Failed to allocate request for 528.00MiB (553648128B) on device ordinal 0",
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 0",
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
        "RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible.",
        "INTERNAL: Failed to allocate 98697216 bytes for new constant",
        "{{function_node __wrapped__AddV2}} OOM when allocating tensor with shape[65536,65536] and type float",
        "{{function_node __wrapped__Mul}} failed to allocate memory [Op:Mul]",
        "Failed copying input tensor from CPU:0 to GPU:0 in order to run _EagerConst: Dst tensor is not initialized.",
        # The host.
        "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B",
        "std::bad_alloc",
        "[Errno 12] Cannot allocate memory",
        "unable to mmap 1073741824 bytes from file </torch_1_2_3>: Cannot allocate memory (12)",
        (
            "Caught _ArrayMemoryError in DataLoader worker process 0.\n"
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1,)"
        ),
        "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\nMemoryError\n",
        "DataLoader worker (pid 3002) is killed by signal: Killed. ",
        "DataLoader worker (pid 3002) is killed by signal: Bus error. It is possible that",
        "unable to write to file </torch_1_2_3>: No space left on device (28)",
        # Long messages.
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.\n" + 100_000 * "Buffer 1\n",
        100_000 * "in forward\n" + "torch.OutOfMemoryError: CUDA out of memory.",
    ],
    ids=lambda message: message[:40],
)
def test_out_of_memory_messages_of_frameworks(message: str) -> None:
    """The out-of-memory messages of frameworks, their runtimes and the host are recognised."""
    assert end_reason(RuntimeError(message)) == EndReason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the disk is out of memory"),
        RuntimeError("out of memory"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError("libgomp.so.1: cannot allocate memory in static TLS block"),
        RuntimeError("out of shared memory. HINT: You might need to increase max_locks_per_transaction."),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376."),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
        RuntimeError("DataLoader worker (pid 3002) is killed by signal: Segmentation fault. "),
        RuntimeError("DataLoader worker (pid(s) 3002) exited unexpectedly"),
        ValueError("Invalid buffer size: 0"),
        RuntimeError("SharedMemoryError: the segment was removed"),
        # About earlier trials.
        TrainFailError("every batch size has failed; the last: CUDA out of memory"),
    ],
    ids=str,
)
def test_messages_about_something_else(error: Exception) -> None:
    """Other limits, faults of a device and this library's own messages are not out of memory."""
    assert end_reason(error) == EndReason.ERROR


def test_memory_of_the_host() -> None:
    """A call of the system that fails for lack of memory is out of memory, and so is a worker that the kernel killed.

    PyTorch names the signal in the cause of its error.
    """
    assert end_reason(OSError(errno.ENOMEM, "no such phrase")) == EndReason.OUT_OF_MEMORY
    error = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    error.__cause__ = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    assert end_reason(error) == EndReason.OUT_OF_MEMORY


def _raised_while_handling(*, suppressed: bool) -> BaseException:
    try:
        try:
            bytearray(2**62)
        except MemoryError:
            if suppressed:
                raise ValueError("too large") from None
            raise ValueError("too large")  # noqa: B904 - the case under test
    except ValueError as error:
        return error
    raise AssertionError("the allocation succeeded")


@pytest.mark.skipif(not hasattr(builtins, "ExceptionGroup"), reason="Python 3.10 has no exception groups")
def test_exception_group() -> None:
    """An out-of-memory exception in a group is recognised."""
    group: type[Exception] = getattr(builtins, "ExceptionGroup", Exception)
    assert end_reason(group("two", [ValueError("a bug"), MemoryError()])) == EndReason.OUT_OF_MEMORY
    assert end_reason(group("two", [ValueError("a bug"), KeyError("b")])) == EndReason.ERROR


def test_cause_of_an_exception() -> None:
    """An out-of-memory exception is recognised as the cause of another one, unless it is suppressed."""
    assert end_reason(_raised_while_handling(suppressed=False)) == EndReason.OUT_OF_MEMORY
    assert end_reason(_raised_while_handling(suppressed=True)) == EndReason.ERROR
