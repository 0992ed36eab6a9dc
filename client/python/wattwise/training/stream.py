"""One StreamResults call: sends measurements and heartbeats, receives decisions."""

from __future__ import annotations

import math
import threading
import time

from wattwise import v1
from wattwise.errors import (
    DeadlineError,
    InvalidAnswerError,
    WattwiseError,
)
from wattwise.rpc.client import Client
from wattwise.rpc.connection import DecisionStream, starting_threads
from wattwise.training.delivery import is_refusal
from wattwise.training.exchange import Exchange, PendingReport

_PROVEN_SECONDS = 60.0
_CLOSE_SECONDS = 1.0
_LONGEST_WAIT = 3600.0


class ResultStream:
    """A stream of one trial.

    A measurement stays in the exchange until it is answered, so that the next stream sends it again if this one breaks.
    At most one measurement is unanswered at a time: answers carry no number, only their order identifies them.

    A heartbeat is sent after `beat_seconds` of the exchange without a message. The stream is dead if gRPC does not take
    a message within `timeout` seconds, or a measurement has no answer by then; after earlier answers, three times as
    long. Where another server could answer, both times are `patience` seconds at most.
    """

    def __init__(
        self,
        exchange: Exchange,
        trial: v1.TrialId,
        timeout: float,
        patience: float | None = None,
    ) -> None:
        self._exchange = exchange
        self._trial = trial
        self._timeout, self._answered_timeout = timeout, 3 * timeout
        if patience is not None:
            self._timeout = self._answered_timeout = min(timeout, patience)
        self._opened_at = time.monotonic()
        # The first message identifies the trial, so that the server can push a stop at any time.
        self._beat_at = self._opened_at
        # Since when gRPC has not asked for another message; None while it waits for one.
        self._writing_at: float | None = self._opened_at
        self._sent_at = 0.0
        self._unanswered: PendingReport | None = None
        self._closed = False
        self._error: WattwiseError | None = None
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
        call = client.stream_results(iter(self._next_request, None))
        # gRPC does not always end a call that begins while the server closes the connection, not even when the call is
        # cancelled. This thread must not wait for it.
        listener = threading.Thread(target=self._listen, args=(call,), name="wattwise-stream", daemon=True)
        try:
            with starting_threads():
                listener.start()
            error = self._wait()
            with self._exchange.changed:
                # The requests have ended with the trial: the server ends the call, and counts it as one that succeeded.
                self._exchange.changed.wait_for(lambda: self._closed, _CLOSE_SECONDS if error is None else 0.0)
        finally:
            with self._exchange.changed:
                self._closed = True
                self._exchange.changed.notify_all()
            call.cancel()
        if isinstance(error, DeadlineError):
            call.leave()
        if error is None:
            return
        if self._unanswered is None or not is_refusal(error):
            raise error
        self._exchange.refuse(self._unanswered, error)

    def _listen(self, call: DecisionStream) -> None:
        error: WattwiseError | None = None
        try:
            for decision in call:
                report = self._unanswered
                if report is None and not decision.stop_train:
                    # A server that sends decisions without end would take the processor from the training.
                    error = InvalidAnswerError("the server sent a decision on the stream that answers nothing")
                    return
                self._answered = self._answered or report is not None
                self._exchange.answer(report, decision)
                with self._exchange.changed:
                    # Not before: what is pending and not unanswered is sent.
                    self._unanswered = None
                    self._exchange.changed.notify_all()
        except WattwiseError as failure:
            error = failure
        finally:
            with self._exchange.changed:
                self._closed, self._error = True, error
                self._exchange.changed.notify_all()

    def _wait(self) -> WattwiseError | None:
        """Waits until the trial is over, or the stream has ended or is dead; returns the error that ended it."""
        with self._exchange.changed:
            while self._going_on:
                left = self._give_up_at - time.monotonic()
                if left <= 0:
                    return DeadlineError("the server does not answer on the stream")
                self._exchange.changed.wait(min(left, _LONGEST_WAIT))
            return self._error

    @property
    def _going_on(self) -> bool:
        return not (self._closed or self._exchange.done_reporting)

    @property
    def _give_up_at(self) -> float:
        oldest = math.inf
        if self._writing_at is not None:
            oldest = self._writing_at
        if self._unanswered is not None:
            oldest = min(oldest, self._sent_at)
        return oldest + (self._answered_timeout if self._answered else self._timeout)

    def _next_request(self) -> v1.StreamResultsRequest | None:
        with self._exchange.changed:
            self._writing_at = None
            while self._going_on:
                now, report, request = time.monotonic(), self._exchange.next_report, None
                if report is not None and self._unanswered is None:
                    self._unanswered, self._sent_at = report, now
                    request = v1.StreamResultsRequest(result=report.result)
                elif now >= self._beat_at:
                    request = v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=self._trial))
                if request is not None:
                    # gRPC gets it now.
                    self._writing_at, self._beat_at = now, now + self._exchange.beat_seconds
                    self._exchange.changed.notify_all()
                    return request
                self._exchange.changed.wait(min(self._beat_at - now, _LONGEST_WAIT))
        return None
