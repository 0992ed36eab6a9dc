"""The channel to the server that answers, opened on first use and once per process, and the stream of decisions."""

from __future__ import annotations

import logging
import math
import os
import time
import zlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import grpc

from wattwise import v1
from wattwise.errors import (
    CredentialsError,
    DeadlineError,
    OperationOrderError,
    ServerUnavailableError,
    WattwiseError,
    log,
)
from wattwise.rpc.address import is_this_machine, may_be_several, servers_of, target_of
from wattwise.rpc.answers import checked_decision, naming
from wattwise.rpc.credentials import Credentials, Metadata
from wattwise.rpc.modes import Blocking, Mode
from wattwise.rpc.statuses import from_rpc_error

T = TypeVar("T")

ChannelOptions = tuple[tuple[str, "int | str"], ...]

_OPTIONS: ChannelOptions = (
    ("grpc.http2.max_pings_without_data", 0),
    # This client has its own retries. With gRPC's, a stream that begins while the server closes the connection
    # sometimes never ends.
    ("grpc.enable_retries", 0),
    # Reconnects within seconds, however long the server was away.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # By default channels to one address share a connection, which a forked process would share with its parent.
    ("grpc.use_local_subchannel_pool", 1),
)


def _pings(interval_ms: int, timeout_ms: int) -> ChannelOptions:
    """Detects within both times that a server no longer answers; servers refuse pings every five seconds or less."""
    return (
        ("grpc.keepalive_time_ms", interval_ms),
        # Newer versions of gRPC wait for the answer to a ping for the second time, by default a minute.
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
    )


