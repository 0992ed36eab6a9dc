"""What the hostile server does to trainers of every language."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from wattwise import v1

from tests.hostile import frames
from tests.hostile.server import Answer, Behaviour, Call
from tests.protos.later import Later, enums_of, everywhere, methods, oneofs_of

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\N{RIGHT-TO-LEFT OVERRIDE}text"
"""Clears a terminal, sets its title, goes back and reverses text."""

_MEGABYTE = 2**20
_LAUNCH = ("RegisterJob", "GetNextBatchSize")
_TRAINING = ("ReportResult", "Heartbeat", "EndTrial", "ImportTrial")
_ALL = (*_LAUNCH, *_TRAINING)
_WAITING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Statuses after which calls are repeated until their deadline."""


def fill(message: Message, value: Callable[[FieldDescriptor], Any]) -> None:
    """Sets every field for which there is a value, in all messages that are set."""
    each: Any
    for each in message.DESCRIPTOR.fields:
        found, chosen = getattr(message, each.name), value(each)
        if isinstance(found, Message):
            if message.HasField(each.name):
                fill(found, value)
        elif each.message_type is not None:
            for item in () if each.message_type.GetOptions().map_entry else found:
                fill(item, value)
        elif chosen is not None and isinstance(found, int | float | str):
            setattr(message, each.name, chosen)


def numbers(value: float) -> Callable[[FieldDescriptor], float | None]:
    """The value for all numbers with a point."""
    return lambda each: value if each.cpp_type == each.CPPTYPE_DOUBLE else None


def integers(value: int) -> Callable[[FieldDescriptor], int | None]:
    """The value for all integers, those of times among them."""
    kinds = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    return lambda each: value if each.cpp_type in kinds else None


def enums(value: int) -> Callable[[FieldDescriptor], int | None]:
    """The value for all enums."""
    return lambda each: value if each.cpp_type == each.CPPTYPE_ENUM else None


def texts(value: str) -> Callable[[FieldDescriptor], str | None]:
    """The value for all texts."""
    return lambda each: value if each.cpp_type == each.CPPTYPE_STRING else None


VALUES: Mapping[str, Callable[[FieldDescriptor], Any]] = {
    "NaN": numbers(math.nan),
    "infinity": numbers(math.inf),
    "-1e308": numbers(-1e308),
    "the largest integer": integers(2**31 - 1),
    "the smallest integer": integers(-(2**31)),
    "an unknown value": enums(99),
    "escapes": texts(ESCAPES),
}
"""What all fields of some type are set to."""


def changed(does: str, method: str, change: Callable[[Any], object], *, ends: tuple[int, ...] = (0,)) -> Behaviour:
    """Changes the answers of a method; those to reports also on a stream."""
    methods = (method, "StreamResults") if method == "ReportResult" else (method,)
    return Behaviour(does, dict.fromkeys(methods, change), ends=ends)


def setting(path: str, **values: Any) -> Callable[[Any], object]:
    """Sets fields of a message in an answer."""

    def change(answer: Any) -> None:
        for name in path.split("."):
            answer = getattr(answer, name)
        for name, value in values.items():
            setattr(answer, name, value)

    return change


def refusing(code: grpc.StatusCode, text: str, *details: Message, raw: bytes = b"") -> Answer:
    """Ends calls with a status and its details."""

    async def answer(call: Call) -> bytes:
        packed = []
        for detail in details:
            packed.append(any_pb2.Any())
            packed[-1].Pack(detail)
        status = raw or status_pb2.Status(code=code.value[0], message=text, details=packed).SerializeToString()
        await call.context.abort(code, text, (("grpc-status-details-bin", status),) if details or raw else ())
        return b""

    return answer


def reason(name: str, *, retryable: bool = False, **more: str) -> error_details_pb2.ErrorInfo:
    """The details of a refusal."""
    metadata = {"retryable": "true" if retryable else "false", **more}
    return error_details_pb2.ErrorInfo(reason=name, domain="wattwise.v1", metadata=metadata)


def _trials() -> Iterable[Behaviour]:
    method, identity = "GetNextBatchSize", "trial.id"
    for size in (48, 0, -32, 2**31 - 1, -(2**31)):
        yield changed(f"a trial with batch size {size}", method, setting("trial", batch_size=size))
    yield changed("the trial of another job", method, setting(identity, job_id="another"))
    yield changed("the trial of another launch", method, setting(identity, launch_id="another"))
    for number in (0, -1):
        yield changed(f"a trial with number {number}", method, setting(identity, trial_number=number))
    for seconds in (-(2**62), 2**62):
        yield changed(f"a start at {seconds} s", method, setting("trial.start_time", seconds=seconds, nanos=-(2**31)))
    yield changed("a trial without id", method, lambda answer: answer.trial.ClearField("id"))
    yield changed("escapes in the reason", method, setting("trial", reason=ESCAPES))


