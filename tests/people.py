"""The calls of people and tools, of all services."""

from __future__ import annotations

import grpc
from wattwise import v1


class PeopleStub(v1.JobReaderStub, v1.JobControlStub, v1.ServerInfoStub):
    """The stubs of `JobReader`, `JobControl` and `ServerInfo` as one.

    Args:
        channel: The channel of all.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        for stub in (v1.JobReaderStub, v1.JobControlStub, v1.ServerInfoStub):
            stub.__init__(self, channel)  # type: ignore[call-arg]  # their types have no __init__
