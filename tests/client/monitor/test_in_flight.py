"""Work in flight is waited for: the real PyTorch over a stand-in for its CUDA library, and the real JAX on the CPU."""

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
    """Both ends of a window wait for the devices that this process uses, and touch no other."""
    edge = CudaEdge(pytest.importorskip("torch", reason=TORCH), monkeypatch)
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("epoch")
    assert edge.waited == [1, 3]
    monitor.end_window("epoch")
    assert edge.waited == [1, 3, 1, 3]


@pytest.mark.torch
def test_pytorch_without_cuda_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is not initialised by measuring, nor missed by a PyTorch that has none."""
    torch = pytest.importorskip("torch", reason=TORCH)
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("epoch")
    edge = CudaEdge(torch, monkeypatch, initialised=False)
    monitor.end_window("epoch")
    assert (edge.waited, torch.cuda.is_initialized()) == ([], False)


def still_running(compute: Callable[[], Any]) -> Any:
    """The result of a computation that JAX has begun and not ended, as soon as this thread is the quicker one."""
    while True:
        result = compute()
        if not result.is_ready():
            return result


@pytest.mark.jax
def test_jax_is_waited_for() -> None:
    """Both ends of a window wait for what JAX is still computing."""
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
def test_jax_is_not_started() -> None:
    """A JAX that is imported and not used stays so: it would take most of a GPU's memory."""
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
