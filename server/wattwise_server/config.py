"""The settings of a server, with their defaults."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattwise_server.errors import StartError
from wattwise_server.options import (
    ADDRESS,
    DATABASE_HELP,
    FILE,
    LABEL,
    URL,
    Group,
    amount,
    one_of,
    optional,
    setting,
    whole_number,
)

_JOULES_PER_KWH = 3_600_000.0
LARGEST_EPOCHS_KEPT = 50_000
"""The largest number of epochs that may be kept of one trial."""

_MOST_METRICS_JOBS = 1_000
"""Jobs with metrics of their own: more make scrapes slow."""

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("human", "json")

_COUNT = whole_number("N", 0, 999_999_999, ", or 0 for no limit")
_DAYS = amount("DAYS", 36_500, "days", "; 0 keeps them forever")
_PRICE = optional(amount("PRICE", 1e6, "of the currency"))

_SERVING = Group("serving")
_SECURITY = Group("security", "On addresses other than loopback the server requires TLS and tokens.")
_OBSERVABILITY = Group("observability")
_LIMITS = Group("limits")
_SAVINGS = Group(
    "savings", "What energy and hours cost, for the figures of jobs. Without these there are joules and seconds only."
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the server accepts and keeps.

    Attributes:
        max_jobs_per_prefix: Jobs whose ids start with the prefix of the caller's token or, if it may access every job,
            with that of the new job; further ones are refused. Catches launchers that register a
            new job for every launch and therefore never learn. 100 is low and suits teams that name their jobs by
            hand; far above 100,000, listing jobs becomes slow. 0 means no limit.
        max_running_trials: Running trials of one job; a further launch is refused until one of them ends. Catches
            launchers that start trials and never train them. 1,000 is far above what one job needs; 0 means no limit.
        max_streams: Open streams: of trainers, which fall back to unary calls if theirs is refused, and of watches. If
            it is too low, trainers poll; if it is too high, a faulty client can exhaust the memory. 10,000 is usual, 0
            means no limit.
        max_connections: Open connections, those in their TLS handshake included; further ones are closed. Every trainer
            has one, and each takes up to 80 kB before its caller is known: 1,000 keeps strangers below 100 MB. If it is
            too low, trainers cannot connect, and train on without the server. 10,000 is usual; 0 means as many as the
            system's limit of open files allows, which is also the most.
        max_epochs_kept: How many of a trial's newest measurements are kept, 1 to 50,000. Decisions do not depend on
            it; ListMeasurements returns no others. 1,000 is enough for charts.
        keep_measurements_days: Days after the end of a trial until its per-epoch measurements are deleted; the trial,
            its last measurement and what was learned from it are kept. 90 is usual on small disks; with a day or less
            there is nothing left to look at after a failed night. 0 keeps them forever.
        keep_events_days: Days until the events of ListEvents are deleted. 365 is usual; they are few and small, unless
            trials crash all the time. 0 keeps them forever.
    """

    max_jobs_per_prefix: int = setting(
        _LIMITS, 100_000, _COUNT, "jobs under the prefix of a token, or else of a job; 0: no limit"
    )
    max_running_trials: int = setting(_LIMITS, 1_000, _COUNT, "running trials of one job; 0: no limit")
    max_streams: int = setting(_LIMITS, 10_000, _COUNT, "open streams; 0: no limit")
    max_connections: int = setting(
        _LIMITS, 10_000, _COUNT, "open connections; 0: as many as the limit of open files allows"
    )
    max_epochs_kept: int = setting(
        _LIMITS,
        LARGEST_EPOCHS_KEPT,
        whole_number("N", 1, LARGEST_EPOCHS_KEPT),
        "how many of a trial's newest epochs are kept",
    )
    keep_measurements_days: float = setting(
        _LIMITS, 0.0, _DAYS, "days after a trial's end until its per-epoch measurements are deleted; 0: never"
    )
    keep_events_days: float = setting(_LIMITS, 365.0, _DAYS, "days until the events of jobs are deleted; 0: never")


