"""A stream ends between two of its messages."""

from __future__ import annotations

import asyncio

import pytest
from wattwise_server.errors import ShuttingDownError
from wattwise_server.rpc.drain import Drain, UntilDrained


class Inbox:
    """Messages of a client."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.waiting = asyncio.Event()

    async def read(self) -> str:
        """The next message."""
        self.waiting.set()
        return await self.messages.get()


async def test_who_waits_for_a_message_is_woken_by_the_drain() -> None:
    """Waiting for the next message ends with the refusal that says to retry, and so does every later wait."""
    inbox, drain = Inbox(), Drain()
    items = UntilDrained(inbox.read, drain)
    wait = asyncio.ensure_future(items.__anext__())
    await inbox.waiting.wait()
    drain.begin()
    with pytest.raises(ShuttingDownError):
        await wait
    with pytest.raises(ShuttingDownError):
        await items.__anext__()


async def test_an_answer_that_is_being_written_is_finished_first() -> None:
    """The drain does not interrupt whoever answers a message; the wait after it is refused."""
    inbox, drain = Inbox(), Drain()
    begun, written, answers = asyncio.Event(), asyncio.Event(), []

    async def converse() -> None:
        async for message in UntilDrained(inbox.read, drain):
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
    assert answers == ["result"]


async def test_a_client_that_vanishes_is_no_drain() -> None:
    """A cancelled call ends as cancelled."""
    inbox, drain = Inbox(), Drain()
    wait = asyncio.ensure_future(UntilDrained(inbox.read, drain).__anext__())
    await inbox.waiting.wait()
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
