"""Methods of a gRPC server, made anew with another behavior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Codec: TypeAlias = "Callable[[Any], Any] | None"

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behavior(handler: Handler) -> Any:
    """What serves a call of the method."""
    # Typed as of the synchronous gRPC.
    ours: Any = handler
    return ours.unary_unary or ours.unary_stream or ours.stream_unary or ours.stream_stream


def remade(handler: Handler, serve: Any, read: Codec = None, write: Codec = None) -> Handler:
    """The same method served otherwise.

    Args:
        handler: The method.
        serve: What serves a call from now on. gRPC awaits it only if it can see that it is a coroutine function.
        read: Makes messages of bytes; None is as before.
        write: Makes bytes of messages; None is as before.
    """
    make = _MAKERS[handler.request_streaming, handler.response_streaming]
    return make(serve, read or handler.request_deserializer, write or handler.response_serializer)
