"""Arbitrary bytes get a status of the contract with its reason, cause no incident, and refusals change nothing."""

from __future__ import annotations

import queue
import string
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import settings
from hypothesis import strategies as st
from wattwise import v1

from tests.live_server import LiveServer
from tests.server.fuzz.bombard import bombard, depths
from tests.server.fuzz.messages import messages, seeds, spoilt
from tests.server.fuzz.methods import METHODS, OTHERS, path
from tests.server.fuzz.target import Answer, Metadata, Target, judge


@pytest.fixture(scope="module")
def target(grpc_server: LiveServer) -> Iterator[Target]:
    """One server for all tests; its log is checked at the end."""
    with closing(Target(grpc_server)) as under_fire:
        yield under_fire


def some_method(data: st.DataObject) -> MethodDescriptor:
    """Any method of the server, mostly one of Wattwise's services."""
    return data.draw(st.sampled_from(METHODS * 2 + OTHERS), "method")


def test_every_method_is_under_fire() -> None:
    """The descriptors contain all services, and there is a valid request for each method."""
    assert {path(method).split("/")[1] for method in METHODS + OTHERS} == {
        "wattwise.v1.BatchSizeOptimizer",
        "wattwise.v1.JobReader",
        "wattwise.v1.JobControl",
        "wattwise.v1.ServerInfo",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert {method.input_type.full_name for method in METHODS + OTHERS} == set(seeds(v1.TrialId()))


@depths
def test_random_bytes(target: Target, depth: settings) -> None:
    """Random bytes are refused, or happen to be a message."""

    def fire(data: st.DataObject) -> None:
        target.fire(some_method(data), [data.draw(st.binary(max_size=200))])

    bombard(fire, depth)


@depths
def test_malformed_messages(target: Target, depth: settings) -> None:
    """Valid requests with changed bytes are refused or handled as the request that they have become."""
    known = seeds(target.trial)

    def fire(data: st.DataObject) -> None:
        method = some_method(data)
        request = data.draw(st.sampled_from(known[method.input_type.full_name]))
        target.fire(method, [data.draw(spoilt(request.SerializeToString()))])

    bombard(fire, depth)


@depths
def test_senseless_messages(target: Target, depth: settings) -> None:
    """Well-formed requests with arbitrary fields are refused or executed."""

    def fire(data: st.DataObject) -> None:
        method = some_method(data)
        target.fire(method, [data.draw(messages(method.input_type)).SerializeToString()])

    bombard(fire, depth)


_KEYS = st.text(string.ascii_lowercase + string.digits + "-_.", min_size=1, max_size=30).filter(
    lambda key: not key.startswith(("grpc-", ".", "-", "_")) and not key.endswith("-bin")
)
_KNOWN_KEYS = st.sampled_from(("x-request-id", "authorization", "user-agent-2", "traceparent", "content-length2"))
_TEXT_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200)
METADATA = st.lists(
    st.tuples(_KEYS | _KNOWN_KEYS, _TEXT_VALUES) | st.tuples(_KEYS.map("{}-bin".format), st.binary(max_size=200)),
    max_size=6,
)


@depths
def test_random_metadata(target: Target, depth: settings) -> None:
    """Arbitrary metadata do not change the response."""
    known = seeds(target.trial)

    def fire(data: st.DataObject) -> None:
        method = some_method(data)
        metadata: Metadata = data.draw(METADATA)
        target.fire(method, [known[method.input_type.full_name][0].SerializeToString()], metadata)

    bombard(fire, depth)


@depths
def test_random_conversations(target: Target, depth: settings) -> None:
    """A stream of valid, malformed and meaningless messages ends with a status of the contract."""
    streaming = [method for method in METHODS + OTHERS if method.client_streaming]
    known = seeds(target.trial)

    def fire(data: st.DataObject) -> None:
        method = data.draw(st.sampled_from(streaming), "method")
        valid = st.sampled_from([request.SerializeToString() for request in known[method.input_type.full_name]])
        senseless = messages(method.input_type).map(lambda message: message.SerializeToString())
        sent = data.draw(st.lists(valid | valid.flatmap(spoilt) | senseless, max_size=6))
        if data.draw(st.booleans(), "cancels"):
            leave(target, method, sent)
        else:
            target.fire(method, sent)

    bombard(fire, depth)


