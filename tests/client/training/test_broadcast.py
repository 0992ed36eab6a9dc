"""Ranks that are connected by other means than torch.distributed: three processes with pipes between them."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pytest
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.errors import InvalidArgumentError, WattwiseError, log
from wattwise.training.delivery import deliver_files
from wattwise.training.ranks import Ranks, _Outcome
from wattwise.training.spool import Spool

from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer

RANKS = 3
JOB_ID = "test-broadcast"


class Place(NamedTuple):
    """A rank, and its pipes: rank 0 has one to each other rank, the others have one to rank 0."""

    rank: int
    pipes: list[Connection]

    def broadcast(self, sent: Any) -> Any:
        """Rank 0's object, on every rank."""
        if self.rank:
            assert sent is None
            return self.pipes[0].recv()
        for pipe in self.pipes:
            pipe.send(sent)
        return sent


def joined(place: Place, address: str, **given: Any) -> BatchSizeOptimizer:
    """A training of this rank."""
    spec = job_spec(job_id=JOB_ID, policy="knowledge_gradient", max_epochs=2)
    # Rank 0 alone measures.
    monitor = None if place.rank else StepMonitor()
    arguments: dict[str, Any] = {"rank": place.rank, "world_size": RANKS, "broadcast": place.broadcast, "timeout": 1.0}
    return BatchSizeOptimizer(address, spec, monitor=monitor, **(arguments | given))


def trains(place: Place, address: str) -> list[Any]:
    """Attempts of which the third reaches the target; only rank 0 knows the metric."""
    bso, seen = joined(place, address), []
    for attempt in bso.attempts():
        metric = 0.0 if place.rank else 0.95 if attempt.number == 3 else 0.1
        epochs = []
        for epoch in attempt.epochs():
            epochs.append(epoch)
            attempt.on_evaluate(metric)
        info = attempt.trial
        seen.append((info.number, attempt.batch_size, attempt.seed_offset, info.world_size, epochs))
    return [*seen, bso.target_reached]


def falls_back(place: Place, address: str) -> list[Any]:
    """Attempts on the fallback, of which the second reaches the target."""
    bso, seen = joined(place, address, fallback=32, timeout=0.0), []
    for attempt in bso.attempts():
        for _ in attempt.epochs():
            attempt.on_evaluate(0.95 if attempt.number == 2 else 0.1)
        seen.append((attempt.trial.fallback, attempt.trial.number, attempt.batch_size, bso.last_epoch))
    bso.close()
    return [*seen, bso.target_reached]


def misses(place: Place, address: str) -> list[Any]:
    """Attempts that all miss."""
    try:
        for attempt in joined(place, address).attempts(max_tries=2):
            for _ in attempt.epochs():
                attempt.on_evaluate(0.1)
    except WattwiseError as error:
        return [type(error).__name__, str(error)]
    return []


def _allocate() -> None:
    raise MemoryError


def runs_out_of_memory(place: Place, address: str) -> list[Any]:
    """Rank 1 runs out of memory in the first attempt; the others leave the loop, and rank 0 ends last."""
    try:
        for attempt in joined(place, address).attempts():
            with attempt:
                if place.rank != 1:
                    break
                _allocate()
    except MemoryError:
        place.pipes[0].send("left")
        return ["MemoryError"]
    return [place.pipes[0].recv()] if place.rank == 0 else []


def has_a_wrong_broadcast(place: Place, address: str) -> list[Any]:
    """The function forgets to return what it received."""

    def broadcast(sent: Any) -> None:
        place.broadcast(sent)

    try:
        return [joined(place, address, broadcast=broadcast).get_batch_size()]
    except WattwiseError as error:
        return [type(error).__name__]


def _run(what: Callable[[Place, str], list[Any]], place: Place, address: str, results: Connection) -> None:
    results.send(what(place, address))


def on_all_ranks(what: Callable[[Place, str], list[Any]], address: str) -> list[list[Any]]:
    """The results of a function on every rank, by rank."""
    spawned = multiprocessing.get_context("spawn")
    ends = [spawned.Pipe() for _ in range(RANKS - 1)]
    places = [Place(0, [end for end, _ in ends]), *(Place(n + 1, [end]) for n, (_, end) in enumerate(ends))]
    results = [spawned.Pipe(duplex=False) for _ in places]
    processes = [
        spawned.Process(target=_run, args=(what, place, address, sender), daemon=True)
        for place, (_, sender) in zip(places, results, strict=True)
    ]
    for process, (_, sender) in zip(processes, results, strict=True):
        process.start()
        # A process that dies without a result then closes its pipe.
        sender.close()
    try:
        return [receiver.recv() for receiver, _ in results]
    finally:
        for process in processes:
            process.join(20)
            process.kill()


def all_trials(server: LiveServer) -> list[v1.Trial]:
    """The trials of the ranks, by number."""
    with Client(server.address) as client:
        return sorted(client.trials(JOB_ID), key=lambda trial: trial.id.trial_number)


def test_ranks_train_every_attempt_together(server: LiveServer) -> None:
    """All ranks get the batch size, the epochs and the end of every attempt from rank 0, which asks once for each."""
    first, *others = on_all_ranks(trains, server.address)
    assert others == [first, first]
    *attempts, reached = first
    assert reached
    found = all_trials(server)
    assert [(number, size) for number, size, *_ in attempts] == [(t.id.trial_number, t.batch_size) for t in found]
    assert [rest for _, _, *rest in attempts] == [[0, RANKS, [1, 2]], [1, RANKS, [1, 2]], [2, RANKS, [1]]]
    assert [trial.end_reason for trial in found] == [
        *[v1.END_REASON_MAX_EPOCHS] * 2,
        v1.END_REASON_TARGET_REACHED,
    ]


