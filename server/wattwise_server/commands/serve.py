"""`wattwise serve`: turns arguments and `WATTWISE_*` variables into a Config, and runs the server."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from wattwise.streams import run_command

from wattwise_server.config import Config, Factors
from wattwise_server.errors import StartError
from wattwise_server.observability.logs import configure, log_event
from wattwise_server.options import add_settings, settings_of

log = logging.getLogger(__name__)


class ServeCommand:
    """The `serve` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_settings(parser, Config)

    def run(self, args: argparse.Namespace) -> int:
        """Serves until a signal stops it; returns 0, or 1 if it cannot start."""
        import uvloop  # noqa: PLC0415 - --help runs no server

        from wattwise_server.app import run  # noqa: PLC0415 - likewise

        configure(args.log_level, args.log_format)
        try:
            config = config_of(args)
            uvloop.run(run(config, _announce))
        except StartError as error:
            if args.log_format == "json":
                log_event(log, logging.ERROR, "cannot start", message=str(error))
            else:
                print(f"wattwise serve: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
            return 1
        return 0


COMMAND = ServeCommand()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m wattwise_server`, which is the same as `wattwise serve`."""
    parser = argparse.ArgumentParser(prog="wattwise serve", description="The same as `wattwise serve`.")
    COMMAND.add_arguments(parser)
    arguments = sys.argv[1:] if argv is None else argv
    return run_command("wattwise serve", arguments, lambda words: COMMAND.run(parser.parse_args(words)))


def _announce(address: str) -> None:
    print(f"wattwise listens on {address}", flush=True)  # noqa: T201 - the command's answer


def config_of(args: argparse.Namespace) -> Config:
    """Returns the Config of parsed arguments.

    Raises:
        StartError: they do not fit together.
    """
    if args.metrics_jobs and not args.metrics_address:
        raise StartError("--metrics-jobs needs a port for metrics: add --metrics-address, such as 127.0.0.1:9464")
    config = settings_of(Config, args)
    factors = config.factors
    if factors.has_prices and not factors.currency:
        raise StartError("a price needs its currency: add --currency, such as --currency EUR")
    has_carbon = factors.carbon_intensity is not None
    if factors.currency and not factors.has_prices:
        raise _without_effect("currency", "--electricity-price or --gpu-hour-price")
    if factors.pue != Factors().pue and factors.electricity_price is None and not has_carbon:
        raise _without_effect("pue", "--electricity-price or --carbon-intensity")
    if factors.factors_source and not (factors.has_prices or has_carbon):
        raise _without_effect("factors-source", "a price or --carbon-intensity")
    return config


def _without_effect(option: str, needed: str) -> StartError:
    return StartError(f"--{option} has no effect without {needed}: add that, or leave --{option} out")
