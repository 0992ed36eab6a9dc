"""A name server that knows one name, which leads to several addresses."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

NAME = "several.test"

_A = 1
_POINTER_TO_QUESTION = 0xC00C
_ANSWERED = 0x8580


@contextmanager
def name_server(addresses: Sequence[str]) -> Iterator[str]:
    """Serves A records of `NAME` over UDP; yields its own address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            """Answers a query; all kinds but A have no records."""
            query, link = self.request
            # The question ends with its type and class, behind the zero that ends its name.
            end = query.index(0, 12) + 5
            kind = struct.unpack("!H", query[end - 4 : end - 2])[0]
            known = NAME.partition(".")[0].encode() in query[12:end].lower()
            records = [socket.inet_aton(each) for each in addresses] if known and kind == _A else []
            header = query[:2] + struct.pack("!5H", _ANSWERED, 1, len(records), 0, 0)
            answers = (struct.pack("!3HIH", _POINTER_TO_QUESTION, _A, 1, 1, 4) + each for each in records)
            link.sendto(header + query[12:end] + b"".join(answers), self.client_address)

    with socketserver.UDPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
            thread.join()
