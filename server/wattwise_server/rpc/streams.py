"""Streams: a trainer's, with a decision for every result and a pushed stop, and the pace of those that watch jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import grpc
from wattwise import v1

from wattwise_server.domain import Decision, TrialId
from wattwise_server.errors import InvalidRequestError, ServiceError, Violation
from wattwise_server.observability.call import Subject, current_call
from wattwise_server.rpc import answers, requests
from wattwise_server.rpc.calls import Context
from wattwise_server.usecases.training import Training

_RETRY_SECONDS = 1.0
_WATCH_SECONDS = 0.1
"""The pause between two states of a watch: as fast as a person can follow."""

_STATES_PER_SECOND = 50
"""The limit of all watches of one caller: the state of a job with many batch sizes takes milliseconds."""


class TrialStream:
    """One call of StreamResults."""

    def __init__(self, training: Training, context: Context) -> None:
        self._training = training
        self._context = context
        self._writing = asyncio.Lock()
        self._trial: TrialId | None = None
        self._pusher: asyncio.Task[None] | None = None
        self._stopped = False

    async def serve(self, requests: AsyncIterator[v1.StreamResultsRequest]) -> None:
        """Answers until the trainer half-closes the stream.

        Raises:
            ServiceError: as ReportResult and Heartbeat; it ends the stream.
        """
        try:
            async for request in requests:
                await self._take(request)
        finally:
            if self._pusher is not None:
                # Never during a write: gRPC could not send a status after half of one.
                async with self._writing:
                    self._pusher.cancel()
                await asyncio.wait([self._pusher])

    async def _take(self, request: v1.StreamResultsRequest) -> None:
        match request.WhichOneof("event"):
            case "result":
                report = requests.result(request.result)
                self._follow(report.trial)
                # The response to the result that ends the trial is the stop; it is not pushed a second time.
                async with self._writing:
                    await self._write(await self._training.report(report))
            case "heartbeat":
                key = requests.trial_id(request.heartbeat)
                self._follow(key)
                await self._push(await self._training.heartbeat(key))
            case _:
                raise InvalidRequestError(Violation("event", "is not set; send a result or a heartbeat"))

    def _follow(self, key: TrialId) -> None:
        if self._trial is None:
            self._trial = key
            if call := current_call.get():
                call.named = Subject(key.job_id, key.trial_number)
            self._pusher = asyncio.create_task(self._push_stop(key))
        # The number is optional. One that contradicts the launch is refused by the call itself.
        if key.launch_id != self._trial.launch_id or key.job_id != self._trial.job_id:
            name = f"trial {key.trial_number}" if key.trial_number else "the trial"
            fault = (
                f"{name} of launch {key.launch_id!r} of job {key.job_id!r} is not the trial of this "
                "stream; open one stream per trial"
            )
            raise InvalidRequestError(Violation("trial", fault))

    async def _push_stop(self, key: TrialId) -> None:
        while True:
            try:
                await self._push(await self._training.wait_for_stop(key))
            except ServiceError:  # noqa: PERF203 - retries while the storage fails
                # If the trial is unknown, the trainer's own message gets the error, which ends the stream.
                await asyncio.sleep(_RETRY_SECONDS)
            except grpc.aio.InternalError:
                # The trainer has gone just now.
                return
            else:
                return

    async def _push(self, decision: Decision) -> None:
        async with self._writing:
            if decision.stop_train and not self._stopped:
                await self._write(decision)

    async def _write(self, decision: Decision) -> None:
        self._stopped = self._stopped or decision.stop_train
        await self._context.write(v1.StreamResultsResponse(decision=answers.decision(decision)))


class WatchPace:
    """Spreads what the watches of one caller send, so that thousands of them take a bounded share of the server.

    A caller is a token or, without tokens, a host.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def opened(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Counts one watch for the length of the block; yields a function that waits until the watch may send again."""
        call = current_call.get()
        caller = (call.token_id or call.host) if call is not None else ""

        async def pause() -> None:
            await asyncio.sleep(max(_WATCH_SECONDS, self._open[caller] / _STATES_PER_SECOND))

        self._open[caller] += 1
        try:
            yield pause
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]
