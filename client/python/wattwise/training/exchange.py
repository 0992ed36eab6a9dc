"""What the trainer's thread and the one that talks to the server hand each other: measurements and decisions.

Nothing here calls the server. A signal handler may enter at any point of the thread that it interrupts, which is why
the lock is re-entrant and why no method relies on what it saw before it waited.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import WattwiseError, log


class Report(NamedTuple):
    """A measurement on its way; `number` counts from 1."""

    number: int
    result: v1.TrainingResult


class Ending(NamedTuple):
    """How the trainer wants its trial to end, and until when (monotonic seconds) it waits for that."""

    reason: v1.EndReason.ValueType
    deadline: float


class Exchange:
    """The state of a running trial as its trainer knows it.

    Attributes:
        changed: held while anything below is read together or written; notified after every change.
        newest: the newest measurement, until the server has acknowledged it.
        decision: the server's newest answer.
        stopped: the server has said that the trial is over.
        away: the server does not answer at the moment.
        ending: set once the trainer wants to end the trial.
        finished: nothing will be sent any more.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.changed = threading.Condition(threading.RLock())
        self.newest: Report | None = None
        self.decision: v1.Decision | None = None
        self.stopped = False
        self.away = False
        self.ending: Ending | None = None
        self.finished = False
        self._posted = 0
        self._answered = 0
        self._refusal: WattwiseError | None = None
        self._has_warned = False
        self._outage_is_known = False

    @property
    def over(self) -> bool:
        """Whether no further measurement matters."""
        return self.stopped or self.ending is not None

    def post(self, result: v1.TrainingResult) -> Report:
        """Hands over a measurement, in place of one that the server has not acknowledged yet.

        Raises:
            WattwiseError: if the server refused an earlier one since the last call.
        """
        with self.changed:
            self._raise_refusal()
            self._posted += 1
            self.newest = Report(self._posted, result)
            self.changed.notify_all()
            return self.newest

    def answer_to(self, report: Report, timeout: float) -> v1.Decision | None:
        """Waits for the answer to a measurement while the server is known to be there.

        Args:
            report: the measurement.
            timeout: seconds after which the server is taken to be away.

        Returns:
            The decision; None if there is none yet.

        Raises:
            WattwiseError: if the server refused the measurement.
        """
        with self.changed:
            known = self.changed.wait_for(lambda: self._settled(report), timeout)
            self._raise_refusal()
            if self.stopped or self._answered >= report.number:
                return self.decision
        if not known:
            self.lost(f"no answer came within {timeout:g} s from the Wattwise server at {self._address}")
        return None

    def answer(self, report: Report | None, decision: v1.Decision) -> None:
        """Notes what the server decided; what it warns of is logged once per trial.

        Args:
            report: the measurement that it answers; None if it answers none.
            decision: the decision.
        """
        self.found()
        self._pass_on(decision.warning)
        with self.changed:
            if report is not None:
                self._acknowledge(report)
            if (report is not None or decision.stop_train) and not self.stopped:
                self.decision = decision
                self.stopped = decision.stop_train
            self.changed.notify_all()

    def refuse(self, report: Report, error: WattwiseError) -> None:
        """Notes that the server refused a measurement; the trainer's next call raises the error."""
        self.found()
        with self.changed:
            self._acknowledge(report)
            self._refusal = error
            self.changed.notify_all()

    def lost(self, cause: str) -> None:
        """Notes that the server does not answer, and warns of it if nobody has.

        Args:
            cause: a clause that names the server and what is wrong.
        """
        with self.changed:
            if self.away or self.over:
                return
            self.away = True
            self.changed.notify_all()
        level = logging.WARNING if self.first_to_warn() else logging.INFO
        log.log(level, "%s; training goes on, and the newest measurement is kept until the server is back", cause)

    def first_to_warn(self) -> bool:
        """Whether nobody has warned of the present outage yet; who is told so has to do it."""
        with self.changed:
            first, self._outage_is_known = not self._outage_is_known, True
            return first

    def found(self) -> None:
        """Notes that the server answers."""
        with self.changed:
            self._outage_is_known = False
            if not self.away:
                return
            self.away = False
            self.changed.notify_all()
        log.info("the Wattwise server at %s is back", self._address)

    def end(self, ending: Ending) -> None:
        """Notes that the trainer wants the trial to end; the first reason counts."""
        with self.changed:
            self.ending = self.ending or ending
            self.changed.notify_all()

    def finish(self) -> None:
        """Notes that nothing will be sent any more."""
        with self.changed:
            self.finished = True
            self.changed.notify_all()

    def wait_finished(self, timeout: float) -> bool:
        """Waits until nothing will be sent any more.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether that is so.
        """
        with self.changed:
            return self.changed.wait_for(lambda: self.finished, timeout)

    def _pass_on(self, warning: str) -> None:
        if warning and not self._has_warned:
            self._has_warned = True
            log.warning("%s", warning)

    def _settled(self, report: Report) -> bool:
        return self._answered >= report.number or self.over or self.away or self.finished

    def _acknowledge(self, report: Report) -> None:
        self._answered = max(self._answered, report.number)
        if self.newest is not None and self.newest.number <= report.number:
            self.newest = None

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
