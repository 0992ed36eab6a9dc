"""The baseline of a call: a `grpc.aio` server with the same messages that answers at once and stores nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from wattwise import v1

_DECISION = v1.Decision(
    message="continue: metric 0.1, target 0.9 in epoch 1234 of 2147483647; cost 1.53e+07 J, no cost bound yet",
    cost=1.53e7,
)


class EmptyService(v1.BatchSizeOptimizerServicer):
    """Sends responses as long as the real ones, without doing anything."""

    async def ReportResult(self, _: v1.ReportResultRequest, __: Any) -> v1.ReportResultResponse:
        """Answers at once."""
        return v1.ReportResultResponse(decision=_DECISION)

    async def StreamResults(  # type: ignore[override]  # grpc.aio also accepts a coroutine that writes
        self, requests: AsyncIterator[v1.StreamResultsRequest], context: Any
    ) -> None:
        """Answers each message at once."""
        async for _ in requests:
            await context.write(v1.StreamResultsResponse(decision=_DECISION))


async def _serve() -> None:
    server = grpc.aio.server()
    v1.add_BatchSizeOptimizerServicer_to_server(EmptyService(), server)  # type: ignore[abstract]  # the rest is not called
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"echo listens on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
