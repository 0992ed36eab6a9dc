"""Processes of a launcher that are not connected to each other."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from wattwise import BatchSizeOptimizer, EndReason, v1
from wattwise.training.optimizer import running_trial
from wattwise.training.ranks import not_connected, warn_if_not_connected

from tests.client.training.script import StepMonitor, job_spec


@pytest.mark.parametrize("size", [None, "", "1"])
def test_single_process(monkeypatch: pytest.MonkeyPatch, size: str | None) -> None:
    """There is no advice for a process without a launcher, or the only one of its launcher."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert not_connected() is None


def test_one_of_several(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One of two processes is warned if it has PyTorch; without PyTorch the variable may mean something else."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert warn_if_not_connected() == 0
    assert caplog.messages == []
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert warn_if_not_connected() == 2
    assert caplog.messages == [not_connected()]
    assert "WORLD_SIZE" in caplog.text
    assert "torch.distributed.init_process_group()" in caplog.text


@pytest.mark.parametrize("size", ["many", "-3", "9" * 30])
def test_number_that_is_none(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """A variable that is not a number of processes is warned of, and no number is sent."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setenv("WORLD_SIZE", size)
    assert warn_if_not_connected() == 0


def test_server_knows_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, grpc_addr: str
) -> None:
    """The trial of one of several unconnected processes has a warning on the server; the trainer logs its own once."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setenv("WORLD_SIZE", "4")
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    bso.get_batch_size()
    (warning,) = running_trial(bso).info.snapshot.warnings
    assert warning.reason == v1.WARNING_REASON_UNCONNECTED_RANKS
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    bso.close(EndReason.COMPLETED)
