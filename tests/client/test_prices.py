"""Prices of energy and of GPUs in place of eta."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise import BatchSizeOptimizer, Client, EstimateMonitor, GpuGroup, JobSpec, eta_from_prices, v1
from wattwise.drafts import resolved
from wattwise.errors import InvalidArgumentError, InvalidJobSpecError, JobDiffersError, Violation
from wattwise.spec import cost, job_message
from wattwise.training.assigned import spec_from_json, spec_to_json

from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer

NOWHERE = "127.0.0.1:1"
"""No server listens here."""

EIGHT = GpuGroup(gpu_model="Test GPU", count=8, max_power_watts_per_gpu=700.0)
PRICES: dict[str, Any] = {"energy_price_per_kwh": 0.39, "gpu_hour_price": 2.5}
ETA = 0.098449
"""0.39 · 0.7 / (0.39 · 0.7 + 2.5), rounded."""


def priced(**changes: Any) -> JobSpec:
    """A job with prices and eight GPUs."""
    return job_spec(**{"eta_knob": None, "gpu": EIGHT, **PRICES, **changes})


def eta(**changes: Any) -> float:
    """The eta of prices."""
    return eta_from_prices(**{**PRICES, "max_power_watts_per_gpu": 700.0, **changes})


def faulty(spec: JobSpec) -> list[str]:
    """The faulty fields of a job that is refused before it is sent."""
    with pytest.raises(InvalidJobSpecError) as refused:
        job_message(spec)
    assert refused.value.reason == "ERROR_REASON_INVALID_JOB_SPEC"
    return [fault.field for fault in refused.value.violations]


@given(
    energy_price=st.floats(0.01, 10),
    gpu_hour_price=st.floats(0.001, 100),
    count=st.integers(1, 64),
    watts=st.floats(50, 1500),
    share=st.floats(0.05, 1),
    seconds=st.floats(1, 1e6),
)
def test_cost_is_proportional_to_money(
    *, energy_price: float, gpu_hour_price: float, count: int, watts: float, share: float, seconds: float
) -> None:
    """The cost of a trial is its price in money times one factor of the job, within a hundred-thousandth."""
    power = watts * count
    spec = priced(
        energy_price_per_kwh=energy_price,
        gpu_hour_price=gpu_hour_price,
        gpu=GpuGroup(gpu_model="X", count=count, max_power_watts_per_gpu=watts),
    )
    energy = share * power * seconds
    per_joule, per_second = energy_price / 3.6e6, gpu_hour_price * count / 3600
    money = cost(resolved(job_message(spec)), seconds, energy) * (per_joule + per_second / power)
    assert money == pytest.approx(per_joule * energy + per_second * seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ETA),
        ({"energy_price_per_kwh": np.float64(0.39), "gpu_hour_price": np.float32(2.5)}, ETA),
        ({"max_power_watts_per_gpu": 700.0000001}, ETA),
        ({"max_power_watts_per_gpu": 700}, ETA),
        ({"gpu_hour_price": 0}, 1.0),
        ({"energy_price_per_kwh": 0}, 0.0),
        ({"energy_price_per_kwh": 0, "gpu_hour_price": 5e-324}, 0.0),
        ({"energy_price_per_kwh": 1.7e308, "gpu_hour_price": 1.7e308}, 0.411765),
    ],
)
def test_eta_of_prices(changes: dict[str, Any], expected: float) -> None:
    """Eta is the share of energy in the price of an hour at max power, rounded to 6 decimals."""
    assert eta(**changes) == expected


def test_rounding_errors_of_prices_do_not_matter() -> None:
    """0.2 * 1.4 is another float than 0.28, and gives the same eta."""
    computed, written = 0.2 * 1.4, 0.28
    assert computed != written
    assert eta(energy_price_per_kwh=computed) == eta(energy_price_per_kwh=written)


@pytest.mark.parametrize("kind", [Decimal, Fraction, np.float32, np.int64])
def test_prices_of_any_number_type(kind: Callable[[str], Any]) -> None:
    """A price may be a number of any type, as programs that compute with money use decimals."""
    assert eta(gpu_hour_price=kind("2")) == eta(gpu_hour_price=2.0)
    assert job_message(priced(gpu_hour_price=kind("2"))).eta_knob == eta(gpu_hour_price=2.0)


@given(st.floats(0.001, 1000), st.floats(0.001, 1000))
def test_tables_print_eta_in_full(energy_price: float, gpu_hour_price: float) -> None:
    """What `wattwise jobs show` prints is the registered value, which may be copied."""
    value = eta(energy_price_per_kwh=energy_price, gpu_hour_price=gpu_hour_price)
    assert float(f"{value:g}") == value


@pytest.mark.parametrize("name", ["energy_price_per_kwh", "gpu_hour_price"])
@pytest.mark.parametrize(
    "price",
    [-0.01, math.nan, math.inf, "0.3", True, [0.3], 1j, 10**400, *map(Decimal, ("-0.3", "NaN", "sNaN", "1e400"))],
)
def test_price_that_is_wrong(name: str, price: object) -> None:
    """A price is a finite number of 0 or more; a job and the function name the one that is not."""
    assert faulty(priced(**{name: price})) == [f"job.{name}"]
    with pytest.raises(InvalidArgumentError, match=f"^{name} "):
        eta(**{name: price})


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"gpu_hour_price": None}, ["job.gpu_hour_price"]),
        ({"energy_price_per_kwh": None}, ["job.energy_price_per_kwh"]),
        ({"energy_price_per_kwh": 0, "gpu_hour_price": 0.0}, ["job.energy_price_per_kwh"]),
        ({"eta_knob": 0.0}, ["job.eta_knob"]),
        ({"eta_knob": 0.5, "gpu_hour_price": None}, ["job.eta_knob"]),
        ({"gpu": None}, ["job.gpu"]),
        ({"gpu": None, "gpu_hour_price": -1}, ["job.gpu_hour_price", "job.gpu"]),
        (
            {"gpu": GpuGroup(gpu_model="X", count=0, max_power_watts_per_gpu=0.0)},
            ["job.gpu.max_power_watts_per_gpu"],
        ),
    ],
)
def test_prices_that_do_not_give_an_eta(changes: dict[str, Any], fields: list[str]) -> None:
    """One price, two zeros, an eta beside prices, and prices without GPUs are refused, all faults at once."""
    assert faulty(priced(**changes)) == fields


@pytest.mark.parametrize(
    "changes",
    [
        {"energy_price_per_kwh": None, "gpu_hour_price": None},
        {"max_power_watts_per_gpu": -1.0},
        {"max_power_watts_per_gpu": math.inf},
    ],
)
def test_function_names_what_is_wrong(changes: dict[str, Any]) -> None:
    """The error of the function names every wrong argument."""
    with pytest.raises(InvalidArgumentError) as refused:
        eta(**changes)
    assert [name for name in changes if name not in str(refused.value)] == []


def test_wording_for_one_price() -> None:
    """The error for a missing price says what 0 means there."""
    for name, zero in (("gpu_hour_price", "eta_knob 1"), ("energy_price_per_kwh", "eta_knob 0")):
        with pytest.raises(InvalidJobSpecError, match=f"{name}: is missing.* 0.*{zero}$"):
            job_message(priced(**{name: None}))


def test_specs_with_prices_are_copied_and_pickled() -> None:
    """A copy has the prices, equals the original, and gives the same eta; `replace` computes it again."""
    spec = priced()
    for copied in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), replace(spec)):  # noqa: S301 - our own bytes
        assert (copied, job_message(copied)) == (spec, job_message(spec))
    assert spec != priced(gpu_hour_price=2.6)
    assert job_message(replace(spec, gpu_hour_price=0)).eta_knob == 1.0


def test_json_of_the_driver_has_eta() -> None:
    """A command in any language reads eta in the driver's JSON, and a Python client registers the same job."""
    spec = priced()
    text = spec_to_json(spec)
    assert (json.loads(text)["eta_knob"], "price" in text) == (ETA, False)
    assert spec_from_json(text) == replace(spec, eta_knob=ETA, energy_price_per_kwh=None, gpu_hour_price=None)
    assert job_message(spec_from_json(text)) == job_message(spec)


