"""The server's calls as methods that block, with deadlines, retries and exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from wattwise import v1
from wattwise.rpc.calls import Calls
from wattwise.rpc.connection import DecisionStream
from wattwise.rpc.modes import Blocking, Mode

if TYPE_CHECKING:
    from typing_extensions import Self


class Client(Calls):
    """A connection to a Wattwise server.

    The channel opens on first use. It survives a fork: the child process leaves it alone, and gets its own channel if
    it calls the server. gRPC does not guarantee to work in a forked process whose parent has used it, and sometimes
    crashes there: start such processes with the "spawn" method. Leave GRPC_ENABLE_FORK_SUPPORT unset: 1 makes calls
    in a forked process safe, but then every fork, including that of a data-loader worker, waits for the threads of an
    open stream; with 0, calls in a forked process hang.

    All methods may be called from any thread. Methods that call the server raise `ServerUnavailableError` if it cannot
    be reached in time, and the `WattwiseError` for its error otherwise.

    Args:
        address: host and port of the server, such as "localhost:50051". Several servers of one service are separated
            by commas, or are all that a name has, as in "dns:///wattwise.example:50051": the client uses one of them,
            and goes on at another one if it dies. TLS verifies each server against the name by which it is written.
        timeout: seconds for a call with all its retries; each method can override it.
        retry: whether calls are repeated, with growing pauses, while the server is unavailable.
        search_timeout: seconds after which a server that cannot be reached at all, as with a wrong address, is given
            up; the first failure logs one warning. None is `timeout`, without a warning.
        credentials: the token and the certificates; None reads the `WATTWISE_*` variables.
        call_id: the id of all calls of this client in the server's log and in errors: up to 100 printable ASCII
            characters. None gives each call an id, shared by its retries.
        warns: whether a search is logged as a warning; False logs it at level INFO.

    Raises:
        InvalidAddressError: if the address is malformed.
        InvalidArgumentError: if `timeout` is not a number of seconds.
    """

    mode: ClassVar[Mode] = Blocking

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; running calls fail. Does nothing if it is closed already."""
        self._connection.close()

    def stream_results(self, requests: Iterator[v1.StreamResultsRequest]) -> DecisionStream:
        """Opens the stream of a trial, without deadline and retries.

        Args:
            requests: the messages to send, iterated by a gRPC thread; their end closes this side of the stream.
        """
        return DecisionStream(self._connection, requests, self._metadata())

    @property
    def patience(self) -> float | None:
        """How long one of several servers has to answer before another is asked; None if there is only one."""
        return self._connection.patience if self._connection.several else None