@dataclass(frozen=True, slots=True)
class Security:
    """Who may connect, and what they need for it.

    Attributes:
        tls_cert: PEM file with the server's certificate and the intermediate ones. None, usual on loopback, serves in
            plaintext. Needs `tls_key`. Both are read again on SIGHUP.
        tls_key: PEM file with the certificate's private key, without a passphrase.
        tls_client_ca: PEM file with certificate authorities: clients need a certificate of one of them. None, the
            default, asks for none. Useful on networks where guessing tokens is a concern.
        tokens: Token file, written by `wattwise token create`: callers need one of its tokens, and are limited to its
            role and prefix. None, usual on loopback, lets every caller do everything. Read again on SIGHUP and within
            two seconds of a change.
        insecure: True allows listening beyond loopback without TLS, or without tokens or client certificates, where
            anyone on the network can then read or delete jobs. False, the default, refuses to start that way.
    """

    tls_cert: Path | None = setting(_SECURITY, None, FILE, "the server's certificate in PEM; enables TLS")
    tls_key: Path | None = setting(_SECURITY, None, FILE, "its private key in PEM, without a passphrase")
    tls_client_ca: Path | None = setting(
        _SECURITY, None, FILE, "certificate authorities in PEM; clients need a certificate of one of them"
    )
    tokens: Path | None = setting(_SECURITY, None, FILE, "token file; callers need one of its tokens")
    insecure: bool = setting(
        _SECURITY, False, None, "allow addresses other than loopback without TLS, tokens or client certificates"
    )


