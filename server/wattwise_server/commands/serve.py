"""`wattwise serve`: arguments, or `WATTWISE_*` variables, to a Config."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import uvloop

from wattwise_server.app import run
from wattwise_server.commands.options import ADDRESS, FILE, URL, add_option, add_switch, amount, one_of, whole_number
from wattwise_server.config import LARGEST_EPOCHS_KEPT, Config, Limits, Security
from wattwise_server.errors import StartError
from wattwise_server.observability.logs import FORMATS, configure, log_event

log = logging.getLogger(__name__)

_LEVELS = ("debug", "info", "warning", "error")
_MOST = 999_999_999


class ServeCommand:
    """The `serve` subcommand of `wattwise`."""

    help = "run the server"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        usual = Config()
        group = parser.add_argument_group("serving")
        add_option(group, "address", ADDRESS, usual.address, "where to listen; port 0 takes a free one")
        add_option(group, "database", URL, usual.database, "where the state is kept, as sqlite:///FILE")
        seconds = amount("SECONDS", 3600, "seconds")
        add_option(group, "grace_seconds", seconds, usual.grace_seconds, "time for calls in flight at shutdown")
        _security_options(parser)
        _watching_options(parser, usual)
        _limit_options(parser, usual.limits)

    def run(self, args: argparse.Namespace) -> int:
        """Serves until told to stop; 0 then, 1 when it cannot start."""
        config = config_of(args)
        configure(config.log_level, config.log_format)
        try:
            uvloop.run(run(config, _announce))
        except StartError as error:
            if config.log_format == "json":
                log_event(log, logging.ERROR, "cannot start", message=str(error))
            else:
                print(f"wattwise serve: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
            return 1
        return 0


COMMAND = ServeCommand()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m wattwise_server`: the same without its name."""
    parser = argparse.ArgumentParser(prog="wattwise serve", description=COMMAND.help)
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(argv))


def _announce(address: str) -> None:
    print(f"wattwise listens on {address}", flush=True)  # noqa: T201 - the command's answer


def _security_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("security", "Beyond loopback the server starts only with TLS and tokens.")
    add_option(group, "tls_cert", FILE, None, "the server's certificate in PEM, which turns TLS on")
    add_option(group, "tls_key", FILE, None, "its private key in PEM, without a passphrase")
    add_option(group, "tls_client_ca", FILE, None, "authorities in PEM; clients must have a certificate of one of them")
    add_option(group, "tokens", FILE, None, "answer only callers with a token of this file")
    add_switch(group, "insecure", "listen beyond loopback although TLS or tokens are missing")


def _watching_options(parser: argparse.ArgumentParser, usual: Config) -> None:
    group = parser.add_argument_group("watching")
    level, form = one_of("LEVEL", _LEVELS), one_of("FORMAT", FORMATS)
    add_option(group, "log_level", level, usual.log_level, f"least severity that is logged: {', '.join(_LEVELS)}")
    add_option(group, "log_format", form, usual.log_format, f"how lines are logged: {', '.join(FORMATS)}")
    text = "where Prometheus is answered, over HTTP at /metrics"
    add_option(group, "metrics_address", ADDRESS, usual.metrics_address, text)


def _limit_options(parser: argparse.ArgumentParser, usual: Limits) -> None:
    group = parser.add_argument_group("limits")
    count, epochs = whole_number("N", 0, _MOST, ", or 0 for no limit"), whole_number("N", 1, LARGEST_EPOCHS_KEPT)
    days = amount("DAYS", 36_500, "days", ", or 0 to keep all")
    add_option(group, "max_jobs_per_prefix", count, usual.max_jobs_per_prefix, "jobs under one prefix; 0: no limit")
    add_option(group, "max_streams", count, usual.max_streams, "streams that are open at a time; 0: no limit")
    add_option(group, "max_epochs_kept", epochs, usual.max_epochs_kept, "newest epochs of a trial that are kept")
    text = "days after a trial's end until its epochs go; 0: never"
    add_option(group, "keep_measurements_days", days, usual.keep_measurements_days, text)


def config_of(args: argparse.Namespace) -> Config:
    """The settings that the arguments are."""
    return Config(
        address=args.address,
        database=args.database,
        grace_seconds=args.grace_seconds,
        log_level=args.log_level,
        log_format=args.log_format,
        metrics_address=args.metrics_address,
        security=Security(
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            tls_client_ca=args.tls_client_ca,
            tokens=args.tokens,
            insecure=args.insecure,
        ),
        limits=Limits(
            max_jobs_per_prefix=args.max_jobs_per_prefix,
            max_epochs_kept=args.max_epochs_kept,
            max_streams=args.max_streams,
            keep_measurements_days=args.keep_measurements_days,
        ),
    )
