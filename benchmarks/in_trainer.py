"""CPU seconds of imports and of commands, and seconds of `on_evaluate`, with a local server."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping

from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec

_COMMAND = "from wattwise.commands.main import main; main({words})"
_PROCESSES = {
    "pass": "pass",
    "grpc": "import grpc",
    "package": "import grpc, wattwise",
    "stubs": "import grpc; from wattwise.v1 import batch_size_optimizer_pb2_grpc",
    "optimizer": "import grpc; from wattwise import BatchSizeOptimizer, JobSpec",
    "client": "import grpc; from wattwise import Client; Client",
    "argparse": "import argparse; argparse.ArgumentParser().format_help()",
    "help": _COMMAND.format(words=["--help"]),
    "version": _COMMAND.format(words=["--version"]),
    "jobs list --help": _COMMAND.format(words=["jobs", "list", "--help"]),
    "jobs list": _COMMAND.format(words=["jobs", "list"]),
}


def main() -> None:
    """Prints the samples; the kinds of processes alternate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["WATTWISE_SERVER"] = args.server
    found: dict[str, list[float]] = {name: [] for name in _PROCESSES}
    # The first round writes the .pyc files, which every installation has.
    for counts in range(-1, args.rounds):
        for name, code in _PROCESSES.items():
            seconds = _processor_seconds(code, environment)
            if counts >= 0:
                found[name].append(seconds)
    json.dump({"processes": found, "calls": {"on_evaluate": _on_evaluate(args.server, 10 * args.rounds)}}, sys.stdout)


def _processor_seconds(code: str, environment: Mapping[str, str]) -> float:
    """Returns the CPU time of a process in user and system mode."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _on_evaluate(server: str, epochs: int) -> list[float]:
    os.environ["WATTWISE_SPOOL"] = "off"
    spec = JobSpec(
        job_id_prefix="trainer",
        job_id=f"trainer-{uuid.uuid4().hex}",
        batch_sizes=[32, 64],
        default_batch_size=64,
        target_metric=0.9,
        max_epochs=epochs + 1,
    )
    seconds = []
    with BatchSizeOptimizer(server, spec, monitor=EstimateMonitor(100.0)) as bso:
        for epoch in bso.epochs():
            if epoch > epochs:
                bso.on_evaluate(0.9)
                break
            began = time.perf_counter()
            bso.on_evaluate(0.1)
            seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