def _jobs() -> Iterable[Behaviour]:
    def listing(*sizes: int) -> Callable[[v1.RegisterJobResponse], None]:
        def change(answer: v1.RegisterJobResponse) -> None:
            answer.job.spec.batch_sizes[:] = sizes

        return change

    method, spec = "RegisterJob", "job.spec"
    yield changed("a job with other batch sizes", method, listing(3, 5, 7))
    yield changed("a job without batch sizes", method, listing())
    yield changed("another job", method, setting(spec, job_id="another"))
    yield changed("a job without its spec", method, lambda answer: answer.job.ClearField("spec"))
    for name, values in {
        "max_epochs": (0, -5),
        "trial_lease_seconds": (math.nan, -1.0, 1e-9),
        "target.value": (math.nan, -math.inf, 0.1),
        "eta_knob": (math.nan, -1.0),
    }.items():
        for value in values:
            message, _, field = f"{spec}.{name}".rpartition(".")
            yield changed(f"a job with {name} {value}", method, setting(message, **{field: value}))


def _decisions() -> Iterable[Behaviour]:
    def warning(answer: Any) -> None:
        for number in range(20_000):
            answer.decision.warnings.add(field="x", message=f"{ESCAPES} {number}").reason = 100 + number

    async def endless(call: Call) -> AsyncIterator[Message]:
        while True:
            answer = call.empty()
            answer.decision.message = "go on"
            yield answer

    async def empty(call: Call) -> AsyncIterator[Message]:
        for _ in range(1000):
            yield call.empty()

    async def garbage(_call: Call) -> AsyncIterator[bytes]:
        while True:
            yield b"\xff" * 100

    method, decision = "ReportResult", "decision"
    yield changed("a decision of 100 MB", method, setting_lazily(lambda: "x" * 100 * _MEGABYTE))
    yield changed("a decision of 3 MB", method, setting_lazily(lambda: (ESCAPES + "x" * 1000) * 3000))
    yield changed("20,000 warnings", method, warning)
    yield changed("a cost of NaN", method, setting(decision, cost=math.nan, cost_bound=math.nan))
    yield changed("a stop at once", method, setting(decision, stop_train=True, target_reached=False), ends=(3,))
    yield changed("no stop at the target", method, setting(decision, stop_train=False, target_reached=False))
    yield Behaviour("endless decisions", streams={"StreamResults": endless})
    yield Behaviour("empty answers on the stream", streams={"StreamResults": empty})
    yield Behaviour("a stream that ends at once", streams={"StreamResults": _nothing})
    yield Behaviour("garbage on the stream", streams={"StreamResults": garbage})
    yield Behaviour(
        "endless decisions and no answers",
        answers={"ReportResult": _never, "Heartbeat": _never},
        streams={"StreamResults": endless},
        waits=True,
    )


def setting_lazily(text: Callable[[], str]) -> Callable[[Any], object]:
    """Sets the message of a decision to a text that takes memory."""
    return lambda answer: setattr(answer.decision, "message", text())


async def _never(_call: Call) -> bytes:
    await asyncio.sleep(3600)
    return b""


async def _late(call: Call) -> Message:
    answer: Message = await call.real()
    await asyncio.sleep(call.context.time_remaining() + 0.05)
    return answer


async def _nothing(_call: Call) -> AsyncIterator[bytes]:
    for _ in ():
        yield b""


def _bytes(content: bytes) -> Answer:
    async def answer(_call: Call) -> bytes:
        return content

    return answer


def _breaking(code: grpc.StatusCode) -> Callable[[Call], AsyncIterator[bytes]]:
    async def stream(call: Call) -> AsyncIterator[bytes]:
        await call.context.abort(code, ESCAPES)
        yield b""

    return stream


def _refusals() -> Iterable[Behaviour]:
    internal, invalid, unavailable = (
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAVAILABLE,
    )
    decade = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=315_360_000))
    away = reason("ERROR_REASON_STORAGE_UNAVAILABLE", retryable=True)
    faults = error_details_pb2.BadRequest(field_violations=[{"field": ESCAPES, "description": ESCAPES}] * 20)
    escaped = reason("ERROR_REASON_INVALID_JOB_SPEC", call_id=ESCAPES)
    escaped.metadata[ESCAPES] = ESCAPES
    again = reason("ERROR_REASON_INVALID_REQUEST", retryable=True)
    future = reason("ERROR_REASON_FROM_THE_FUTURE")
    for does, answer, ends, waits in (
        ("a retry in ten years", refusing(unavailable, "later", away, decade), (0,), True),
        ("a refusal that is to be retried", refusing(invalid, "x", again), (0, 1), True),
        ("escapes in all details of an error", refusing(invalid, ESCAPES, escaped, faults), (1,), False),
        ("an unknown reason", refusing(internal, "x", future), (0,), False),
        ("an unknown reason to refuse", refusing(invalid, "x", future), (1,), False),
        ("details that are no message", refusing(internal, "x", raw=b"\xff\xff"), (0,), False),
        ("no answers", _never, (0,), True),
        ("answers after the deadline", _late, (0,), True),
    ):
        yield Behaviour(does, answers=dict.fromkeys(_ALL, answer), ends=ends, waits=waits)
    yield Behaviour(
        "an unknown reason to refuse a report",
        answers={"ReportResult": refusing(invalid, "x", future)},
        streams={"StreamResults": _nothing},
        ends=(1,),
    )
    forgotten = refusing(grpc.StatusCode.NOT_FOUND, "x", reason("ERROR_REASON_TRIAL_NOT_FOUND"))
    for does, answer, waits in (
        ("trials that are forgotten at once", forgotten, False),
        ("no answers once a trial trains", _never, True),
    ):
        answers = dict.fromkeys(_TRAINING, answer)
        yield Behaviour(does, answers=answers, streams={"StreamResults": _nothing}, waits=waits)
    for method in _ALL:
        for what, content in (("an empty answer", b""), ("garbage", b"\xff" * 20)):
            yield Behaviour(f"{what} to {method}", answers={method: _bytes(content)})


