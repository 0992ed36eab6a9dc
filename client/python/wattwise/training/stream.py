"""One StreamResults call: sends measurements and heartbeats, receives decisions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from wattwise import v1
from wattwise.errors import InvalidRequestError, InvalidResultError
from wattwise.rpc.client import Client
from wattwise.rpc.connection import DecisionStream
from wattwise.training.exchange import Exchange, PendingReport

_PROVEN_SECONDS = 60.0
_LONGEST_WAIT = 3600.0


class ResultStream:
    """A stream of one trial.

    A measurement stays in the exchange until it is answered, so that the next stream sends it again if this one breaks.
    At most one measurement is unanswered at a time: answers carry no number, only their order identifies them.

    A heartbeat is sent after `beat_seconds` of silence. A measurement that is unanswered for `timeout` seconds, or
    three times as long after earlier answers, means that the stream is dead: one that opens while its server shuts
    down may neither fail nor be answered.
    """

    def __init__(self, exchange: Exchange, trial: v1.TrialId, beat_seconds: float, timeout: float) -> None:
        self._exchange = exchange
        self._trial = trial
        self._beat_seconds = beat_seconds
        self._timeout = timeout
        self._opened_at = time.monotonic()
        # The first message identifies the trial, so that the server can push a stop at any time.
        self._beat_at = self._opened_at
        self._sent_at = 0.0
        self._unanswered: PendingReport | None = None
        self._call: DecisionStream | None = None
        self._closed = False
        self._answered = False

    @property
    def proven(self) -> bool:
        """Whether the stream worked; after streams that did not, the next attempt waits longer."""
        return self._answered or time.monotonic() - self._opened_at > _PROVEN_SECONDS

    def talk(self, client: Client) -> None:
        """Sends and receives until the trial is over or the stream ends.

        Raises:
            WattwiseError: if an error ended the stream, other than the refusal of a measurement.
        """
        call = client.stream_results(self._requests())
        with self._exchange.changed:
            self._call = call
        try:
            # The trial may have ended before `_call` was set, when nothing could cancel the call.
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
        # Wakes talk(), which otherwise waits for a server that does not answer.
        self._cancel()

    def _next_request(self) -> v1.StreamResultsRequest | None:
        with self._exchange.changed:
            while not (self._closed or self._exchange.over):
                now, report = time.monotonic(), self._exchange.next_report
                if report is not None and self._unanswered is None:
                    self._unanswered, self._sent_at, self._beat_at = report, now, now + self._beat_seconds
                    return v1.StreamResultsRequest(result=report.result)
                if now >= self._beat_at:
                    self._beat_at = now + self._beat_seconds
                    return v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=self._trial))
                patience = 3 * self._timeout if self._answered else self._timeout
                give_up_at = self._beat_at if self._unanswered is None else self._sent_at + patience
                if now >= give_up_at:
                    return None
                self._exchange.changed.wait(min(self._beat_at - now, give_up_at - now, _LONGEST_WAIT))
        return None
