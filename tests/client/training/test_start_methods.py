"""Trainings in processes that `multiprocessing` starts in each of its ways."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from wattwise import Client, v1

from tests.client.training.script import begun, epochs
from tests.live_server import LiveServer


def train(address: str, job_id: str) -> tuple[int, bool]:
    """Trains one trial to its target; returns its number and whether it reached the target."""
    bso = begun(address, job_id=job_id)
    bso.on_evaluate(0.5)
    bso.on_evaluate(0.95)
    bso.close()
    return bso.trial.number, bso.target_reached


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_training_in_a_child(server: LiveServer, method: str) -> None:
    """A child trains while its parent does; both reach their targets, and their reports do not mix."""
    bso = begun(server.address, job_id="test-children")
    bso.on_evaluate(0.1)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        trained = pool.submit(train, server.address, "test-children")
        bso.on_evaluate(0.2)
        assert trained.result(60) == (2, True)
    bso.on_evaluate(0.95)
    bso.close()
    assert bso.target_reached
    with Client(server.address) as client:
        own, child = client.trials("test-children")
        assert [own.end_reason, child.end_reason] == [v1.END_REASON_TARGET_REACHED] * 2
        assert (epochs(client, own.id), epochs(client, child.id)) == ([1, 2, 3], [1, 2])