def test_misses_are_raised_on_all_ranks(server: LiveServer) -> None:
    """After the last attempt every rank raises the same error."""
    first, *others = on_all_ranks(misses, server.address)
    assert first[0] == "TrainFailError"
    assert others == [first, first]
    assert len(all_trials(server)) == 2


def test_fallback_on_all_ranks(server: LiveServer) -> None:
    """Rank 0 decides for all ranks that there is no server; every attempt is a trial once the server is back."""
    server.kill()
    first, *others = on_all_ranks(falls_back, server.address)
    assert others == [first, first]
    assert first == [(True, 0, 32, 2), (True, 0, 32, 1), True]
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0).delivered == 2
    assert [(trial.batch_size, trial.end_reason) for trial in all_trials(server)] == [
        (32, v1.END_REASON_MAX_EPOCHS),
        (32, v1.END_REASON_TARGET_REACHED),
    ]


def test_no_rank_hangs_when_there_is_no_server(server: LiveServer) -> None:
    """If rank 0 cannot reach the server, every rank raises the error."""
    server.stop()
    results = on_all_ranks(misses, server.address)
    assert [name for name, _ in results] == ["ServerUnavailableError"] * RANKS


def test_out_of_memory_on_one_rank(server: LiveServer) -> None:
    """A rank that runs out of memory leaves the loop, since the others may wait for it, and gives the end reason."""
    assert on_all_ranks(runs_out_of_memory, server.address) == [["left"], ["MemoryError"], []]
    assert [trial.end_reason for trial in all_trials(server)] == [v1.END_REASON_OUT_OF_MEMORY]


def test_broadcast_that_returns_nothing(server: LiveServer) -> None:
    """A function that does not return what it received is refused on the ranks that need it."""
    first, *others = on_all_ranks(has_a_wrong_broadcast, server.address)
    assert first == [16]
    assert others == [["TrainerSetupError"]] * (RANKS - 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_wait_without_known_ranks(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """A rank that waits in `broadcast` warns of the call; which ranks are missing is not known."""
    monkeypatch.setattr("wattwise.training.arrivals.WARN_SECONDS", 0.0)
    warned, warnings = threading.Event(), []

    def note(record: logging.LogRecord) -> bool:
        warnings.append(record.args)
        warned.set()
        return False

    def broadcast(sent: Any) -> Any:
        assert warned.wait(60)
        return sent or pickle.dumps(_Outcome(3))

    log.addFilter(note)
    try:
        assert Ranks(rank, 2, broadcast, given=True).on_first("on_evaluate", lambda: 3) == 3
    finally:
        log.removeFilter(note)
    assert warnings == [("on_evaluate",)]


@pytest.mark.thorough
def test_broadcast_fails_once_for_a_checkpoint(server: LiveServer) -> None:
    """A start that is repeated after a failed broadcast leaves no file in the spool once the trial is decided."""
    spec, failures = job_spec(), iter([True])

    def broadcast(sent: bytes | None) -> Any:
        if next(failures, False):
            raise ConnectionError
        return sent

    first = BatchSizeOptimizer(server.address, spec, monitor=StepMonitor())
    next(first.epochs())
    first.on_evaluate(0.1)
    state = first.state_dict()
    # Its end stays in the spool.
    server.kill()
    first.close("PREEMPTED")
    server.start()
    bso = BatchSizeOptimizer(server.address, spec, monitor=StepMonitor(), rank=0, world_size=2, broadcast=broadcast)
    bso.load_state_dict(state)
    with pytest.raises(ConnectionError):
        bso.get_batch_size()
    for _ in bso.epochs():
        bso.on_evaluate(0.95)
    bso.close()
    assert (bso.target_reached, list(Spool.from_env().paths())) == (True, [])


def test_single_rank_needs_no_broadcast(grpc_addr: str) -> None:
    """A launcher that starts one process needs no broadcast, and may reduce the metric."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor(), rank=0, world_size=1, reduce_metric="mean")
    for _ in bso.epochs():
        bso.on_evaluate(0.95)
    assert bso.target_reached


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rank": 0, "world_size": 2}, "got rank and world_size without broadcast:"),
        ({"rank": 0}, "got rank without world_size and broadcast:"),
        ({"world_size": 2, "broadcast": print}, "without rank:"),
        ({"broadcast": print}, "without rank and world_size:"),
        ({"rank": 2, "world_size": 2, "broadcast": print}, "rank=2 .* from 0 to world_size - 1 = 1"),
        ({"rank": -1, "world_size": 2, "broadcast": print}, "rank=-1"),
        ({"rank": 0, "world_size": 0, "broadcast": print}, "world_size=0 .* 1 or more"),
        ({"rank": True, "world_size": 2, "broadcast": print}, "rank=True"),
        ({"rank": "0", "world_size": 2, "broadcast": print}, "rank='0'"),
        ({"rank": 0, "world_size": 2, "broadcast": "mpi"}, "broadcast='mpi'"),
        ({"rank": 0, "world_size": 2, "broadcast": print, "reduce_metric": "mean"}, "reduce_metric='mean'"),
        ({"reduce_metric": ["mean"]}, "use one of first, mean"),
        ({"fallback": True}, "fallback=True .* 8, 16, 32, or 'default'"),
        ({"fallback": 64}, "fallback=64 .* 8, 16, 32, or 'default'"),
    ],
)
def test_invalid_ranks(given: dict[str, Any], named: str) -> None:
    """Arguments that are missing or do not fit together are refused at once, by name."""
    with pytest.raises(InvalidArgumentError, match=named):
        BatchSizeOptimizer("localhost:1", job_spec(), **given)
