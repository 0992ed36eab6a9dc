"""Processes of a launcher that are not connected to each other."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from wattwise.training.ranks import not_connected, warn_if_not_connected


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
    warn_if_not_connected()
    assert caplog.messages == []
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    warn_if_not_connected()
    assert caplog.messages == [not_connected()]
    assert "WORLD_SIZE" in caplog.text
    assert "torch.distributed.init_process_group()" in caplog.text
