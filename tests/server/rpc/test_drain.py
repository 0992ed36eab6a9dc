"""A stream ends between two of its messages."""

from __future__ import annotations

import asyncio

import pytest
from wattwise_server.errors import ShuttingDownError
from wattwise_server.rpc.calls import Drain, Messages


class Inbox:
    """Messages of a client."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.waiting = asyncio.Event()

    async def read(self) -> str:
        """The next message."""
        self.waiting.set()
        return await self.messages.get()

    async def first(self, drain: Drain) -> str:
        """The first message of a stream that the drain ends; upper case shows that it was converted."""
        async for message in Messages(self.read, drain, str.upper):
            return str(message)
        raise AssertionError("this stream has no end")


async def test_waiting_stream_is_interrupted() -> None:
    """Waiting for the next message ends with ShuttingDownError, and so does every later wait."""
    inbox, drain = Inbox(), Drain()
    wait = asyncio.ensure_future(inbox.first(drain))
    await inbox.waiting.wait()
    drain.begin()
    with pytest.raises(ShuttingDownError):
        await wait
    with pytest.raises(ShuttingDownError):
        await inbox.first(drain)


async def test_response_in_progress_is_finished_first() -> None:
    """The drain does not interrupt the response to a message; the wait after it is refused."""
    inbox, drain = Inbox(), Drain()
    begun, written, answers = asyncio.Event(), asyncio.Event(), []

    async def converse() -> None:
        async for message in Messages(inbox.read, drain, str.upper):
            begun.set()
            await written.wait()
            answers.append(message)

    inbox.messages.put_nowait("result")
    stream = asyncio.ensure_future(converse())
    await begun.wait()
    drain.begin()
    written.set()
    with pytest.raises(ShuttingDownError):
        await stream
    assert answers == ["RESULT"]


async def test_cancellation_by_the_client_is_not_a_drain() -> None:
    """A cancelled call ends as cancelled."""
    inbox, drain = Inbox(), Drain()
    wait = asyncio.ensure_future(inbox.first(drain))
    await inbox.waiting.wait()
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