@dataclass(frozen=True, slots=True)
class Factors:
    """What energy and hours cost where the jobs run. Nothing is built in: without them there are joules and seconds.

    Attributes:
        electricity_price: Price of a kilowatt-hour, in `currency`. None, the default: energy costs no money, as for
            those who rent GPUs by the hour.
        gpu_hour_price: Price of one GPU for an hour, in `currency`. None, the default: time costs no money, as for
            those who own their GPUs and only pay for energy.
        currency: The currency of both, such as "EUR".
        carbon_intensity: Grams of CO2 equivalent for a kilowatt-hour: 20 to 50 where electricity is mostly nuclear or
            hydroelectric, 700 and more where it is mostly coal. None, the default, shows no carbon.
        pue: Power usage effectiveness: the data center's power over that of its computers. 1.0, the default, counts no
            overhead; 1.1 is good, 1.6 usual. Money and carbon count it; energy in joules is as measured.
        factors_source: Where the factors come from and of when they are, shown beside what was computed with them.
    """

    electricity_price: float | None = setting(
        _SAVINGS, None, _PRICE, "price of a kilowatt-hour; those who rent GPUs by the hour leave it out"
    )
    gpu_hour_price: float | None = setting(
        _SAVINGS, None, _PRICE, "price of one GPU for an hour; those who own their GPUs leave it out"
    )
    currency: str = setting(_SAVINGS, "", LABEL, "currency of the prices, such as EUR")
    carbon_intensity: float | None = setting(
        _SAVINGS,
        None,
        optional(amount("GRAMS", 10_000, "grams of CO2 equivalent")),
        "grams of CO2 equivalent for a kilowatt-hour",
    )
    pue: float = setting(
        _SAVINGS,
        1.0,
        amount("RATIO", 10, "", least=1),
        "power usage effectiveness, 1 or more: the data center's power over that of its computers",
    )
    factors_source: str = setting(
        _SAVINGS,
        "",
        LABEL,
        "where the prices and the carbon intensity come from, shown beside what was computed with them",
    )

    @property
    def has_prices(self) -> bool:
        """Whether a price is set; there is money only if one is above 0."""
        return self.electricity_price is not None or self.gpu_hour_price is not None

    @property
    def price_per_joule(self) -> float:
        """The price of a joule, overhead included."""
        return self.pue * (self.electricity_price or 0.0) / _JOULES_PER_KWH

    @property
    def price_per_gpu_second(self) -> float:
        """The price of one GPU for a second."""
        return (self.gpu_hour_price or 0.0) / 3600

    @property
    def grams_per_joule(self) -> float | None:
        """Grams of CO2 equivalent for a joule, overhead included; None if the carbon intensity is unknown."""
        return None if self.carbon_intensity is None else self.pue * self.carbon_intensity / _JOULES_PER_KWH


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one server.

    Attributes:
        address: `host:port` to listen on; port 0 takes a free one. A loopback address is reachable from this machine
            only.
        database: `sqlite:///file` relative to the current folder, or `sqlite:////absolute/file`, for a single server:
            fast, and nothing else to run. `postgresql://user@host/database` where several servers share one database,
            because one machine does not suffice or must not be a single point of failure.
        grace_seconds: How long calls in flight may take to finish at shutdown. Too low can interrupt a commit on a slow
            disk; too high exceeds the timeout of a service manager, which then kills the server. 10 is usual.
        max_connection_age_seconds: Age, give or take a tenth, at which a connection is closed so that its client
            connects again, perhaps to another server. Calls in flight get `grace_seconds` to finish; a stream that is
            still open then is opened again by its trainer, and no report is lost. If it is too low, clients spend their
            time on TLS handshakes; if it is too high, servers that were added or came back stay idle for long. 1800 is
            usual. 0 keeps connections open, which suits a single server.
        security: Who may connect.
        log_level: The lowest severity that is logged: debug, info, warning or error. info is usual: a few lines per
            trial and one per refused call; debug adds one per epoch, which slows down a busy server.
        log_format: human, for a terminal or a journal, or json, one object per line.
        metrics_address: `host:port` that serves metrics to Prometheus over HTTP at /metrics; port 0 takes a free one,
            empty disables it. The port has neither TLS nor tokens.
        metrics_jobs: How many jobs have metrics of their own, by id: the most recently active; the others share the
            id "other". Each has about 20 series. 0, the default, exports no ids, since the port has no tokens.
            50 is usual where that is fine. If fewer than the jobs that run within a day, their series come and go.
        health_address: `host:port` that answers `grpc.health.v1` alone, without TLS, for probes that have none, such as
            those of Kubernetes; port 0 takes a free one, empty disables it. It tells anyone whether this server serves.
        limits: How much is accepted and kept.
        factors: What energy and hours cost.
    """

    address: str = setting(_SERVING, "127.0.0.1:50051", ADDRESS, "address to listen on; port 0 takes a free one")
    database: str = setting(_SERVING, "sqlite:///wattwise.db", URL, DATABASE_HELP)
    grace_seconds: float = setting(
        _SERVING, 10.0, amount("SECONDS", 3600, "seconds"), "time that calls in flight get to finish at shutdown"
    )
    max_connection_age_seconds: float = setting(
        _SERVING,
        1_800.0,
        amount("SECONDS", 7 * 86_400, "seconds", "; 0 never closes them"),
        "age at which connections are closed, so that clients spread over all servers; 0: never",
    )
    security: Security = Security()
    log_level: str = setting(
        _OBSERVABILITY,
        "info",
        one_of("LEVEL", LOG_LEVELS),
        f"lowest severity that is logged: {', '.join(LOG_LEVELS)}",
    )
    log_format: str = setting(
        _OBSERVABILITY, "human", one_of("FORMAT", LOG_FORMATS), f"format of log lines: {', '.join(LOG_FORMATS)}"
    )
    metrics_address: str = setting(
        _OBSERVABILITY, "", ADDRESS, "address that serves metrics to Prometheus, over HTTP at /metrics"
    )
    metrics_jobs: int = setting(
        _OBSERVABILITY,
        0,
        whole_number("N", 0, _MOST_METRICS_JOBS),
        "jobs with metrics of their own, by id: the most recently active ones; 0: no id is in the metrics",
    )
    health_address: str = setting(
        _OBSERVABILITY, "", ADDRESS, "address that answers grpc.health.v1 alone, without TLS, for probes"
    )
    limits: Limits = Limits()
    factors: Factors = Factors()


def host_and_port(address: str) -> tuple[str, int]:
    """Splits an address; an IPv6 host keeps its brackets.

    Raises:
        StartError: the address is malformed.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 65535):
        raise StartError(
            f"{address!r} is not an address: write host:port, such as 127.0.0.1:50051, with a port from 0 to 65535"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise StartError(f"{address!r} is not an address: write an IPv6 host in brackets, such as [::1]:50051")
    return host, int(port)


def resolve(host: str, port: int) -> Sequence[tuple[int, int, int, str, Any]]:
    """Returns the addresses of a host, which may have brackets, as `socket.getaddrinfo` does.

    Raises:
        OSError: the host cannot be resolved, or is not the name of one.
    """
    try:
        return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:
        # Python encodes names as IDNA does, which refuses an empty label and one of more than 63 characters.
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None


def check_port(address: str, option: str) -> None:
    """Checks that a port can be opened, which an option has named.

    Raises:
        StartError: the port is in use on one of the host's addresses, or none of them is of this machine.
    """
    host, port = host_and_port(address)
    faults = []
    try:
        found = resolve(host, port)
        for family, kind, protocol, _, where in found:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(where)
            except OSError as error:  # noqa: PERF203 - few addresses
                faults.append(error)
    except OSError as error:
        raise port_error(address, option, error) from None
    taken = [error for error in faults if error.errno == errno.EADDRINUSE]
    # A name may have an address that this machine lacks, such as that of IPv6.
    if taken or len(faults) == len(found):
        raise port_error(address, option, (taken or faults)[0])


def port_error(address: str, option: str, error: OSError) -> StartError:
    """Returns the error for a port that cannot be opened: why, and what to do."""
    remedies = {
        errno.EADDRINUSE: f"another process uses the port; stop that process, or choose another port with {option}",
        errno.EADDRNOTAVAIL: f"{host_and_port(address)[0]} is not an address of this machine; change {option}",
        errno.EACCES: f"this user may not open the port; choose one above 1023 with {option}",
    }
    why = remedies.get(error.errno or 0, f"{error.strerror or error}; change {option}")
    return StartError(f"cannot listen on {address}: {why}")
