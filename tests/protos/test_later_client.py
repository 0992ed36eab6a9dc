"""Clients of a later release on this release's server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from wattwise import Client, EndReason, v1

from tests.client.commands.test_hostile import COMMANDS, JOB
from tests.client.training.script import begun
from tests.client.training.test_resume import trial_of
from tests.hostile.server import Behaviour, HostileServer
from tests.hostile.trials import PYTHON, faults, run
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.protos.later import LATER, Later, enums_of
from tests.protos.test_later_server import printed

STRICT = ("JobSpec", "PolicySpec")
"""Messages in whose requests unknown fields are refused."""

FIELDS = Later(beneath=STRICT)


@contextmanager
def later(server: LiveServer, change: Later) -> Iterator[str]:
    """Yields the address of a server that gets the requests of this release's clients as a later release sends them."""
    with HostileServer(Behaviour("a later client", requests=change), server.address) as front:
        yield front.address


def test_trainer(server: LiveServer) -> None:
    """Fields that the server does not know change nothing in a whole training, over a stream and without."""
    behaviour = Behaviour("a later client", requests=FIELDS)
    done = run(PYTHON, behaviour, server.address)
    assert list(faults(done, behaviour)) == [], done.output
    with Client(server.address) as client:
        trials = list(client.trials("pretend-nightly"))
    assert trials
    assert trials[-1].end_reason == v1.END_REASON_TARGET_REACHED


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(
    grpc_server: LiveServer, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command's requests are understood."""
    trainer = Trainer(grpc_server.trainer, job_id=JOB)
    trainer.run(10.0)
    with later(grpc_server, FIELDS) as address:
        assert printed(command, address, monkeypatch, capsys)


def test_unknown_end_reason(grpc_server: LiveServer) -> None:
    """A trial that its trainer ends for a reason that the server does not know has failed, with a warning."""
    with later(grpc_server, Later(enums=[v1.EndReason.DESCRIPTOR], beneath=STRICT)) as address:
        bso = begun(address)
        bso.on_evaluate(0.1)
        bso.close(EndReason.PREEMPTED)
    trial = trial_of(grpc_server.address, bso)
    assert (trial.status, trial.end_reason) == (v1.TRIAL_STATUS_FAILED, v1.END_REASON_ERROR)
    assert [each.reason for each in trial.warnings] == [v1.WARNING_REASON_END_REASON_UNKNOWN]
    assert str(LATER) in trial.warnings[0].message


def test_unknown_values_in_a_report(grpc_server: LiveServer) -> None:
    """A report never fails because of a value that the server does not know."""
    change = Later(enums=enums_of(v1.TrainingResult.DESCRIPTOR), beneath=STRICT)
    with later(grpc_server, change) as address, begun(address) as bso:
        bso.on_evaluate(0.1)
        bso.on_evaluate(0.95)
    assert trial_of(grpc_server.address, bso).end_reason == v1.END_REASON_TARGET_REACHED
