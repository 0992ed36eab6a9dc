"""The Python client's runner: replays behaviour tables through `wattwise.Client` against a server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf.message import Message
from wattwise import Client, GpuGroup, JobSpec, v1
from wattwise.errors import WattwiseError

from tests.conformance.refusal import MismatchError, Refused
from tests.conformance.replay import Replay

LEFT_OUT: Mapping[str, str] = {}
"""The scenarios that this client cannot replay, with the reason, by name."""


class ThroughClient:
    """Calls the server through the client's methods, each in a thread, because they block."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._methods: Mapping[str, Callable[[Any], Message]] = {
            "RegisterJob": lambda r: client.register_job(spec_of(r.job)),
            "GetNextBatchSize": lambda r: client.get_next_batch_size(r.job_id, launch_id=r.launch_id, resume=r.resume),
            "ReportResult": lambda r: v1.ReportResultResponse(decision=client.report_result(r.result)),
            "Heartbeat": lambda r: v1.HeartbeatResponse(decision=client.heartbeat(r.trial)),
            "EndTrial": lambda r: v1.EndTrialResponse(trial=client.end_trial(r.trial, r.end_reason)),
            "GetJob": lambda r: client.get_job(r.job_id),
            "GetTrial": lambda r: client.get_trial(r.trial),
            "DeleteJob": lambda r: client.delete_job(r.job_id),
            "LookupTrial": lambda r: v1.LookupTrialResponse(trial=client.lookup_trial(r.job_id, r.launch_id)),
            "ImportTrial": client.import_trial,
            "ResetJob": lambda r: client.reset_job(r.job_id),
            "SetTrialExcluded": lambda r: client.set_trial_excluded(r.trial, excluded=r.excluded),
            "SetBatchSizeBanned": lambda r: client.set_batch_size_banned(r.job_id, r.batch_size, banned=r.banned),
            "SetPinnedBatchSize": lambda r: client.set_pinned_batch_size(
                r.job_id, r.batch_size if r.HasField("batch_size") else None
            ),
            "ReadmitBatchSize": lambda r: client.readmit_batch_size(r.job_id, r.batch_size),
            "SetJobPaused": lambda r: client.set_job_paused(r.job_id, paused=r.paused),
            "RequestBaseline": lambda r: client.request_baseline(r.job_id),
            "SetBaselineEvery": lambda r: client.set_baseline_every(r.job_id, r.every),
            "SetJobPolicy": lambda r: client.set_job_policy(r.job_id, r.policy),
        }

    async def call(self, method: str, request: Message) -> Any:
        try:
            return await asyncio.to_thread(self._methods[method], request)
        except WattwiseError as error:
            raise refused(error) from error

    async def open(self) -> ClientStream:
        return ClientStream(self._client)


class ClientStream:
    """The client's stream of decisions, fed from a queue."""

    def __init__(self, client: Client) -> None:
        self._sent: queue.SimpleQueue[v1.StreamResultsRequest | None] = queue.SimpleQueue()
        self._stream = client.stream_results(iter(self._sent.get, None))
        self._decisions: Iterator[v1.Decision] = iter(self._stream)

    async def send(self, request: v1.StreamResultsRequest) -> None:
        self._sent.put(request)

    async def receive(self) -> v1.StreamResultsResponse | None:
        try:
            decision = await asyncio.to_thread(next, self._decisions, None)
        except WattwiseError as error:
            raise refused(error) from error
        return None if decision is None else v1.StreamResultsResponse(decision=decision)

    async def close(self) -> None:
        self._sent.put(None)

    async def cancel(self) -> None:
        self._sent.put(None)
        self._stream.cancel()


def spec_of(job: v1.JobSpec) -> JobSpec:
    """The client's `JobSpec` for a job."""
    fields: dict[str, Any] = {field.name: value for field, value in job.ListFields()}
    for name in ("target", "early_stopping", "policy", "gpus"):
        fields.pop(name, None)
    rule, policy = job.early_stopping.WhichOneof("rule"), job.policy.WhichOneof("policy")
    if rule is not None:
        fields["beta_knob"] = "off" if rule == "off" else job.early_stopping.cost_bound.beta_knob
    if policy is not None:
        fields["policy"] = policy
        fields |= {field.name: value for field, value in getattr(job.policy, policy).ListFields()}
    (group,) = job.gpus
    gpu = {field.name: getattr(group, field.name) for field in v1.GpuGroup.DESCRIPTOR.fields}
    required = {"batch_sizes": [], "default_batch_size": 0, "gpu": GpuGroup(**gpu)}
    better = job.target.direction != v1.DIRECTION_LOWER_IS_BETTER
    return JobSpec(**{**required, **fields, "target_metric": job.target.value, "higher_is_better": better})


def refused(error: WattwiseError) -> Refused:
    """Converts an exception of the client."""
    if isinstance(error.__context__, WattwiseError):
        # The client names the fields of its JobSpec; the tables name those of the protos.
        error = error.__context__
    # The client suppresses the cause, because users should not see it.
    cause = error.__context__
    # A client that refuses a call itself gives the server's reason and fields.
    refused = "INVALID_ARGUMENT" if error.violations else ""
    status = cause.code().name if isinstance(cause, grpc.Call) else refused
    return Refused(error.reason, status, [violation.field for violation in error.violations], error.metadata)


async def outcome(scenario: Mapping[str, Any], client: Client, suffix: str) -> tuple[str, str]:
    """Replays a scenario; returns the outcome and the reason."""
    if why := LEFT_OUT.get(scenario["name"]):
        return "left out", why
    try:
        await Replay(scenario, ThroughClient(client), suffix).run()
    except MismatchError as mismatch:
        return "failed", str(mismatch)
    except Exception as error:  # noqa: BLE001 - the other scenarios continue
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


async def run(server: str, tables: list[Path]) -> int:
    """Replays all tables and prints a line of JSON per scenario; returns the exit status."""
    status, run_id = 0, f"python-{os.urandom(3).hex()}"
    with Client(server) as client:
        for table in tables:
            for number, scenario in enumerate(yaml.safe_load(table.read_text())):
                how, why = await outcome(scenario, client, f"{run_id}-{table.stem}-{number}")
                line = {"file": table.name, "scenario": scenario["name"], "outcome": how, "why": why}
                print(json.dumps(line), flush=True)
                status |= how == "failed"
    return status


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="address of the server")
    parser.add_argument("tables", nargs="+", type=Path, metavar="FILE")
    args = parser.parse_args()
    return asyncio.run(run(args.server, args.tables))


if __name__ == "__main__":
    sys.exit(main())
