"""What a port sends that is no gRPC server, or one that breaks HTTP/2: coroutines for one connection each."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import repeat

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_PREFACE = 24
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_LARGEST_FRAME = 16_384

Headers = Sequence[tuple[str, bytes]]
GRPC: Headers = ((":status", b"200"), ("content-type", b"application/grpc"))


def sends(*parts: bytes, endless: bytes = b"", closes: bool = False) -> Serve:
    """Sends bytes without waiting for any, then others without end, or closes; otherwise stays silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()
        while endless:
            writer.write(endless)
            await writer.drain()
        while not closes and await reader.read(65_536):
            pass

    return serve


def answers(respond: Callable[[int], Iterable[bytes]], first: bytes = b"") -> Serve:
    """Speaks HTTP/2, and answers each call by the frames that `respond` yields for its stream.

    Args:
        respond: Gets the number of the stream.
        first: Sent on a connection before anything else, in place of empty settings.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(_PREFACE)
        writer.write(first or frame(_SETTINGS))
        answered = 0
        while True:
            length, kind, flags, stream = _parsed(await reader.readexactly(9))
            payload = await reader.readexactly(length)
            if kind == _SETTINGS and not flags & _ACK:
                writer.write(frame(_SETTINGS, _ACK))
            elif kind == _PING and not flags & _ACK:
                writer.write(frame(_PING, _ACK, payload=payload))
            elif kind in (_DATA, _HEADERS) and (kind == _DATA or flags & _END_STREAM) and stream > answered:
                answered = stream
                for part in respond(stream):
                    writer.write(part)
                    await writer.drain()
            await writer.drain()

    return serve


def status(code: bytes, message: bytes = b"", *others: tuple[str, bytes], headers: Headers = GRPC) -> Serve:
    """Answers each call by trailers with this status."""
    block = encoded((*headers, ("grpc-status", code), ("grpc-message", message), *others))
    return answers(lambda stream: header_frames(stream, block, ends=True))


def page(code: bytes, kind: bytes, body: bytes, *others: tuple[str, bytes]) -> Serve:
    """Answers each call like a web server."""
    block = encoded(((":status", code), ("content-type", kind), *others))
    return answers(lambda stream: [*header_frames(stream, block), frame(_DATA, _END_STREAM, stream, body)])


def message(body: Callable[[], Iterable[bytes]]) -> Serve:
    """Answers each call by headers and then by the bytes of a gRPC message as they are."""

    def respond(stream: int) -> Iterable[bytes]:
        yield from header_frames(stream, encoded(GRPC))
        for part in body():
            for start in range(0, len(part), _LARGEST_FRAME):
                yield frame(_DATA, 0, stream, part[start : start + _LARGEST_FRAME])
        yield from header_frames(stream, encoded((("grpc-status", b"0"),)), ends=True)

    return answers(respond)


def resets(code: int) -> Serve:
    """Resets each call."""
    return answers(lambda stream: [frame(_RST_STREAM, 0, stream, struct.pack(">I", code))])


def goes_away(code: int, text: bytes = b"") -> Serve:
    """Ends the connection at each call, before it is taken."""
    return answers(lambda _: [frame(_GOAWAY, payload=struct.pack(">II", 0, code) + text)])


def settings(*pairs: tuple[int, int]) -> bytes:
    """The frame of some settings."""
    return frame(_SETTINGS, payload=b"".join(struct.pack(">HI", *pair) for pair in pairs))


def endless_pings(_stream: int) -> Iterable[bytes]:
    """Pings without end."""
    while True:
        yield frame(_PING, payload=bytes(8)) * 1_000


def large_header(name: str, size: int) -> Serve:
    """Answers each call by trailers with a header of this size."""

    def respond(stream: int) -> Iterable[bytes]:
        yield frame(_HEADERS, _END_STREAM, stream, encoded((*GRPC, ("grpc-status", b"13"))))
        yield frame(_CONTINUATION, 0, stream, b"\0" + _text(name.encode()) + _length(size))
        for _ in range(size // _LARGEST_FRAME):
            yield frame(_CONTINUATION, 0, stream, b"x" * _LARGEST_FRAME)
        yield frame(_CONTINUATION, _END_HEADERS, stream, b"x" * (size % _LARGEST_FRAME))

    return answers(respond)


def endless_headers(stream: int) -> Iterable[bytes]:
    """Headers that never end; 256 MB of them, so that what gRPC keeps does not depend on this machine's speed."""
    part = encoded((("x-filler", b"x" * 16_000),))
    yield frame(_HEADERS, 0, stream, encoded(GRPC))
    yield from repeat(frame(_CONTINUATION, 0, stream, part), 16_000)


def header_frames(stream: int, block: bytes, *, ends: bool = False) -> Iterable[bytes]:
    """A block of headers in as many frames as it needs."""
    parts = [block[start : start + _LARGEST_FRAME] for start in range(0, len(block), _LARGEST_FRAME)]
    for place, part in enumerate(parts):
        flags = (_END_HEADERS if place == len(parts) - 1 else 0) | (_END_STREAM if ends and place == 0 else 0)
        yield frame(_CONTINUATION if place else _HEADERS, flags, stream, part)


def encoded(headers: Headers) -> bytes:
    """Headers in HPACK, without its table."""
    return b"".join(b"\0" + _text(name.encode()) + _text(value) for name, value in headers)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: bytes) -> bytes:
    return _length(len(text)) + text


def _length(length: int) -> bytes:
    if length < 127:
        return bytes([length])
    size, rest = [127], length - 127
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([*size, rest])


def _parsed(head: bytes) -> tuple[int, int, int, int]:
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return int.from_bytes(head[:3], "big"), kind, flags, stream & 0x7FFFFFFF
