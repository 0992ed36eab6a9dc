"""What an operator can set, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one server.

    Attributes:
        address: `host:port` to listen on; port 0 takes a free one. Loopback reaches nobody but this machine.
        database: `sqlite:///file` beside the current folder, or `sqlite:////absolute/file`.
        grace_seconds: How long calls in flight get to finish at shutdown. Too low cuts off a commit on a slow disk;
            too high and a service manager may lose patience first. 10 is usual.
        log_level: Least severity that is logged: debug, info, warning or error. info is usual: a few lines per trial,
            and one per refused call; debug adds one per epoch, which a busy server feels.
        log_format: human, for a terminal or a journal, or json: one object per line, for machines.
        metrics_address: `host:port` that answers Prometheus over HTTP at /metrics; port 0 takes a free one, empty none.
            The figures name no job, but whoever reaches the port can read them: no TLS, no token.
    """

    address: str = "127.0.0.1:50051"
    database: str = "sqlite:///wattwise.db"
    grace_seconds: float = 10.0
    log_level: str = "info"
    log_format: str = "human"
    metrics_address: str = ""
