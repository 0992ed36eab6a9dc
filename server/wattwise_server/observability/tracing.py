"""OpenTelemetry: a span for every call, exported as the standard OTEL_* variables say.

`opentelemetry-instrumentation-grpc` is not used: it is a beta that pins its SDK, and of the code here it would replace
only `call_started`, not the job and the trial, the exporters or the flush at shutdown.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points, version

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id

from wattwise_server.errors import StartError
from wattwise_server.observability.call import CALL_ID, Call, current_trace

_FLUSH_SECONDS = 5.0
_SERVER_ERRORS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Statuses that the semantic conventions count as errors of a server; the others are errors of its client."""


class Tracing:
    """A CallListener that makes a span of every call."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._propagation_fields = propagate.get_global_textmap().fields

    def call_started(self, call: Call) -> Callable[[], None]:
        """Starts a span, within the caller's span if the metadata names one."""
        metadata = dict(call.text_metadata())
        # Most callers do not trace, and extracting nothing takes as long as making a span.
        parent = propagate.extract(metadata) if self._propagation_fields & metadata.keys() else Context()
        span = self._tracer.start_span(call.method.removeprefix("/"), context=parent, kind=SpanKind.SERVER)
        current_trace.set(format_trace_id(span.get_span_context().trace_id))
        if not span.is_recording():
            return span.end
        _, service, method = call.method.split("/")
        span.set_attributes({"rpc.system": "grpc", "rpc.service": service, "rpc.method": method})
        span.set_attribute("client.address", call.peer)
        if call_id := metadata.get(CALL_ID):
            span.set_attribute("wattwise.call_id", call_id)
        return partial(_end, span, call)

    def unknown_method_called(self) -> None:
        """Makes no span."""

    def message_counter(self, method: str, direction: str) -> None:
        """Counts no messages."""


def _end(span: Span, call: Call) -> None:
    job_id, trial_number, batch_size = call.subject
    known: dict[str, int | str] = {"job_id": job_id, "trial_number": trial_number, "batch_size": batch_size}
    span.set_attributes({f"wattwise.{name}": value for name, value in known.items() if value})
    span.set_attribute("rpc.response.status_code", call.code or "UNKNOWN")
    if call.code in _SERVER_ERRORS:
        span.set_status(StatusCode.ERROR)
    span.end()


@contextmanager
def tracing() -> Iterator[Tracing]:
    """Traces for the length of the block; leaving it sends the remaining spans, for a few seconds at most.

    Raises:
        StartError: an OTEL_* variable is invalid or names an exporter that is not installed.
    """
    try:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        for exporter in _exporters():
            provider.add_span_processor(BatchSpanProcessor(exporter))
    except (ValueError, TypeError, OSError) as error:
        raise StartError(f"cannot send traces: an OTEL_* variable is invalid: {error}") from error
    try:
        yield Tracing(provider.get_tracer("wattwise_server", version("wattwise")))
    finally:
        # In a thread: a collector that does not answer must not delay the shutdown.
        flush = threading.Thread(target=provider.shutdown, name="wattwise-traces", daemon=True)
        flush.start()
        flush.join(_FLUSH_SECONDS)


def _resource() -> Resource:
    named = OTELResourceDetector().detect().attributes
    return Resource.create({} if "service.name" in named else {"service.name": "wattwise"})


def _exporters() -> list[SpanExporter]:
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    return [_exporter(name) for name in names]


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        protocol = os.environ.get(
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        )
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for point in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter: SpanExporter = point.load()()
        return exporter
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise StartError(
        f"the trace exporter {name!r} is not installed: pip install {package}, or set OTEL_TRACES_EXPORTER to otlp, "
        "console or none (and OTEL_EXPORTER_OTLP_PROTOCOL to grpc)"
    )
