"""What an operator can set, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattwise_server.errors import StartError

LARGEST_EPOCHS_KEPT = 50_000
"""A trial with so many fits into one answer of GetTrial."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the server takes on and keeps. What goes beyond is refused, or dropped as said here.

    Attributes:
        max_jobs_per_prefix: Jobs under one job_id_prefix; further ones are refused. It catches launchers that register
            a new job with every launch and so never learn. 100 is low, for teams that name their jobs by hand; far
            above 100,000, lists take long to page through. 0 is no limit.
        max_epochs_kept: Newest epochs of a trial whose measurements are kept, 1 to 50,000. Later epochs are judged all
            the same; only GetTrial shows less. 1,000 is plenty for charts, the largest keeps all that one answer holds.
        max_streams: StreamResults and WatchJob calls that are open at a time; a trainer that is refused one goes on by
            single calls. Too low and every trainer polls; too high and a client gone wild can
            take all memory. 10,000 is usual, 0 is no limit.
        keep_measurements_days: Days after the end of a trial until its measurements epoch by epoch go; the trial, its
            last measurement and all that was learnt from it stay. 90 is usual where disks are small, a day or less
            leaves nothing to look at after a bad night. 0 keeps them for ever.
    """

    max_jobs_per_prefix: int = 100_000
    max_epochs_kept: int = LARGEST_EPOCHS_KEPT
    max_streams: int = 10_000
    keep_measurements_days: float = 0.0


@dataclass(frozen=True, slots=True)
class Security:
    """Who is let in, and how.

    Attributes:
        tls_cert: File of the server's certificate and those between it and its authority, in PEM. None, the usual on
            loopback, talks in clear. Goes with `tls_key`. Both are read again on SIGHUP.
        tls_key: File of the certificate's private key, in PEM, without a passphrase.
        tls_client_ca: File of authorities, in PEM: only clients with a certificate of one of them get in. None, the
            usual, asks for none. Worth its trouble where the network is not trusted to try tokens.
        tokens: File of tokens, made by `wattwise token create`: only callers with one of them are answered, within its
            role and its prefix. None, the usual on loopback, lets everybody do everything. Read again on SIGHUP and
            within a second or two of a change.
        insecure: True listens beyond loopback even without TLS, or without tokens or client certificates, and so lets
            strangers read or delete; for networks that nobody else is on. False, the usual, refuses to start that way.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False


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
        security: Who is let in.
        limits: How much is taken on and kept.
    """

    address: str = "127.0.0.1:50051"
    database: str = "sqlite:///wattwise.db"
    grace_seconds: float = 10.0
    log_level: str = "info"
    log_format: str = "human"
    metrics_address: str = ""
    security: Security = Security()
    limits: Limits = Limits()


def host_and_port(address: str) -> tuple[str, int]:
    """Splits an address; an IPv6 host keeps its brackets.

    Raises:
        StartError: the address is malformed.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise StartError(
            f"{address!r} is not an address: write host:port, such as 127.0.0.1:50051, with a port from 0 to 65535"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise StartError(f"{address!r} is not an address: write an IPv6 host in brackets, such as [::1]:50051")
    return host, int(port)
