"""`wattwise serve`: arguments, or `WATTWISE_*` variables, to a Config."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from wattwise_server.app import run
from wattwise_server.config import LARGEST_EPOCHS_KEPT, Config, Limits
from wattwise_server.errors import StartError
from wattwise_server.logs import FORMATS, configure, say

log = logging.getLogger(__name__)

_LEVELS = ("debug", "info", "warning", "error")


class ServeCommand:
    """The `serve` subcommand of `wattwise`."""

    help = "run the server"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options; each can also be given as a variable named WATTWISE_ and its name."""
        defaults = Config()
        _option(parser, "address", str, defaults.address, "host:port to listen on; port 0 takes a free one")
        _option(parser, "database", str, defaults.database, "where the state is kept, as sqlite:///FILE")
        _option(parser, "grace_seconds", _seconds, defaults.grace_seconds, "time for calls in flight at shutdown")
        _option(parser, "log_level", _level, defaults.log_level, f"least severity that is logged: {', '.join(_LEVELS)}")
        _option(parser, "log_format", _format, defaults.log_format, f"how lines are logged: {', '.join(FORMATS)}")
        _option(
            parser, "metrics_address", str, defaults.metrics_address, "host:port that answers Prometheus; empty: none"
        )
        _option(parser, "tls_cert", _file, None, "PEM file of the server's certificate, which turns TLS on")
        _option(parser, "tls_key", _file, None, "PEM file of its private key")
        _option(parser, "tls_client_ca", _file, None, "PEM file of authorities whose certificates clients must have")
        _option(parser, "tokens", _file, None, "token file: only callers with a token of it are answered")
        _flag(parser, "insecure", "listen beyond loopback although TLS or tokens are missing")
        _limit_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serves until told to stop; 0 then, 1 when it cannot start."""
        config = Config(
            args.address,
            args.database,
            args.grace_seconds,
            args.log_level,
            args.log_format,
            args.metrics_address,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            tls_client_ca=args.tls_client_ca,
            tokens=args.tokens,
            insecure=args.insecure,
            limits=_limits(args),
        )
        configure(config.log_level, config.log_format)
        try:
            uvloop.run(run(config, _announce))
        except StartError as error:
            if config.log_format == "json":
                say(log, logging.ERROR, "cannot start", message=str(error))
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


def _option(parser: argparse.ArgumentParser, name: str, kind: Callable[[str], Any], default: object, text: str) -> None:
    variable = f"WATTWISE_{name.upper()}"
    flag = f"--{name.replace('_', '-')}"
    # A string default goes through `kind` like an argument, so that a bad variable is refused like a bad option.
    given = os.environ.get(variable, "" if default is None else str(default))
    shown = "none" if default is None else default
    parser.add_argument(flag, type=kind, default=given, help=f"{text} (${variable}; default: {shown})")


def _flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """An option that is given or not; its variable is 1 or 0."""
    variable = f"WATTWISE_{name.upper()}"
    flag = f"--{name.replace('_', '-')}"
    given = os.environ.get(variable, "0")
    parser.add_argument(flag, action=_Given, nargs=0, type=_yes, default=given, help=f"{text} (${variable}=1)")


class _Given(argparse.Action):
    """`store_true`, but for a default that goes through `type` as those of options do."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, _values: object, _option: object = None) -> None:
        setattr(namespace, self.dest, True)


def _limit_options(parser: argparse.ArgumentParser) -> None:
    usual = Limits()
    _option(parser, "max_jobs_per_prefix", _count, usual.max_jobs_per_prefix, "jobs under one prefix; 0: no limit")
    _option(parser, "max_epochs_kept", _epochs, usual.max_epochs_kept, "newest epochs of a trial that are kept")
    _option(parser, "max_streams", _count, usual.max_streams, "streams that are open at a time; 0: no limit")
    text = "days after a trial's end until its epochs go; 0: never"
    _option(parser, "keep_measurements_days", _days, usual.keep_measurements_days, text)


def _limits(args: argparse.Namespace) -> Limits:
    return Limits(args.max_jobs_per_prefix, args.max_epochs_kept, args.max_streams, args.keep_measurements_days)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a limit; give a whole number, or 0 for no limit")
    return int(text)


def _epochs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST_EPOCHS_KEPT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of epochs; give 1 to {LARGEST_EPOCHS_KEPT}")
    return int(text)


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days <= 36_500:
        raise argparse.ArgumentTypeError(f"{text} is not a number of days; give up to 36500, or 0 to keep all")
    return days


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a time; give 0 to 3600 seconds")
    return value


def _format(text: str) -> str:
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a log format; use {', '.join(FORMATS)}")
    return text


def _file(text: str) -> Path | None:
    return Path(text) if text else None


def _yes(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off", ""):
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no; give 1 or 0")
    return text.lower() in ("1", "true", "yes", "on")


def _level(text: str) -> str:
    if text not in _LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a level; use {', '.join(_LEVELS)}")
    return text
