"""OpenTelemetry: a span per call, exported as the usual OTEL_* variables say."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points, version
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id

from wattwise_server.errors import StartError
from wattwise_server.observability.call import REQUEST_ID, current_trace, metadata
from wattwise_server.rpc.calls import WatchedCall

_LAST_SPANS_SECONDS = 5.0
_OURS_TO_ANSWER_FOR = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses that the semantic conventions count as errors of a server; others are errors of its client."""


class Tracing:
    """A CallWatcher that makes a span of every call."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._naming_a_caller = propagate.get_global_textmap().fields

    def began(self, call: WatchedCall) -> Callable[[], None]:
        """Starts a span within its caller's, if the metadata names one."""
        sent = {key: value for key, value in call.context.invocation_metadata() or () if isinstance(value, str)}
        # Most callers do not trace, and to find nothing takes as long as to make a span.
        caller = propagate.extract(sent) if self._naming_a_caller & sent.keys() else Context()
        span = self._tracer.start_span(call.method.removeprefix("/"), context=caller, kind=SpanKind.SERVER)
        current_trace.set(format_trace_id(span.get_span_context().trace_id))
        if not span.is_recording():
            return span.end
        _, service, method = call.method.split("/")
        span.set_attributes({"rpc.system": "grpc", "rpc.service": service, "rpc.method": method})
        span.set_attribute("client.address", str(call.context.peer()))
        if request_id := metadata(call.context, REQUEST_ID):
            span.set_attribute("wattwise.request_id", request_id)
        return partial(_end, span, call)

    def unknown(self) -> None:
        """Is no call of ours."""

    def counting(self, method: str, codec: Callable[[Any], Any] | None, direction: str) -> Callable[[Any], Any] | None:
        """Leaves messages alone."""
        del method, direction
        return codec


def _end(span: Span, call: WatchedCall) -> None:
    job_id, trial_number, batch_size = call.subject
    known: dict[str, int | str] = {"job_id": job_id, "trial_number": trial_number, "batch_size": batch_size}
    span.set_attributes({f"wattwise.{name}": value for name, value in known.items() if value})
    span.set_attribute("rpc.response.status_code", call.code or "UNKNOWN")
    if call.code in _OURS_TO_ANSWER_FOR:
        span.set_status(StatusCode.ERROR)
    span.end()


@contextmanager
def tracing() -> Iterator[Tracing]:
    """Traces while the block lasts; leaving it sends what is left, for a few seconds at most.

    Raises:
        StartError: when the variables ask for what there is not.
    """
    try:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        for exporter in _exporters():
            provider.add_span_processor(BatchSpanProcessor(exporter))
    except (ValueError, TypeError, OSError) as error:
        raise StartError(f"traces cannot be sent as the OTEL_* variables say: {error}") from error
    try:
        yield Tracing(provider.get_tracer("wattwise_server", version("wattwise")))
    finally:
        # A collector that is away must not hold up the end.
        last = threading.Thread(target=provider.shutdown, name="wattwise-traces", daemon=True)
        last.start()
        last.join(_LAST_SPANS_SECONDS)


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
        f"there is no exporter {name!r} of traces: pip install {package}, or set OTEL_TRACES_EXPORTER to otlp, console "
        "or none (and OTEL_EXPORTER_OTLP_PROTOCOL to grpc)"
    )
