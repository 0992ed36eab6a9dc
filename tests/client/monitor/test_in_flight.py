"""Windows wait for queued work: of the real PyTorch with a stand-in for CUDA, and of the real JAX on the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from wattwise.monitor import EstimateMonitor

from tests.client.monitor.cuda_edge import CudaEdge

JAX = "needs JAX: make test-jax"
TORCH = "needs PyTorch: make test-torch"


@pytest.mark.torch
def test_pytorch_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of a window wait for the devices that this process uses, and for no other."""
    edge = CudaEdge(pytest.importorskip("torch", reason=TORCH), monkeypatch)
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("epoch")
    assert edge.waited == [1, 3]
    monitor.end_window("epoch")
    assert edge.waited == [1, 3, 1, 3]


@pytest.mark.torch
def test_cuda_is_not_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring does not initialize CUDA, and does not need it."""
    torch = pytest.importorskip("torch", reason=TORCH)
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("epoch")
    edge = CudaEdge(torch, monkeypatch, initialized=False)
    monitor.end_window("epoch")
    assert (edge.waited, torch.cuda.is_initialized()) == ([], False)


def still_running(compute: Callable[[], Any]) -> Any:
    """The result of a computation that JAX has not finished; repeated until this thread is fast enough."""
    while True:
        result = compute()
        if not result.is_ready():
            return result


@pytest.mark.jax
def test_jax_is_waited_for() -> None:
    """Both ends of a window wait for the computations of JAX."""
    jax = pytest.importorskip("jax", reason=JAX)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda _, y: y @ y / 1000, x))
    matrix = jax.block_until_ready(slow(jax.numpy.ones((700, 700))))
    monitor = EstimateMonitor(watts=1)
    before = still_running(lambda: slow(matrix))
    monitor.begin_window("epoch")
    assert before.is_ready()
    within = still_running(lambda: slow(before))
    monitor.end_window("epoch")
    assert within.is_ready()


@pytest.mark.jax
def test_jax_is_not_initialized() -> None:
    """Measuring does not initialize an imported JAX, which would take most of a GPU's memory."""
    pytest.importorskip("jax", reason=JAX)
    measure = "monitor.begin_window('epoch'); monitor.end_window('epoch')"
    program = (
        "import jax; from jax._src import xla_bridge; from wattwise import EstimateMonitor; "
        f"monitor = EstimateMonitor(watts=1); {measure}; print(xla_bridge.backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_neither_is_imported() -> None:
    """Measuring imports neither PyTorch nor JAX."""
    program = (
        "import sys; from wattwise import EstimateMonitor; monitor = EstimateMonitor(watts=1); "
        "monitor.begin_window('epoch'); monitor.end_window('epoch'); print({'torch', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
