"""A database that comes back without its newest writes, from a backup or a standby, under launches that go on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from wattwise import v1
from wattwise_server.store.sqlite.backup import backup, restore

from tests.faults.cluster import Cluster
from tests.faults.launches import Launches
from tests.live_server import LiveServer
from tests.postgres import PostgresServer
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spool of the launches."""
    folder = tmp_path / "spool"
    monkeypatch.setenv("WATTWISE_SPOOL", str(folder))
    return folder


def check_launches(address: str, spool: Path, save: Callable[[], None], lose: Callable[[], None]) -> None:
    """Lets launches run while all writes between `save` and `lose` are lost; no trial gets measurements of another."""
    with Launches(address, "test-lost-writes") as launches:
        known = launches.begin().train(2)
        save()
        known.train(2)
        young, gone = launches.begin().train(3), launches.begin()
        gone.reach()
        lose()
        other = launches.begin().train(1)
        assert other.number == young.number, "it would get the reports"
        for launch in (known, young, other):
            launch.train(1)
        for launch in (young, known, other):
            launch.reach()
        trials = launches.trials()
    assert trials.keys() == {known.launch_id, young.launch_id, other.launch_id}, "nobody has the one that ended"
    for launch in (known, young, other):
        trial, energy = trials[launch.launch_id]
        assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, launch.epochs)
        assert energy.items() <= launch.used(*range(1, launch.epochs + 1)).items()
    found = [trials[launch.launch_id].trial for launch in (known, young, other)]
    search, imported = v1.TRIAL_ORIGIN_SEARCH, v1.TRIAL_ORIGIN_IMPORTED
    assert [trial.origin for trial in found] == [search, imported, search]
    exploration, concurrent = v1.PRUNING_GTS_ROLE_EXPLORATION, v1.PRUNING_GTS_ROLE_CONCURRENT
    assert [trial.pruning_gts.role for trial in found if trial.origin == search] == [exploration, concurrent]
    assert list(trials[young.launch_id].energy) == [1, 2, 3, 4, 5], "all of it is delivered"
    assert list(spool.rglob("*.wattwise-trial")) == []


def test_older_file(server: LiveServer, tmp_path: Path, spool: Path) -> None:
    """A launch that a restored file does not know trains on, and is delivered as a trial of its own."""
    copy = tmp_path / "copy.db"

    def lose() -> None:
        server.stop()
        restore(copy, server.database, overwrite=True)
        server.start()

    check_launches(server.address, spool, lambda: backup(server.database, copy, overwrite=False), lose)


def test_older_dump(tmp_path: Path, postgres: PostgresServer, spool: Path) -> None:
    """So it is with a restored dump of a PostgreSQL."""
    url, dump = postgres.create_database(), tmp_path / "wattwise.dump"

    def run(program: str, *arguments: str) -> None:
        subprocess.run([str(postgres.binaries / program), *arguments], check=True, timeout=60)

    with LiveServer(tmp_path, url) as server:
        server.start()

        def lose() -> None:
            server.stop()
            server.url = postgres.create_database()
            run("pg_restore", "--exit-on-error", f"--dbname={server.url}", str(dump))
            server.start()

        check_launches(server.address, spool, lambda: run("pg_dump", "--format=custom", f"--file={dump}", url), lose)


def test_standby_that_is_behind(tmp_path: Path, postgres: PostgresServer, spool: Path) -> None:
    """So it is with an asynchronous standby, which lacks what the primary acknowledged last."""
    url = postgres.create_database()
    with postgres.standby() as standby:
        both = url.replace(postgres.host, f"{postgres.host},{standby.host}")

        def cut_off() -> None:
            caught_up = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
            wait_until(lambda: postgres.execute(caught_up) == [["t"]])
            standby.configure(primary_conninfo="")
            wait_until(lambda: postgres.execute("SELECT count(*) FROM pg_stat_replication") == [["0"]])

        def fail_over() -> None:
            postgres.kill()
            standby.promote()

        with Cluster(tmp_path, both, both) as cluster:
            check_launches(",".join(server.address for server in cluster.servers), spool, cut_off, fail_over)
