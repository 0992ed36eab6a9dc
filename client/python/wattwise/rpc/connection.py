"""The channel to a server, opened on first use and once per process, and the stream of decisions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import grpc

from wattwise import v1
from wattwise.errors import CredentialsError, OperationOrderError, WattwiseError
from wattwise.rpc.address import is_loopback
from wattwise.rpc.credentials import BearerToken, Credentials, Metadata
from wattwise.rpc.statuses import from_rpc_error

_OPTIONS = (
    # Detects a server that vanished without closing the connection within 40 seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # This client has its own retries. With gRPC's, a stream that begins while the server closes the connection
    # sometimes never ends.
    ("grpc.enable_retries", 0),
    # Reconnects within seconds, however long the server was away.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # By default channels to one address share a connection, which a forked process would share with its parent.
    ("grpc.use_local_subchannel_pool", 1),
)

REQUEST_ID = "x-request-id"
"""Metadata key of a call's id, which the server writes to its log and returns with errors."""


class Link(NamedTuple):
    """A process's channel with its stubs and its token."""

    channel: grpc.Channel
    optimizer: v1.BatchSizeOptimizerStub
    admin: v1.JobAdminStub
    token: BearerToken | None

    def metadata(self, request_id: str) -> Metadata:
        """The metadata of a call with this id."""
        bearer = () if self.token is None else self.token.metadata()
        return (*bearer, (REQUEST_ID, request_id))


class Connection:
    """One channel for each process that uses it, parent and forked children; safe to use from any thread.

    Raises:
        CredentialsError: if `credentials` is not a `Credentials`. The message does not show it: it may be a token.
    """

    def __init__(self, address: str, credentials: object) -> None:
        self._address = address
        if not isinstance(credentials, Credentials):
            what = type(credentials).__name__
            raise CredentialsError(f"credentials must be a Credentials, not {what}: use Credentials(token=...)")
        self._credentials = credentials
        self._closed = False
        # By process id. A forked child keeps its parent's link untouched: destroying it would disconnect the parent.
        self._links: dict[int, Link] = {}

    def link(self) -> Link:
        """The link of this process.

        Raises:
            OperationOrderError: if the connection was closed.
            CredentialsError: if the token or a certificate cannot be used.
        """
        link = self._links.get(os.getpid())
        if link is None:
            if self._closed:
                raise OperationOrderError(f"the client of {self._address} is closed; create a new one")
            token = self._credentials.bearer_token(self._address)
            channel = self._channel()
            mine = Link(channel, v1.BatchSizeOptimizerStub(channel), v1.JobAdminStub(channel), token)
            # Atomic, without a lock that a fork could leave locked. If two threads get here, one link wins.
            link = self._links.setdefault(os.getpid(), mine)
            if link is not mine:
                mine.channel.close()
        return link

    def _channel(self) -> grpc.Channel:
        secure = self._credentials.channel_credentials()
        if secure is not None:
            return grpc.secure_channel(self._address, secure, options=_OPTIONS)
        # A proxy from the environment cannot reach this machine's loopback, and must not see its token.
        options = (*_OPTIONS, ("grpc.enable_http_proxy", 0)) if is_loopback(self._address) else _OPTIONS
        return grpc.insecure_channel(self._address, options=options)

    def close(self) -> None:
        """Closes this process's channel permanently; running calls fail."""
        self._closed = True
        link = self._links.pop(os.getpid(), None)
        if link is not None:
            link.channel.close()


@contextmanager
def starting_threads() -> Iterator[None]:
    """Starts the threads of a stream; since Python 3.12 an exiting process cannot.

    Raises:
        WattwiseError: if the process is exiting.
    """
    try:
        yield
    except RuntimeError as error:
        raise WattwiseError(f"cannot open a stream: {error}") from None


class DecisionStream:
    """An open StreamResults call; a gRPC thread iterates over the requests.

    Raises:
        WattwiseError: if the process is exiting; unary calls still work then.
    """

    def __init__(self, link: Link, requests: Iterator[v1.StreamResultsRequest], address: str, request_id: str) -> None:
        # gRPC starts two.
        with starting_threads():
            self._call = link.optimizer.StreamResults(requests, metadata=link.metadata(request_id))
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
        """Cancels the call; may be called from any thread."""
        self._call.cancel()
