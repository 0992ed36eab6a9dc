"""`wattwise serve`: turns arguments and `WATTWISE_*` variables into a Config, and runs the server."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from wattwise.streams import run_command

from wattwise_server.commands.options import (
    ADDRESS,
    DATABASE_HELP,
    FILE,
    LABEL,
    URL,
    add_option,
    add_switch,
    amount,
    one_of,
    optional,
    whole_number,
)
from wattwise_server.config import LARGEST_EPOCHS_KEPT, MOST_METRICS_JOBS, Config, Factors, Limits, Security
from wattwise_server.errors import StartError
from wattwise_server.observability.logs import FORMATS, configure, log_event

log = logging.getLogger(__name__)

_LEVELS = ("debug", "info", "warning", "error")
_MOST = 999_999_999
_WEEK = 7 * 86_400


class ServeCommand:
    """The `serve` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        usual = Config()
        group = parser.add_argument_group("serving")
        add_option(group, "address", ADDRESS, usual.address, "address to listen on; port 0 takes a free one")
        add_option(group, "database", URL, usual.database, DATABASE_HELP)
        seconds = amount("SECONDS", 3600, "seconds")
        add_option(
            group, "grace_seconds", seconds, usual.grace_seconds, "time that calls in flight get to finish at shutdown"
        )
        age = amount("SECONDS", _WEEK, "seconds", "; 0 never closes them")
        text = "age at which connections are closed, so that clients spread over all servers; 0: never"
        add_option(group, "max_connection_age_seconds", age, usual.max_connection_age_seconds, text)
        _security_options(parser)
        _observability_options(parser, usual)
        _limit_options(parser, usual.limits)
        _factor_options(parser, usual.factors)

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
    """`python -m wattwise_server`: the same as `wattwise serve`."""
    parser = argparse.ArgumentParser(prog="wattwise serve", description="The same as `wattwise serve`.")
    COMMAND.add_arguments(parser)
    arguments = sys.argv[1:] if argv is None else argv
    return run_command("wattwise serve", arguments, lambda words: COMMAND.run(parser.parse_args(words)))


def _announce(address: str) -> None:
    print(f"wattwise listens on {address}", flush=True)  # noqa: T201 - the command's answer


def _security_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "security", "On addresses other than loopback the server requires TLS and tokens."
    )
    add_option(group, "tls_cert", FILE, None, "the server's certificate in PEM; enables TLS")
    add_option(group, "tls_key", FILE, None, "its private key in PEM, without a passphrase")
    add_option(
        group, "tls_client_ca", FILE, None, "certificate authorities in PEM; clients need a certificate of one of them"
    )
    add_option(group, "tokens", FILE, None, "token file; callers need one of its tokens")
    add_switch(group, "insecure", "allow addresses other than loopback without TLS, tokens or client certificates")


def _observability_options(parser: argparse.ArgumentParser, usual: Config) -> None:
    group = parser.add_argument_group("observability")
    level, form = one_of("LEVEL", _LEVELS), one_of("FORMAT", FORMATS)
    add_option(group, "log_level", level, usual.log_level, f"lowest severity that is logged: {', '.join(_LEVELS)}")
    add_option(group, "log_format", form, usual.log_format, f"format of log lines: {', '.join(FORMATS)}")
    text = "address that serves metrics to Prometheus, over HTTP at /metrics"
    add_option(group, "metrics_address", ADDRESS, usual.metrics_address, text)
    text = "jobs with metrics of their own, by id: the most recently active ones; 0: no id is in the metrics"
    add_option(group, "metrics_jobs", whole_number("N", 0, MOST_METRICS_JOBS), usual.metrics_jobs, text)
    text = "address that answers grpc.health.v1 alone, without TLS, for probes"
    add_option(group, "health_address", ADDRESS, usual.health_address, text)


