"""Watches calls from outside of everything else; not there at all while nobody watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import grpc

from wattwise_server.observability.call import Context, Subject, current_call, subject
from wattwise_server.rpc.handlers import Handler, behavior, remade

_MOMENT_SECONDS = 0.2
"""A client's deadline passes that much earlier for itself than for the server, which learns of it from the client."""

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class WatchedCall:
    """One call as its watchers see it.

    Attributes:
        method: As on the wire, such as "/wattwise.v1.JobAdmin/GetJob".
        streams: Whether its client or its server may send more than one message.
        context: What gRPC knows of it.
        code: Name of the status that it ended with; None before.
    """

    def __init__(self, method: str, context: Context, request: Any, *, streams: bool) -> None:
        self.method = method
        self.context = context
        self.streams = streams
        self.code: str | None = None
        self.response: Any = None
        self._request = request

    @property
    def subject(self) -> Subject:
        """The job and the trial that it was about; the answer knows them best."""
        call = current_call.get()
        found = (subject(self.response), call.subject if call else subject(self._request))
        return next((known for known in found if known.job_id), Subject())


class CallWatcher(Protocol):
    """Is told of every call, on the event loop; has to be quick and must not raise."""

    def began(self, call: WatchedCall) -> Callable[[], None]:
        """A call arrived; what is returned is called in the same context once it is over."""

    def unknown(self) -> None:
        """A call arrived for a method that there is not."""

    def counting(self, method: str, codec: Callable[[Any], Any] | None, direction: str) -> Callable[[Any], Any] | None:
        """What reads ("received") or writes ("sent") a stream's messages, with whatever the watcher does beside it."""


class Watch:
    """Tells watchers of every call of this program's services."""

    def __init__(self, watchers: Iterable[CallWatcher] = ()) -> None:
        self._watchers: Sequence[CallWatcher] = tuple(watchers)

    def unknown(self) -> None:
        """Tells that a call arrived for a method that there is not."""
        for watcher in self._watchers:
            watcher.unknown()

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Watches a method's handler, from outside of all else; leaves alone what is not ours, or not watched."""
        if not self._watchers or not method.startswith("/wattwise."):
            return handler
        streams = handler.request_streaming or handler.response_streaming
        serve = behavior(handler)

        async def watched(request: Any, context: Context) -> Any:
            first = None if handler.request_streaming else request
            call = WatchedCall(method, context, first, streams=streams)
            return await self._watch(call, serve(request, context))

        read, write = handler.request_deserializer, handler.response_serializer
        if streams:
            for watcher in self._watchers:
                read = watcher.counting(method, read, "received")
                write = watcher.counting(method, write, "sent")
        return remade(handler, watched, read, write)

    async def _watch(self, call: WatchedCall, work: Coroutine[Any, Any, Any]) -> Any:
        over = [watcher.began(call) for watcher in self._watchers]
        try:
            call.response = await work
        except asyncio.CancelledError:
            left = call.context.time_remaining()
            call.code = "CANCELLED" if left is None or left > _MOMENT_SECONDS else "DEADLINE_EXCEEDED"
            raise
        except grpc.aio.AbortError:
            call.code = _name(call.context.code())
            raise
        except BaseException:
            call.code = "UNKNOWN"
            raise
        else:
            call.code = "OK"
            return call.response
        finally:
            for end in over:
                end()


def _name(code: Any) -> str:
    return code.name if isinstance(code, grpc.StatusCode) else _NAMES.get(code, "UNKNOWN")
