"""The server's calls as coroutines."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from wattwise.rpc.calls import Calls
from wattwise.rpc.modes import Awaiting, Mode

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncClient(Calls):
    """A connection to a Wattwise server for programs that use asyncio.

    It has the calls of `Client` with the same arguments, errors and retries: those that return a value are awaited, and
    those that yield values are asynchronous iterators. The arguments are those of `Client`, too. The channel opens on
    first use, once for each event loop.

        async with AsyncClient("localhost:50051") as client:
            async for listing in client.jobs():
                ...

    Raises:
        InvalidAddressError: if the address is malformed.
        InvalidArgumentError: if `timeout` is not a number of seconds.
    """

    mode: ClassVar[Mode] = Awaiting

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channels of this event loop; running calls fail. Does nothing if they are closed already."""
        self._connection.close()
        await Awaiting.closed()

    def with_token(self, token: str | None) -> AsyncClient:
        """Returns a client with another token, or without one, that uses the same channels.

        Args:
            token: the token; None sends none.
        """
        other = copy.copy(self)
        other._credentials = replace(self._credentials, token=token, token_file=None)  # noqa: SLF001 - of this class
        vars(other).pop("_token", None)
        return other