def _statuses() -> Iterable[Behaviour]:
    for code in grpc.StatusCode:
        if code is grpc.StatusCode.OK:
            continue
        answer, waits, streams = refusing(code, ESCAPES), code in _WAITING, {"StreamResults": _breaking(code)}
        of_trainer = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        ends = (1,) if of_trainer else (0,)
        yield Behaviour(f"{code.name} to all", answers=dict.fromkeys(_ALL, answer), ends=ends, waits=waits)
        late = dict.fromkeys(_TRAINING, answer)
        yield Behaviour(f"{code.name} once a trial trains", answers=late, streams=streams, waits=waits)


def _ports() -> Iterable[Behaviour]:
    page = b"<html>\x1b[2Jowned</html>"
    http = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page)
    for does, serve in {
        "a page over HTTP/2": frames.page(b"200", b"text/html", page),
        "a redirect": frames.page(b"302", b"text/html", b"", ("location", b"http://127.0.0.1:1/")),
        "an unknown status": frames.status(b"99", b"%1b%5b2Jowned"),
        "a text of the status that is no UTF-8": frames.status(b"13", b"%ff%fe\xff"),
        "a status that is no number": frames.status(b"abc"),
        "a negative status": frames.status(b"-1"),
        "success without an answer": frames.status(b"0"),
        "an answer of 4 GB": frames.message(lambda: (b"\0\xff\xff\xff\xff", *(bytes(_MEGABYTE) for _ in range(100)))),
        "an answer that is no message": frames.message(lambda: (b"\0\0\0\0\4\xff\xff\xff\xff",)),
        "a compressed answer of an unknown kind": frames.message(lambda: (b"\1\0\0\0\4\xff\xff\xff\xff",)),
    }.items():
        yield Behaviour(does, serve=serve)
    for does, serve in {
        "an HTTP/1.1 page": frames.sends(http, closes=True),
        "plain text": frames.sends(b"SSH-2.0-OpenSSH_9.2\r\n"),
        "endless bytes": frames.sends(endless=b"\x1b[2Jowned" * 1000),
        "silence": frames.sends(),
        "a connection that is closed at once": frames.sends(closes=True),
        "the alert of a TLS server": frames.sends(b"\x15\x03\x01\x00\x02\x02\x46", closes=True),
        "an error page over HTTP/2": frames.page(b"503", b"text/html", page),
        "a message of 100 MB": frames.large_header("grpc-message", 100 * _MEGABYTE),
        "trailers of 100 MB": frames.large_header("x-filler", 100 * _MEGABYTE),
        "headers that never end": frames.answers(frames.endless_headers),
        "two answers": frames.message(lambda: (b"\0\0\0\0\0" * 2,)),
        "resets that refuse": frames.resets(7),
        "resets that ask to be calm": frames.resets(11),
        "goodbyes at each call": frames.goes_away(0),
        "goodbyes with too many pings": frames.goes_away(11, b"too_many_pings"),
        "no room for calls": frames.answers(lambda _: (), frames.settings((3, 0))),
        "no room for requests": frames.answers(lambda _: (), frames.settings((4, 0))),
        "endless pings": frames.answers(frames.endless_pings),
        "invalid settings": frames.answers(lambda _: (), frames.settings((5, 1))),
    }.items():
        yield Behaviour(does, serve=serve, waits=True)


def _everywhere() -> Iterable[Behaviour]:
    for name, value in VALUES.items():
        for calls in (("RegisterJob",), ("GetNextBatchSize",), (*_TRAINING, "StreamResults")):
            changes = dict.fromkeys(calls, lambda answer, value=value: fill(answer, value))
            yield Behaviour(f"{name} in all fields of {calls[0]}", changes)


def _later() -> Iterable[Behaviour]:
    answers = methods().values()
    # A job whose configuration differs from the registered one is refused.
    values = Later(enums=enums_of(*answers), oneofs=oneofs_of(*answers), beneath=("JobSpec",))
    yield Behaviour("fields of a later release in all answers", everywhere(Later()))
    yield Behaviour("values of a later release in all answers", everywhere(values))


BEHAVIOURS: tuple[Behaviour, ...] = (
    *_trials(),
    *_jobs(),
    *_decisions(),
    *_refusals(),
    *_statuses(),
    *_ports(),
    *_everywhere(),
    *_later(),
)
