"""AsyncClient: the calls of `Client` as coroutines, with the same errors, retries and change of servers."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import weakref

import pytest
from wattwise import AsyncClient, Client, v1
from wattwise.errors import (
    InvalidJobSpecError,
    JobNotFoundError,
    OperationOrderError,
    ServerUnavailableError,
)

from tests.client.training.script import job_spec
from tests.live_server import LiveServer


async def test_calls_and_lists(grpc_addr: str) -> None:
    """Calls are awaited, and lists are asynchronous iterators that page by themselves."""
    async with AsyncClient(grpc_addr) as client:
        job_id = (await client.register_job(job_spec())).job.spec.job_id
        trials = await asyncio.gather(*(client.get_next_batch_size(job_id) for _ in range(5)))
        numbers = {answer.trial.id.trial_number for answer in trials}
        assert numbers == {1, 2, 3, 4, 5}
        listed = client.trials(job_id, page_size=2)
        assert [trial.id.trial_number async for trial in listed] == sorted(numbers)
        answer = await client.send(v1.ListTrialsRequest(job_id=job_id, page_size=2, with_total_size=True))
        assert (len(answer.trials), answer.total_size) == (2, 5)


async def test_watching(grpc_addr: str) -> None:
    """A watch yields changes until the job is deleted, and a task that waits for a change can be cancelled."""
    async with AsyncClient(grpc_addr) as client:
        job_id = (await client.register_job(job_spec())).job.spec.job_id
        states = client.watch_job(job_id)
        assert (await anext(states)).job.num_trials == 0
        await client.get_next_batch_size(job_id)
        assert (await anext(states)).job.num_trials == 1
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(states), 0.1)
        states = client.watch_job(job_id)
        assert (await anext(states)).job.num_trials == 1
        await client.delete_job(job_id)
        with pytest.raises(JobNotFoundError):
            assert [state.job.num_trials async for state in states] == []


async def test_errors_are_those_of_the_client(grpc_addr: str) -> None:
    """An error has its reason and the id of its call, and an invalid job the names of its arguments."""
    async with AsyncClient(grpc_addr, call_id="nightly 7") as client:
        with pytest.raises(JobNotFoundError, match=r"\(call nightly 7\)") as caught:
            await client.get_job("test-unknown")
        assert caught.value.reason == "ERROR_REASON_JOB_NOT_FOUND"
        with pytest.raises(InvalidJobSpecError, match="default_batch_size"):
            await client.register_job(job_spec(default_batch_size=7))
    with pytest.raises(OperationOrderError, match="closed"):
        await client.get_job("test-unknown")


async def test_server_that_is_away_is_called_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A call is repeated until the server is back; without retries it fails at once."""
    with LiveServer(tmp_path_factory.mktemp("server")) as server:
        address = server.start()
        server.kill()
        async with AsyncClient(address, retry=False) as impatient, AsyncClient(address) as client:
            with pytest.raises(ServerUnavailableError):
                await impatient.get_server_info()
            waiting = asyncio.create_task(client.get_server_info())
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            assert (await waiting).version


def test_each_event_loop_has_its_own_channel(grpc_addr: str) -> None:
    """A client can be used by one event loop after another."""
    client = AsyncClient(grpc_addr)

    async def version() -> str:
        try:
            return (await client.get_server_info()).version
        finally:
            if again:
                await client.close()

    again = False
    first = asyncio.run(version())
    again = True
    assert asyncio.run(version()) == first


def test_channels_of_closed_event_loops_are_dropped(grpc_addr: str) -> None:
    """A client that is used by one event loop after another without being closed has one channel."""
    client = AsyncClient(grpc_addr)
    links = []

    async def call() -> None:
        await client.get_server_info()
        links.append(weakref.ref(client._connection.link()))  # noqa: SLF001 - a client does not show its channels

    for _ in range(3):
        asyncio.run(call())
    assert [link() is not None for link in links] == [False, False, True]


def test_methods_have_their_signatures_and_documentation() -> None:
    """Both clients have the same methods, as functions with their docstrings and the types of their own results."""
    names = {name for name in dir(Client) if not name.startswith("_")} - {"mode", "stream_results", "patience"}
    assert names - set(dir(AsyncClient)) == set()
    assert {"get_job", "trials", "watch_job"} <= names
    for name in names - {"close"}:
        blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
        signature, awaiting = inspect.signature(blocking), inspect.signature(awaited)
        assert signature.parameters == awaiting.parameters
        assert signature.return_annotation == awaiting.return_annotation.removeprefix("Async")
        assert blocking.__doc__
        assert blocking.__doc__ == awaited.__doc__
    assert "-> 'Rows[v1.JobListing]'" in (shown := pydoc.plain(pydoc.render_doc(Client)))
    assert "Async" not in shown
    assert "-> 'AsyncRows[v1.JobListing]'" in pydoc.plain(pydoc.render_doc(AsyncClient))
