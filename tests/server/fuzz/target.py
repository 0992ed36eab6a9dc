"""Sends raw bytes to a server, and checks every response and the server's state."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.rpc.serving import MAX_REQUEST_BYTES

from tests.live_server import LiveServer
from tests.server.fuzz.messages import BASE, BASE_SPEC, VICTIM_SPEC
from tests.server.fuzz.methods import METHODS, path

ALLOWED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""The statuses that may occur here; the others of the contract need tokens or outages."""

_SECONDS = 20.0

# Well before the lease of a trial in a fuzzed job expires, which would change the state by itself.
CALLS_PER_FIELD = 200
# Doubtful results and many refusals are warned of, which is no bug.
_SIGN_OF_A_BUG = re.compile(
    r"incident|Traceback|^\S+ +(WARNING (?!trial warning |refusals not logged )|ERROR )", re.MULTILINE
)

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True)
class Answer:
    """How a call ended."""

    code: grpc.StatusCode
    error: Any = None


class StateFile:
    """Reads the database of a running server.

    Args:
        database: The file.
    """

    def __init__(self, database: Path) -> None:
        self._connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)
        self._dump: tuple[int, str] = (-1, "")

    def dump(self) -> str:
        """The whole contents as SQL."""
        # The version changes with every commit of the server.
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._dump[0]:
            self._dump = version, "\n".join(self._connection.iterdump())
        return self._dump[1]

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


class Target:
    """A server with two jobs, one with a running trial.

    Args:
        server: A running server with a fresh file.
    """

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self._file = StateFile(server.database)
        self._calls = 0
        self.trial = v1.TrialId()
        self.clear()

    def clear(self) -> None:
        """Deletes all jobs and registers the two again; the running trial has the same id every time."""
        admin, trainer = self.server.admin, self.server.trainer
        while jobs := admin.ListJobs(v1.ListJobsRequest(page_size=1000)).jobs:
            for job in jobs:
                admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job.spec.job_id))
        for spec in (BASE_SPEC, VICTIM_SPEC):
            trainer.RegisterJob(v1.RegisterJobRequest(job=spec))
        self.trial = trainer.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=BASE, launch_id=new_id())).trial.id

    def close(self) -> None:
        """Closes the file; the log must have no error."""
        self._file.close()
        log = self.server.log.read_text()
        assert not _SIGN_OF_A_BUG.search(log), log

    def state(self) -> tuple[str, bytes]:
        """The contents of the file, and the newest trials as the server returns them."""
        jobs = self.server.admin.ListJobs(v1.ListJobsRequest(page_size=20))
        return self._file.dump(), jobs.SerializeToString(deterministic=True)

    def fire(self, method: MethodDescriptor, messages: Sequence[bytes], metadata: Metadata = ()) -> Answer:
        """Makes one call and judges its status, its details, and that a refusal changed nothing."""
        self._calls += 1
        if not self._calls % CALLS_PER_FIELD:
            self.clear()
        before = self.state()
        answer = self.call(method, messages, metadata)
        if answer.code is not grpc.StatusCode.OK:
            # gRPC itself refuses what is too large, and gives no reason.
            oversized = any(len(message) > MAX_REQUEST_BYTES for message in messages)
            if not (oversized and answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED):
                judge(answer, ours=method in METHODS)
            # An accepted message ahead of the refused one is another matter.
            if len(messages) == 1:
                assert self.state() == before, answer.error
        return answer

    def call(self, method: MethodDescriptor, messages: Iterable[bytes], metadata: Metadata = ()) -> Answer:
        """Makes one call with these messages; takes the first response of WatchJob."""
        channel: Any = self.server.channel
        # On the wire a call with one message is a stream of one.
        call = channel.stream_stream(path(method))(iter(messages), timeout=_SECONDS, metadata=tuple(metadata))
        try:
            for _ in call:
                if not method.client_streaming:
                    break
        except grpc.RpcError as error:
            failed: Any = error
            return Answer(failed.code(), failed)
        finally:
            call.cancel()
        return Answer(grpc.StatusCode.OK)


def judge(answer: Answer, *, ours: bool = True) -> None:
    """A refusal has a status of the contract; one by Wattwise's services also has a message and a reason."""
    error = answer.error
    assert answer.code in ALLOWED or (not ours and answer.code is grpc.StatusCode.UNIMPLEMENTED), error
    if ours:
        assert error.details(), error
        status = rpc_status.from_call(error)
        assert status is not None, error
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info), error
        assert info.domain == "wattwise.v1", error
        assert info.reason in set(v1.ErrorReason.keys()), error
