"""Fixtures: training processes that do not outlive their test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from tests.client.training.script import launch, read_line
from tests.live_server import LiveServer

Start: TypeAlias = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(server: LiveServer) -> Iterator[Start]:
    """Starts a training process that reports one epoch, prints a line, and then ends in the named way."""
    with ExitStack() as after:

        def started(end: str) -> subprocess.Popen[str]:
            process = after.enter_context(launch(server, end))
            after.callback(process.kill)
            assert read_line(process) == "one epoch done"
            return process

        yield started
