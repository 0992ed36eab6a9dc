"""GetNextBatchSize with few and many trials in the job, and few and many jobs in the file, alternating."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable

import grpc
from wattwise import v1

from benchmarks import filling

_JOBS = 10


def main() -> None:
    """Prints the median seconds of each kind of call, round by round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", required=True)
    parser.add_argument("--many", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with grpc.insecure_channel(args.few) as few, grpc.insecure_channel(args.many) as many:
        one, other = v1.BatchSizeOptimizerStub(few), v1.BatchSizeOptimizerStub(many)
        ids = [filling.job_id(place) for place in range(_JOBS)]
        kinds: dict[str, Callable[[], float]] = {
            "next": lambda: _median(one, ids),
            "next_deep": lambda: _median(one, [filling.DEEP] * _JOBS),
            "next_wide": lambda: _median(other, ids),
        }
        for call in kinds.values():
            call()
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(args.rounds):
            for name, call in kinds.items():
                found[name].append(call())
    json.dump(found, sys.stdout)


def _median(stub: v1.BatchSizeOptimizerStub, ids: list[str]) -> float:
    return statistics.median(_seconds(stub, each) for each in ids)


def _seconds(stub: v1.BatchSizeOptimizerStub, job_id: str) -> float:
    request = v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=str(uuid.uuid4()))
    start = time.perf_counter()
    answer = stub.GetNextBatchSize(request, timeout=60)
    taken = time.perf_counter() - start
    # A preempted trial teaches nothing: the job does not change.
    stub.EndTrial(v1.EndTrialRequest(trial=answer.trial.id, end_reason=v1.END_REASON_PREEMPTED), timeout=60)
    return taken


if __name__ == "__main__":
    main()
