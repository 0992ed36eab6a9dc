"""From options and variables to a Config."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from wattwise_server.commands.serve import COMMAND, config_of
from wattwise_server.config import Config, Factors, Limits, Security
from wattwise_server.errors import StartError
from wattwise_server.options import SETTING, declared_settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTWISE_")]:
        monkeypatch.delenv(name)


def parsed(*arguments: str) -> Config:
    """The settings that arguments and the environment make."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return config_of(parser.parse_args(arguments))


def test_defaults_are_those_of_the_settings() -> None:
    """Without options and variables the server runs as `Config()` says."""
    assert parsed() == Config()


def test_document_lists_every_option() -> None:
    """The table of docs/operations.md has the options, defaults and help of `wattwise serve`; other tables agree."""
    document = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    rows = []
    for field in declared_settings(Config):
        option, known = f"--{field.name.replace('_', '-')}", field.metadata[SETTING]
        default = "off" if known.kind is None else "none" if field.default in (None, "") else field.default
        rows.append(f"| `{option}` | {default} | {known.text} |")
        if isinstance(field.default, float | int):
            numbers = re.findall(rf"^\| `{option}` \| ([0-9]+)\b", document, re.MULTILINE)
            assert {float(number) for number in numbers} <= {field.default}, option
    assert "\n".join(["| option | default | is |", "|---|---|---|", *rows, ""]) in document


GIVEN = {
    "address": "127.0.0.1:1",
    "database": "sqlite:///other.db",
    "grace_seconds": "2.5",
    "max_connection_age_seconds": "9",
    "log_level": "debug",
    "log_format": "json",
    "metrics_address": "127.0.0.1:2",
    "metrics_jobs": "11",
    "health_address": "127.0.0.1:9",
    "tls_cert": "cert.pem",
    "tls_key": "key.pem",
    "tls_client_ca": "ca.pem",
    "tokens": "tokens",
    "insecure": "1",
    "max_jobs_per_prefix": "3",
    "max_running_trials": "7",
    "max_epochs_kept": "4",
    "max_streams": "5",
    "max_connections": "8",
    "keep_measurements_days": "6",
    "keep_events_days": "12",
    "electricity_price": "0.25",
    "gpu_hour_price": "1.5",
    "currency": "EUR",
    "carbon_intensity": "380",
    "pue": "1.2",
    "factors_source": "tariff of 2026",
}
MEANT = Config(
    "127.0.0.1:1",
    "sqlite:///other.db",
    2.5,
    9.0,
    Security(Path("cert.pem"), Path("key.pem"), Path("ca.pem"), Path("tokens"), insecure=True),
    "debug",
    "json",
    "127.0.0.1:2",
    11,
    "127.0.0.1:9",
    Limits(3, 7, 5, 8, 4, 6.0, 12.0),
    Factors(0.25, 1.5, "EUR", 380.0, 1.2, "tariff of 2026"),
)


def test_every_setting_is_an_option_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no setting that could be given one way alone, and none is taken for another."""
    kinds = (Config, Security, Limits, Factors)
    names = {field.name for kind in kinds for field in fields(kind)} - {"security", "limits", "factors"}
    assert names == set(GIVEN)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in GIVEN.items() if name != "insecure"]
    assert parsed(*options, "--insecure") == MEANT
    for name, value in GIVEN.items():
        monkeypatch.setenv(f"WATTWISE_{name.upper()}", value)
    assert parsed() == MEANT


def test_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set to nothing is as one that is not set."""
    for name in GIVEN:
        monkeypatch.setenv(f"WATTWISE_{name.upper()}", "")
    assert parsed() == Config()


def test_metrics_of_jobs_need_a_port() -> None:
    """--metrics-jobs without --metrics-address is refused instead of ignored, and so is a number out of range."""
    with pytest.raises(StartError, match="--metrics-address"):
        parsed("--metrics-jobs=5")
    assert parsed("--metrics-jobs=0").metrics_jobs == 0
    for number in ("-1", "1001", "many"):
        with pytest.raises(SystemExit):
            parsed("--metrics-address=127.0.0.1:2", f"--metrics-jobs={number}")


@pytest.mark.parametrize(
    ("alone", "needed", "enough"),
    [
        ("--currency=EUR", "--electricity-price or --gpu-hour-price", ["--gpu-hour-price=0"]),
        ("--pue=1.5", "--electricity-price or --carbon-intensity", ["--carbon-intensity=380"]),
        ("--factors-source=tariff", "a price or --carbon-intensity", ["--gpu-hour-price=2", "--currency=EUR"]),
    ],
)
def test_factors_without_effect_are_refused(alone: str, needed: str, enough: list[str]) -> None:
    """What only says more of a price or a carbon intensity is refused without one, instead of ignored."""
    with pytest.raises(StartError, match=f"{alone.partition('=')[0]} has no effect without {needed}"):
        parsed(alone)
    parsed(alone, *enough)
    assert parsed("--pue=1") == Config()
    with pytest.raises(StartError, match="--pue has no effect"):
        parsed("--pue=1.5", "--gpu-hour-price=2", "--currency=EUR")


def test_database_may_be_named_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """@FILE stands for the URL in a file, as an option and as a variable; a file that cannot be read is named."""
    file, url = tmp_path / "database", "postgresql://wattwise:secret@db/wattwise"
    file.write_text(f"{url}\n")
    assert parsed("--database", f"@{file}").database == url
    monkeypatch.setenv("WATTWISE_DATABASE", f"@{file}")
    assert parsed().database == url
    file.unlink()
    with pytest.raises(SystemExit) as left:
        parsed()
    assert left.value.code == 2
    assert str(file) in capsys.readouterr().err
