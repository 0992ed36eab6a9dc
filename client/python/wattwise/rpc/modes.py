"""Methods that are written once, as coroutines, for a client that blocks and for one that awaits.

The coroutine of a blocking client never suspends: what it awaits blocks the thread instead.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, overload

import grpc
import grpc.aio

from wattwise.rpc.rows import AsyncRows, Row, Rows

if TYPE_CHECKING:
    from typing import Concatenate

    from typing_extensions import ParamSpec

    from wattwise.rpc.async_client import AsyncClient
    from wattwise.rpc.client import Client

    P = ParamSpec("P")

T = TypeVar("T")
BlockingMethod = TypeVar("BlockingMethod")
AwaitedMethod = TypeVar("AwaitedMethod")


class Blocking:
    """Calls of gRPC that block their thread. Each process has its own channels."""

    channels: ClassVar[Any] = grpc

    @staticmethod
    def owner() -> Hashable:
        """Returns who uses the channels that are opened here."""
        return os.getpid()

    @staticmethod
    def is_over(_owner: Hashable) -> bool:
        """Returns whether an owner can use its channels no more. A forked child keeps those of its parent."""
        return False

    @staticmethod
    async def answer(call: Any, _has_moved: Callable[[], bool]) -> Any:
        """Returns the answer of a unary call."""
        return call

    @staticmethod
    async def receive(call: Any, _has_moved: Callable[[], bool]) -> Any:
        """Returns the next message of a stream; None at its end."""
        return next(call, None)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)  # noqa: ASYNC251 - blocks on purpose

    @staticmethod
    def close(channel: Any) -> None:
        """Closes a channel; its calls fail."""
        channel.close()


class Awaiting:
    """Calls of gRPC that are awaited. Each event loop has its own channels."""

    channels: ClassVar[Any] = grpc.aio
    _closing: ClassVar[set[asyncio.Task[None]]] = set()

    @staticmethod
    def owner() -> Hashable:
        """Returns who uses the channels that are opened here."""
        return asyncio.get_running_loop()

    @staticmethod
    def is_over(owner: Hashable) -> bool:
        """Returns whether an owner can use its channels no more."""
        return isinstance(owner, asyncio.AbstractEventLoop) and owner.is_closed()

    @staticmethod
    async def answer(call: Any, has_moved: Callable[[], bool]) -> Any:
        """Returns the answer of a unary call.

        Args:
            call: the call.
            has_moved: whether its server was left for another one, which has closed its channel.
        """
        with _closing_fails(has_moved):
            return await call

    @staticmethod
    async def receive(call: Any, has_moved: Callable[[], bool]) -> Any:
        """Returns the next message of a stream; None at its end. The arguments are those of `answer`."""
        with _closing_fails(has_moved):
            message = await call.read()
        return None if message is grpc.aio.EOF else message

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    @classmethod
    def close(cls, channel: Any) -> None:
        """Begins to close a channel; its calls fail."""
        task = asyncio.ensure_future(channel.close())
        # An event loop has only weak references to its tasks.
        cls._closing.add(task)
        task.add_done_callback(cls._closing.discard)

    @classmethod
    async def closed(cls) -> None:
        """Waits until all channels of this event loop are closed that are being closed."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(task for task in cls._closing if task.get_loop() is loop))


@contextmanager
def _closing_fails(has_moved: Callable[[], bool]) -> Iterator[None]:
    """Fails a call in the block whose channel is closed, where gRPC raises the error of a cancelled task.

    Python 3.10 cannot tell the two apart: there a call is cancelled if its client is closed.

    Raises:
        RpcError: if the channel was closed.
    """
    try:
        yield
    except asyncio.CancelledError:
        if getattr(asyncio.current_task(), "cancelling", lambda: not has_moved())():
            raise
        code, nothing = grpc.StatusCode.CANCELLED, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, nothing, nothing, "the channel was closed") from None


Mode = type[Blocking] | type[Awaiting]


class Method(Generic[BlockingMethod, AwaitedMethod]):
    """A method of both clients, each of which gets the form that fits it.

    Args:
        awaited: the form of the client that awaits.
        block: turns what that form returns into what the blocking client returns.
    """

    def __init__(self, awaited: Callable[..., Any], block: Callable[[Any], object]) -> None:
        # Errors about arguments name the method, without a class that users do not know.
        awaited.__qualname__ = awaited.__name__

        @wraps(awaited)
        def blocking(*args: Any, **options: Any) -> object:
            return block(awaited(*args, **options))

        # What `help` and editors show: "Rows" for "AsyncRows", "Iterator" for "AsyncIterator".
        returned = awaited.__annotations__["return"].removeprefix("Async")
        blocking.__annotations__ = {**awaited.__annotations__, "return": returned}
        blocking.__signature__ = signature(awaited).replace(return_annotation=returned)  # type: ignore[attr-defined]
        self._forms: dict[type[Any], Callable[..., Any]] = {Blocking: blocking, Awaiting: awaited}
        self.__doc__ = awaited.__doc__

    @overload
    def __get__(self, client: Client, kind: type[Client]) -> BlockingMethod: ...

    @overload
    def __get__(self, client: AsyncClient, kind: type[AsyncClient]) -> AwaitedMethod: ...

    @overload
    def __get__(self, client: None, kind: type[Any]) -> Callable[..., Any]: ...

    def __get__(self, client: Any, kind: type[Any]) -> Any:
        form: Any = self._forms[kind.mode]
        return form if client is None else MethodType(form, client)


def call(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Method[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Makes a method of both clients from a coroutine."""
    return Method(function, finish)


def stream(
    function: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Method[Callable[P, Iterator[T]], Callable[P, AsyncIterator[T]]]:
    """Makes a method of both clients from one that returns an asynchronous generator."""
    return Method(function, _blocking)


def listing(
    function: Callable[Concatenate[Any, P], AsyncRows[Row]],
) -> Method[Callable[P, Rows[Row]], Callable[P, AsyncRows[Row]]]:
    """Makes a method of both clients from one that returns the rows of a list."""
    return Method(function, lambda rows: Rows(_blocking(rows), rows.frame))


def _blocking(generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                item = finish(generator.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        finish(generator.aclose())


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of a blocking client to its end."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    raise RuntimeError("a blocking call was suspended")
