"""Servers on one PostgreSQL, the database and the way between them fail under load; what is stored is audited."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cluster import Cluster, Pupil, audit, make_load, through_proxy
from tests.faults.load import Load
from tests.faults.soak import number
from tests.postgres import PostgresServer
from tests.stalling_proxy import StallingProxy

pytestmark = pytest.mark.thorough


def test_a_server_is_killed(cluster: Cluster) -> None:
    """The callers of a killed server go on with the others; nothing acknowledged is lost, and nothing is done twice."""
    load, rng = make_load(cluster)
    with load.running():
        for server in cluster.servers[:2]:
            load.ledger.wait_for(100)
            server.kill()
            load.ledger.wait_for(100)
            server.start()
            audit(cluster, load, rng)
        load.ledger.wait_for(100)
    assert cluster.check_at_end(load.ledger) > 0


def test_the_database_is_killed(cluster: Cluster, postgres: PostgresServer) -> None:
    """Calls are refused while the database is away, and go on when it is back; nothing acknowledged is lost."""
    load, rng = make_load(cluster)
    pupil = Pupil(load, cluster.servers[0].trainer)
    with load.running():
        load.ledger.wait_for(100)
        postgres.kill()
        pupil.check_refused(cluster.servers)
        postgres.start()
        load.ledger.wait_for(100)
        audit(cluster, load, rng)
        load.ledger.wait_for(100)
    assert cluster.check_at_end(load.ledger) > 0


def test_a_standby_takes_over(tmp_path: Path, postgres: PostgresServer) -> None:
    """When the primary dies the servers find its synchronous standby; no report is lost, and no trial's lease ends."""
    url = postgres.create_database()
    with postgres.standby() as standby:
        postgres.make_synchronous()
        both = url.replace(postgres.host, f"{postgres.host},{standby.host}")
        with Cluster(tmp_path, both, both) as cluster:
            load, rng = make_load(cluster)
            leased = Pupil(load, cluster.servers[0].trainer, trial_lease_seconds=6)
            with load.running():
                load.ledger.wait_for(100)
                postgres.kill()
                # Until then the standby refuses to write.
                leased.check_refused(cluster.servers)
                standby.promote()
                leased.insist()
                load.ledger.wait_for(100)
                leased.insist()
                audit(cluster, load, rng)
                load.ledger.wait_for(100)
            assert cluster.num_lost() == 0
            assert cluster.check_at_end(load.ledger) > 0


class Trouble:
    """What happens to servers and their database during a load; afterwards they run again.

    Attributes:
        counts: How often what happened.
    """

    def __init__(self, cluster: Cluster, postgres: PostgresServer, proxy: StallingProxy, load: Load) -> None:
        self._cluster = cluster
        self._postgres = postgres
        self._proxy = proxy
        self._load = load
        self._random = random.Random(load.seed)
        self.counts: Counter[str] = Counter()

    def kill(self) -> None:
        """Kills a server, or the database."""
        self._do(*self._random.choices((self._kill_a_server, self._kill_database, self._stop_database), (7, 2, 1)))

    def disturb(self) -> None:
        """Does something that leaves all processes alive."""
        self._do(self._random.choice((self._end_commits, self._suspend_a_server, self._cut_off_a_server)))

    def _do(self, what: Callable[[], None]) -> None:
        self.counts[what.__name__.strip("_").replace("_", " ")] += 1
        self._load.ledger.wait_for(self._random.randint(1, 300))
        what()

    def _kill_a_server(self) -> None:
        server = self._random.choice(self._cluster.servers)
        server.kill()
        self._load.ledger.wait_for(self._random.randint(1, 100))
        server.start()

    def _kill_database(self) -> None:
        self._postgres.kill()
        self._postgres.start()

    def _stop_database(self) -> None:
        self._postgres.stop(immediately=self._random.random() < 0.5)
        self._postgres.start()

    def _end_commits(self) -> None:
        """Ends the connections on which commits are under way."""
        ended = 0
        while ended < 3:
            ended += self._postgres.terminate_backends("state = 'active' AND query LIKE 'SELECT pg_temp.save(%'")

    def _suspend_a_server(self) -> None:
        with self._cluster.suspended(self._random.choice(self._cluster.servers)):
            self._load.ledger.wait_for(self._random.randint(1, 200))

    def _cut_off_a_server(self) -> None:
        with self._cluster.without(self._cluster.servers[0]):
            self._proxy.stall()
            self._load.ledger.wait_for(self._random.randint(1, 200))
            self._proxy.refuse()
            self._proxy.cut()
            self._load.ledger.wait_for(self._random.randint(1, 50))
        self._proxy.flow()
        self._proxy.accept()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_kills(tmp_path: Path, postgres: PostgresServer) -> None:
    """Nothing acknowledged is lost, nothing is done twice, and no number is left out, whatever is killed or cut off."""
    with through_proxy(tmp_path, postgres) as (proxy, cluster):
        load, rng = make_load(cluster, workers=24)
        trouble = Trouble(cluster, postgres, proxy, load)
        with load.running():
            for _ in range(number(100, short=10)):
                trouble.kill()
                if rng.random() < 0.3:
                    trouble.disturb()
                audit(cluster, load, rng)
            load.ledger.wait_for(100)
        replayed = cluster.check_at_end(load.ledger)
    happened = ", ".join(f"{what}: {times}" for what, times in sorted(trouble.counts.items()))
    calls = load.ledger.acknowledged
    sys.stdout.write(f"{happened}; {calls} calls, {replayed} replayed: 0 lost, 0 doubled, 0 gaps\n")
