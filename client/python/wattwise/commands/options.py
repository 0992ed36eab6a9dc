"""The options by which a command is told its credentials; each can be given as a `WATTWISE_*` variable instead."""

from __future__ import annotations

import argparse
from dataclasses import replace

from wattwise.rpc.credentials import Credentials


def add_credential_options(parser: argparse.ArgumentParser) -> None:
    """Declares them. There is none for the token itself: all users of a machine can read its command lines."""
    options = parser.add_argument_group("credentials")
    options.add_argument(
        "--token-file", metavar="FILE", help="holds the token ($WATTWISE_TOKEN_FILE; or $WATTWISE_TOKEN)"
    )
    options.add_argument("--tls", action="store_true", help="talk TLS, as any file below does too ($WATTWISE_TLS=1)")
    options.add_argument("--tls-ca", metavar="FILE", help="authorities of the server's certificate ($WATTWISE_TLS_CA)")
    options.add_argument("--tls-cert", metavar="FILE", help="your own certificate ($WATTWISE_TLS_CERT)")
    options.add_argument("--tls-key", metavar="FILE", help="its private key ($WATTWISE_TLS_KEY)")
    options.add_argument(
        "--insecure", action="store_true", help="send the token in clear to another machine ($WATTWISE_INSECURE=1)"
    )


def credentials_of(args: argparse.Namespace) -> Credentials:
    """What the options say, and for each that is not given its variable.

    Raises:
        CredentialsError: if a variable that is 1 or 0 is neither.
    """
    names = ("token_file", "tls", "tls_ca", "tls_cert", "tls_key", "insecure")
    given = {name: value for name in names if (value := getattr(args, name))}
    if "token_file" in given:
        given["token"] = None
    return replace(Credentials.from_env(), **given)
