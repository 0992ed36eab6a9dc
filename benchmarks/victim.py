"""One trainer that reports every few milliseconds until its input ends, while others load the server."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

import grpc
from wattwise import v1

from benchmarks import jobs

_PAUSE_SECONDS = 0.002


def main() -> None:
    """Prints a line when the first report is answered, and at the end how many seconds each report took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    args = parser.parse_args()
    over = threading.Event()
    threading.Thread(target=_wait, args=(over,), daemon=True).start()
    with grpc.insecure_channel(args.server) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)
        source = jobs.reports(jobs.next_trial(stub, jobs.register(stub).job_id))
        stub.ReportResult(next(source), timeout=60)
        print("reports", flush=True)
        taken = []
        while not over.wait(_PAUSE_SECONDS):
            start = time.perf_counter()
            stub.ReportResult(next(source), timeout=60)
            taken.append(time.perf_counter() - start)
    json.dump(taken, sys.stdout)


def _wait(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