_ONE_SERVER: ChannelOptions = (
    *_OPTIONS,
    *_pings(30_000, 10_000),
    # The time for a connection, too.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)
_SEVERAL_SERVERS: ChannelOptions = (
    *_OPTIONS,
    # Also a stream on which nothing is sent moves soon.
    *_pings(10_000, 3_000),
    # The deadline of the call limits the time for a connection. After a server has died, many clients connect to the
    # others at once, which then takes longer than usual.
    ("grpc.min_reconnect_backoff_ms", 20_000),
    # Of the addresses that a name has, gRPC takes a random one, and another one if that does not answer.
    ("grpc.service_config", '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'),
)

_PATIENCE_SECONDS, _LONGEST_PATIENCE = 2.0, 16.0
_PATIENCE_FACTOR = 3.0
_STORAGE_SECONDS = 30.0
_STORAGE = "ERROR_REASON_STORAGE_UNAVAILABLE"

_ORDER = os.urandom(8)
"""Decides which of several servers the clients of this process prefer."""

_down: set[str] = set()
"""The servers that were last seen down by this process, which has logged it."""

_WATCHES = 100
"""The most watches of a channel, of which servers allow 128 calls at once."""
_WATCHES_BESIDE_CALLS = 20
"""The most watches of a channel for other calls."""

CALL_ID = "x-request-id"
"""Metadata key of a call's id, which the server writes to its log and returns with errors."""


_STUBS = (v1.BatchSizeOptimizerStub, v1.JobReaderStub, v1.JobControlStub, v1.ServerInfoStub)


class ServerLink:
    """A channel to a server.

    Args:
        server: the address of the server.
        open_channel: opens a channel to it.

    Attributes:
        calls: the server's calls by name, such as "GetJob".
        watches: one object for each watch that uses the channel.
    """

    def __init__(self, server: str, open_channel: Callable[[], Any]) -> None:
        self.server = server
        self._open_channel = open_channel
        self.channel = channel = open_channel()
        self.calls: Mapping[str, Any] = {
            name: call for stub in _STUBS for name, call in vars(cast("Any", stub)(channel)).items()
        }
        self.watches: set[object] = set()
        self._of_watches: list[ServerLink] = []

    @contextmanager
    def for_watch(self) -> Iterator[ServerLink]:
        """Yields a link to the server whose channel has room for a stream."""
        link, watch = self, object()
        if len(self.watches) >= _WATCHES_BESIDE_CALLS:
            link = next((each for each in self._of_watches if len(each.watches) < _WATCHES), self)
            if link is self:
                link = ServerLink(self.server, self._open_channel)
                self._of_watches.append(link)
        link.watches.add(watch)
        try:
            yield link
        finally:
            link.watches.discard(watch)

    @property
    def channels(self) -> list[Any]:
        """All channels of the link."""
        return [self.channel, *(each.channel for each in self._of_watches)]


def most_channels(address: str, watches: int) -> int:
    """Returns how many channels a client opens at most for so many watches, to all servers of an address."""
    more = max(0, watches - _WATCHES_BESIDE_CALLS)
    return len(servers_of(address)) * (1 + math.ceil(more / _WATCHES))


class _Failure(NamedTuple):
    """The error of one of several servers, as it names this server and as it names the whole address."""

    error: WattwiseError
    of_all: WattwiseError

    def with_others(self, others: Iterable[_Failure]) -> WattwiseError:
        """Returns the error of the whole address, with one of each other kind."""
        kinds = {(type(each.error), each.error.reason): str(each.error) for each in others}
        kinds.pop((type(self.error), self.error.reason), None)
        if not kinds:
            return self.of_all
        return self.error.with_message("; ".join([str(self.error), *kinds.values()]))


class Connection:
    """One channel for each process that uses it, parent and forked children; safe to use from any thread.

    In an asynchronous client it is one for each event loop.

    The channel leads to one of the servers of the address, until that does not answer. Each server has a channel of
    its own, so that each certificate is verified against the name by which its server is listed.

    Args:
        address: of one server or several.
        credentials: the certificates.
        mode: whether calls block or are awaited.

    Attributes:
        address: as given.
        mode: as given.
        several: whether the address may lead to several servers.

    Raises:
        CredentialsError: if `credentials` is not a `Credentials`. The message does not show it: it may be a token.
    """

    def __init__(self, address: str, credentials: object, mode: Mode = Blocking) -> None:
        self.address = address
        self.mode = mode
        if not isinstance(credentials, Credentials):
            what = type(credentials).__name__
            raise CredentialsError(f"credentials must be a Credentials, not {what}: use Credentials(token=...)")
        self._credentials = credentials
        self._closed = False
        # By owner. A forked child keeps its parent's link untouched: destroying it would disconnect the parent.
        self._links: dict[Hashable, ServerLink] = {}
        self.several = may_be_several(address)
        self._servers = sorted(servers_of(address), key=_preference)
        self._server = self._servers[0]
        self._patience = _PATIENCE_SECONDS
        # The servers that were left since the last answer, and why.
        self._lost: dict[str, str] = {}
        self._storage_tried_at = -_STORAGE_SECONDS

    def link(self) -> ServerLink:
        """Returns the link of this process or event loop.

        Raises:
            OperationOrderError: if the connection was closed.
            CredentialsError: if a certificate cannot be used.
        """
        link = self._links.get(self.mode.owner())
        if link is None:
            if self._closed:
                raise OperationOrderError(f"the client of {self.address} is closed; create a new one")
            for owner in filter(self.mode.is_over, list(self._links)):
                self._links.pop(owner, None)
            mine = ServerLink(self._server, self._opener(self._server))
            # Atomic, without a lock that a fork could leave locked. If two threads get here, one link wins.
            link = self._links.setdefault(self.mode.owner(), mine)
            if link is not mine:
                self.mode.close(mine.channel)
        return link

    def _opener(self, server: str) -> Callable[[], Any]:
        options, secure = channel_options(server, several=self.several), self._credentials.channel_credentials()
        if secure is None:
            return partial(self.mode.channels.insecure_channel, target_of(server), options=options)
        return partial(self.mode.channels.secure_channel, target_of(server), secure, options=options)

    def is_left(self, link: ServerLink) -> bool:
        """Returns whether the link's channel was closed, to leave its server or for good."""
        return self._links.get(self.mode.owner()) is not link

    def has_moved(self, link: ServerLink) -> bool:
        """Returns whether the link's server was left for another one."""
        return self.is_left(link) and not self._closed

    @property
    def patience(self) -> float:
        """How long one of several servers has to answer before another is asked: 2 s, and longer if all are slow."""
        return self._patience

    async def ask(self, send: Callable[[ServerLink, float], Awaitable[T]], timeout: float) -> T:
        """Makes a call to the server, or else to the others, each once; to all of them again if they are slow.

        Args:
            send: makes the call on a link, within a number of seconds.
            timeout: seconds for all of them.

        Raises:
            WattwiseError: that of a server that answered; if none did, one after which a retry may help. The message
                has other kinds of errors as well.
        """
        deadline, left, tries = time.monotonic() + timeout, timeout, 0
        failures: dict[str, _Failure] = {}
        while True:
            link, begun = self.link(), time.monotonic()
            try:
                answer = await send(link, min(left, self._patience) if self.several else left)
            except (grpc.RpcError, ValueError) as error:
                # Closed by another thread: the error may say nothing about the server.
                closed = self.is_left(link)
                failure = self._failure(error, link)
                if not self.several:
                    raise failure from None
                left, tries = deadline - time.monotonic(), tries + 1
                moved, round_over = self.leave(link, failure), tries % max(2, len(self._servers)) == 0
                slow = isinstance(failure, DeadlineError)
                if slow and round_over:
                    self._patience = min(_LONGEST_PATIENCE, 2 * self._patience)
                if not moved:
                    if isinstance(failure, ServerUnavailableError):
                        _down.update(self._lost)
                    raise self._failure(error, link, self.address) from None
                if not (closed and failures):
                    # Behind those of other servers.
                    failures.pop(link.server, None)
                    failures[link.server] = _Failure(failure, self._failure(error, link, self.address))
                if left <= 0 or (round_over and not slow):
                    raise self._given_up(failures) from None
            else:
                if self.several:
                    self.answered(link, time.monotonic() - begun)
                return answer

    def _failure(self, error: grpc.RpcError | ValueError, link: ServerLink, address: str = "") -> WattwiseError:
        left = self.is_left(link)
        if isinstance(error, grpc.RpcError) and not (left and error.code() is grpc.StatusCode.CANCELLED):
            return from_rpc_error(error, address or link.server)
        if not left:
            raise error
        # gRPC's errors for a channel that another thread has closed, to leave the server or for good.
        return ServerUnavailableError(f"the connection to {address or link.server} was closed")

    def leave(self, link: ServerLink, error: WattwiseError) -> bool:
        """Leaves a server for the next one if its error shows that it is lost; returns whether that was done."""
        if not (self.several and isinstance(error, ServerUnavailableError)):
            return False
        if error.reason == _STORAGE and self._stays:
            # If the database is away, another server does not help. One server may be cut off from it.
            return False
        if not self.is_left(link):
            self.note_lost(link, error)
            place = self._servers.index(link.server) + 1
            self._go_to(link, self._servers[place % len(self._servers)])
        return True

    @property
    def _stays(self) -> bool:
        """Whether all servers were found without their database a moment ago."""
        return time.monotonic() < self._storage_tried_at + _STORAGE_SECONDS

    def broken(self, link: ServerLink, error: grpc.RpcError) -> WattwiseError:
        """Returns the exception for a stream that broke. The server is left only if a call shows that it is lost."""
        failure = from_rpc_error(error, link.server)
        if is_old(error):
            self.spread(link)
        elif isinstance(failure, ServerUnavailableError) and failure.reason != _STORAGE:
            self.note_lost(link, failure)
        return failure

    def note_lost(self, link: ServerLink, error: WattwiseError) -> None:
        """Notes that a connection broke: if another server answers next, that is logged."""
        if self.several:
            self._lost.setdefault(link.server, str(error))

    def spread(self, link: ServerLink) -> None:
        """Goes on at a random server, since the server closes connections for that after a time."""
        others = int.from_bytes(os.urandom(4), "big") % len(self._servers)
        if self._servers[others] != link.server:
            self._go_to(link, self._servers[others])

    def _go_to(self, link: ServerLink, server: str) -> None:
        """Opens the next link to this server, unless another thread has left the link before."""
        if not self.is_left(link):
            self._server = server
            self._drop()

    def answered(self, link: ServerLink, seconds: float = 0.0) -> None:
        """Notes an answer, and logs which servers were lost before it, each once until it answers again."""
        self._patience = min(_LONGEST_PATIENCE, max(_PATIENCE_SECONDS, _PATIENCE_FACTOR * seconds))
        if self._lost:
            lost, self._lost = self._lost, {}
            self._log(lost, link.server)
        _down.discard(link.server)

    def _log(self, lost: dict[str, str], server: str) -> None:
        if len(self._servers) > 1:
            lost = {each: cause for each, cause in lost.items() if each != server}
        level = logging.INFO if lost.keys() <= _down else logging.WARNING
        _down.update(lost)
        if lost:
            causes = "; ".join(lost.values())
            now = f"{server} answers now" if len(self._servers) > 1 else "a server answers there now"
            log.log(level, "a Wattwise server did not answer: %s. %s", causes, now)

    def _given_up(self, failures: Mapping[str, _Failure]) -> WattwiseError:
        """Returns the error of a call that no server has answered."""
        _down.update(self._lost)
        if failures.keys() == set(self._servers) and all(each.error.reason == _STORAGE for each in failures.values()):
            self._storage_tried_at = time.monotonic()
        newest_first = list(failures.values())[::-1]
        most_useful = max(newest_first, key=lambda each: (bool(each.error.reason), each.error.retryable))
        return most_useful.with_others(newest_first)

    def close(self) -> None:
        """Closes the channels of this process or event loop permanently; running calls fail."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        link = self._links.pop(self.mode.owner(), None)
        for channel in link.channels if link is not None else ():
            self.mode.close(channel)


def channel_options(server: str, *, several: bool) -> ChannelOptions:
    """Returns the options of a channel.

    Args:
        server: The address of one server, or of a name that has several.
        several: Whether another server can be used if this one does not answer.
    """
    options = _SEVERAL_SERVERS if several else _ONE_SERVER
    # A proxy from the environment cannot reach this machine's loopback, and must not see its tokens.
    return (*options, ("grpc.enable_http_proxy", 0)) if is_this_machine(server) else options


def is_old(error: grpc.RpcError) -> bool:
    """Returns whether the server closed the connection because of its age (`--max-connection-age-seconds`)."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "max connection age" in (error.details() or "")


def _preference(server: str) -> tuple[bool, int]:
    """Sorts servers in an order of this process's own, with those last that are known to be down."""
    return server in _down, zlib.crc32(_ORDER + server.encode())


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

    def __init__(self, connection: Connection, requests: Iterator[v1.StreamResultsRequest], metadata: Metadata) -> None:
        self._connection = connection
        self._link = link = connection.link()
        # gRPC starts two.
        with starting_threads():
            self._call = link.calls["StreamResults"](requests, metadata=metadata)

    def __iter__(self) -> Iterator[v1.Decision]:
        """Yields decisions as they arrive, until the server ends the stream.

        Raises:
            WattwiseError: if it ended with an error, or sends an invalid answer.
        """
        try:
            for response in self._call:
                with naming(self._link.server, "StreamResults"):
                    decision = checked_decision(response)
                yield decision
        except grpc.RpcError as error:
            raise self._connection.broken(self._link, error) from None

    def cancel(self) -> None:
        """Cancels the call; may be called from any thread."""
        self._call.cancel()

    def leave(self) -> None:
        """Leaves the server, which does not answer on the stream, for another one if there is one."""
        error = ServerUnavailableError(f"the server at {self._link.server} does not answer on the stream")
        self._connection.leave(self._link, error)
