"""Data that is not gRPC: the server keeps serving, and its state is unchanged."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from wattwise import v1

from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.server.fuzz.bombard import bombard, depths
from tests.server.fuzz.messages import BASE
from tests.server.fuzz.target import Target

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_CROWD = 300


@pytest.fixture(scope="module")
def target(grpc_server: LiveServer) -> Iterator[Target]:
    """One server for the module."""
    with closing(Target(grpc_server)) as visited:
        yield visited


def connected(target: Target) -> socket.socket:
    """A connection to the server's port."""
    host, _, port = target.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def pour(target: Target, data: bytes, *, reset: bool = False) -> None:
    """Sends bytes on a new connection and closes or resets it."""
    with connected(target) as connection:
        # The server may close the connection before everything is sent.
        try:
            connection.sendall(data)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        except OSError:
            pass


def answers_as(target: Target, before: tuple[str, bytes]) -> None:
    """The server runs, answers a new client, and its state is unchanged."""
    assert target.server.process.poll() is None
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(target.server.address, options) as channel:
        found = PeopleStub(channel).GetJob(v1.GetJobRequest(job_id=BASE), timeout=20, wait_for_ready=True)
    assert found.job.spec.job_id == BASE
    assert target.state() == before


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """One HTTP/2 frame; `length` overrides the real one."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


FRAMES = st.builds(
    frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from((0, 1, 2, 3, 2**31 - 1, 2**32 - 1)),
    st.binary(max_size=80),
    st.none() | st.integers(0, 2**24 - 1),
)


@depths
def test_random_bytes_on_the_socket(target: Target, depth: settings) -> None:
    """The server survives random bytes, however the connection ends."""
    before = target.state()

    def fire(data: st.DataObject) -> None:
        pour(target, data.draw(st.binary(max_size=500)), reset=data.draw(st.booleans(), "resets"))

    bombard(fire, depth)
    answers_as(target, before)


@depths
def test_random_frames(target: Target, depth: settings) -> None:
    """The server survives meaningless frames after a valid HTTP/2 preface."""
    before = target.state()

    def fire(data: st.DataObject) -> None:
        frames = data.draw(st.lists(FRAMES, max_size=8))
        pour(target, _PREFACE + _NO_SETTINGS + b"".join(frames), reset=data.draw(st.booleans(), "resets"))

    bombard(fire, depth)
    answers_as(target, before)


def test_clients_cannot_write_to_the_log(target: Target) -> None:
    """The debug data of a client's GOAWAY frame does not appear in the log."""
    debug_data = b"farewell\n2026-11-21 00:00:00,000 INFO wattwise_server.app: all is well"
    before = target.state()
    pour(target, _PREFACE + _NO_SETTINGS + frame(7, 0, 0, struct.pack(">II", 1, 1) + debug_data))
    answers_as(target, before)
    assert "farewell" not in target.server.log.read_text()


@pytest.mark.parametrize(
    "data",
    [
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /wattwise.v1.JobReader/ListJobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        _PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, 2**32 - 1)),
        _PREFACE + _NO_SETTINGS + frame(1, 0, 1, b"\xff" * 64) + frame(9, 0, 1, b"\xff" * 64) * 500,
        _PREFACE + _NO_SETTINGS + frame(6, 0, 0, bytes(8)) * 5_000,
        b"A" * 2_000_000,
    ],
    ids=["http/1", "http/1 body", "tls", "ssh", "window", "headers", "pings", "flood"],
)
def test_other_protocols(target: Target, data: bytes) -> None:
    """Other protocols and floods on the port do not affect other clients."""
    before = target.state()
    pour(target, data)
    answers_as(target, before)


@pytest.mark.parametrize(
    "opening", [b"", _PREFACE[:10], _PREFACE, _PREFACE + _NO_SETTINGS, _PREFACE + _NO_SETTINGS + frame(1, 4, 1, b"")]
)
def test_half_open_connections(target: Target, opening: bytes) -> None:
    """Many connections that stay silent do not keep other clients from being served."""
    before = target.state()
    with ExitStack() as crowd:
        for _ in range(_CROWD):
            crowd.enter_context(connected(target)).sendall(opening)
        answers_as(target, before)
