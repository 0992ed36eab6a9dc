"""One StreamResults call from its opening to its end: measurements and heartbeats out, decisions in."""

from __future__ import annotations

import time
from collections.abc import Iterator

from wattwise import v1
from wattwise.errors import InvalidRequestError, InvalidResultError
from wattwise.rpc.client import Client
from wattwise.rpc.connection import DecisionStream
from wattwise.training.exchange import Exchange, Report

_PROVEN_SECONDS = 60.0
_LONGEST_WAIT = 3600.0


class ResultStream:
    """A stream for one trial.

    A measurement stays with the exchange until it is answered, so that what a broken stream took goes out again on
    the next one. One measurement at most is unanswered at a time: answers carry no number, their order is all there is.

    Args:
        exchange: where measurements come from and decisions go.
        trial: the trial.
        beat_seconds: a heartbeat is sent after this much silence.
        patience: seconds after which an unanswered measurement means that the stream is dead.
    """

    def __init__(self, exchange: Exchange, trial: v1.TrialId, beat_seconds: float, patience: float) -> None:
        self._exchange = exchange
        self._trial = trial
        self._beat_seconds = beat_seconds
        self._patience = patience
        self._opened_at = time.monotonic()
        # The first message tells the server whose stream it is, so that it can push a stop at any time.
        self._beat_at = self._opened_at
        self._sent_at = 0.0
        self._unanswered: Report | None = None
        self._call: DecisionStream | None = None
        self._closed = False
        self._answered = False

    @property
    def proven(self) -> bool:
        """Whether it was of use: streams that never are should be tried more rarely."""
        return self._answered or time.monotonic() - self._opened_at > _PROVEN_SECONDS

    def talk(self, client: Client) -> None:
        """Sends and receives until the trial is over or the stream ends.

        Raises:
            WattwiseError: if an error ended it. A measurement that was refused is no such error: the exchange knows it.
        """
        call = client.stream_results(self._requests())
        with self._exchange.changed:
            self._call = call
        try:
            # Asked now that the call is known: until here nobody could have cancelled it.
            if not self._exchange.over:
                self._listen(call)
        except (InvalidResultError, InvalidRequestError) as error:
            if self._unanswered is None:
                raise
            self._exchange.refuse(self._unanswered, error)
        finally:
            self._close()

    def _listen(self, call: DecisionStream) -> None:
        for decision in call:
            with self._exchange.changed:
                report, self._unanswered = self._unanswered, None
            self._answered = True
            self._exchange.answer(report, decision)
            if self._exchange.over:
                return

    def _close(self) -> None:
        with self._exchange.changed:
            self._closed = True
            self._exchange.changed.notify_all()
        self._cancel()

    def _cancel(self) -> None:
        with self._exchange.changed:
            call = self._call
        if call is not None:
            call.cancel()

    def _requests(self) -> Iterator[v1.StreamResultsRequest]:
        while (request := self._next_request()) is not None:
            yield request
        # Wakes talk(), which may otherwise wait for a server that does not answer.
        self._cancel()

    def _next_request(self) -> v1.StreamResultsRequest | None:
        with self._exchange.changed:
            while not (self._closed or self._exchange.over):
                now, report = time.monotonic(), self._exchange.newest
                if report is not None and self._unanswered is None:
                    self._unanswered, self._sent_at, self._beat_at = report, now, now + self._beat_seconds
                    return v1.StreamResultsRequest(result=report.result)
                if now >= self._beat_at:
                    self._beat_at = now + self._beat_seconds
                    return v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=self._trial))
                give_up_at = self._beat_at if self._unanswered is None else self._sent_at + self._patience
                if now >= give_up_at:
                    return None
                self._exchange.changed.wait(min(self._beat_at - now, give_up_at - now, _LONGEST_WAIT))
        return None
