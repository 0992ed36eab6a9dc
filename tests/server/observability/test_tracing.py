"""Traces, with the real SDK and a collector that speaks OTLP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import Trainer
from tests.refusals import refused
from tests.watched import WatchedServer

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(otlp_grpc.TraceServiceServicer):
    """Stores the spans that it receives."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._server = grpc.server(ThreadPoolExecutor(2))
        otlp_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.address = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, context: Any) -> otlp.ExportTraceServiceResponse:  # noqa: N802 - gRPC's name
        """Takes spans."""
        del context
        for group in request.resource_spans:
            self.services |= {text(group.resource.attributes)["service.name"]}
            self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def close(self) -> None:
        """Stops listening."""
        self._server.stop(None).wait()


def text(attributes: Any) -> dict[str, Any]:
    """OTLP attributes as Python values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()
    yield collector
    collector.close()


def test_every_call_is_a_span(watched: WatchedServer, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans carry job, trial, status and call id, belong to their callers' traces, and are named in the log."""
    watched.stop()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    watched.start()
    job = Trainer(watched.trainer)
    parent = (("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01"), ("x-request-id", "nightly-7"))
    request = v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id())
    trial = watched.trainer.GetNextBatchSize(request, metadata=parent).trial
    beat = v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial.id))
    assert not list(watched.trainer.StreamResults(iter([beat])))
    with refused():
        job.report(v1.Trial(id=v1.TrialId(job_id="nobody", launch_id="l", trial_number=7)), 1.0)
    assert watched.stop() == 0
    register, following, stream, report = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert collector.services == {"wattwise"}
    assert register.name == "wattwise.v1.BatchSizeOptimizer/RegisterJob"
    assert text(register.attributes)["wattwise.job_id"] == job.job_id
    assert (following.trace_id.hex(), following.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    named = {"job_id": job.job_id, "trial_number": 1}
    for span, expected in ((following, {**named, "batch_size": 16, "call_id": "nightly-7"}), (stream, named)):
        assert {f"wattwise.{key}": value for key, value in expected.items()}.items() <= text(span.attributes).items()
        assert text(span.attributes)["rpc.response.status_code"] == "OK"
        assert span.kind == Span.SPAN_KIND_SERVER
    assert text(report.attributes)["rpc.response.status_code"] == "NOT_FOUND"
    assert text(report.attributes)["wattwise.trial_number"] == 7
    assert report.status.code == Status.STATUS_CODE_UNSET, "it is the client's error"
    (dispatched,), (refusal,) = watched.events("trial dispatched"), watched.events("call refused")
    assert (dispatched["trace_id"], refusal["trace_id"]) == (TRACE_ID, report.trace_id.hex())


def test_traces_go_to_the_console_too(watched: WatchedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_TRACES_EXPORTER and OTEL_SERVICE_NAME are respected, and the log says that traces are sent."""
    watched.stop()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    watched.start()
    Trainer(watched.trainer)
    assert [line["exporters"] for line in watched.events("sending traces")] == ["console"]
    watched.process.terminate()
    assert watched.process.stdout is not None
    span = json.loads(watched.process.stdout.read())
    assert span["name"] == "wattwise.v1.BatchSizeOptimizer/RegisterJob"
    assert span["resource"]["attributes"]["service.name"] == "nightly"


def test_unavailable_collector_disturbs_nothing(watched: WatchedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a collector calls are answered, and the shutdown waits a few seconds at most."""
    watched.stop()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    watched.start()
    Trainer(watched.trainer).run(1.0)
    began = time.monotonic()
    assert watched.stop() == 0
    assert time.monotonic() - began < 25
    assert watched.lines()
