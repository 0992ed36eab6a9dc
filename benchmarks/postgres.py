"""Servers on a PostgreSQL, beside one on a file: what a call costs, what two servers cost each other, and outages."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc
from prometheus_client.parser import text_string_to_metric_families
from wattwise import v1

from benchmarks import jobs
from benchmarks.crowd import Caller, rate, two_trials_each, unary_callers
from benchmarks.figures import Figure, Samples, ratio
from benchmarks.processes import client, echo_server, processor_seconds, wattwise_server
from tests.live_server import CHANNEL_OPTIONS
from tests.people import PeopleStub
from tests.ports import hold_port, port_of
from tests.postgres import PostgresServer

_TRIALS = 16
_PUSHES = 30
_LEASES = 5
_SECONDS = 3.0

_NO_NOTIFY = """
CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT';
ALTER DATABASE {} SET search_path = public, pg_catalog
"""
"""Servers that connect from now on lose all notices."""


class Server(NamedTuple):
    """One Wattwise server."""

    address: str
    process: subprocess.Popen[str]
    metrics: str

    def figure(self, name: str) -> float:
        """Returns a counter."""
        with urllib.request.urlopen(self.metrics, timeout=10) as answer:  # noqa: S310 - it is http
            families = text_string_to_metric_families(answer.read().decode())
        return sum(each.value for family in families for each in family.samples if each.name == name)


@contextmanager
def servers_on(url: str, count: int) -> Iterator[Sequence[Server]]:
    """Servers on one database."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            metrics = f"127.0.0.1:{port_of(stack.enter_context(hold_port()))}"
            address, process = stack.enter_context(wattwise_server(url, "--metrics-address", metrics))
            found.append(Server(address, process, f"http://{metrics}/metrics"))
        yield found


