"""Command-line options for the server and for credentials; each has a `WATTWISE_*` variable."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from wattwise.variables import control_fault, read_variable

if TYPE_CHECKING:
    from wattwise.rpc.credentials import Credentials

SERVER = "WATTWISE_SERVER"
_USUAL = "localhost:50051"


def usual_server() -> str:
    """Returns the server that a command calls if no option names one.

    Raises:
        InvalidAddressError: if the variable has a control character.
    """
    from wattwise.errors import InvalidAddressError  # noqa: PLC0415 - no option needs it

    return read_variable(SERVER, InvalidAddressError) or _USUAL


def server_address(text: str) -> str:
    """Returns a server's address, which --server or its variable has."""
    if fault := control_fault(text):
        raise argparse.ArgumentTypeError(f"{SERVER} {fault}")
    return text


def add_server_option(parser: argparse.ArgumentParser) -> None:
    """Declares the server's address."""
    parser.add_argument(
        "--server",
        type=server_address,
        default=os.environ.get(SERVER) or _USUAL,
        metavar="ADDRESS",
        help=f"the server's host:port, or several with commas (${SERVER}; default: {_USUAL})",
    )


def add_credential_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options. The token itself has none: all users of a machine can read its command lines."""
    options = parser.add_argument_group("credentials")
    options.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token ($WATTWISE_TOKEN_FILE, or the token in $WATTWISE_TOKEN)",
    )
    options.add_argument("--tls", action="store_true", help="use TLS; implied by the options below ($WATTWISE_TLS=1)")
    options.add_argument("--tls-ca", metavar="FILE", help="CA certificates that verify the server ($WATTWISE_TLS_CA)")
    options.add_argument("--tls-cert", metavar="FILE", help="client certificate ($WATTWISE_TLS_CERT)")
    options.add_argument("--tls-key", metavar="FILE", help="private key of the client certificate ($WATTWISE_TLS_KEY)")
    options.add_argument(
        "--insecure",
        action="store_true",
        help="allow sending the token unencrypted to another machine ($WATTWISE_INSECURE=1)",
    )


def credentials_of(args: argparse.Namespace) -> Credentials:
    """Returns the credentials from the options; from its variable for each option that is not used.

    Raises:
        CredentialsError: if a variable that is 1 or 0 is neither.
    """
    from wattwise.rpc.credentials import Credentials  # noqa: PLC0415 - it needs gRPC, which no option needs

    names = ("token_file", "tls", "tls_ca", "tls_cert", "tls_key", "insecure")
    options = {name: value for name in names if (value := getattr(args, name))}
    if "token_file" in options:
        options["token"] = None
    return replace(Credentials.from_env(), **options)
