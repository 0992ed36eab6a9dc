"""The floor of a call: a `grpc.aio` server that answers at once, with as many bytes as the real one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from wattwise import v1

UNARY = "/bench.Echo/Unary"
STREAM = "/bench.Echo/Stream"

ANSWER = v1.ReportResultResponse(
    decision=v1.Decision(
        message="go on: metric 0.1, target 0.9 in epoch 1234 of 2147483647; cost 1.53e+07 J, no cost bound yet",
        cost=1.53e7,
    )
).SerializeToString()


async def _unary(_: bytes, __: Any) -> bytes:
    return ANSWER


async def _stream(requests: AsyncIterator[bytes], context: Any) -> None:
    async for _ in requests:
        await context.write(ANSWER)


async def _serve() -> None:
    server = grpc.aio.server()
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"echo listens on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
