"""Hours of everything at once: memory stays flat, and the file agrees with the ledger."""

from __future__ import annotations

import random
import statistics
import sys
import time

import grpc
import pytest
from wattwise import v1

from tests.faults.audit import check_file, check_replay
from tests.faults.load import Load
from tests.faults.memory import resident
from tests.faults.soak import number
from tests.live_server import LiveServer

MEGABYTES_PER_HOUR = 5.0
_NOISE = 2.0
"""Megabytes that a server which leaks nothing may grow by in a few minutes, while its heap settles."""
_SAMPLES = 20


def look_around(server: LiveServer, rng: random.Random) -> None:
    """What an operator and a dashboard ask: lists, one job, its trials, a watch."""
    jobs = server.admin.ListJobs(v1.ListJobsRequest(page_size=20)).jobs
    job_id = rng.choice(jobs).job.spec.job_id
    watch = server.admin.WatchJob(v1.WatchJobRequest(job_id=job_id))
    try:
        next(watch)
        server.admin.GetJob(v1.GetJobRequest(job_id=job_id))
        trials = server.admin.ListTrials(v1.ListTrialsRequest(job_id=job_id, page_size=50)).trials
        if trials:
            server.admin.GetTrial(v1.GetTrialRequest(trial=rng.choice(trials).id))
    except grpc.RpcError as error:
        # The load deletes jobs.
        assert error.code() is grpc.StatusCode.NOT_FOUND  # noqa: PT017
    finally:
        watch.cancel()


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_mixed_load_leaves_memory_flat(server: LiveServer) -> None:
    """In the second half of the run memory grows by less than 5 MB per hour, or than 2 MB in all if that is more.

    Two hours with SOAK=long find a leak of 5 MB per hour; the usual two minutes find one of 2 MB in their second half.
    """
    seconds = number(120, short=30, long=7200)
    rng = random.Random(1)
    load = Load(server, seed=1, workers=8, jobs=6, tidy=True)
    held, begun = [], time.monotonic()
    with load.running():
        while (passed := time.monotonic() - begun) < seconds:
            look_around(server, rng)
            load.ledger.wait_for(50)
            if passed > seconds / 2:
                held.append(resident(server.process.pid))
    check_file(server.database, load.ledger)
    assert check_replay(server.database, load.ledger) > 0
    few = max(1, len(held) // _SAMPLES)
    before, after = statistics.median(held[:few]), statistics.median(held[-few:])
    calls = load.ledger.acknowledged
    sys.stdout.write(f"{calls} calls in {seconds} s: {before:.1f} MB after half of them, {after:.1f} MB after all\n")
    assert after - before < max(_NOISE, MEGABYTES_PER_HOUR * seconds / 2 / 3600)
    assert "Traceback" not in server.log.read_text()
