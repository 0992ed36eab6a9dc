"""Calls of `JobAdmin` for the page: one channel to each server, the visitor's token with each call."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
from wattwise import v1
from wattwise.errors import CredentialsError, ServerUnavailableError, WattwiseError
from wattwise.rpc.address import check_address, is_loopback, may_be_several, servers_of
from wattwise.rpc.connection import channel_options
from wattwise.rpc.credentials import Credentials, Metadata
from wattwise.rpc.statuses import from_rpc_error

Answer = TypeVar("Answer")

_SECONDS = 15.0
_LARGEST_ANSWER = ("grpc.max_receive_message_length", 64 * 1024 * 1024)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,1000}")


def is_token(text: str) -> bool:
    """Whether a text may be a token: gRPC's own error for one that may not would include it."""
    return _TOKEN.fullmatch(text) is not None


class _Link(NamedTuple):
    server: str
    channel: grpc.aio.Channel
    admin: Any


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
            options = (*channel_options(server, several=several), _LARGEST_ANSWER)
            channel = (
                grpc.aio.insecure_channel(server, options=options)
                if secret is None
                else grpc.aio.secure_channel(server, secret, options=options)
            )
            self._links.append(_Link(server, channel, v1.JobAdminStub(channel)))

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
        for number, link in enumerate(list(self._links)):
            try:
                return await method(link.admin)(request, metadata=metadata, timeout=_SECONDS)
            except grpc.RpcError as failed:  # noqa: PERF203 - a few servers
                error = from_rpc_error(failed, link.server)
                last = number == len(self._links) - 1
                if last or not isinstance(error, ServerUnavailableError):
                    raise error from None
                self._put_last(link)
        raise AssertionError("there is at least one server")

    async def watch_jobs(self, prefix: str, token: str | None) -> AsyncIterator[v1.WatchJobsResponse]:
        """Which jobs change, until the caller leaves.

        Raises:
            WattwiseError: the stream ended.
        """
        link = self._links[0]
        stream = link.admin.WatchJobs(v1.WatchJobsRequest(job_id_prefix=prefix), metadata=self.metadata(token))
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
            await link.channel.close()
