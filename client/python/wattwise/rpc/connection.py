"""The channel to a server: opened on first use, one per process, and the stream of decisions over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import grpc

from wattwise import v1
from wattwise.errors import OperationOrderError, WattwiseError, from_rpc_error
from wattwise.rpc.credentials import Credentials, checked_credentials, is_loopback

if TYPE_CHECKING:
    from wattwise.rpc.authorization import Authorization, Metadata

_OPTIONS = (
    # A server that vanished without a word is noticed within 40 seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that is back is found within seconds, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Channels to one address otherwise share a connection, and a forked process would share its parent's.
    ("grpc.use_local_subchannel_pool", 1),
)


REQUEST_ID = "x-request-id"
"""Metadata key of the name that a call has in the server's log and in its errors."""


class Link(NamedTuple):
    """One process's channel and what is called through it."""

    channel: grpc.Channel
    optimizer: v1.BatchSizeOptimizerStub
    authorization: Authorization | None

    def metadata(self, request_id: str) -> Metadata:
        """What a call of this name carries."""
        token = () if self.authorization is None else self.authorization.metadata()
        return (*token, (REQUEST_ID, request_id))


class Connection:
    """The channel of whichever process asks for it; any thread may ask.

    Args:
        address: host and port of the server.
        credentials: the token and the certificates.

    Raises:
        CredentialsError: if `credentials` is something else.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address = address
        self._credentials = checked_credentials(credentials)
        self._closed = False
        # By process id. A forked child keeps its parent's and never touches it: to destroy it would cut off the parent.
        self._links: dict[int, Link] = {}

    def link(self) -> Link:
        """The channel of this process.

        Raises:
            OperationOrderError: if it was closed.
            CredentialsError: if the token or the certificates cannot be used.
        """
        link = self._links.get(os.getpid())
        if link is None:
            if self._closed:
                raise OperationOrderError(f"the client of {self._address} is closed; make another")
            authorization = self._credentials.authorization(self._address)
            channel = self._channel()
            mine = Link(channel, v1.BatchSizeOptimizerStub(channel), authorization)
            # Atomic, and without a lock that a fork could leave taken: of two threads that come first, one wins.
            link = self._links.setdefault(os.getpid(), mine)
            if link is not mine:
                mine.channel.close()
        return link

    def _channel(self) -> grpc.Channel:
        secure = self._credentials.channel_credentials()
        if secure is not None:
            return grpc.secure_channel(self._address, secure, options=_OPTIONS)
        # A proxy that the environment names cannot reach this machine's loopback, and must not see a token for it.
        options = (*_OPTIONS, ("grpc.enable_http_proxy", 0)) if is_loopback(self._address) else _OPTIONS
        return grpc.insecure_channel(self._address, options=options)

    def close(self) -> None:
        """Closes this process's channel for good; running calls fail."""
        self._closed = True
        link = self._links.pop(os.getpid(), None)
        if link is not None:
            link.channel.close()


class DecisionStream:
    """An open StreamResults call.

    Args:
        link: whose call it is.
        requests: what to send; asked by a thread of gRPC's.
        address: where the server is, for messages.
        request_id: what the call is named in the server's log.

    Raises:
        WattwiseError: if the process is about to exit; single calls can still be made.
    """

    def __init__(self, link: Link, requests: Iterator[v1.StreamResultsRequest], address: str, request_id: str) -> None:
        try:
            self._call = link.optimizer.StreamResults(requests, metadata=link.metadata(request_id))
        except RuntimeError as error:
            # Since Python 3.12 no thread can be started once the process is about to exit, and gRPC starts two.
            raise WattwiseError(f"no stream can be opened: {error}") from None
        self._address = address

    def __iter__(self) -> Iterator[v1.Decision]:
        """Yields decisions as they arrive, until the server ends the stream.

        Raises:
            WattwiseError: if it ended with an error.
        """
        try:
            for response in self._call:
                yield response.decision
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._address) from None

    def cancel(self) -> None:
        """Ends the stream from this side, from whatever thread."""
        self._call.cancel()