def _limit_options(parser: argparse.ArgumentParser, usual: Limits) -> None:
    group = parser.add_argument_group("limits")
    count, epochs = whole_number("N", 0, _MOST, ", or 0 for no limit"), whole_number("N", 1, LARGEST_EPOCHS_KEPT)
    days = amount("DAYS", 36_500, "days", "; 0 keeps them forever")
    add_option(
        group,
        "max_jobs_per_prefix",
        count,
        usual.max_jobs_per_prefix,
        "jobs under the prefix of a token, or else of a job; 0: no limit",
    )
    text = "running trials of one job; 0: no limit"
    add_option(group, "max_running_trials", count, usual.max_running_trials, text)
    add_option(group, "max_streams", count, usual.max_streams, "open streams; 0: no limit")
    text = "open connections; 0: as many as the limit of open files allows"
    add_option(group, "max_connections", count, usual.max_connections, text)
    add_option(group, "max_epochs_kept", epochs, usual.max_epochs_kept, "how many of a trial's newest epochs are kept")
    text = "days after a trial's end until its per-epoch measurements are deleted; 0: never"
    add_option(group, "keep_measurements_days", days, usual.keep_measurements_days, text)
    text = "days until the events of jobs are deleted; 0: never"
    add_option(group, "keep_events_days", days, usual.keep_events_days, text)


def _factor_options(parser: argparse.ArgumentParser, usual: Factors) -> None:
    group = parser.add_argument_group(
        "savings",
        "What energy and hours cost, for the figures of jobs. Without these there are joules and seconds only.",
    )
    price = optional(amount("PRICE", 1e6, "of the currency"))
    text = "price of a kilowatt-hour; those who rent GPUs by the hour leave it out"
    add_option(group, "electricity_price", price, usual.electricity_price, text)
    text = "price of one GPU for an hour; those who own their GPUs leave it out"
    add_option(group, "gpu_hour_price", price, usual.gpu_hour_price, text)
    add_option(group, "currency", LABEL, usual.currency, "currency of the prices, such as EUR")
    grams = optional(amount("GRAMS", 10_000, "grams of CO2 equivalent"))
    text = "grams of CO2 equivalent for a kilowatt-hour"
    add_option(group, "carbon_intensity", grams, usual.carbon_intensity, text)
    text = "power usage effectiveness, 1 or more: the data center's power over that of its computers"
    add_option(group, "pue", amount("RATIO", 10, "", least=1), usual.pue, text)
    text = "where the prices and the carbon intensity come from, shown beside what was computed with them"
    add_option(group, "factors_source", LABEL, usual.factors_source, text)


def config_of(args: argparse.Namespace) -> Config:
    """The Config of parsed arguments.

    Raises:
        StartError: they do not fit together.
    """
    if args.metrics_jobs and not args.metrics_address:
        raise StartError("--metrics-jobs needs a port for metrics: add --metrics-address, such as 127.0.0.1:9464")
    return Config(
        address=args.address,
        database=args.database,
        grace_seconds=args.grace_seconds,
        max_connection_age_seconds=args.max_connection_age_seconds,
        log_level=args.log_level,
        log_format=args.log_format,
        metrics_address=args.metrics_address,
        metrics_jobs=args.metrics_jobs,
        health_address=args.health_address,
        security=Security(
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            tls_client_ca=args.tls_client_ca,
            tokens=args.tokens,
            insecure=args.insecure,
        ),
        limits=Limits(
            max_jobs_per_prefix=args.max_jobs_per_prefix,
            max_running_trials=args.max_running_trials,
            max_epochs_kept=args.max_epochs_kept,
            max_streams=args.max_streams,
            max_connections=args.max_connections,
            keep_measurements_days=args.keep_measurements_days,
            keep_events_days=args.keep_events_days,
        ),
        factors=_factors(args),
    )


def _factors(args: argparse.Namespace) -> Factors:
    factors = Factors(
        electricity_price=args.electricity_price,
        gpu_hour_price=args.gpu_hour_price,
        currency=args.currency,
        carbon_intensity=args.carbon_intensity,
        pue=args.pue,
        factors_source=args.factors_source,
    )
    if factors.has_prices and not factors.currency:
        raise StartError("a price needs its currency: add --currency, such as --currency EUR")
    has_carbon = factors.carbon_intensity is not None
    if factors.currency and not factors.has_prices:
        raise _without_effect("currency", "--electricity-price or --gpu-hour-price")
    if factors.pue != Factors().pue and factors.electricity_price is None and not has_carbon:
        raise _without_effect("pue", "--electricity-price or --carbon-intensity")
    if factors.factors_source and not (factors.has_prices or has_carbon):
        raise _without_effect("factors-source", "a price or --carbon-intensity")
    return factors


def _without_effect(option: str, needed: str) -> StartError:
    return StartError(f"--{option} has no effect without {needed}: add that, or leave --{option} out")
