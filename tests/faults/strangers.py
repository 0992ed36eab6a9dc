"""Callers without a token that try to use up a server: raw HTTP/2, since a gRPC client would not misbehave."""

from __future__ import annotations

import socket
import struct
import threading

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST_FRAME = 16_384
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_CANCEL = bytes([0, 0, 0, 8])
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header in HPACK, without compression."""
    return b"".join([b"\0", *(bytes([len(each)]) + each.encode() for each in (name, value))])


_NOISE = frame(0x77, 0, 0, bytes(_LARGEST_FRAME)) * 8


class Connection:
    """One HTTP/2 connection that opens streams and never finishes them.

    Attributes:
        over: the streams that the server has ended.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._socket.sendall(
            _PREFACE + frame(_SETTINGS, 0, 0, b"") + frame(_WINDOW_UPDATE, 0, 0, bytes([0, 255, 0, 0]))
        )
        self._next = 1
        self._changed = threading.Condition()
        self._windows: dict[int, int] = {0: 65_535}
        self._initial = 65_535
        self.closed = False
        self.over: set[int] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def open(self, method: str, **metadata: str) -> int:
        """Opens a call with its headers only; returns its stream."""
        headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x"}
        headers |= {"te": "trailers", "content-type": "application/grpc", **metadata}
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        block = b"".join(_literal(*each) for each in headers.items())
        self._send(frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, data: bytes, seconds: float = 5.0) -> bool:
        """Sends data as the server's flow control allows; returns whether all of it was sent."""
        while data:
            with self._changed:
                ready = self._changed.wait_for(
                    lambda: self.closed or stream in self.over or self._room(stream), seconds
                )
                if not ready or self.closed or stream in self.over:
                    return False
                size = min(len(data), self._room(stream), _LARGEST_FRAME)
                self._windows[0] -= size
                self._windows[stream] -= size
            if not self._send(frame(_DATA, 0, stream, data[:size])):
                return False
            data = data[size:]
        return True

    def reset(self, stream: int) -> bool:
        """Cancels a call; returns whether the connection is still there."""
        return self._send(frame(_RESET, 0, stream, _CANCEL))

    def noise(self) -> bool:
        """Sends frames of an unknown kind, which a server skips; returns whether the connection is still there."""
        return self._send(_NOISE)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _ended(self, stream: int) -> bool:
        return self.closed or stream in self.over

    def _room(self, stream: int) -> int:
        return max(0, min(self._windows[0], self._windows[stream]))

    def _send(self, data: bytes) -> bool:
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True
        return not self.closed

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as file:
                while len(head := file.read(9)) == 9:
                    length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                    self._take(kind, flags, int.from_bytes(head[5:], "big"), file.read(length))
        except (OSError, ValueError):
            pass
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                setting, value = struct.unpack(">HI", payload[at : at + 6])
                if setting == 4:
                    self._grow_all(value - self._initial)
                    self._initial = value
            self._send(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._send(frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            with self._changed:
                if stream in self._windows:
                    self._windows[stream] += int.from_bytes(payload, "big")
                self._changed.notify_all()
        elif kind == _RESET or (kind == _HEADERS and flags & _END_STREAM):
            with self._changed:
                self.over.add(stream)
                self._changed.notify_all()

    def _grow_all(self, by: int) -> None:
        with self._changed:
            for stream in self._windows:
                if stream:
                    self._windows[stream] += by
            self._changed.notify_all()


def unfinished(length: int) -> bytes:
    """A gRPC message without its last byte."""
    return b"\0" + struct.pack(">I", length) + bytes(length - 1)
