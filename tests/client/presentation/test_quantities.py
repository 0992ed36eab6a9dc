"""Quantities as text."""

from __future__ import annotations

import math

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from wattwise import v1
from wattwise.presentation.quantities import (
    MINUS,
    age,
    duration,
    energy,
    epochs,
    estimate_mark,
    joules,
    marked,
    metric,
    moment,
    money,
    spread,
)
from wattwise.spec import enum_name

from tests.jobs import monitor_of

FAILED = v1.Monitor(kinds=["nvml"], quality=v1.ENERGY_QUALITY_PARTLY_ESTIMATED)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 J"),
        (2e-3, "2.00 mJ"),
        (-0.095, f"{MINUS}0.0950 J"),
        (0.523, "0.523 J"),
        (9.994, "9.99 J"),
        (9.996, "10.0 J"),
        (999.4, "999 J"),
        (999.6, "1.00 kJ"),
        (12_345, "12.3 kJ"),
        (-1_200_000, f"{MINUS}1.20 MJ"),
        (5e18, "5,000 PJ"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_joules(value: float, text: str) -> None:
    """An energy has three significant digits and a prefix that fits."""
    assert joules(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.0023, "2.3 ms"),
        (0.08, "80 ms"),
        (0.1, "0.1 s"),
        (8.24, "8.2 s"),
        (59.97, "1 min 00 s"),
        (725, "12 min 05 s"),
        (3599.6, "1 h 00 min"),
        (11_220, "3 h 07 min"),
        (86_399, "1 d 00 h"),
        (187_200, "2 d 04 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    """A duration has its two largest units, and never sixty of the smaller one."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00 EUR"), (0.03124, "0.0312 EUR"), (1, "1.00 EUR"), (-1234.5, f"{MINUS}1,234.50 EUR")],
)
def test_money(value: float, text: str) -> None:
    """Money has cents, and three digits only where they say more."""
    assert money(value, "EUR") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_345, "12.3 kJ"), (360_000, "0.100 kWh"), (4.5e7, "12.5 kWh"), (4.32e9, "1.20 MWh"), (math.inf, "unknown")],
)
def test_energy(value: float, text: str) -> None:
    """Energy is in kilowatt-hours from a tenth of one on."""
    assert energy(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.9, "0.9"), (0.95123, "0.9512"), (12.0, "12"), (1234.56, "1,235")])
def test_metric(value: float, text: str) -> None:
    """A metric has up to four significant digits, without zeros at the end."""
    assert metric(value) == text


@pytest.mark.parametrize(("precision", "text"), [(0, "unknown"), (1e-6, "1.00 kJ"), (math.inf, "0.00 J")])
def test_spread(precision: float, text: str) -> None:
    """A precision is shown as the standard deviation 1/√precision."""
    assert spread(precision, joules) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (119.9, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_age(seconds: float, text: str) -> None:
    """An age has one unit, which begins with 2 of it."""
    assert age(seconds) == text


@pytest.mark.parametrize(("mean", "text"), [(6.0, "6"), (12.0, "12"), (6.5, "6.5"), (10.44, "10.4"), (1240.0, "1,240")])
def test_epochs(mean: float, text: str) -> None:
    """A mean number of epochs has a decimal only if that is not 0."""
    assert epochs(mean) == text


def test_marked() -> None:
    """An amount has the mark in front; an unknown amount has none."""
    text = marked(joules, "~")
    assert [text(value) for value in (5.0, -1.2e6, math.nan)] == ["~5.00 J", f"~{MINUS}1.20 MJ", "unknown"]


def test_moment() -> None:
    """A point in time is in UTC and says so."""
    assert moment(Timestamp(seconds=1_000_000_000)) == "2001-09-09 01:46:40 UTC"


def test_enum_name() -> None:
    """An enum's value is shown as words, and one that this version does not know by its number."""
    assert enum_name(v1.EndReason, v1.END_REASON_OUT_OF_MEMORY) == "out of memory"
    assert enum_name(v1.EndReason, 99) == "end reason 99"


@pytest.mark.parametrize(
    ("monitors", "mark"),
    [
        ((monitor_of("estimate"),), "~"),
        ((monitor_of("estimate"), v1.Monitor()), "~"),
        ((monitor_of("nvml"), monitor_of("estimate")), "~"),
        ((monitor_of("nvml", "estimate"),), "~"),
        ((FAILED,), "~"),
        ((FAILED, monitor_of("estimate")), "~"),
        ((monitor_of("nvml", "rapl"), monitor_of("zeus")), ""),
        ((monitor_of("estimated by eye"),), ""),
        ((v1.Monitor.FromString(b"\x0a\x04nvml\x10\x63"),), "~"),
        ((v1.Monitor(kinds=["nvml"]), monitor_of("nvml")), "~"),
        ((v1.Monitor(),), ""),
        ((), ""),
    ],
)
def test_mark(monitors: tuple[v1.Monitor, ...], mark: str) -> None:
    """Joules are marked if some of their sources estimate."""
    assert estimate_mark(*monitors) == mark
