"""Whole processes that import a client and call the server: the Wattwise client, and bare grpcio with its stubs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import wattwise.v1

_BARE = """
import os, sys
import grpc
from wattwise.v1 import batch_size_optimizer_pb2 as pb, batch_size_optimizer_pb2_grpc as rpc, job_pb2, trial_pb2
gpu = job_pb2.GpuGroup(gpu_model="CPU", count=1, max_power_watts_per_gpu=100)
sizes = dict(batch_sizes=[32, 64], default_batch_size=64)
target = job_pb2.Target(value=0.9, direction=job_pb2.DIRECTION_HIGHER_IS_BETTER)
job = job_pb2.JobSpec(job_id_prefix="first", job_id=sys.argv[2], **sizes, target=target, gpus=[gpu])
channel = grpc.insecure_channel(sys.argv[1])
stub = rpc.BatchSizeOptimizerStub(channel)
stub.RegisterJob(pb.RegisterJobRequest(job=job), timeout=60)
"""
# Two that register a job, and two that also ask for a trial and end it.
_CLIENTS = {
    "client": """
import sys
from wattwise import Client, GpuGroup, JobSpec
gpu = GpuGroup(gpu_model="CPU", count=1, max_power_watts_per_gpu=100)
sizes = dict(batch_sizes=[32, 64], default_batch_size=64)
spec = JobSpec(job_id_prefix="first", job_id=sys.argv[2], **sizes, target_metric=0.9, gpu=gpu)
with Client(sys.argv[1]) as client:
    client.register_job(spec)
""",
    "bare": _BARE + "channel.close()",
    "optimizer": """
import logging, sys
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec
logging.disable()  # it would warn that the trial has no metric
spec = JobSpec(
    job_id_prefix="first", job_id=sys.argv[2], batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9
)
BatchSizeOptimizer(sys.argv[1], spec, monitor=EstimateMonitor(100.0)).get_batch_size()
""",
    "bare_trial": _BARE
    + """
asked = pb.GetNextBatchSizeRequest(job_id=sys.argv[2], launch_id=os.urandom(16).hex())
answer = stub.GetNextBatchSize(asked, timeout=60)
stub.EndTrial(pb.EndTrialRequest(trial=answer.trial.id, end_reason=trial_pb2.END_REASON_COMPLETED), timeout=60)
channel.close()
""",
}


def main() -> None:
    """Prints the seconds of each client's processes, which alternate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        stubs = Path(name)
        _copy_stubs(stubs / "wattwise" / "v1")
        found: dict[str, list[float]] = {client: [] for client in _CLIENTS}
        for counts in range(-1, args.rounds):
            for client, code in _CLIENTS.items():
                seconds = _run(code, args.server, stubs if "bare" in client else None)
                if counts >= 0:
                    found[client].append(seconds)
    json.dump(found, sys.stdout)


def _copy_stubs(folder: Path) -> None:
    """Copies the generated files alone: importing them from the package would import the package's modules too."""
    folder.mkdir(parents=True)
    for file in Path(wattwise.v1.__path__[0]).glob("*_pb2*.py"):
        shutil.copy(file, folder)


def _run(code: str, server: str, path: Path | None) -> float:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-c", code, server, f"first-{uuid.uuid4().hex}"]
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
