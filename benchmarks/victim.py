"""A trainer that reports while others load the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from wattwise import v1

from benchmarks import jobs
from tests.faults.victim import Victim


@contextmanager
def trainer(server: str) -> Iterator[Callable[[], Victim]]:
    """Yields a function that measures how long each report of a trainer takes."""
    with grpc.insecure_channel(server) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)
        epochs = jobs.reports(jobs.next_trial(stub, jobs.register(stub).job_id))

        def report() -> None:
            request = next(epochs)
            # An overloaded server cancels calls, which clients then make again: that counts as waiting, too.
            while stub.ReportResult.future(request, timeout=60).code() is not grpc.StatusCode.OK:
                pass

        yield lambda: Victim(report)
