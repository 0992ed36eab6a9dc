"""The server is killed at random moments under load; its file agrees with the ledger every time."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import partial

import pytest
from wattwise import v1

from tests.faults.audit import check_file, check_replay
from tests.faults.load import Load, Served, insist
from tests.faults.soak import number
from tests.live_server import LiveServer

pytestmark = pytest.mark.thorough


def test_a_few_kills(server: LiveServer) -> None:
    """After each of four kills under load nothing acknowledged is lost, and the final state equals that of a replay."""
    kill_again_and_again(server, kills=4, workers=12)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_dozens_of_kills(server: LiveServer) -> None:
    """The same after each of five dozen kills."""
    kill_again_and_again(server, kills=number(60, short=10), workers=24)


def kill_again_and_again(server: LiveServer, kills: int, workers: int, then: Callable[[], None] | None = None) -> None:
    """Runs the load, kills the server repeatedly, and checks after each kill and at the end.

    Args:
        server: the server.
        kills: how many kills.
        workers: how many trainers at a time.
        then: is called while the server is dead.
    """
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    sys.stdout.write(f"KILL_SEED={seed} repeats what can be repeated of this run\n")
    rng = random.Random(seed)
    load = Load(server, seed, workers, jobs=6)
    with load.running():
        for _ in range(kills):
            load.ledger.wait_for(rng.randint(1, 400))
            load.gate.shut()
            server.kill()
            load.gate.wait_empty()
            if then is not None:
                then()
            server.start()
            check_file(server.database, load.ledger)
            check_requests(server, load, rng)
            load.gate.open()
        load.ledger.wait_for(100)
    check_file(server.database, load.ledger)
    assert check_replay(server.database, load.ledger) > 0
    assert "Traceback" not in server.log.read_text()


def check_requests(server: Served, load: Load, rng: random.Random) -> None:
    """A request that was answered before a fault gets the same trial after it."""
    known = [
        (book.trial, launch_id)
        for job in load.ledger.jobs.values()
        if not job.delete_requested
        for launch_id, book in job.requests.items()
        if book is not None
    ]
    for trial, launch_id in rng.sample(known, min(10, len(known))):
        request = v1.GetNextBatchSizeRequest(job_id=trial.id.job_id, launch_id=launch_id)
        answer = insist(partial(_next, server, request))
        assert answer.trial.id == trial.id


def _next(server: Served, request: v1.GetNextBatchSizeRequest) -> v1.GetNextBatchSizeResponse:
    return server.trainer.GetNextBatchSize(request, timeout=60)
