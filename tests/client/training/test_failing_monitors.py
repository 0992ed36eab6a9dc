"""Monitors that fail during training: the RAPL monitor when its counter disappears, and third-party monitors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, CombinedMonitor, EstimateMonitor, Monitor, RaplMonitor, v1
from wattwise.errors import MetricTypeError, MonitorError
from wattwise.monitor import Window
from wattwise.monitor.plausible import CheckedMonitor

from tests.client.monitor.test_rapl import count, make_zone
from tests.client.training.script import GPU, StepMonitor, job_spec


@contextmanager
def training(address: str, monitor: Monitor) -> Iterator[BatchSizeOptimizer]:
    """A training at the start of its first epoch."""
    with BatchSizeOptimizer(address, job_spec(), monitor=monitor) as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        yield bso


def measurements(address: str, bso: BatchSizeOptimizer) -> Sequence[v1.Measurement]:
    """The measurements that the server has."""
    with Client(address) as client:
        return list(client.measurements(bso.trial))


def test_counter_that_disappears_and_returns(grpc_addr: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Epochs that cannot be measured are estimated from the mean power of those before; each outage is logged once."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0")
    with training(grpc_addr, RaplMonitor(tmp_path)) as bso:
        count(counter, 50_000_000)
        bso.on_evaluate(0.1)  # measured
        counter.unlink()
        bso.on_evaluate(0.2)  # the window was opened, and cannot be closed
        bso.on_evaluate(0.3)  # the window cannot be opened
        count(counter, 70_000_000)
        bso.on_evaluate(0.4)  # likewise, but the next window can be opened
        count(counter, 75_000_000)
        bso.on_evaluate(0.5)
    first, second, third, fourth, fifth = measurements(grpc_addr, bso)
    watts = first.energy_joules / first.time_seconds
    assert first.energy_joules == 50
    for estimated in (second, third, fourth):
        assert estimated.energy_joules == pytest.approx(watts * estimated.time_seconds)
    assert first.time_seconds < second.time_seconds < third.time_seconds < fourth.time_seconds
    assert fifth.energy_joules == pytest.approx(fourth.energy_joules + 5)
    (warning,) = [record.getMessage() for record in caplog.records if "energy" in record.getMessage()]
    assert "energy_uj" in warning
    assert "this trial's mean power so far" in warning


def test_first_epoch_cannot_be_measured(grpc_addr: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A first epoch that cannot be measured is estimated from the job's maximum power."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0")
    with training(grpc_addr, RaplMonitor(tmp_path)) as bso:
        counter.unlink()
        bso.on_evaluate(0.1)
    (first,) = measurements(grpc_addr, bso)
    assert first.energy_joules == pytest.approx(GPU.max_power_watts * first.time_seconds)
    assert "100 W" in caplog.text


def test_first_window_cannot_be_opened(grpc_addr: str, tmp_path: Path) -> None:
    """A monitor that fails before the training raises."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0")
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=RaplMonitor(tmp_path)) as bso:
        bso.get_batch_size()
        counter.unlink()
        with pytest.raises(MonitorError, match="energy_uj"):
            bso.on_train_begin()


class Odd(StepMonitor):
    """A third-party monitor that returns or raises `answer`."""

    max_power_watts: float | None = None

    def __init__(self, answer: Window | Exception) -> None:
        super().__init__()
        self.answer = answer

    def end_window(self, name: str) -> Window:
        super().end_window(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class OddProcessor(Odd):
    """The same, of another device."""

    kind = "odd"
    gpu_indices = ()  # type: ignore[assignment]


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("GPU is lost"),
        Window(time=1.0, total_energy=math.nan),
        Window(time=1.0, total_energy=-1.0),
        Window(time=-1.0, total_energy=1.0),
        Window(time=1.0, total_energy=2.5 * GPU.max_power_watts),
        Window(time=3600.0, total_energy=1.0),
    ],
)
def test_third_party_monitors(grpc_addr: str, answer: Window | Exception, caplog: pytest.LogCaptureFixture) -> None:
    """If a third-party monitor raises, or returns an impossible energy or time, the energy is estimated."""
    with training(grpc_addr, Odd(answer)) as bso:
        bso.on_evaluate(0.1)
    (first,) = measurements(grpc_addr, bso)
    assert 0 <= first.time_seconds < 1
    assert first.energy_joules == pytest.approx(GPU.max_power_watts * first.time_seconds)
    assert caplog.text.count("energy cannot be measured (") == 1
    with Client(grpc_addr) as client:
        trial, job = client.get_trial(bso.trial).trial, client.get_job(bso.trial.job_id).job
    for monitor in (trial.monitor, job.monitor):
        assert (list(monitor.kinds), monitor.quality) == (["custom"], v1.ENERGY_QUALITY_PARTLY_ESTIMATED)


def test_monitors_own_maximum(grpc_addr: str) -> None:
    """A monitor that states its highest power may exceed that of the job's GPUs, but not its own."""
    monitor = Odd(Window(time=1.0, total_energy=900.0))
    monitor.max_power_watts = 1000.0
    with training(grpc_addr, monitor) as bso:
        bso.on_evaluate(0.1)
        monitor.answer = Window(time=1.0, total_energy=1200.0)
        bso.on_evaluate(0.2)
    first, second = measurements(grpc_addr, bso)
    assert first.energy_joules == 900
    assert second.energy_joules < 1000