def measure(args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    """Yields the targets of a shared database."""
    # PostgreSQL may run as another user.
    folder.chmod(0o755)
    with PostgresServer.running(folder) as database, echo_server() as (echo, _):
        with (
            servers_on(database.create_database(), 1) as (server,),
            wattwise_server(folder / "beside.db") as (file, file_process),
        ):
            yield from _calls(args, samples, echo, server.address, database.create_database())
            used = samples["postgres: CPU"] = {
                "PostgreSQL": _processor_times(server.address, server.process, args.rounds),
                "SQLite": _processor_times(file, file_process, args.rounds),
            }
            share = ratio(used, "PostgreSQL", lambda baseline: baseline["SQLite"])
            yield Figure("server CPU per report, 64 callers ÷ the same on SQLite", share, 1.3)
        commit = median(samples["postgres: one caller"]["commit"])
        with servers_on(database.create_database(), 2) as (one, other):
            reports, tries = asyncio.run(_shared_job(one, other))
            name = f"one job, {_TRIALS} trials that alternate between two servers"
            yield Figure(f"{name}, reports", reports, 300, at_least=True, unit="/s")
            yield Figure(f"{name}, tries per call", tries, 3)
            pushes = samples["postgres: pushes"] = {"push": _pushes(one, other, _PUSHES)}
            yield Figure("push to a stream of another server ÷ commits", median(pushes["push"]) / commit, 3)
            noticed = samples["postgres: leases"] = {"noticed": [_lease(one, other) for _ in range(_LEASES)]}
            yield Figure("an expired lease is noticed within", max(noticed["noticed"]), 2, unit="s")
        silent = database.create_database()
        database.execute(_NO_NOTIFY.format(silent.rpartition("/")[2]), silent.rpartition("/")[2])
        with servers_on(silent, 2) as (one, other):
            pushes["polled"] = _pushes(one, other, _PUSHES // 3)
            yield Figure("the same where every NOTIFY is lost", max(pushes["polled"]), 1.5, unit="s")
    yield from _failover(folder)


def _calls(
    args: argparse.Namespace, samples: dict[str, Samples], echo: str, server: str, beside: str
) -> Iterator[Figure]:
    one = client("one_caller", echo=echo, server=server, database=beside, rounds=args.rounds)
    samples["postgres: one caller"] = one
    report = ratio(one, "report", lambda baseline: baseline["echo"] + baseline["commit"])
    yield Figure("PostgreSQL: ReportResult, one caller ÷ (echo + commit)", report, 1.25)
    trial = ratio(one, "trial", lambda baseline: 7 * (baseline["echo"] + baseline["commit"]))
    yield Figure("PostgreSQL: whole trial (7 calls), one caller ÷ 7 (echo + commit)", trial, 1.5)
    crowd = samples["postgres: crowd"] = client("crowd", echo=echo, server=server, rounds=args.rounds)
    calls = ratio(crowd, "report", lambda baseline: baseline["echo"])
    yield Figure("PostgreSQL: ReportResult, 64 callers, calls a second ÷ echo's", calls, 0.6, at_least=True)
    messages = ratio(crowd, "stream", lambda baseline: baseline["echo_stream"])
    yield Figure("PostgreSQL: StreamResults, 64 streams, messages a second ÷ echo's", messages, 0.4, at_least=True)


def _processor_times(address: str, process: subprocess.Popen[str], rounds: int) -> list[float]:
    """Returns the CPU time of the server per report of 64 callers, in seconds."""
    trials = two_trials_each(address)

    async def measure() -> list[float]:
        async with grpc.aio.insecure_channel(address) as channel:
            callers = unary_callers(channel, trials[: len(trials) // 2])
            found = []
            for _ in range(rounds):
                before = processor_seconds(process)
                calls = await rate(callers, _SECONDS) * _SECONDS
                found.append((processor_seconds(process) - before) / calls)
            return found

    return asyncio.run(measure())


async def _shared_job(one: Server, other: Server) -> tuple[float, float]:
    """Reports per second of trials that each report to either server in turn, and how often a call was tried."""
    with grpc.insecure_channel(one.address) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)
        job_id = jobs.register(stub).job_id
        trials = [jobs.next_trial(stub, job_id) for _ in range(_TRIALS)]
    async with grpc.aio.insecure_channel(one.address) as first, grpc.aio.insecure_channel(other.address) as second:
        stubs: list[Any] = [v1.BatchSizeOptimizerStub(first), v1.BatchSizeOptimizerStub(second)]

        def caller(place: int, trial: v1.Trial) -> Caller:
            epochs, turns = jobs.reports(trial), itertools.cycle([stubs[place % 2], stubs[1 - place % 2]])
            return lambda: next(turns).ReportResult(next(epochs), timeout=60)

        callers = [caller(place, trial) for place, trial in enumerate(trials)]
        await rate(callers, 0.5)
        before = one.figure("wattwise_conflicts_total") + other.figure("wattwise_conflicts_total")
        found = await rate(callers, 2 * _SECONDS)
        conflicts = one.figure("wattwise_conflicts_total") + other.figure("wattwise_conflicts_total") - before
    return found, 1 + conflicts / (found * 2 * _SECONDS)


def _pushes(one: Server, other: Server, count: int) -> list[float]:
    """Seconds from the answer of one server to the call that ends a trial, until the other server's stream knows."""
    found = []
    with grpc.insecure_channel(one.address) as first, grpc.insecure_channel(other.address) as second:
        stub, admin = v1.BatchSizeOptimizerStub(first), PeopleStub(first)
        for _ in range(count):
            job_id = jobs.register(stub).job_id
            trial = jobs.next_trial(stub, job_id)
            first_report = v1.StreamResultsRequest(result=jobs.result(trial, 1, 0.1))
            stream = v1.BatchSizeOptimizerStub(second).StreamResults(_held_open(first_report), timeout=60)
            next(stream)
            admin.DeleteJob(v1.DeleteJobRequest(job_id=job_id), timeout=60)
            answered = time.perf_counter()
            next(stream)
            found.append(time.perf_counter() - answered)
            stream.cancel()
    return found


def _held_open(request: v1.StreamResultsRequest) -> Iterator[v1.StreamResultsRequest]:
    yield request
    time.sleep(30)


def _lease(one: Server, other: Server) -> float:
    """Seconds from the end of a lease until the other server calls the trial lost."""
    with grpc.insecure_channel(one.address) as first, grpc.insecure_channel(other.address) as second:
        stub, admin = v1.BatchSizeOptimizerStub(first), PeopleStub(second)
        trial = jobs.next_trial(stub, jobs.register(stub, trial_lease_seconds=1).job_id)
        while (known := admin.GetTrial(v1.GetTrialRequest(trial=trial.id), timeout=60).trial).HasField(
            "lease_expire_time"
        ):
            expires = known.lease_expire_time.ToNanoseconds() / 1e9
            time.sleep(0.01)
        return max(0.0, time.time() - expires)


def _failover(folder: Path) -> Iterator[Figure]:
    """Kills the primary under load, and promotes its synchronous standby."""
    with PostgresServer.running(folder) as primary, primary.standby() as standby:
        primary.make_synchronous()
        user, _, name = primary.create_database().rpartition(primary.host)
        with servers_on(f"{user}{primary.host},{standby.host}{name}", 2) as servers:
            callers = asyncio.run(_ride_through(servers, primary, standby))
            with grpc.insecure_channel(servers[0].address) as channel:
                reader = v1.JobReaderStub(channel)
                ids = [caller.trial.id for caller in callers]
                found = [reader.GetTrial(v1.GetTrialRequest(trial=trial), timeout=60) for trial in ids]
                requests = [v1.ListMeasurementsRequest(trial=trial, page_size=10_000) for trial in ids]
                pages = [reader.ListMeasurements(request, timeout=60) for request in requests]
    stored = [{each.epoch for each in page.measurements} for page in pages]
    lost = sum(len(caller.acknowledged - epochs) for caller, epochs in zip(callers, stored, strict=True))
    ended = sum(not answer.trial.HasField("lease_expire_time") for answer in found)
    reports = sum(len(caller.acknowledged) for caller in callers)
    yield Figure(f"failover: of {reports} acknowledged reports, lost", lost, 0)
    yield Figure(f"failover: of {len(callers)} running trials, lost", ended, 0)
    yield Figure("failover: the longest wait for an answer", max(caller.waited for caller in callers), unit="s")


class _Persistent:
    """A caller that repeats a report, to either server, until it is acknowledged."""

    def __init__(self, trial: v1.Trial) -> None:
        self.trial = trial
        self.acknowledged: set[int] = set()
        self.waited = 0.0

    async def call(self, stubs: Sequence[Any], over: asyncio.Event) -> None:
        """Reports until it is over."""
        turns = itertools.cycle(stubs)
        for request in jobs.reports(self.trial):
            start = time.perf_counter()
            while not over.is_set():
                try:
                    await next(turns).ReportResult(request, timeout=5)
                except grpc.aio.AioRpcError:  # noqa: PERF203 - repeats it
                    await asyncio.sleep(0.1)
                else:
                    self.acknowledged.add(request.result.measurement.epoch)
                    self.waited = max(self.waited, time.perf_counter() - start)
                    break
            if over.is_set():
                return


async def _ride_through(
    servers: Sequence[Server], primary: PostgresServer, standby: PostgresServer
) -> list[_Persistent]:
    with grpc.insecure_channel(servers[0].address) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)
        callers = [_Persistent(jobs.next_trial(stub, jobs.register(stub).job_id)) for _ in range(_TRIALS)]
    over = asyncio.Event()
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(server.address, CHANNEL_OPTIONS))
            for server in servers
        ]
        stubs = [v1.BatchSizeOptimizerStub(channel) for channel in channels]
        calling = asyncio.gather(*(caller.call(stubs, over) for caller in callers))
        await asyncio.sleep(_SECONDS)
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(standby.promote)
        # The last thing that anybody acknowledged must be of the new primary.
        await asyncio.sleep(3 * _SECONDS)
        over.set()
        await calling
    return callers
