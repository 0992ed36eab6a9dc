"""A TCP proxy that can hold back what passes through it, cut its connections, and refuse new ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.ports import hold_port, port_of

if TYPE_CHECKING:
    from typing_extensions import Self


class StallingProxy:
    """Listens on a port of its own and connects to another one of 127.0.0.1, in a thread of its own.

    Args:
        target: The port that it connects to.
    """

    def __init__(self, target: int) -> None:
        # Held, so that nobody else listens on it while this proxy refuses.
        self._held = hold_port()
        self.port = port_of(self._held)
        self.target = target
        self._loop = asyncio.new_event_loop()
        self._to_target, self._to_client = asyncio.Event(), asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="stalling proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self.flow()
        self.accept()
        return self

    def __exit__(self, *_error: object) -> None:
        self.refuse()
        self.cut()
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
        self._held.close()

    def flow(self) -> None:
        """Lets everything pass, also what was held back."""
        self._do(self._to_target.set)
        self._do(self._to_client.set)

    def stall(self, *, to_target: bool = True, to_client: bool = True) -> None:
        """Holds back what is sent from now on."""
        if to_target:
            self._do(self._to_target.clear)
        if to_client:
            self._do(self._to_client.clear)

    def cut(self) -> None:
        """Ends all connections; what was held back is lost."""
        self._do(lambda: _abort(self._open))

    def accept(self) -> None:
        """Takes connections."""
        if self._listener is None:
            starting = asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self._listener = asyncio.run_coroutine_threadsafe(starting, self._loop).result(20)

    def refuse(self) -> None:
        """Refuses new connections; those that are open stay."""
        if self._listener is not None:
            self._do(self._listener.close)
            self._listener = None

    def _do(self, what: Callable[[], None]) -> None:
        async def done() -> None:
            what()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(20)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_target, to_target = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, to_target}
        self._open |= both
        for source, sink, gate in ((reader, to_target, self._to_target), (from_target, writer, self._to_client)):
            pump = asyncio.create_task(self._pump(source, sink, gate, both))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: asyncio.Event,
        both: set[asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await gate.wait()
                sink.write(data)
                await sink.drain()
        _abort(both)
        self._open -= both

    async def _ended(self) -> None:
        self._to_target.set()
        self._to_client.set()
        while self._pumps:
            await asyncio.wait(set(self._pumps))


def _abort(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