@pytest.mark.parametrize("answer", [Window(1.0, -1.0), Window(3600.0, 1.0), Window(1.0, math.nan)])
def test_implausible_part_of_a_combination(grpc_addr: str, answer: Window, caplog: pytest.LogCaptureFixture) -> None:
    """Every monitor of a combination is checked, so that no other one makes up for it."""
    with training(grpc_addr, CombinedMonitor(StepMonitor(), OddProcessor(answer))) as bso:
        bso.on_evaluate(0.1)
    (first,) = measurements(grpc_addr, bso)
    assert first.energy_joules == pytest.approx(GPU.max_power_watts * first.time_seconds)
    assert caplog.text.count("energy cannot be measured (") == 1


def test_processors_beside_gpus(grpc_addr: str, tmp_path: Path) -> None:
    """What processors draw does not count against the limit of the GPUs."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0")
    with training(grpc_addr, CombinedMonitor(StepMonitor(), RaplMonitor(tmp_path))) as bso:
        count(counter, 900_000_000)
        bso.on_evaluate(0.1)
    (first,) = measurements(grpc_addr, bso)
    assert first.energy_joules == 910


def test_power_of_a_part_of_a_combination(grpc_addr: str, tmp_path: Path) -> None:
    """A part without a maximum of its own is compared with the power of the job's GPUs, whatever the others measure."""
    make_zone(tmp_path, "intel-rapl:0", "package-0")
    answer = Window(time=1.0, total_energy=2.5 * GPU.max_power_watts)
    with training(grpc_addr, CombinedMonitor(Odd(answer), RaplMonitor(tmp_path))) as bso:
        bso.on_evaluate(0.1)
    (first,) = measurements(grpc_addr, bso)
    assert first.energy_joules == pytest.approx(GPU.max_power_watts * first.time_seconds)


class SlowCounter(StepMonitor):
    """Its counter grows by 500 J in every third window."""

    windows = 0

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        super().end_window(name)
        self.windows += 1
        return Window(time=1.0, total_energy=0.0 if self.windows % 3 else 500.0)


def test_counter_that_changes_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The energy of windows in which a counter did not change is that of the next one."""
    now = 0.0

    def seconds() -> float:
        return now

    monkeypatch.setattr("wattwise.monitor.plausible.time.monotonic", seconds)
    monitor = CheckedMonitor(SlowCounter(), GPU.max_power_watts)
    joules = []
    for _ in range(6):
        monitor.begin_window("epoch")
        now += 1.0
        joules.append(monitor.end_window("epoch").total_energy)
    assert joules == [0, 0, 500, 0, 0, 500]


@pytest.mark.parametrize("watts", [0, -1.0, math.nan, "300"])
def test_maximum_that_is_no_power(grpc_addr: str, watts: Any) -> None:
    """The error comes before the trial, and names the attribute."""
    monitor = Odd(Window(1.0, 1.0))
    monitor.max_power_watts = watts
    with (
        BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor) as bso,
        pytest.raises(MonitorError, match="max_power_watts"),
    ):
        bso.get_batch_size()


class CrashedGpu(EstimateMonitor):
    """A Wattwise monitor that waits for a GPU on which the training has crashed."""

    def end_window(self, _name: str, /) -> Window:
        raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize("also", [(), (StepMonitor(),)], ids=["alone", "combined"])
def test_error_of_the_training_in_a_monitor(grpc_addr: str, also: tuple[Monitor, ...]) -> None:
    """An asynchronous GPU error that surfaces in a Wattwise monitor reaches the user unchanged."""
    monitor: Monitor = CombinedMonitor(CrashedGpu(65), *also) if also else CrashedGpu(65)
    with training(grpc_addr, monitor) as bso, pytest.raises(RuntimeError, match="device-side assert"):
        bso.on_evaluate(0.1)


def test_third_party_monitor_in_a_combination(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its exception counts as a failure of the monitor, and the energy is estimated."""

    class Broken(StepMonitor):
        def end_window(self, _name: str, /) -> Window:
            raise RuntimeError("no answer from the wall plug")

    with training(grpc_addr, CombinedMonitor(EstimateMonitor(65), Broken())) as bso:
        bso.on_evaluate(0.1)
    assert "no answer from the wall plug" in caplog.text


class OnTheGpu:
    """A number that a failed GPU has not computed yet."""

    def __init__(self, count: int) -> None:
        self._count = count

    def numel(self) -> int:
        return self._count

    def __float__(self) -> float:
        raise RuntimeError("CUDA error: out of memory")


def test_metric_on_a_failed_gpu(grpc_addr: str) -> None:
    """The GPU's error for a single number is raised unchanged; an array of several numbers is not a metric."""
    with training(grpc_addr, EstimateMonitor(65)) as bso:
        with pytest.raises(MetricTypeError):
            bso.on_evaluate(OnTheGpu(2))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
            bso.on_evaluate(OnTheGpu(1))  # type: ignore[arg-type]


class CoarseMonitor(StepMonitor):
    """Its clock is too coarse for its windows."""

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        return Window(time=0.0, total_energy=super().end_window(name).total_energy)


def test_window_without_time(grpc_addr: str) -> None:
    """The time of a window in which the monitor's clock did not advance is above 0, as the server requires."""
    with training(grpc_addr, CoarseMonitor()) as bso:
        bso.on_evaluate(0.1)
        bso.on_evaluate(0.2)
    first, second = measurements(grpc_addr, bso)
    assert 0 < first.time_seconds < second.time_seconds
    assert second.energy_joules == 20
