"""Coverage-guided fuzzing of the server: `python -m tests.server.fuzz.guided FOLDER [libFuzzer's options]`.

The server runs in this process, so that atheris sees which of its branches an input reaches. An input is a method's
number and the bytes of one request.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import atheris
from wattwise.rpc.calls import new_id

with atheris.instrument_imports(include=["wattwise_server"]):
    from wattwise_server.app import run
    from wattwise_server.config import Config

import grpc
from google.protobuf.descriptor import MethodDescriptor
from wattwise import v1

from tests.people import PeopleStub
from tests.server.fuzz.messages import BASE, BASE_SPEC, VICTIM_SPEC, seeds
from tests.server.fuzz.methods import METHODS, OTHERS, path
from tests.server.fuzz.target import CALLS_PER_FIELD, Answer, StateFile, judge

_ALL = METHODS + OTHERS


class Guided:
    """A server on this thread's loop, which runs while an input is fired and stands still otherwise.

    Args:
        folder: For the server's file and the inputs.
    """

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._corpus = folder / "corpus"
        self._corpus.mkdir()
        database = folder / "wattwise.db"
        address: asyncio.Future[str] = self._loop.create_future()
        config = Config(address="127.0.0.1:0", database=f"sqlite:///{database}")
        self._serving = self._loop.create_task(run(config, address.set_result))
        self._channel: Any = self._loop.run_until_complete(self._connected(address))
        self._file = StateFile(database)
        self._calls = 0

    async def _connected(self, address: asyncio.Future[str]) -> grpc.aio.Channel:
        self._serving.add_done_callback(lambda task: address.done() or task.result())
        return grpc.aio.insecure_channel(await address)

    def prepare(self) -> None:
        """Writes valid requests as the first inputs."""
        trial = self._loop.run_until_complete(self._clear())
        known = seeds(trial)
        for number, method in enumerate(_ALL):
            for nth, request in enumerate(known[method.input_type.full_name]):
                (self._corpus / f"{method.name}-{nth}").write_bytes(bytes([number]) + request.SerializeToString())

    def fuzz(self, options: list[str]) -> None:
        """Sends inputs until one breaks a rule or the options' limit is reached; ends the process."""
        atheris.Setup([sys.argv[0], str(self._corpus), *options], self._one)
        atheris.Fuzz()

    def _one(self, data: bytes) -> None:
        if not data:
            return
        method, request = _ALL[data[0] % len(_ALL)], data[1:]
        try:
            self._loop.run_until_complete(self._fire(method, request))
        except Exception:  # noqa: BLE001 - any exception is a finding
            traceback.print_exc()
            sys.stderr.write(f"{path(method)} sent {request!r}\n")
            sys.stderr.flush()
            # libFuzzer would exit like a C program and wait for the threads of gRPC forever.
            os._exit(1)

    async def _fire(self, method: MethodDescriptor, request: bytes) -> None:
        if self._calls % CALLS_PER_FIELD == 0:
            await self._clear()
        self._calls += 1
        before = self._file.dump()
        answer = await self._answer(method, request)
        if answer.code is not grpc.StatusCode.OK:
            judge(answer, ours=method in METHODS)
            assert self._file.dump() == before, answer.error

    async def _answer(self, method: MethodDescriptor, request: bytes) -> Answer:
        call = self._channel.stream_stream(path(method))(iter([request]), timeout=20)
        try:
            await call.read()
        except grpc.RpcError as error:
            failed: Any = error
            return Answer(failed.code(), failed)
        finally:
            call.cancel()
        return Answer(grpc.StatusCode.OK)

    async def _clear(self) -> v1.TrialId:
        trainer: Any = v1.BatchSizeOptimizerStub(self._channel)
        admin: Any = PeopleStub(self._channel)
        for job in (await admin.ListJobs(v1.ListJobsRequest(page_size=1000))).jobs:
            await admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job.spec.job_id))
        for spec in (BASE_SPEC, VICTIM_SPEC):
            await trainer.RegisterJob(v1.RegisterJobRequest(job=spec))
        answer = await trainer.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=BASE, launch_id=new_id()))
        trial: v1.TrialId = answer.trial.id
        return trial


def main() -> None:
    """Fuzzes."""
    guided = Guided(Path(sys.argv[1]))
    guided.prepare()
    guided.fuzz(sys.argv[2:])


if __name__ == "__main__":
    main()
