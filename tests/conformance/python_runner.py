"""The Python client's runner: makes the calls that it reads through `wattwise.Client`, and prints what it observed."""

from __future__ import annotations

import argparse
import json
import queue
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from wattwise import Client, GpuGroup, JobSpec, v1
from wattwise.errors import WattwiseError
from wattwise.training.state import Event, Link, Progress, TrialState


class Calls:
    """The calls of the client, by the names that the driver uses. Requests and answers are those of the RPCs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._streams: dict[int, Stream] = {}
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

    def make(self, call: str, request: dict[str, Any], stream: int) -> Any:
        """Makes a call and returns the JSON of its answer."""
        if call == "state.after":
            link, progress = request["state"].split()
            after = TrialState(Link(link), Progress(progress)).after(Event(request["event"]))
            return f"{after.link.value} {after.progress.value}"
        if call.startswith("stream."):
            return self._on_stream(call, request, stream)
        return MessageToDict(self._methods[call](ParseDict(request, getattr(v1, f"{call}Request")())))

    def _on_stream(self, call: str, request: dict[str, Any], number: int) -> Any:
        if call == "stream.open":
            self._streams[number] = Stream(self._client)
        elif call == "stream.send":
            self._streams[number].send(ParseDict(request, v1.StreamResultsRequest()))
        elif call == "stream.receive":
            return self._streams[number].receive()
        elif call == "stream.close":
            self._streams[number].close()
        else:
            self._streams.pop(number).cancel()
        return {}


class Stream:
    """The client's stream of decisions, fed from a queue."""

    def __init__(self, client: Client) -> None:
        self._sent: queue.SimpleQueue[v1.StreamResultsRequest | None] = queue.SimpleQueue()
        self._stream = client.stream_results(iter(self._sent.get, None))
        self._decisions: Iterator[v1.Decision] = iter(self._stream)

    def send(self, request: v1.StreamResultsRequest) -> None:
        """Sends a message."""
        self._sent.put(request)

    def receive(self) -> Any:
        """Waits for the next decision; None once the server has ended the stream."""
        decision = next(self._decisions, None)
        return None if decision is None else MessageToDict(v1.StreamResultsResponse(decision=decision))

    def close(self) -> None:
        """Closes the sending side."""
        self._sent.put(None)

    def cancel(self) -> None:
        """Cancels the stream."""
        self.close()
        self._stream.cancel()


def spec_of(job: v1.JobSpec) -> JobSpec:
    """Returns the client's `JobSpec` for a job."""
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


def refusal(error: WattwiseError) -> dict[str, Any]:
    """Returns what an exception of the client says."""
    if isinstance(error.__context__, WattwiseError):
        # The client names the fields of its JobSpec; the tables name those of the protos.
        error = error.__context__
    # The client suppresses the cause, because users should not see it.
    cause = error.__context__
    # A client that refuses a call itself gives the server's reason and fields.
    refused = "INVALID_ARGUMENT" if error.violations else ""
    return {
        "reason": error.reason,
        "status": cause.code().name if isinstance(cause, grpc.Call) else refused,
        "fields": [violation.field for violation in error.violations],
        "metadata": dict(error.metadata),
    }


def main() -> None:
    """Makes the calls of stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="address of the server")
    with Client(parser.parse_args().server) as client:
        calls = Calls(client)
        for line in sys.stdin:
            read = json.loads(line)
            try:
                observed = {"answer": calls.make(read["call"], read.get("request", {}), read.get("stream", 0))}
            except WattwiseError as error:
                observed = {"error": refusal(error)}
            print(json.dumps({"id": read["id"], **observed}), flush=True)


if __name__ == "__main__":
    main()
