"""Calls and watches for the page, with the visitor's token: to each server, channels of their own."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from wattwise import v1
from wattwise.errors import CredentialsError, DeadlineError, ServerUnavailableError, WattwiseError
from wattwise.rpc.address import check_address, is_loopback, may_be_several, servers_of
from wattwise.rpc.answers import check_times, naming
from wattwise.rpc.connection import channel_options
from wattwise.rpc.credentials import Credentials, Metadata
from wattwise.rpc.statuses import from_rpc_error

Answer = TypeVar("Answer", bound=Message)

_SECONDS = 15.0
_SECONDS_OF_ONE = 5.0
"""The time for each of several servers except the last one, because it may be suspended."""

_WATCHES = 100
"""Streams on one connection: servers allow 128 calls on each."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,1000}")


def most_channels(address: str, watches: int) -> int:
    """How many connections a `Backend` opens at most for so many watches, to all servers of the address."""
    return len(servers_of(address)) * (1 + math.ceil(watches / _WATCHES))


def is_token(text: str) -> bool:
    """Returns whether a text may be a token: gRPC's own error for one that may not would include it."""
    return _TOKEN.fullmatch(text) is not None


@dataclass(eq=False)
class _Watching:
    """A channel for watches, and how many it carries."""

    channel: grpc.aio.Channel
    reader: Any
    count: int = 0


class _Link:
    """A server: a channel for calls, and others for watches, which would leave no room for calls."""

    def __init__(self, server: str, open_channel: Callable[[], grpc.aio.Channel]) -> None:
        self.server = server
        self._open_channel = open_channel
        self._calls = open_channel()
        self.reader: Any = v1.JobReaderStub(self._calls)
        self.info: Any = v1.ServerInfoStub(self._calls)
        self._watching: list[_Watching] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[Any]:
        """A stub with room for another watch."""
        used = next((each for each in self._watching if each.count < _WATCHES), None)
        if used is None:
            channel = self._open_channel()
            used = _Watching(channel, v1.JobReaderStub(channel))
            self._watching.append(used)
        used.count += 1
        try:
            yield used.reader
        finally:
            used.count -= 1

    async def close(self) -> None:
        for channel in (self._calls, *(each.channel for each in self._watching)):
            await channel.close()


def _checked(answer: Answer, link: _Link) -> Answer:
    """An answer without invalid times, which could not be shown.

    Raises:
        InvalidAnswerError: it has one.
    """
    with naming(link.server, type(answer).__name__.removesuffix("Response")):
        check_times(answer)
    return answer


class Backend:
    """The servers of an address. Made in the event loop that uses it.

    Args:
        address: of one server, or of several, of which the next one is asked if one is away.
        credentials: TLS, and whether tokens may be sent without it.

    Raises:
        WattwiseError: the address or a certificate cannot be used.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = check_address(address)
        secret = credentials.channel_credentials()
        self._may_send = credentials.uses_tls() or credentials.insecure or is_loopback(address)
        self._links: list[_Link] = []
        several = may_be_several(address)
        for server in servers_of(address):
            options = channel_options(server, several=several)
            opened = (
                partial(grpc.aio.insecure_channel, server, options=options)
                if secret is None
                else partial(grpc.aio.secure_channel, server, secret, options=options)
            )
            self._links.append(_Link(server, opened))

    def metadata(self, token: str | None) -> Metadata:
        """The metadata of a visitor's calls.

        Raises:
            CredentialsError: the token would be sent in clear text to another machine.
        """
        if token is None:
            return ()
        if not self._may_send:
            raise CredentialsError(
                f"refusing to send a token to {self.address} in clear text: start wattwise web with --server-tls, or "
                "with --server-insecure if the network is trusted"
            )
        return (("authorization", f"Bearer {token}"),)

    async def call(
        self, method: Callable[[Any], Callable[..., Awaitable[Answer]]], request: Any, token: str | None
    ) -> Answer:
        """Calls a method of the first server that answers.

        Raises:
            WattwiseError: as the Python client raises it.
        """
        metadata = self.metadata(token)
        *first, last = self._links
        for link in first:
            try:
                return _checked(await method(link)(request, metadata=metadata, timeout=_SECONDS_OF_ONE), link)
            except grpc.RpcError as failed:  # noqa: PERF203 - a few servers
                error = from_rpc_error(failed, link.server)
                if not isinstance(error, (ServerUnavailableError, DeadlineError)):
                    raise error from None
                self._put_last(link)
        try:
            return _checked(await method(last)(request, metadata=metadata, timeout=_SECONDS), last)
        except grpc.RpcError as failed:
            raise from_rpc_error(failed, last.server) from None

    async def watch_jobs(self, token: str | None) -> AsyncIterator[v1.WatchJobsResponse]:
        """Which of the jobs that a token reads change, until the caller leaves.

        Raises:
            WattwiseError: the stream ended.
        """
        link = self._links[0]
        with link.watching() as reader:
            stream = reader.WatchJobs(v1.WatchJobsRequest(), metadata=self.metadata(token))
            try:
                async for message in stream:
                    yield message
            except grpc.RpcError as failed:
                error: WattwiseError = from_rpc_error(failed, link.server)
                if isinstance(error, ServerUnavailableError):
                    self._put_last(link)
                raise error from None
            finally:
                stream.cancel()

    def _put_last(self, link: _Link) -> None:
        if self._links[0] is link:
            self._links.append(self._links.pop(0))

    async def close(self) -> None:
        """Closes the channels; running calls fail."""
        for link in self._links:
            await link.close()