def leave(target: Target, method: MethodDescriptor, sent: list[bytes]) -> None:
    """Opens a stream, sends messages, and cancels it after the last one."""
    channel: Any = target.server.channel
    taken, held = threading.Event(), threading.Event()

    def requests() -> Iterator[bytes]:
        yield from sent
        taken.set()
        held.wait()

    call = channel.stream_stream(path(method))(requests(), timeout=20)
    call.add_done_callback(lambda _: taken.set())
    taken.wait()
    call.cancel()
    held.set()


@pytest.mark.parametrize(
    "spoiler", [b"\xff", b"", v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest()).SerializeToString()]
)
def test_refusal_within_a_conversation(target: Target, spoiler: bytes) -> None:
    """Earlier messages of a stream take effect, a refused one does not."""
    target.clear()
    channel: Any = target.server.channel
    (method,) = (method for method in METHODS if method.client_streaming)
    to_send: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    to_send.put(seeds(target.trial)[method.input_type.full_name][0].SerializeToString())
    call = channel.stream_stream(path(method))(iter(to_send.get, None), timeout=20)
    next(call)
    before = target.state()
    to_send.put(spoiler)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    error: Any = caught.value
    judge(Answer(error.code(), error))
    assert target.state() == before


def test_no_message_at_all(target: Target) -> None:
    """A call that ends before its message is refused and changes nothing; a stream may be empty."""
    channel: Any = target.server.channel
    before = target.state()
    calls = [channel.stream_stream(path(method))(iter(()), timeout=20) for method in METHODS]
    codes = {method.name: call.code() for method, call in zip(METHODS, calls, strict=True)}
    assert codes.pop("StreamResults") is grpc.StatusCode.OK
    assert set(codes.values()) == {grpc.StatusCode.INVALID_ARGUMENT}
    assert target.state() == before


def test_message_beyond_the_limit(target: Target) -> None:
    """A message above the size limit is RESOURCE_EXHAUSTED and changes nothing."""
    before = target.state()
    for method in (METHODS[0], *(method for method in METHODS if method.server_streaming)):
        answer = target.call(method, [bytes(4_200_000)])
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED, answer.error
    assert target.state() == before


def test_metadata_beyond_the_limit(target: Target) -> None:
    """Metadata above gRPC's limit are RESOURCE_EXHAUSTED."""
    answer = target.call(METHODS[0], [b""], [("x-request-id", "x" * 100_000)])
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_unreadable_requests_of_other_services(target: Target) -> None:
    """Health and reflection refuse unparsable requests as Wattwise's services do."""
    for method in OTHERS:
        answer = target.call(method, [b"\xff"])
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT, (method.full_name, answer.error)
        judge(answer)


def test_readable_requests_of_other_services(target: Target) -> None:
    """Health and reflection answer valid requests; a method that the health service lacks is UNIMPLEMENTED."""
    for method in OTHERS:
        expected = grpc.StatusCode.UNIMPLEMENTED if method.name == "List" else grpc.StatusCode.OK
        request = seeds(target.trial)[method.input_type.full_name][0]
        assert target.call(method, [request.SerializeToString()]).code is expected


@pytest.mark.parametrize(
    "name", ["/", "/wattwise.v1.JobReader/", "/wattwise.v1.JobReader/Nothing", "/wattwise.v2.JobReader/GetJob"]
)
def test_methods_that_do_not_exist(target: Target, name: str) -> None:
    """An unknown method is UNIMPLEMENTED."""
    channel: Any = target.server.channel
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(name)(b"", timeout=20)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
