"""Streams that neither work nor break."""

from __future__ import annotations

import math
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from wattwise import Client, v1
from wattwise.errors import WattwiseError, log
from wattwise.rpc.connection import DecisionStream
from wattwise.training.exchange import Ending, Exchange
from wattwise.training.journal import Journal
from wattwise.training.stream import ResultStream

from tests.client.rpc.middlebox import Middlebox
from tests.client.training.script import begun, record_of
from tests.live_server import LiveServer
from tests.waiting import wait_until
from tests.watched import WatchedServer

TRIAL = v1.TrialId(job_id="test-stream", launch_id="l", trial_number=1)

NO_STREAMS = bytes.fromhex("000006040000000000000300000000000000040100000000")
"""HTTP/2: settings that allow no streams, and the acknowledgement of the client's. A call waits, and does not fail."""


class Busy(socketserver.BaseRequestHandler):
    """Lets every call wait."""

    def handle(self) -> None:
        """Serves a connection."""
        self.request.sendall(NO_STREAMS)
        while self.request.recv(4096):
            pass


@pytest.fixture
def busy() -> Iterator[str]:
    """The address of a server that lets every call wait."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Busy) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        yield "{}:{}".format(*server.server_address)
        server.shutdown()


def exchange_with(address: str) -> Exchange:
    """Returns the exchange of a trial."""
    return Exchange(address, Journal(record_of(address, v1.Trial(id=TRIAL))))


def talk(address: str, exchange: Exchange, timeout: float, meanwhile: Callable[[], object] = lambda: None) -> object:
    """Returns the error with which a stream ends by itself."""
    stream = ResultStream(exchange, TRIAL, timeout)
    with ThreadPoolExecutor(1) as pool, Client(address, retry=False) as client:
        ended = pool.submit(stream.talk, client)
        meanwhile()
        return ended.exception(20)


def test_stream_that_never_starts(busy: str) -> None:
    """A call of which gRPC sends nothing is given up after the timeout."""
    assert isinstance(talk(busy, exchange_with(busy), 0.5), WattwiseError)


def test_stream_that_never_starts_does_not_outlast_the_trial(busy: str) -> None:
    """Such a call is left when the trial is over, however long the timeout."""
    exchange = exchange_with(busy)
    ending = Ending(v1.END_REASON_COMPLETED, math.inf)
    error = talk(busy, exchange, math.inf, meanwhile=lambda: exchange.close(ending))
    assert error is None


def test_stream_that_cannot_be_cancelled(busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that gRPC never ends is given up, too."""
    monkeypatch.setattr(DecisionStream, "cancel", lambda _: None)
    assert isinstance(talk(busy, exchange_with(busy), 0.5), WattwiseError)


def test_stream_that_nobody_answers(server: LiveServer) -> None:
    """A stream that takes a measurement and does not answer it is given up after the timeout."""
    with Middlebox(server.address, messages_per_stream=1, drops="StreamResults") as box:
        exchange = exchange_with(box.address)
        exchange.post(v1.TrainingResult(trial=TRIAL, measurement=v1.Measurement(metric=0.1, epoch=1)))
        assert isinstance(talk(box.address, exchange, 0.5), WattwiseError)


class LateAnswer:
    """A client whose stream answers one measurement and ends."""

    def __init__(self) -> None:
        self.sent: list[v1.StreamResultsRequest] = []

    def stream_results(self, requests: Iterator[v1.StreamResultsRequest]) -> LateAnswer:
        """Starts the stream."""
        threading.Thread(target=lambda: self.sent.extend(requests), daemon=True).start()
        return self

    def __iter__(self) -> Iterator[v1.Decision]:
        wait_until(lambda: bool(self.sent))
        yield v1.Decision(last_epoch=1)

    def cancel(self) -> None:
        """Does nothing: the stream ends by itself."""


def test_measurement_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement is not sent again while its answer, which comes late, is being taken."""
    exchange = exchange_with("localhost:50051")
    exchange.beat_seconds = math.inf
    exchange.post(v1.TrainingResult(trial=TRIAL, measurement=v1.Measurement(metric=0.1, epoch=1)))
    exchange.mark_unreachable("it is away")
    # The end of the outage wakes whoever sends, before the measurement is acknowledged.
    monkeypatch.setattr(log, "info", lambda *_: time.sleep(0.2))
    client = LateAnswer()
    ResultStream(exchange, TRIAL, 10.0).talk(cast("Client", client))
    assert not exchange.pending
    assert len(client.sent) == 1


@pytest.mark.parametrize("metric", [0.95, 0.1])
def test_stream_of_a_training_that_ends_well(tmp_path: Path, metric: float) -> None:
    """The server ends the stream of a trial that is over, whether it or the trainer has ended it."""
    with WatchedServer(tmp_path) as server:
        server.start()
        bso = begun(server.address)
        bso.on_evaluate(metric)
        bso.close()
        wait_until(lambda: server.figure("wattwise_open_streams") == 0)
        assert server.figure("wattwise_calls_total", method="StreamResults", code="OK") == 1


def test_trial_is_reported_on_the_connection_that_began_it(server: LiveServer) -> None:
    """A trial opens no second connection, for which the server's name would be resolved beside the training."""
    bso = begun(server.address)
    bso.on_evaluate(0.95)
    bso.close()
    log_of_trial = [line for line in server.log.read_text().splitlines() if " trial=1 " in line]
    assert {"GetNextBatchSize"} < set(re.findall(r"method=(\w+)", "".join(log_of_trial)))
    assert len(set(re.findall(r"peer=(\S+)", "".join(log_of_trial)))) == 1
