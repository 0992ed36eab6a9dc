"""The server against the model: random calls and kills, one trainer at a time, two servers at once, and in chaos.

`MODEL_SEED` sets the seed, 1 by default; `SOAK=short` shortens each part.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from wattwise import v1

from tests.faults.soak import number
from tests.jobs import GPU, policy_message
from tests.live_server import LiveServer
from tests.model.calls import Calls, stripped
from tests.model.chaos import Agent, Audit, Ledger
from tests.model.jobs import random_spec
from tests.model.oracle import END, REASON
from tests.model.walker import LEASE, Gate, Twins, Walker, settle
from tests.waiting import wait_until

SECONDS = number(240, short=40)
JOBS = 10
SEED = int(os.environ.get("MODEL_SEED", "1"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 300)]


def bugs(server: LiveServer) -> list[str]:
    """What the log has of errors that nobody expected, and what is wrong with the file; the server must be stopped."""
    lines = server.log.read_text(errors="replace").splitlines()
    found = [line[:300] for line in lines if re.search(r"internal error|Traceback", line)]
    with closing(sqlite3.connect(server.database)) as connection:
        found += [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        found += [f"foreign key {row}" for row in connection.execute("PRAGMA foreign_key_check")]
    return found


def restart(server: LiveServer, how: signal.Signals = signal.SIGKILL) -> None:
    """Ends the server and starts it again."""
    if how == signal.SIGKILL:
        server.kill()
    else:
        server.stop()
    server.start()


def walk(server: LiveServer, calls: Callable[[], Any], leases: list[float], seed: int) -> list[str]:
    """Lets one walker per lease make calls while the server is killed and restarted; returns what failed."""
    rng, gate = random.Random(seed), Gate()
    walkers = [Walker(calls(), gate, random.Random(rng.getrandbits(64)), lease) for lease in leases]
    until = time.monotonic() + SECONDS
    threads = [threading.Thread(target=walker.run, args=(until,), daemon=True) for walker in walkers]
    for thread in threads:
        thread.start()
    while time.monotonic() < until and not any(walker.failure for walker in walkers):
        time.sleep(rng.uniform(0.5, 4))
        with gate.alone():
            settle(*walkers)
            killed = time.monotonic()
            restart(server, rng.choice([signal.SIGKILL] * 4 + [signal.SIGTERM]))
            for trial in (trial for walker in walkers for trial in walker.oracle.trials if trial.running):
                trial.lo, trial.hi = killed, time.monotonic()
    for thread in threads:
        thread.join(60)
    assert sum(walker.made.total() for walker in walkers) > SECONDS
    server.stop()
    return [walker.failure for walker in walkers if walker.failure] + bugs(server)


def test_every_answer_is_the_models(tmp_path: Path) -> None:
    """Random calls get the answers of the contract, across leases that expire and a server that is killed."""
    with LiveServer(tmp_path) as server:
        server.start()
        leases = [LEASE if job % 3 == 2 else 0.0 for job in range(JOBS)]
        failed = walk(server, lambda: Calls(server.address), leases, SEED)
        assert not failed, f"seed {SEED}:\n{failed[0]}"


def test_a_server_that_is_killed_answers_as_one_that_is_not(tmp_path: Path) -> None:
    """The same calls on both get equal answers to the last bit, the bandit's draws among them."""
    for folder in (tmp_path / "killed", tmp_path / "steady"):
        folder.mkdir()
    with LiveServer(tmp_path / "killed") as killed, LiveServer(tmp_path / "steady") as steady:
        killed.start()
        steady.start()
        failed = walk(killed, lambda: Twins(Calls(killed.address), Calls(steady.address)), [0.0] * JOBS, SEED + 1000)
        assert not failed, f"seed {SEED}:\n{failed[0]}"


