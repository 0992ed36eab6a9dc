"""Prices of energy and of GPUs as the weight of energy in a job's cost.

    E    energy of a trial, J                p_E  price of energy per J: energy_price_per_kwh / 3.6e6
    T    its time, s                         p_T  price of time per s and GPU: gpu_hour_price / 3600
    P    max power of one GPU, W             η    eta_knob
    n    number of GPUs

A trial costs p_E·E + n·p_T·T in money, and η·E + (1−η)·n·P·T in joules (You, Chung, Chowdhury, NSDI 2023, equation
2). One is proportional to the other, for every E and T, if (1−η)·P / η = p_T / p_E; hence

    η = p_E·P / (p_E·P + p_T),

the share of energy in the price of an hour of one GPU at max power.
"""

from __future__ import annotations

from collections.abc import Iterator

from wattwise.errors import InvalidArgumentError
from wattwise.rules import finite, watts_fault

PRICES = ("energy_price_per_kwh", "gpu_hour_price")
"""The fields of `JobSpec` that are prices."""

_DECIMALS = 6
_MISSING = {
    "energy_price_per_kwh": "use 0 if the price of a GPU's hour includes its energy: only time counts then, as with "
    "eta_knob 0",
    "gpu_hour_price": "use what an hour of one GPU costs, in rent or depreciation, or 0: only energy counts then, as "
    "with eta_knob 1",
}


def eta_from_prices(*, energy_price_per_kwh: float, gpu_hour_price: float, max_power_watts_per_gpu: float) -> float:
    """Returns the `eta_knob` with which the cost of a trial is proportional to its price in money.

        eta = eta_from_prices(energy_price_per_kwh=0.4, gpu_hour_price=2.5, max_power_watts_per_gpu=700)

    It is e / (e + t), where e = energy_price_per_kwh · max_power_watts_per_gpu / 1000 and t = gpu_hour_price are the
    prices of an hour of one GPU at max power: the cost η·E + (1−η)·P·T (You, Chung, Chowdhury, NSDI 2023, equation 2)
    is then proportional to the price of the energy E and the time T, whatever the number of GPUs.

    The result is rounded to 6 decimals, since every launch of a job must register the same value: 0.2 * 1.4 and 0.28
    differ in their last digits. `wattwise jobs show` prints all 6. Rounding changes no cost by more than a
    hundred-thousandth, as long as the GPUs draw at least a twentieth of their max power.

    Args:
        energy_price_per_kwh: the price of a kilowatt-hour, in any currency.
        gpu_hour_price: the price of an hour of one GPU, in the same currency.
        max_power_watts_per_gpu: the max power of one GPU in watts, as in `GpuGroup`.

    Raises:
        InvalidArgumentError: if both prices are 0, or a number is not finite or too low.
    """
    faults = [*price_faults(energy_price_per_kwh, gpu_hour_price), *power_faults(max_power_watts_per_gpu)]
    if faults:
        raise InvalidArgumentError("; ".join(f"{name} {fault}" for name, fault in faults))
    # Imported here because few jobs have prices.
    from fractions import Fraction  # noqa: PLC0415

    # Exact: floats of extreme prices would be infinite or zero.
    energy = Fraction(float(energy_price_per_kwh)) * Fraction(float(max_power_watts_per_gpu)) / 1000
    time = Fraction(float(gpu_hour_price))
    return float(round(energy / (energy + time), _DECIMALS))


def price_faults(
    energy_price_per_kwh: object, gpu_hour_price: object, eta_knob: object = None
) -> Iterator[tuple[str, str]]:
    """Yields pairs of a field of `JobSpec` and what to change, if a price is given; a field that is not is None."""
    values = dict(zip(PRICES, (energy_price_per_kwh, gpu_hour_price), strict=True))
    given = {name: price for name, price in values.items() if price is not None}
    for name, price in given.items():
        if not finite(price) >= 0:
            yield name, f"is {price!r}; use a finite number, 0 or more"
    if eta_knob is not None:
        yield "eta_knob", f"is set, although it is computed from {' and '.join(given)}; remove it, or the prices"
    elif len(given) < len(PRICES):
        for name in values:
            if name not in given:
                yield name, f"is missing, and both prices are needed; {_MISSING[name]}"
    elif not any(map(finite, given.values())):
        yield PRICES[0], f"is 0, as is {PRICES[1]}, so that trials cost nothing; use a price above 0 for one of them"


def power_faults(max_power_watts_per_gpu: object) -> Iterator[tuple[str, str]]:
    """Yields pairs of a field of `GpuGroup` and what to change."""
    if fault := watts_fault(max_power_watts_per_gpu):
        yield "max_power_watts_per_gpu", fault
