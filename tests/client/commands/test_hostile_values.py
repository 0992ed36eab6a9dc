"""Commands against a server whose answers have unusable values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from wattwise import v1
from wattwise.commands.main import main

from tests.hostile.behaviours import VALUES, fill
from tests.hostile.server import Behaviour, HostileServer
from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer

METHODS = (
    "ListJobs",
    "GetJob",
    "ListTrials",
    "GetTrial",
    "ListMeasurements",
    "GetJobStatistics",
    "GetStatistics",
    "GetServerInfo",
)
COMMANDS = (
    "jobs list",
    "jobs list --wide",
    "jobs list --format tsv",
    "jobs list --json",
    "jobs show JOB",
    "jobs show JOB --json",
    "jobs trials JOB",
    "jobs trials JOB --wide",
    "jobs trials JOB --format tsv",
    "jobs trial JOB 1",
    "jobs trial JOB 1 --json",
    "jobs savings",
    "jobs savings JOB",
    "jobs savings JOB --json",
    "jobs export JOB",
    "jobs export JOB --json",
    "replay --job JOB --seeds 1",
)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_unusable_values(  # noqa: PLR0917 - fixtures
    grpc_server: LiveServer,
    grpc_stub: v1.BatchSizeOptimizerStub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    value: Callable[[FieldDescriptor], Any],
) -> None:
    """Whatever numbers and texts an answer has, a command prints them without control characters, or an error."""
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(grpc_stub)
    for cost in (100.0, 90.0, 80.0):
        trainer.run(cost, monitor=monitor_of("nvml"))
    changes = dict.fromkeys(METHODS, lambda answer: fill(answer, value))
    with HostileServer(Behaviour("unusable values", changes), grpc_server.address) as server:
        monkeypatch.setenv("WATTWISE_SERVER", server.address)
        for command in COMMANDS:
            try:
                status = main(command.replace("JOB", trainer.job_id).split())
            except SystemExit as left:
                status = left.code if isinstance(left.code, int) else 1
            printed = capsys.readouterr()
            assert status in (0, 1, 2), command
            assert "\x1b" not in printed.out + printed.err, command
            assert "Traceback" not in printed.err, command
