"""A proxy between trainer and server that forwards calls but not streams, as many proxies do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent import futures
from types import TracebackType
from typing import Any

import grpc


class Middlebox(grpc.GenericRpcHandler):
    """Forwards calls as bytes.

    Args:
        server: address of the server.
        messages_per_stream: number of messages from the trainer after which a stream breaks; 0 rejects all streams.
        drops: the method whose answers do not arrive.
        first: how many of them do not.
        answered: called with the method's name and its answer before a trainer gets what this returns; not for streams.

    Attributes:
        drops, answered: as given; may be changed.
    """

    def __init__(
        self,
        server: str,
        messages_per_stream: int = 0,
        *,
        drops: str = "",
        first: int = 1_000_000,
        answered: Callable[[str, bytes], bytes] = lambda _, answer: answer,
    ) -> None:
        self.drops, self._left, self.answered = drops, first, answered
        self._channels: list[grpc.Channel] = []
        self.move_to(server)
        self._messages_per_stream = messages_per_stream
        self._front = grpc.server(futures.ThreadPoolExecutor(8), handlers=[self])
        self.address = f"127.0.0.1:{self._front.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Middlebox:
        self._front.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        for channel in self._channels:
            channel.close()

    def move_to(self, server: str) -> None:
        """Forwards the calls that begin from now on to another server."""
        self._channels.append(grpc.insecure_channel(server))

    def stop(self) -> None:
        """Closes the port; repeating it does nothing."""
        self._front.stop(grace=None).wait()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call."""
        method = details.method
        if not method.endswith("/StreamResults"):
            return grpc.unary_unary_rpc_method_handler(lambda request, context: self._pass(method, request, context))
        if self._messages_per_stream == 0:
            return None
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._pass_some(method, requests, context)
        )

    def _pass(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        behind: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[-1].unary_unary(method)
        try:
            answer = behind(request, timeout=10)
        except grpc.RpcError as error:
            context.set_trailing_metadata(tuple((entry.key, entry.value) for entry in error.trailing_metadata() or ()))
            context.abort(error.code(), error.details() or "")
        if self._left and self.drops and method.endswith(f"/{self.drops}"):
            self._left -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy lost the answer")
        return self.answered(method.rpartition("/")[2], answer)

    def _pass_some(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if method.endswith(f"/{self.drops}"):
            for _ in requests:
                pass
            return
        behind: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channels[-1].stream_stream(method)
        yield from behind(itertools.islice(requests, self._messages_per_stream))
        context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy closed this stream")
