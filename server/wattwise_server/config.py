"""What an operator can set, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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

    address: str = "127.0.0.1:50051"
    database: str = "sqlite:///wattwise.db"
    grace_seconds: float = 10.0
    log_level: str = "info"
    log_format: str = "human"
    metrics_address: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False