def test_nothing_acknowledged_is_lost_in_chaos(tmp_path: Path) -> None:
    """Threads share jobs and the server is killed about every second; at rest every invariant holds."""
    rng, until = random.Random(SEED + 2000), time.monotonic() + SECONDS
    with LiveServer(tmp_path) as server:
        server.start()
        while time.monotonic() < until:
            first = Calls(server.address)
            specs = [random_spec(rng, rng.choice([0.0, 0.0, 2.0]), seeded=False) for _ in range(JOBS)]
            ledgers = [Ledger(first.register(spec).job.spec) for spec in specs]
            agents = [Agent(Calls(server.address), ledgers, rng.getrandbits(64)) for _ in range(8)]
            run(server, agents, rng, min(until, time.monotonic() + 40))
            failed = [agent.failure for agent in agents if agent.failure]
            calls = Calls(server.address)
            failed += [problem for ledger in ledgers for problem in Audit(calls, ledger).run()]
            wait_until(lambda: not any(overdue(calls, ledger) for ledger in ledgers), seconds=10)  # noqa: B023
            before = {ledger.spec.job_id: stripped(calls.job(ledger.spec.job_id)) for ledger in ledgers}
            restart(server)
            failed += [f"a restart changed {job}" for job, was in before.items() if stripped(calls.job(job)) != was]
            assert not failed, f"seed {SEED}:\n{failed[0]}"
        server.stop()
        assert not bugs(server)


def run(server: LiveServer, agents: list[Agent], rng: random.Random, until: float) -> None:
    """Lets the agents call while the server is killed again and again."""
    stop = threading.Event()
    threads = [threading.Thread(target=agent.run, args=(stop,), daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.05, 2.5))
        restart(server)
    stop.set()
    for thread in threads:
        thread.join(40)


def overdue(calls: Calls, ledger: Ledger) -> bool:
    """Whether a trial of a job with leases is still running although no trainer reports any more."""
    leased = ledger.spec.trial_lease_seconds > 0
    return leased and any(trial.status == v1.TRIAL_STATUS_RUNNING for trial in calls.trials(ledger.spec.job_id))


@pytest.mark.parametrize(("reason", "most"), [("ERROR", 3), ("OUT_OF_MEMORY", 2)])
def test_trials_that_hang_and_crash_later_count(server: LiveServer, reason: str, most: int) -> None:
    """A batch size whose trials are lost and ended late by their trainers is not explored more often than otherwise."""
    calls = Calls(server.address)
    spec = hanging(f"d-{reason}")
    calls.register(spec)
    explored: list[v1.TrialId] = []
    while (trial := calls.next(spec.job_id).trial).batch_size == 8:
        if explored:
            calls.end(explored[-1], END[reason])
        explored.append(trial.id)
        wait_until(lambda: REASON[calls.trial(trial.id).trial.end_reason] == "LOST", seconds=10)
    assert len(explored) <= most


def test_an_exploration_that_returns_every_time_has_not_failed(server: LiveServer) -> None:
    """It may be lost and revived any number of times."""
    calls = Calls(server.address)
    spec = hanging("d-revived")
    calls.register(spec)
    trial = calls.next(spec.job_id).trial.id
    for _ in range(4):
        wait_until(lambda: REASON[calls.trial(trial).trial.end_reason] == "LOST", seconds=10)
        assert not calls.beat(trial).stop_train
    calls.report(
        v1.TrainingResult(trial=trial, measurement=v1.Measurement(epoch=1, time_seconds=1, energy_joules=1, metric=1))
    )
    assert list(calls.job(spec.job_id).job.available_batch_sizes) == [4, 8, 16]
    assert calls.next(spec.job_id).trial.batch_size == 4


def hanging(job_id: str) -> v1.JobSpec:
    """A job whose leases are short."""
    return v1.JobSpec(
        job_id=job_id,
        job_id_prefix="d",
        batch_sizes=[4, 8, 16],
        default_batch_size=8,
        target=v1.Target(value=0.5, direction=v1.DIRECTION_HIGHER_IS_BETTER),
        trial_lease_seconds=1,
        policy=policy_message("pruning_gts"),
        gpus=[GPU],
    )
