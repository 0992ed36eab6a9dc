"""Calls of methods that there are not: refused as gRPC would, but told of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc

from wattwise_server.observability.call import Call, Context, current_call
from wattwise_server.observability.logs import say
from wattwise_server.rpc.handlers import Handler

log = logging.getLogger(__name__)


class UnknownMethods(grpc.GenericRpcHandler):
    """Takes every call; has to be added to a server after all that knows its methods."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """Calls `tell` at each of them."""
        self._tell = tell

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """A handler that refuses whatever is sent, unread."""
        method = handler_call_details.method

        async def refuse(requests: Any, context: Context) -> None:
            del requests
            current_call.set(Call(method, context))
            self._tell()
            message = "there is no such method; the server may be older than its client"
            say(log, logging.INFO, "call refused", code="UNIMPLEMENTED", message=message, method=method)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, message)

        return grpc.stream_stream_rpc_method_handler(refuse)
