"""Processes of a launcher that were not connected to each other."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from wattwise.training.ranks import alone_by_mistake, warn_if_alone_by_mistake


@pytest.mark.parametrize("size", [None, "", "1"])
def test_single_process(monkeypatch: pytest.MonkeyPatch, size: str | None) -> None:
    """A process that no launcher started, or that it started alone, is alone rightly."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert alone_by_mistake() is None


def test_one_of_several(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One of two that has PyTorch is told what to call; to one without it, the variable may mean something else."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    warn_if_alone_by_mistake()
    assert caplog.messages == []
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    warn_if_alone_by_mistake()
    assert caplog.messages == [alone_by_mistake()]
    assert "WORLD_SIZE is 2" in caplog.text
    assert "call torch.distributed.init_process_group() before get_batch_size()" in caplog.text
