"""`wattwise health`: whether a server answers, for the health checks of containers."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wattwise.commands.main import complain, say
from wattwise.commands.options import add_credential_options, credentials_of, usual_server
from wattwise.errors import InvalidAddressError, InvalidArgumentError, WattwiseError
from wattwise.rpc.address import check_address, servers_of
from wattwise.rpc.backoff import check_seconds
from wattwise.rpc.connection import Connection
from wattwise.rpc.credentials import Credentials
from wattwise.rpc.statuses import from_rpc_error
from wattwise.streams import FAILED
from wattwise.variables import read_variable

if TYPE_CHECKING:
    from typing import Any

_PROBE_ADDRESS = "WATTWISE_HEALTH_ADDRESS"
_TIMEOUT_SECONDS = 4.0
_STATES = health_pb2.HealthCheckResponse.ServingStatus


class HealthCommand:
    """The `health` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the options."""
        parser.add_argument(
            "--address",
            metavar="HOST:PORT",
            help=f"the server's address (${_PROBE_ADDRESS}, the server's port for probes, which has no TLS, or else "
            "$WATTWISE_SERVER; default: localhost:50051)",
        )
        parser.add_argument(
            "--service",
            default="",
            metavar="NAME",
            help="readiness: it is not stopping and can use its database's schema; liveness: its process answers; or a "
            "gRPC service (default: the whole server, the same as readiness)",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=_TIMEOUT_SECONDS,
            metavar="SECONDS",
            help=f"how long to wait for the answer (default: {_TIMEOUT_SECONDS:g})",
        )
        add_credential_options(parser)

    def run(self, args: argparse.Namespace, /) -> int:
        """Asks the server, or each of several; returns 0 if it is serving, else 1.

        Raises:
            WattwiseError: if the only server does not answer.
        """
        timeout = check_seconds("timeout", args.timeout)
        address, credentials = _asked(args)
        servers = servers_of(address)
        if len(servers) == 1:
            return _check(address, credentials, args.service, timeout)
        status = 0
        for server in servers:
            try:
                status = max(status, _check(server, credentials, args.service, timeout))
            except WattwiseError as error:  # noqa: PERF203 - a few iterations
                complain(f"wattwise health: {error}")
                status = FAILED
        return status


COMMAND = HealthCommand()


def _asked(args: argparse.Namespace) -> tuple[str, Credentials]:
    """Returns the address to ask, and how."""
    probed = read_variable(_PROBE_ADDRESS, InvalidAddressError)
    if args.address is None and probed:
        # Beside a server the variables of TLS are the server's, and its port for probes has none.
        return _reachable(check_address(probed)), Credentials()
    address = args.address or usual_server()
    return _reachable(check_address(address)), credentials_of(args)


def _check(address: str, credentials: Credentials, service: str, timeout: float) -> int:
    connection = Connection(address, credentials)
    try:
        # No token: the health service needs none.
        stub: Any = health_pb2_grpc.HealthStub(connection.link().channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise InvalidArgumentError(f"the server at {address} has no service {service!r}") from None
        raise from_rpc_error(error, address) from None
    finally:
        connection.close()
    state = _STATES.Name(answer.status) if answer.status in _STATES.values() else f"state {answer.status}"
    what = f"{service} of {address}" if service else address
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        complain(f"wattwise health: {what}: {state}")
        return FAILED
    say(f"{what}: {state}")
    return 0


def _reachable(address: str) -> str:
    """Returns the address; loopback in place of one that a server listens on for all of its machine's."""
    address = re.sub(r"^0\.0\.0\.0:", "127.0.0.1:", address)
    return re.sub(r"^\[::\]:", "[::1]:", address)