def test_registration_logs_eta(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server gets the computed eta, and one line says so; an equal eta without prices is the same job."""
    caplog.set_level(logging.INFO, logger="wattwise")
    spec = priced()
    with Client(grpc_addr) as client:
        assert client.register_job(spec).job.spec.eta_knob == ETA
        (line,) = [message for message in caplog.messages if "eta_knob" in message]
        assert {str(ETA), "0.39", "2.5", repr(spec.job_id)} <= set(line.replace(":", " ").replace("=", " ").split())
        by_hand = replace(spec, eta_knob=ETA, energy_price_per_kwh=None, gpu_hour_price=None)
        assert not client.register_job(by_hand).created
        assert not client.register_job(spec).created


def test_gpus_of_the_monitor(grpc_addr: str) -> None:
    """Without `gpu`, the power and the number of GPUs are the monitor's, at every launch."""
    spec = priced(gpu=None)
    for _ in range(2):
        with BatchSizeOptimizer(grpc_addr, spec, monitor=EstimateMonitor(watts=1000)) as bso:
            bso.get_batch_size()
            assert bso.trial.job.eta_knob == eta(max_power_watts_per_gpu=1000) == 0.134948


@pytest.mark.parametrize("change", [{"gpu_hour_price": 2.0}, {"gpu": replace(EIGHT, max_power_watts_per_gpu=1000.0)}])
def test_changed_price_or_gpu(grpc_addr: str, change: dict[str, Any]) -> None:
    """The refusal names the prices that eta was computed from; the registered eta is still accepted."""
    spec = priced()
    with BatchSizeOptimizer(grpc_addr, spec, monitor=StepMonitor()) as bso:
        bso.get_batch_size()
    changed = replace(spec, **change)
    with pytest.raises(JobDiffersError) as refused:
        BatchSizeOptimizer(grpc_addr, changed, monitor=StepMonitor()).get_batch_size()
    now = job_message(changed).eta_knob
    assert refused.value.reason == "ERROR_REASON_JOB_DIFFERS"
    assert Violation("job.eta_knob", f"registered {ETA}, requested {now}") in refused.value.violations
    assert f"eta_knob={now} is computed from energy_price_per_kwh=0.39 and gpu_hour_price=" in str(refused.value)
    kept = replace(spec, eta_knob=ETA, energy_price_per_kwh=None, gpu_hour_price=None)
    with BatchSizeOptimizer(grpc_addr, kept, monitor=StepMonitor()) as bso:
        assert bso.get_batch_size() in spec.batch_sizes


def test_other_differences_do_not_mention_prices(grpc_addr: str) -> None:
    """A refusal for another field than eta is the server's alone."""
    spec = priced()
    with Client(grpc_addr) as client:
        client.register_job(spec)
        with pytest.raises(JobDiffersError) as refused:
            client.register_job(replace(spec, max_epochs=7))
    assert [each.field for each in refused.value.violations] == ["job.max_epochs"]
    assert "computed" not in str(refused.value)


@pytest.mark.parametrize("fallback", ["default", 32])
def test_fallback_with_prices(fallback: int | str) -> None:
    """A launch without a server knows the eta of its job; its prices are checked."""
    monitor = EstimateMonitor(watts=1000)
    with BatchSizeOptimizer(NOWHERE, priced(gpu=None), monitor=monitor, timeout=0.0, fallback=fallback) as bso:
        assert bso.get_batch_size() == (16 if fallback == "default" else fallback)
        assert bso.trial.job.eta_knob == 0.134948
    with pytest.raises(InvalidJobSpecError) as refused:
        BatchSizeOptimizer(
            NOWHERE, priced(gpu=None, gpu_hour_price=-1), monitor=monitor, timeout=0.0, fallback=fallback
        ).get_batch_size()
    assert [fault.field for fault in refused.value.violations] == ["job.gpu_hour_price"]


def test_fallback_is_delivered_with_eta(server: LiveServer) -> None:
    """A trial that ran without the server is delivered to the job that later launches register."""
    spec = priced(gpu=None)
    server.kill()
    with BatchSizeOptimizer(
        server.address, spec, monitor=EstimateMonitor(watts=1000), timeout=0.0, fallback="default"
    ) as bso:
        for _ in bso.epochs():
            bso.on_evaluate(0.95)
    server.start()
    with BatchSizeOptimizer(server.address, spec, monitor=EstimateMonitor(watts=1000)) as bso:
        bso.get_batch_size()
        with Client(server.address) as client:
            imported, _ = client.trials(str(spec.job_id))
    assert (imported.origin, bso.trial.job.eta_knob) == (v1.TRIAL_ORIGIN_IMPORTED, 0.134948)
