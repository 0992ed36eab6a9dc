"""`wattwise web`: its options."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from wattwise.errors import CredentialsError, WattwiseError
from wattwise.rpc.address import check_address
from wattwise.rpc.credentials import Credentials
from wattwise.streams import FAILED, run_command, write_line
from wattwise.variables import read_variable
from wattwise_server.options import ADDRESS, FILE, Kind, add_option, add_switch

from wattwise_web.settings import Settings, listen

_URL = Kind("URL", str)


class WebCommand:
    """The `web` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the options, and `export`."""
        usual = Settings("localhost:50051")
        group = parser.add_argument_group("page")
        text = "address to listen on; port 0 takes a free one"
        add_option(group, "address", ADDRESS, usual.address, text, variable="WATTWISE_WEB_ADDRESS")
        text = "the URL by which browsers reach the page behind a proxy, with its path, such as https://ml.example/wattwise"
        add_option(group, "public_url", _URL, usual.public_url, text, variable="WATTWISE_WEB_PUBLIC_URL")
        text = "certificate of the page in PEM; enables HTTPS"
        add_option(group, "tls_cert", FILE, None, text, variable="WATTWISE_WEB_TLS_CERT")
        text = "its private key in PEM, without a passphrase"
        add_option(group, "tls_key", FILE, None, text, variable="WATTWISE_WEB_TLS_KEY")
        text = "listen beyond loopback without TLS, and show jobs without a login if the server needs no tokens"
        add_switch(group, "insecure", text, variable="WATTWISE_WEB_INSECURE")
        server = parser.add_argument_group("server", "The Wattwise server that the page reads from.")
        add_option(server, "server", ADDRESS, usual.server, "its address, or those of several")
        add_switch(server, "server_tls", "use TLS; implied by the options below", variable="WATTWISE_TLS")
        for name, text in (
            ("tls_ca", "CA certificates that verify it"),
            ("tls_cert", "client certificate"),
            ("tls_key", "private key of the client certificate"),
        ):
            add_option(server, f"server_{name}", FILE, None, text, variable=f"WATTWISE_{name.upper()}")
        text = "allow sending tokens unencrypted to another machine"
        add_switch(server, "server_insecure", text, variable="WATTWISE_INSECURE")
        actions = parser.add_subparsers(metavar="ACTION", dest="action", title="instead of running the page")
        saved = actions.add_parser(
            "export",
            help="write the page of one job into one HTML file, to mail or keep",
            epilog="Options for the server come before `export`. The token: $WATTWISE_TOKEN or $WATTWISE_TOKEN_FILE.",
        )
        saved.add_argument("--job", metavar="ID", required=True, help="the job")
        saved.add_argument("file", metavar="FILE", type=Path, help="the file to write, such as report.html")

    def run(self, args: argparse.Namespace, /) -> int:
        """Serves until a signal stops it, or exports; returns 0, or 1 if it cannot start."""
        settings = settings_of(args)
        if args.action == "export":
            from wattwise_web.export import export  # noqa: PLC0415 - slow, and unused by --help

            size = asyncio.run(export(settings, args.job, args.file))
            print(f"wrote {args.file}, {size / 1000:,.0f} kB")  # noqa: T201 - the command's answer
            return 0
        # Before the port is open: what is wrong here would only show with the first visitor.
        check_address(settings.server)
        settings.credentials.channel_credentials()
        sock, url, exposure = listen(settings)
        from wattwise_web.serving import serve  # noqa: PLC0415 - slow, and unused by --help

        return serve(settings, sock, url, exposure)


COMMAND = WebCommand()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m wattwise_web`, which is the same as `wattwise web`."""
    return run_command("wattwise web", sys.argv[1:] if argv is None else argv, _run)


def _run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="wattwise web", description="The same as `wattwise web`.")
    COMMAND.add_arguments(parser)
    try:
        return COMMAND.run(parser.parse_args(argv))
    except WattwiseError as error:
        write_line(f"wattwise web: {error}")
        return FAILED


def settings_of(args: argparse.Namespace) -> Settings:
    """Returns the Settings of parsed arguments."""
    files = {name: getattr(args, f"server_{name}") for name in ("tls_ca", "tls_cert", "tls_key")}
    credentials = Credentials(
        token=read_variable("WATTWISE_TOKEN", CredentialsError) or None,
        token_file=read_variable("WATTWISE_TOKEN_FILE", CredentialsError) or None,
        tls=True if args.server_tls else None,
        insecure=args.server_insecure,
        **files,
    )
    return Settings(
        server=args.server,
        credentials=credentials,
        address=args.address,
        public_url=args.public_url,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        insecure=args.insecure,
    )
