"""Several servers on one PostgreSQL against the model: any of them answers, and they and the database are killed.

`MODEL_SEED` sets the seed, 1 by default; `SOAK=short` shortens each part.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cluster import Cluster
from tests.faults.soak import number
from tests.live_server import LiveServer
from tests.model.calls import Calls, stripped
from tests.model.chaos import Agent, Audit, Ledger
from tests.model.jobs import random_spec
from tests.model.test_model import overdue
from tests.model.walker import LEASE, Gate, Twins, Walker, settle
from tests.postgres import PostgresServer
from tests.waiting import wait_until

SECONDS = number(240, short=20)
JOBS = 10
SEED = int(os.environ.get("MODEL_SEED", "1"))

_LATE = 5.0
"""A server may be killed after it has claimed a lease that has expired: then another one gives the trial up."""

_WITH_DATABASE = 0.15
"""How often the database is killed instead of a server."""


class Pair:
    """Two servers and their PostgreSQL."""

    def __init__(self, cluster: Cluster, postgres: PostgresServer) -> None:
        self.cluster = cluster
        self.postgres = postgres
        self.kills = 0

    def calls(self) -> Calls:
        """Calls of both."""
        return Calls(*(server.address for server in self.cluster.servers))

    def kill(self, rng: random.Random) -> bool:
        """Kills and restarts one of the three; returns whether it was the database."""
        self.kills += 1
        if rng.random() < _WITH_DATABASE:
            self.postgres.kill()
            self.postgres.start()
            return True
        server = rng.choice(self.cluster.servers)
        server.kill()
        server.start()
        return False

    def bugs(self) -> list[str]:
        """What the logs have of errors that nobody expected."""
        logs = [server.log.read_text(errors="replace").splitlines() for server in self.cluster.servers]
        return [line[:300] for log in logs for line in log if re.search(r"internal error|Traceback", line)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two servers on a PostgreSQL of their own."""
    with PostgresServer.running() as postgres:
        url = postgres.create_database()
        with Cluster(tmp_path, url, url) as cluster:
            yield Pair(cluster, postgres)


def walk(pair: Pair, calls: Callable[[], Any], leases: list[float], seed: int, seconds: float) -> list[str]:
    """Lets one walker per lease make calls while the servers and the database are killed; returns what failed."""
    rng, gate = random.Random(seed), Gate()
    walkers = [Walker(calls(), gate, random.Random(rng.getrandbits(64)), lease, _LATE) for lease in leases]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=walker.run, args=(until,), daemon=True) for walker in walkers]
    for thread in threads:
        thread.start()
    while time.monotonic() < until and not any(walker.failure for walker in walkers):
        time.sleep(rng.uniform(0.5, 4))
        with gate.alone():
            settle(*walkers)
            if pair.kill(rng):
                for trial in (trial for walker in walkers for trial in walker.oracle.trials if trial.running):
                    # If that took long, its lease has begun again.
                    trial.hi = time.monotonic()
    for thread in threads:
        thread.join(60)
    assert sum(walker.made.total() for walker in walkers) > seconds
    return [walker.failure for walker in walkers if walker.failure] + pair.bugs()


@pytest.mark.thorough
def test_a_few_answers_are_the_models(pair: Pair) -> None:
    """Random calls to two servers that are killed now and then get the answers of the contract."""
    failed = walk(pair, pair.calls, [0.0] * 4, SEED, seconds=8)
    assert not failed, f"seed {SEED}:\n{failed[0]}"


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_every_answer_is_the_models(pair: Pair) -> None:
    """So they do for long, and across leases that expire."""
    failed = walk(pair, pair.calls, [LEASE if job % 3 == 2 else 0.0 for job in range(JOBS)], SEED + 1, SECONDS)
    assert not failed, f"seed {SEED}:\n{failed[0]}"


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_two_servers_answer_as_one_on_a_file(pair: Pair, server: LiveServer) -> None:
    """The same calls get equal answers to the last bit, the bandit's draws among them."""
    failed = walk(pair, lambda: Twins(pair.calls(), Calls(server.address)), [0.0] * JOBS, SEED + 1000, SECONDS)
    assert not failed, f"seed {SEED}:\n{failed[0]}"


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_acknowledged_is_lost_in_chaos(pair: Pair) -> None:
    """Threads share jobs while servers and the database are killed every second; at rest every invariant holds."""
    rng, until = random.Random(SEED + 2000), time.monotonic() + SECONDS
    while time.monotonic() < until:
        calls = pair.calls()
        specs = [random_spec(rng, rng.choice([0.0, 0.0, 2.0]), seeded=False) for _ in range(JOBS)]
        ledgers = [Ledger(calls.register(spec).job.spec) for spec in specs]
        agents = [Agent(pair.calls(), ledgers, rng.getrandbits(64)) for _ in range(8)]
        run(pair, agents, rng, min(until, time.monotonic() + 40))
        failed = [agent.failure for agent in agents if agent.failure]
        failed += [problem for ledger in ledgers for problem in Audit(calls, ledger).run()]
        wait_until(lambda: not any(overdue(calls, ledger) for ledger in ledgers), seconds=15)  # noqa: B023
        before = {ledger.spec.job_id: stripped(calls.job(ledger.spec.job_id)) for ledger in ledgers}
        pair.kill(rng)
        failed += [f"a restart changed {job}" for job, was in before.items() if stripped(calls.job(job)) != was]
        assert not failed, f"seed {SEED}:\n{failed[0]}"
    assert not pair.bugs()


def run(pair: Pair, agents: list[Agent], rng: random.Random, until: float) -> None:
    """Lets the agents call while the servers and the database are killed again and again."""
    stop = threading.Event()
    threads = [threading.Thread(target=agent.run, args=(stop,), daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.05, 2.5))
        pair.kill(rng)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
